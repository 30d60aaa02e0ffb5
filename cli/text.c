#include "cli/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/pattern.h"

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

int waste_text_add_utf8(struct waste_text *text, const char *data, size_t bytes)
{
    int rc = waste_text_add(text, "", 0);

    for (size_t at = 0; rc == 0 && at < bytes;) {
        uint32_t code_point;
        unsigned length = waste_utf8_decode(data + at, bytes - at, &code_point);
        rc = length > 0 ? waste_text_add(text, data + at, length)
                        : waste_text_add(text, "\xef\xbf\xbd", 3);
        at += length > 0 ? length : 1;
    }
    return rc;
}

void waste_text_finish(struct waste_text *text)
{
    free(text->data);
    memset(text, 0, sizeof(*text));
}
