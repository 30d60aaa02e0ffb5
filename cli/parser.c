#include "cli/parser.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/pattern.h"

enum { MAX_INDEX = 1000000 }; /* a number of a call that is not sane is not taken */

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

static const char *const tag_names[] = {
#define WASTE_X(id, name) name,
    WASTE_TAGS(WASTE_X)
#undef WASTE_X
        "",
};

const char *waste_tag_name(enum waste_tag tag)
{
    return tag_names[tag];
}

void waste_parser_init(struct waste_parser *r, const struct waste_tokenizer *tokenizer,
                       waste_event_fn *emit, void *arg)
{
#define WASTE_X(role, text) text,
    static const char *const control[] = { WASTE_CONTROLS(WASTE_X) };
#undef WASTE_X

    memset(r, 0, sizeof(*r));
    r->tokenizer = tokenizer;
    r->emit = emit;
    r->arg = arg;
    r->tag = -1;
    for (int i = 0; i < WASTE_CONTROL_COUNT; i++)
        r->control[i] = waste_tokenizer_special(tokenizer, control[i]);
}

int waste_parser_control(const struct waste_parser *r, uint32_t id)
{
    for (int i = 0; i < WASTE_CONTROL_COUNT; i++)
        if (r->control[i] == id)
            return i;
    return -1;
}

static int emit(struct waste_parser *r, struct waste_event event)
{
    return r->emit != NULL ? r->emit(r->arg, &event) : 0;
}

/* ---- what is open ---- */

/* Is it open, and how far in? -1: no. */
static int find(const struct waste_parser *r, enum waste_tag tag)
{
    for (int i = (int)r->depth; i-- > 0;)
        if (r->stack[i] == tag)
            return i;
    return -1;
}

enum waste_channel waste_parser_channel(const struct waste_parser *r)
{
    if (r->tag >= 0)
        return WASTE_CHANNEL_TAG;
    if (r->other || r->closed || r->ended)
        return WASTE_CHANNEL_OTHER;
    for (unsigned i = r->depth; i-- > 0;) {
        switch (r->stack[i]) {
        case WASTE_TAG_THINK:
            return WASTE_CHANNEL_THINK;
        case WASTE_TAG_TOOLS:
        case WASTE_TAG_CALL:
            return WASTE_CHANNEL_TOOLS;
        case WASTE_TAG_ARGUMENT:
        case WASTE_TAG_JSON:
            return WASTE_CHANNEL_VALUE;
        case WASTE_TAG_RESPONSE:
            return WASTE_CHANNEL_TEXT;
        default:
            break;
        }
    }
    return WASTE_CHANNEL_TEXT;
}

/* Ends the innermost. `damaged`: not by its own closing tag. */
static int pop(struct waste_parser *r, bool damaged)
{
    enum waste_tag tag = r->stack[--r->depth];
    struct waste_event event = {.damaged = damaged};

    r->damaged |= damaged;
    if (tag == WASTE_TAG_ARGUMENT || tag == WASTE_TAG_JSON) {
        r->damaged_call |= damaged;
        event.kind = WASTE_EVENT_ARGUMENT_END;
        return emit(r, event);
    }
    if (tag == WASTE_TAG_CALL) {
        event.kind = WASTE_EVENT_CALL_END;
        event.damaged |= r->damaged_call;
        return emit(r, event);
    }
    return 0;
}

/* Ends all that is deeper in than `depth`. */
static int pop_to(struct waste_parser *r, unsigned depth, bool damaged)
{
    int ret = 0;

    r->deeper = 0;
    while (ret == 0 && r->depth > depth)
        ret = pop(r, damaged);
    return ret;
}

static void push(struct waste_parser *r, enum waste_tag tag)
{
    if (r->depth < WASTE_PARSER_DEPTH)
        r->stack[r->depth++] = tag;
    else
        r->deeper++;
}

/* ---- text ---- */

