/*
 * Tokens to text as they arrive: only whole characters leave, and what leaves is valid UTF-8.
 *
 * A character whose bytes are spread over several tokens is held back until it is complete. Bytes
 * that are part of no character become U+FFFD (one for each maximal part of one, as Unicode
 * recommends); an incomplete tail does so at the end of the stream, or when a control token cuts
 * it off.
 *
 * What a terminal shows. Structure is cli/parser.h's: control tokens have no text of their own and
 * the words of a tag are not text (unless WASTE_DETOK_SPECIALS, where nothing is structure), and of
 * the channels that text belongs to, the answer is shown and thinking if asked for.
 *
 * No state is shared: one detokenizer a stream, any thread. Nothing to free.
 */
#ifndef WASTE_CLI_DETOKENIZER_H
#define WASTE_CLI_DETOKENIZER_H

#include "cli/parser.h"
#include "cli/text.h"

enum waste_detok_flag {
    WASTE_DETOK_SPECIALS = 1, /* everything in sight: control tokens as their texts, tag words, all
                                 channels (what `detokenize` prints) */
    WASTE_DETOK_THINK = 2,    /* the thinking channel too */
};

struct waste_detokenizer {
    struct waste_parser parser;
    unsigned flags;
    struct waste_text *out; /* of the call at hand */
};

/* `tokenizer` must outlive it. Nothing to finish or free. */
void waste_detok_init(struct waste_detokenizer *d, const struct waste_tokenizer *tokenizer,
                      unsigned flags);

/* Takes the prompt's ids for their structure (which tags are open when the reply starts); shows
 * nothing. */
void waste_detok_prompt(struct waste_detokenizer *d, const uint32_t *ids, size_t count);

/*
 * One generated id: appends to `out` what can be shown now (perhaps nothing). An id the tokenizer
 * does not know shows as U+FFFD. 0 or -ENOMEM.
 */
int waste_detok_add(struct waste_detokenizer *d, uint32_t id, struct waste_text *out);

/* The end of the stream: an incomplete character leaves as U+FFFD. */
int waste_detok_end(struct waste_detokenizer *d, struct waste_text *out);

/* All of it at once. */
int waste_detokenize(const struct waste_tokenizer *tokenizer, unsigned flags, const uint32_t *ids,
                     size_t count, struct waste_text *out);

#endif
