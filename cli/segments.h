/*
 * What a conversation becomes: a list of pieces, each of them markup (its special tokens' texts are
 * those tokens) or words (they are not). Each piece becomes ids by itself.
 */
#ifndef WASTE_CLI_SEGMENTS_H
#define WASTE_CLI_SEGMENTS_H

#include <stdbool.h>

#include "cli/text.h"
#include "cli/tokenizer.h"

struct waste_segment {
    size_t at, bytes; /* in the text */
    bool markup;
};

/* All zero is an empty list. After a failure (`error`) further pieces are not taken. */
struct waste_segments {
    struct waste_text text;
    struct waste_segment *segment;
    size_t count, room;
    int error; /* 0 or -ENOMEM */
};

/* An empty piece is none. */
void waste_segments_add(struct waste_segments *s, bool markup, const char *text, size_t bytes);
void waste_segments_words(struct waste_segments *s, const char *text);
void waste_segments_markup(struct waste_segments *s, const char *text);
void waste_segments_finish(struct waste_segments *s);

/* Appends the ids. 0 or -ENOMEM, also when the list could not be made. */
int waste_segments_encode(const struct waste_segments *s, const struct waste_tokenizer *t,
                          struct waste_ids *out);

#endif