static int emit_text(struct waste_parser *r, const char *text, size_t bytes)
{
    enum waste_channel channel = waste_parser_channel(r);

    if (channel == WASTE_CHANNEL_VALUE)
        return emit(r,
                    (struct waste_event){.kind = WASTE_EVENT_VALUE, .text = text, .bytes = bytes});
    if (channel == WASTE_CHANNEL_TOOLS)
        for (size_t i = 0; i < bytes; i++)
            if (memchr(" \t\r\n", text[i], 4) == NULL)
                r->damaged = r->damaged_call = true;
    return emit(r, (struct waste_event){
                       .kind = WASTE_EVENT_TEXT, .channel = channel, .text = text, .bytes = bytes});
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

static int add_byte(struct waste_parser *r, char byte)
{
    char whole[4];
    uint32_t code_point;
    unsigned bytes = ++r->tail_bytes;

    r->tail[bytes - 1] = byte;
    memcpy(whole, r->tail, sizeof(whole));
    if (waste_utf8_decode(whole, bytes, &code_point) > 0) {
        r->tail_bytes = 0;
        return emit_text(r, whole, bytes);
    }
    if (begins_character(whole, bytes))
        return 0;
    /* the byte ends a cut-off character, and may begin one */
    r->tail_bytes = 0;
    int ret = emit_text(r, REPLACEMENT, 3);
    return ret == 0 && bytes > 1 ? add_byte(r, byte) : ret;
}

static int add_text(struct waste_parser *r, const char *text, size_t bytes)
{
    int ret = 0;

    for (size_t at = 0; at < bytes && ret == 0;) {
        size_t run = at;

        while (r->tail_bytes == 0 && run < bytes && (uint8_t)text[run] < 0x80)
            run++;
        if (run > at) {
            ret = emit_text(r, text + at, run - at);
            at = run;
        } else {
            ret = add_byte(r, text[at++]);
        }
    }
    return ret;
}

static int flush(struct waste_parser *r)
{
    bool cut = r->tail_bytes > 0;

    r->tail_bytes = 0;
    return cut ? emit_text(r, REPLACEMENT, 3) : 0;
}

/* ---- tags ---- */

struct attribute {
    char *value; /* NUL-terminated; NULL: the tag has no such attribute */
    size_t bytes;
};

struct attributes {
    struct attribute role, tool, index, key, type;
};

static struct attribute *named(struct attributes *all, const char *name, size_t bytes)
{
    struct {
        const char *name;
        struct attribute *at;
    } known[] = {{"role", &all->role},
                 {"tool", &all->tool},
                 {"index", &all->index},
                 {"key", &all->key},
                 {"type", &all->type}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i].name) == bytes && memcmp(known[i].name, name, bytes) == 0)
            return known[i].at;
    return NULL;
}

/* Undoes the two entities, in place. Returns the new end. */
static char *unescape(char *value, const char *end)
{
    char *to = value;

    for (const char *from = value; from < end; to++) {
        size_t left = (size_t)(end - from);

        *to = *from;
        if (left >= 6 && memcmp(from, "&quot;", 6) == 0) {
            *to = '"';
            from += 6;
        } else if (left >= 5 && memcmp(from, "&amp;", 5) == 0) {
            from += 5;
        } else {
            from++;
        }
    }
    *to = '\0';
    return to;
}

/* The attributes of the tag at hand, ` name="value"` each; the first of a name counts. The tag's
 * text is used up. */
static struct attributes attributes(struct waste_parser *r)
{
    struct attributes all = {0};
    char *end = r->tag_text + r->tag_bytes, *at = memchr(r->tag_text, ' ', r->tag_bytes);

    while (at != NULL) {
        char *name = at + 1, *equals = memchr(name, '=', (size_t)(end - name)), *stop;
        struct attribute *one;

        if (equals == NULL || end - equals < 3 || equals[1] != '"' ||
            (stop = memchr(equals + 2, '"', (size_t)(end - equals - 2))) == NULL) {
            r->damaged = r->damaged_call = true;
            break;
        }
        at = stop + 1 < end && stop[1] == ' ' ? stop + 1 : NULL;
        if (at == NULL && stop + 1 < end)
            r->damaged = r->damaged_call = true;
        one = named(&all, name, (size_t)(equals - name));
        if (one == NULL || one->value != NULL)
            continue;
        one->value = equals + 2;
        one->bytes = (size_t)(unescape(one->value, stop) - one->value);
    }
    return all;
}

