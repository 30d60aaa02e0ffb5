#include "cli/detokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/pattern.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

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

void waste_detok_init(struct waste_detokenizer *d, const struct waste_tokenizer *tokenizer,
                      unsigned flags)
{
#define WASTE_X(role, text) text,
    static const char *const control[] = { WASTE_CONTROLS(WASTE_X) };
#undef WASTE_X

    memset(d, 0, sizeof(*d));
    d->tokenizer = tokenizer;
    d->flags = flags;
    d->tag = -1;
    for (int i = 0; i < WASTE_CONTROL_COUNT; i++)
        d->control[i] = waste_tokenizer_special(tokenizer, control[i]);
}

static bool shown(const struct waste_detokenizer *d)
{
    return d->flags & WASTE_DETOK_SPECIALS || d->channel == WASTE_CHANNEL_TEXT ||
           (d->channel == WASTE_CHANNEL_THINK && d->flags & WASTE_DETOK_THINK);
}

/* Could bytes[0 .. count), which are no whole character, begin one? (Unicode, table 3-7) */
static bool begins_character(const char *bytes, unsigned count)
{
    uint8_t first = (uint8_t)bytes[0], second = (uint8_t)bytes[1];

    if (first < 0xc2 || first > 0xf4)
        return false;
    if (count == 1)
        return true;
    if (second < (first == 0xe0   ? 0xa0
                  : first == 0xf0 ? 0x90
                                  : 0x80) ||
        second > (first == 0xed   ? 0x9f
                  : first == 0xf4 ? 0x8f
                                  : 0xbf))
        return false;
    return count == 2 ? first >= 0xe0 : count == 3 && first >= 0xf0 && (bytes[2] & 0xc0) == 0x80;
}

static int add_byte(struct waste_detokenizer *d, char byte, struct waste_text *out)
{
    uint32_t code_point;
    int ret = 0;

    d->tail[d->tail_bytes++] = byte;
    if (waste_utf8_decode(d->tail, d->tail_bytes, &code_point) > 0) {
        ret = waste_text_add(out, d->tail, d->tail_bytes);
    } else if (begins_character(d->tail, d->tail_bytes)) {
        return 0;
    } else {
        bool again = d->tail_bytes > 1; /* the byte ends a cut-off character, and may begin one */

        ret = waste_text_add(out, REPLACEMENT, 3);
        d->tail_bytes = 0;
        return ret == 0 && again ? add_byte(d, byte, out) : ret;
    }
    d->tail_bytes = 0;
    return ret;
}

static int add_text(struct waste_detokenizer *d, const char *text, size_t bytes,
                    struct waste_text *out)
{
    for (size_t at = 0; at < bytes;) {
        size_t run = at;
        int ret;

        while (d->tail_bytes == 0 && run < bytes && (uint8_t)text[run] < 0x80)
            run++;
        if (run > at) {
            ret = waste_text_add(out, text + at, run - at);
            at = run;
        } else {
            ret = add_byte(d, text[at++], out);
        }
        if (ret < 0)
            return ret;
    }
    return 0;
}

int waste_detok_end(struct waste_detokenizer *d, struct waste_text *out)
{
    bool cut = d->tail_bytes > 0;

    d->tail_bytes = 0;
    return cut ? waste_text_add(out, REPLACEMENT, 3) : 0;
}

static enum waste_channel innermost(const struct waste_detokenizer *d)
{
    unsigned kept = d->depth < WASTE_DETOK_DEPTH ? d->depth : WASTE_DETOK_DEPTH;

    return kept > 0 ? d->stack[kept - 1] : WASTE_CHANNEL_TEXT;
}

static bool tag_is(const struct waste_detokenizer *d, const char *name)
{
    size_t bytes = strlen(name);

    return d->tag_bytes >= bytes && memcmp(d->tag_name, name, bytes) == 0 &&
           (d->tag_bytes == bytes || d->tag_name[bytes] == ' ');
}

