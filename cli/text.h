/* Growing text, always NUL-terminated once something was added; all zero is an empty one. */
#ifndef WASTE_CLI_TEXT_H
#define WASTE_CLI_TEXT_H

#include <stddef.h>

struct waste_text {
    char *data;
    size_t bytes, room;
};

int waste_text_add(struct waste_text *text, const char *data, size_t bytes); /* 0 or -ENOMEM */

/* The same of text that may be no UTF-8: what is no character becomes U+FFFD. */
int waste_text_add_utf8(struct waste_text *text, const char *data, size_t bytes);

void waste_text_finish(struct waste_text *text);

#endif
