/*
 * Tokens to text as they arrive: only whole characters leave, and what leaves is valid UTF-8.
 *
 * A character whose bytes are spread over several tokens is held back until it is complete. Bytes
 * that are part of no character become U+FFFD (one for each maximal part of one, as Unicode
 * recommends); an incomplete tail does so at the end of the stream, or when a control token cuts
 * it off.
 *
 * What a terminal shows. Control tokens have no text of their own (unless WASTE_DETOK_SPECIALS),
 * and they structure a reply: in Kimi K3's markup (<|open|>tag attributes<|sep|> ...
 * <|close|>tag<|sep|>) and in Kimi-Linear's (<|im_user|>name<|im_middle|>...) the words of a tag
 * are not text either. Every piece of text belongs to a channel; the caller shows the channels it
 * likes. Structure comes from token ids only, never from text that looks like it.
 *
 * No state is shared: one detokenizer a stream, any thread.
 */
#ifndef WASTE_CLI_DETOKENIZER_H
#define WASTE_CLI_DETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/tokenizer.h"

enum waste_channel {
    WASTE_CHANNEL_TEXT,  /* the answer, or anything outside of markup */
    WASTE_CHANNEL_THINK, /* inside <|open|>think<|sep|> ... */
    WASTE_CHANNEL_TOOLS, /* tool calls and other structure that is not prose */
    WASTE_CHANNEL_TAG,   /* words of a tag */
    WASTE_CHANNEL_COUNT,
};

enum waste_detok_flag {
    WASTE_DETOK_SPECIALS = 1, /* everything in sight: control tokens as their texts, tag words, all
                                 channels (what `detokenize` prints) */
    WASTE_DETOK_THINK = 2,    /* the thinking channel too */
};

/* Growing text, always NUL-terminated once something was added; all zero is an empty one. */
struct waste_text {
    char *data;
    size_t bytes, room;
};
int waste_text_add(struct waste_text *text, const char *data, size_t bytes); /* 0 or -ENOMEM */
void waste_text_finish(struct waste_text *text);

/* Control tokens that structure a reply. X(ROLE, text) */
#define WASTE_CONTROLS(X)                                                                          \
    X(OPEN, "<|open|>")                                                                            \
    X(CLOSE, "<|close|>")                                                                          \
    X(SEP, "<|sep|>")                                                                              \
    X(END_OF_MSG, "<|end_of_msg|>")                                                                \
    X(IM_SYSTEM, "<|im_system|>")                                                                  \
    X(IM_USER, "<|im_user|>")                                                                      \
    X(IM_ASSISTANT, "<|im_assistant|>")                                                            \
    X(IM_MIDDLE, "<|im_middle|>")                                                                  \
    X(IM_END, "<|im_end|>")                                                                        \
    X(TOOLS_BEGIN, "<|tool_calls_section_begin|>")                                                 \
    X(TOOLS_END, "<|tool_calls_section_end|>")

#define WASTE_X(role, text) WASTE_CONTROL_##role,
enum waste_control_token { WASTE_CONTROLS(WASTE_X) WASTE_CONTROL_COUNT };
#undef WASTE_X

enum {
    WASTE_DETOK_DEPTH = 16, /* tags within each other; deeper ones count as their parents do */
    WASTE_DETOK_NAME = 16,  /* bytes of a tag kept: enough for the names that matter */
    WASTE_DETOK_TAG = 4096, /* a tag longer than this is damaged: what follows is text again */
};

struct waste_detokenizer {
    const struct waste_tokenizer *tokenizer;
    unsigned flags;
    enum waste_channel channel;                  /* of the next text */
    unsigned depth;                              /* open tags */
    enum waste_channel stack[WASTE_DETOK_DEPTH]; /* channel of each */
    int tag; /* control token that began the tag at hand, or -1 */
    unsigned tag_bytes;
    char tag_name[WASTE_DETOK_NAME];
    unsigned tail_bytes; /* of a character not complete yet */
    char tail[4];
    int64_t control[WASTE_CONTROL_COUNT]; /* their ids; -1 = not in this model */
};

/* `tokenizer` must outlive it. Nothing to finish or free. */
void waste_detok_init(struct waste_detokenizer *d, const struct waste_tokenizer *tokenizer,
                      unsigned flags);

/* Takes the prompt's ids for their structure (which tags are open when the reply starts); shows
 * nothing. */
void waste_detok_prompt(struct waste_detokenizer *d, const uint32_t *ids, size_t count);

/*
 * One generated id: appends to `out` what can be shown now (perhaps nothing). An id the tokenizer
 * does not know shows as U+FFFD. d->channel before the call is the channel of that text. 0 or
 * -ENOMEM.
 */
int waste_detok_add(struct waste_detokenizer *d, uint32_t id, struct waste_text *out);

/* The end of the stream: an incomplete character leaves as U+FFFD. */
int waste_detok_end(struct waste_detokenizer *d, struct waste_text *out);

/* All of it at once. */
int waste_detokenize(const struct waste_tokenizer *tokenizer, unsigned flags, const uint32_t *ids,
                     size_t count, struct waste_text *out);

#endif