/* The tag at hand is complete. */
static void end_tag(struct waste_detokenizer *d)
{
    enum waste_channel channel = innermost(d);

    if (d->tag == WASTE_CONTROL_OPEN) {
        if (tag_is(d, "think"))
            channel = WASTE_CHANNEL_THINK;
        else if (tag_is(d, "tools"))
            channel = WASTE_CHANNEL_TOOLS;
        else if (tag_is(d, "response"))
            channel = WASTE_CHANNEL_TEXT;
        if (d->depth < WASTE_DETOK_DEPTH)
            d->stack[d->depth] = channel;
        d->depth++;
    } else if (d->tag == WASTE_CONTROL_CLOSE && d->depth > 0) {
        d->depth--;
    }
    d->tag = -1;
    d->channel = innermost(d);
}

static void control(struct waste_detokenizer *d, int role)
{
    switch (role) {
    case WASTE_CONTROL_IM_SYSTEM:
    case WASTE_CONTROL_IM_USER:
    case WASTE_CONTROL_IM_ASSISTANT:
        d->depth = 0;
        /* fall through */
    case WASTE_CONTROL_OPEN:
    case WASTE_CONTROL_CLOSE:
        d->tag = role;
        d->tag_bytes = 0;
        d->channel = WASTE_CHANNEL_TAG;
        break;
    case WASTE_CONTROL_SEP:
    case WASTE_CONTROL_IM_MIDDLE:
        if (d->tag >= 0)
            end_tag(d);
        break;
    case WASTE_CONTROL_TOOLS_BEGIN:
        d->channel = WASTE_CHANNEL_TOOLS;
        break;
    case WASTE_CONTROL_TOOLS_END:
        d->channel = innermost(d);
        break;
    default: /* a message is over */
        d->tag = -1;
        d->depth = 0;
        d->channel = WASTE_CHANNEL_TEXT;
    }
}

/* Tag words: what is needed of the name is kept. */
static void add_tag(struct waste_detokenizer *d, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes && d->tag_bytes + i < WASTE_DETOK_NAME; i++)
        d->tag_name[d->tag_bytes + i] = text[i];
    d->tag_bytes += (unsigned)bytes;
    if (d->tag_bytes > WASTE_DETOK_TAG) {
        d->tag = -1;
        d->channel = innermost(d);
    }
}

int waste_detok_add(struct waste_detokenizer *d, uint32_t id, struct waste_text *out)
{
    size_t bytes = 0;
    const char *text = waste_tokenizer_bytes(d->tokenizer, id, &bytes);
    int role = 0, ret = 0;

    if (text != NULL && !waste_tokenizer_is_special(d->tokenizer, id)) {
        if (shown(d))
            ret = add_text(d, text, bytes, out);
        if (d->tag >= 0)
            add_tag(d, text, bytes);
        return ret;
    }
    if (shown(d))
        ret = waste_detok_end(d, out);
    d->tail_bytes = 0;
    if (ret == 0 && text == NULL && shown(d))
        ret = waste_text_add(out, REPLACEMENT, 3);
    if (ret == 0 && text != NULL && d->flags & WASTE_DETOK_SPECIALS)
        ret = waste_text_add(out, text, bytes);
    while (role < WASTE_CONTROL_COUNT && d->control[role] != id)
        role++;
    if (role < WASTE_CONTROL_COUNT)
        control(d, role);
    return ret;
}

void waste_detok_prompt(struct waste_detokenizer *d, const uint32_t *ids, size_t count)
{
    struct waste_text nowhere = {0};

    for (size_t i = 0; i < count; i++) {
        /* text outside of tags has no structure: nothing is ever added to `nowhere` for long */
        if (d->tag >= 0 || waste_tokenizer_is_special(d->tokenizer, ids[i]))
            waste_detok_add(d, ids[i], &nowhere);
        nowhere.bytes = 0;
    }
    waste_text_finish(&nowhere);
    d->tail_bytes = 0;
}

int waste_detokenize(const struct waste_tokenizer *tokenizer, unsigned flags, const uint32_t *ids,
                     size_t count, struct waste_text *out)
{
    struct waste_detokenizer d;
    int ret = 0;

    waste_detok_init(&d, tokenizer, flags);
    for (size_t i = 0; i < count && ret == 0; i++)
        ret = waste_detok_add(&d, ids[i], out);
    return ret == 0 ? waste_detok_end(&d, out) : ret;
}
