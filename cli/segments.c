#include "cli/segments.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void waste_segments_add(struct waste_segments *s, bool markup, const char *text, size_t bytes)
{
    if (s->error != 0 || bytes == 0)
        return;
    if (s->count == s->room) {
        size_t room = s->room > 0 ? 2 * s->room : 64;
        struct waste_segment *more = realloc(s->segment, room * sizeof(*more));

        if (more == NULL) {
            s->error = -ENOMEM;
            return;
        }
        s->segment = more;
        s->room = room;
    }
    s->segment[s->count] = (struct waste_segment){s->text.bytes, bytes, markup};
    s->error = waste_text_add(&s->text, text, bytes);
    if (s->error == 0)
        s->count++;
}

void waste_segments_words(struct waste_segments *s, const char *text)
{
    waste_segments_add(s, false, text, strlen(text));
}

void waste_segments_markup(struct waste_segments *s, const char *text)
{
    waste_segments_add(s, true, text, strlen(text));
}

void waste_segments_finish(struct waste_segments *s)
{
    waste_text_finish(&s->text);
    free(s->segment);
    memset(s, 0, sizeof(*s));
}

int waste_segments_encode(const struct waste_segments *s, const struct waste_tokenizer *t,
                          struct waste_ids *out)
{
    int ret = s->error;

    for (size_t i = 0; i < s->count && ret == 0; i++) {
        const char *text = s->text.data + s->segment[i].at;

        ret = s->segment[i].markup
                  ? waste_tokenizer_encode_markup(t, text, s->segment[i].bytes, out)
                  : waste_tokenizer_encode(t, text, s->segment[i].bytes, out);
    }
    return ret;
}
