/* Growing text, always NUL-terminated once something was added; all zero is an empty one. */
#ifndef WASTE_CLI_TEXT_H
#define WASTE_CLI_TEXT_H

#include <stddef.h>

struct waste_text {
    char *data;
    size_t bytes, room;
};

int waste_text_add(struct waste_text *text, const char *data, size_t bytes); /* 0 or -ENOMEM */
void waste_text_finish(struct waste_text *text);

#endif