/* Names and keys that are no UTF-8 would be no text. */
static void scrub(struct waste_parser *r)
{
    for (size_t at = 0; at < r->tag_bytes;) {
        uint32_t code_point;
        unsigned bytes = waste_utf8_decode(r->tag_text + at, r->tag_bytes - at, &code_point);

        if (bytes == 0) {
            r->tag_text[at] = '?';
            r->damaged = r->damaged_call = true;
        }
        at += bytes > 0 ? bytes : 1;
    }
}

static enum waste_tag tag_at_hand(const struct waste_parser *r)
{
    const char *space = memchr(r->tag_text, ' ', r->tag_bytes);
    size_t bytes = space != NULL ? (size_t)(space - r->tag_text) : r->tag_bytes;

    for (int i = 0; i < WASTE_TAG_UNKNOWN; i++)
        if (strlen(tag_names[i]) == bytes && memcmp(tag_names[i], r->tag_text, bytes) == 0)
            return (enum waste_tag)i;
    return WASTE_TAG_UNKNOWN;
}

static int begin_message(struct waste_parser *r, bool assistant)
{
    bool cut = r->depth > 0 || r->closed; /* the message before has no end */
    int ret = pop_to(r, 0, true);

    if (ret == 0 && cut)
        ret = emit(r, (struct waste_event){.kind = WASTE_EVENT_END, .damaged = true});
    r->other = !assistant;
    r->closed = r->ended = r->answered = r->damaged = false;
    r->calls = 0;
    push(r, WASTE_TAG_MESSAGE);
    return ret;
}

static int begin_call(struct waste_parser *r, const char *name, size_t bytes, unsigned index)
{
    push(r, WASTE_TAG_CALL);
    r->calls++;
    r->damaged_call = name == NULL;
    return emit(r, (struct waste_event){.kind = WASTE_EVENT_CALL,
                                        .text = name != NULL ? name : "",
                                        .bytes = bytes,
                                        .index = index != 0 ? index : r->calls});
}

static int open_call(struct waste_parser *r)
{
    struct attributes a = attributes(r);
    unsigned long index = a.index.value != NULL ? strtoul(a.index.value, NULL, 10) : 0;

    return begin_call(r, a.tool.value, a.tool.bytes, index < MAX_INDEX ? (unsigned)index : 0);
}

static int open_argument(struct waste_parser *r)
{
    struct attributes a = attributes(r);

    r->damaged_call |= a.key.value == NULL;
    push(r, WASTE_TAG_ARGUMENT);
    return emit(r, (struct waste_event){.kind = WASTE_EVENT_ARGUMENT,
                                        .text = a.key.value != NULL ? a.key.value : "",
                                        .bytes = a.key.bytes,
                                        .type = a.type.value != NULL ? a.type.value : "string"});
}

/* Where a tag that has its place may begin: below what, else -1 (it is out of place). */
static int place_of(const struct waste_parser *r, enum waste_tag tag)
{
    int parent = find(r, tag == WASTE_TAG_CALL ? WASTE_TAG_TOOLS : WASTE_TAG_CALL);

    if (tag != WASTE_TAG_CALL && tag != WASTE_TAG_ARGUMENT && tag != WASTE_TAG_JSON)
        return find(r, WASTE_TAG_MESSAGE) + 1; /* channels are below the message, or alone */
    return r->other || r->closed || r->ended || parent < 0 ? -1 : parent + 1;
}

static int open_tag(struct waste_parser *r)
{
    enum waste_tag tag = tag_at_hand(r);
    int place, ret;

    scrub(r);
    if (tag == WASTE_TAG_MESSAGE) {
        struct attributes a = attributes(r);
        return begin_message(r, a.role.value != NULL && strcmp(a.role.value, "assistant") == 0);
    }
    place = tag == WASTE_TAG_UNKNOWN ? -1 : place_of(r, tag);
    if (place < 0) { /* it belongs to what it is in */
        if (tag != WASTE_TAG_UNKNOWN)
            r->damaged = r->damaged_call = true;
        push(r, WASTE_TAG_UNKNOWN);
        return 0;
    }
    /* what is open there, and was not closed, ends here */
    if ((ret = pop_to(r, (unsigned)place, true)) != 0)
        return ret;
    r->answered |= tag == WASTE_TAG_RESPONSE || tag == WASTE_TAG_TOOLS;
    if (tag == WASTE_TAG_CALL)
        return open_call(r);
    if (tag == WASTE_TAG_ARGUMENT)
        return open_argument(r);
    push(r, tag);
    return tag == WASTE_TAG_JSON ? emit(r, (struct waste_event){.kind = WASTE_EVENT_JSON}) : 0;
}

