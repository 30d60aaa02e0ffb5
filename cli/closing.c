#include "cli/closing.h"

#include <errno.h>
#include <string.h>

/* Appends ids, and lets the parser see them. */
static int give(struct waste_parser *r, const uint32_t *ids, size_t count, struct waste_ids *out)
{
    int ret = waste_ids_append(out, ids, count);

    return ret == 0 ? waste_parser_add(r, ids, count) : ret;
}

static int give_control(struct waste_parser *r, enum waste_control_token control,
                        struct waste_ids *out)
{
    uint32_t id = (uint32_t)r->control[control];

    return r->control[control] >= 0 ? give(r, &id, 1, out) : 0;
}

/* The rest of a tag's name, of which the last `have` ids of ids[0 .. count) are there. */
static int give_rest(struct waste_parser *r, const char *name, const uint32_t *ids, size_t count,
                     size_t have, struct waste_ids *out)
{
    struct waste_ids whole = {0};
    int ret = waste_tokenizer_encode(r->tokenizer, name, strlen(name), &whole);

    if (ret == 0 && have <= whole.count && have <= count &&
        (have == 0 || memcmp(ids + count - have, whole.id, have * sizeof(*ids)) == 0)) {
        if (have < whole.count)
            ret = give(r, whole.id + have, whole.count - have, out);
    } else if (ret == 0) { /* spelled in tokens of its own */
        whole.count = 0;
        ret = waste_tokenizer_encode(r->tokenizer, name + r->tag_bytes, strlen(name) - r->tag_bytes,
                                     &whole);
        if (ret == 0)
            ret = give(r, whole.id, whole.count, out);
    }
    waste_ids_finish(&whole);
    return ret;
}

static bool may_become(const struct waste_parser *r, enum waste_tag tag)
{
    const char *name = waste_tag_name(tag);

    return r->tag_bytes <= strlen(name) && memcmp(r->tag_text, name, r->tag_bytes) == 0;
}

/* What the tag at hand was going to be; WASTE_TAG_UNKNOWN: cannot be told. */
static enum waste_tag meant(const struct waste_parser *r)
{
    static const enum waste_tag channels[] = {WASTE_TAG_RESPONSE, WASTE_TAG_TOOLS, WASTE_TAG_THINK};

    if (r->tag == WASTE_CONTROL_CLOSE) {
        for (unsigned i = r->depth; i-- > 0;)
            if (r->stack[i] != WASTE_TAG_UNKNOWN && may_become(r, r->stack[i]))
                return r->stack[i];
    } else if (r->tag == WASTE_CONTROL_OPEN) {
        for (size_t i = r->answered ? 1 : 0; i < 3; i++)
            if (may_become(r, channels[i]))
                return channels[i];
    }
    return WASTE_TAG_UNKNOWN;
}

static int give_tag(struct waste_parser *r, enum waste_control_token control, enum waste_tag tag,
                    struct waste_ids *out)
{
    int ret = give_control(r, control, out);

    if (ret == 0)
        ret = give_rest(r, waste_tag_name(tag), NULL, 0, 0, out);
    return ret == 0 ? give_control(r, WASTE_CONTROL_SEP, out) : ret;
}

int waste_closing_xtml(struct waste_parser *r, const uint32_t *ids, size_t count,
                       struct waste_ids *out)
{
    int ret = 0;

    r->deeper = 0; /* the end of the message ends those */
    if (r->tag >= 0) {
        enum waste_tag tag = meant(r);

        if (tag != WASTE_TAG_UNKNOWN)
            ret = give_rest(r, waste_tag_name(tag), ids, count, r->tag_ids, out);
        if (ret == 0)
            ret = give_control(r, WASTE_CONTROL_SEP, out);
    }
    while (ret == 0 && r->depth > 0) {
        unsigned known = r->depth;

        while (known > 1 && r->stack[known - 1] == WASTE_TAG_UNKNOWN)
            known--;
        if (r->stack[known - 1] == WASTE_TAG_MESSAGE && !r->answered && !r->other)
            ret = give_tag(r, WASTE_CONTROL_OPEN, WASTE_TAG_RESPONSE, out);
        else if (r->stack[known - 1] == WASTE_TAG_UNKNOWN)
            break;
        else
            ret = give_tag(r, WASTE_CONTROL_CLOSE, r->stack[known - 1], out);
    }
    return ret == 0 && (!r->ended || r->depth > 0) ? give_control(r, WASTE_CONTROL_END_OF_MSG, out)
                                                   : ret;
}

int waste_closing_chatml(struct waste_parser *r, struct waste_ids *out)
{
    int ret = 0;

    if (r->tag == WASTE_CONTROL_CALL_BEGIN)
        ret = give_control(r, WASTE_CONTROL_CALL_ARGUMENT, out);
    for (unsigned i = r->depth; ret == 0 && i-- > 0;) {
        if (r->stack[i] == WASTE_TAG_CALL)
            ret = give_control(r, WASTE_CONTROL_CALL_END, out);
        else if (r->stack[i] == WASTE_TAG_TOOLS)
            ret = give_control(r, WASTE_CONTROL_TOOLS_END, out);
    }
    return ret == 0 && !r->ended ? give_control(r, WASTE_CONTROL_IM_END, out) : ret;
}
