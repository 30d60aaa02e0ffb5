#include "cli/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int waste_text_add(struct waste_text *text, const char *data, size_t bytes)
{
    if (bytes >= text->room - text->bytes) {
        size_t room = text->room ? text->room : 64;
        char *grown;

        while (room - text->bytes <= bytes)
            room *= 2;
        grown = realloc(text->data, room);
        if (grown == NULL)
            return -ENOMEM;
        text->data = grown;
        text->room = room;
    }
    if (bytes > 0)
        memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
    text->data[text->bytes] = '\0';
    return 0;
}

void waste_text_finish(struct waste_text *text)
{
    free(text->data);
    memset(text, 0, sizeof(*text));
}