static int close_tag(struct waste_parser *r)
{
    enum waste_tag tag = tag_at_hand(r);
    int at = find(r, tag), ret;

    if (r->deeper > 0) {
        r->deeper--;
        return 0;
    }
    if (at < 0) {
        r->damaged = r->damaged_call = true;
        return 0;
    }
    ret = pop_to(r, (unsigned)at + 1, true);
    r->closed |= tag == WASTE_TAG_MESSAGE;
    return ret == 0 ? pop(r, false) : ret;
}

/* <|tool_call_argument_begin|>: `functions.name:0` is whole. */
static int begin_im_call(struct waste_parser *r)
{
    static const char prefix[] = "functions.";
    const char *name = r->tag_text, *end = name + r->tag_bytes, *colon;
    int place = place_of(r, WASTE_TAG_CALL), ret;
    unsigned index = 0;

    scrub(r);
    if (place < 0) {
        r->damaged = true;
        return 0;
    }
    if ((ret = pop_to(r, (unsigned)place, true)) != 0)
        return ret;
    if (r->tag_bytes > sizeof(prefix) - 1 && memcmp(name, prefix, sizeof(prefix) - 1) == 0)
        name += sizeof(prefix) - 1;
    colon = memrchr(name, ':', (size_t)(end - name));
    if (colon != NULL) {
        r->tag_text[r->tag_bytes] = '\0';
        index = (unsigned)strtoul(colon + 1, NULL, 10) % MAX_INDEX + 1;
        end = colon;
    }
    ret = begin_call(r, name, (size_t)(end - name), index);
    push(r, WASTE_TAG_JSON);
    return ret == 0 ? emit(r, (struct waste_event){.kind = WASTE_EVENT_JSON}) : ret;
}

/* The tag at hand is complete. */
static int end_tag(struct waste_parser *r, int by)
{
    int tag = r->tag;

    r->tag = -1;
    if (by == WASTE_CONTROL_SEP && tag == WASTE_CONTROL_OPEN)
        return open_tag(r);
    if (by == WASTE_CONTROL_SEP && tag == WASTE_CONTROL_CLOSE)
        return close_tag(r);
    if (by == WASTE_CONTROL_IM_MIDDLE &&
        (tag == WASTE_CONTROL_IM_SYSTEM || tag == WASTE_CONTROL_IM_USER ||
         tag == WASTE_CONTROL_IM_ASSISTANT))
        return begin_message(r, tag == WASTE_CONTROL_IM_ASSISTANT);
    if (by == WASTE_CONTROL_CALL_ARGUMENT && tag == WASTE_CONTROL_CALL_BEGIN)
        return begin_im_call(r);
    r->damaged = r->damaged_call = true;
    return 0;
}

static int end_message(struct waste_parser *r, int by)
{
    /* Kimi-Linear's messages have no closing tag of their own */
    bool whole = by == WASTE_CONTROL_IM_END && r->depth == 1 && r->stack[0] == WASTE_TAG_MESSAGE;
    int ret = pop_to(r, 0, !whole);

    if (ret == 0 && !r->ended)
        ret = emit(r, (struct waste_event){.kind = WASTE_EVENT_END, .damaged = r->damaged});
    r->ended = true;
    r->closed = r->other = false;
    return ret;
}

static int control(struct waste_parser *r, int role)
{
    int at;

    switch (role) {
    case WASTE_CONTROL_OPEN:
    case WASTE_CONTROL_CLOSE:
    case WASTE_CONTROL_IM_SYSTEM:
    case WASTE_CONTROL_IM_USER:
    case WASTE_CONTROL_IM_ASSISTANT:
    case WASTE_CONTROL_CALL_BEGIN:
        r->damaged |= r->tag >= 0;
        r->tag = role;
        r->tag_bytes = r->tag_ids = 0;
        return 0;
    case WASTE_CONTROL_SEP:
    case WASTE_CONTROL_IM_MIDDLE:
    case WASTE_CONTROL_CALL_ARGUMENT:
        if (r->tag >= 0)
            return end_tag(r, role);
        r->damaged = true;
        return 0;
    case WASTE_CONTROL_TOOLS_BEGIN:
        r->tag = -1;
        if (r->other || r->closed || r->ended)
            return 0;
        at = find(r, WASTE_TAG_MESSAGE);
        at = pop_to(r, (unsigned)(at + 1), true);
        push(r, WASTE_TAG_TOOLS);
        r->answered = true;
        return at;
    case WASTE_CONTROL_CALL_END:
        at = find(r, WASTE_TAG_CALL);
        r->tag = -1;
        return at >= 0 ? pop_to(r, (unsigned)at, false) : 0;
    case WASTE_CONTROL_TOOLS_END:
        at = find(r, WASTE_TAG_TOOLS);
        r->tag = -1;
        if (at < 0)
            return 0;
        at = pop_to(r, (unsigned)at + 1, true);
        return at == 0 ? pop(r, false) : at;
    default:
        r->damaged |= r->tag >= 0;
        r->tag = -1;
        return end_message(r, role);
    }
}

/* Words of a tag. One that grows too long is no tag, and its words are text. */
static int add_tag(struct waste_parser *r, const char *text, size_t bytes)
{
    int ret;

    r->tag_ids++;
    if (bytes < WASTE_PARSER_TAG - r->tag_bytes) {
        memcpy(r->tag_text + r->tag_bytes, text, bytes);
        r->tag_bytes += bytes;
        return 0;
    }
    r->tag = -1;
    r->damaged = r->damaged_call = true;
    ret = add_text(r, r->tag_text, r->tag_bytes);
    return ret == 0 ? add_text(r, text, bytes) : ret;
}

static int add_id(struct waste_parser *r, uint32_t id)
{
    size_t bytes = 0;
    const char *text = waste_tokenizer_bytes(r->tokenizer, id, &bytes);
    bool special = text != NULL && waste_tokenizer_is_special(r->tokenizer, id);
    int role, ret;

    if (text != NULL && !special)
        return r->tag < 0 ? add_text(r, text, bytes) : add_tag(r, text, bytes);
    ret = flush(r);
    if (ret == 0 && text == NULL && r->tag < 0)
        ret = emit_text(r, REPLACEMENT, 3);
    if (ret == 0 && r->flat && special)
        return emit_text(r, text, bytes);
    role = r->flat ? -1 : waste_parser_control(r, id);
    return ret == 0 && role >= 0 ? control(r, role) : ret;
}

void waste_parser_prompt(struct waste_parser *r, const uint32_t *ids, size_t count)
{
    waste_event_fn *fn = r->emit;

    r->emit = NULL;
    for (size_t i = 0; i < count; i++)
        /* text outside of tags has no structure */
        if (r->tag >= 0 || waste_tokenizer_is_special(r->tokenizer, ids[i]))
            add_id(r, ids[i]);
    r->emit = fn;
    r->tail_bytes = 0;
    r->closed = r->ended = r->damaged = r->damaged_call =
        false; /* what follows is the reply, and whole yet */
}

int waste_parser_add(struct waste_parser *r, const uint32_t *ids, size_t count)
{
    int ret = 0;

    for (size_t i = 0; i < count && ret == 0; i++)
        ret = add_id(r, ids[i]);
    return ret;
}

int waste_parser_end(struct waste_parser *r)
{
    int ret = flush(r);

    if (r->tag >= 0)
        r->damaged = r->damaged_call = true;
    r->tag = -1;
    if (ret == 0)
        ret = pop_to(r, 0, true);
    if (ret == 0 && !r->ended)
        ret = emit(r, (struct waste_event){.kind = WASTE_EVENT_END, .damaged = true});
    r->ended = true;
    return ret;
}
