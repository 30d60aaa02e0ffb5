/*
 * Replies as they stream. What whole replies must give is written out here; what damaged ones must
 * not do is held against a second, slow reading of the same ids (where_text_belongs).
 */
#include "cm.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/assemble.h"
#include "cli/detokenizer.h"
#include "cli/markup.h"
#include "cli/parser.h"

enum { MUTATIONS = 100000 };

static struct waste_tokenizer *demo, *linear;
static uint64_t random_state = 11;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % n);
}

/* Events as text, one a line; text of the same kind in a row is one. */
struct record {
    struct waste_text text;
    int last; /* kind and channel of the newest, when it was text */
    int open_calls, open_arguments, ends;
    bool wrong;
};

static void add(struct record *r, const char *text, size_t bytes)
{
    assert_int_equal(waste_text_add(&r->text, text, bytes), 0);
}

static void line(struct record *r, const char *text)
{
    add(r, "\n", 1);
    add(r, text, strlen(text));
    r->last = -1;
}

static int record_event(void *arg, const struct waste_event *e)
{
    static const char *const channel[] = {"text ", "think ", "tools ", "other ", "?", "?"};
    struct record *r = arg;
    char number[32];
    int what = (int)e->kind * 16 + (int)e->channel;

    switch (e->kind) {
    case WASTE_EVENT_TEXT:
    case WASTE_EVENT_VALUE:
        r->wrong |= e->bytes == 0 || (e->kind == WASTE_EVENT_VALUE) != (r->open_arguments > 0);
        if (r->last != what)
            line(r, e->kind == WASTE_EVENT_VALUE ? "value " : channel[e->channel]);
        add(r, e->text, e->bytes);
        r->last = what;
        return 0;
    case WASTE_EVENT_CALL:
        r->wrong |= r->open_calls++ != 0;
        snprintf(number, sizeof(number), "call %u ", e->index);
        line(r, number);
        add(r, e->text, e->bytes);
        return 0;
    case WASTE_EVENT_ARGUMENT:
        r->wrong |= r->open_calls != 1 || r->open_arguments++ != 0;
        line(r, "argument ");
        add(r, e->type, strlen(e->type));
        add(r, " ", 1);
        add(r, e->text, e->bytes);
        return 0;
    case WASTE_EVENT_JSON:
        r->wrong |= r->open_calls != 1 || r->open_arguments++ != 0;
        line(r, "json");
        return 0;
    case WASTE_EVENT_ARGUMENT_END:
        r->wrong |= r->open_arguments-- != 1;
        line(r, e->damaged ? "argument damaged" : "argument end");
        return 0;
    case WASTE_EVENT_CALL_END:
        r->wrong |= r->open_calls-- != 1 || r->open_arguments != 0;
        line(r, e->damaged ? "call damaged" : "call end");
        return 0;
    case WASTE_EVENT_END:
        r->wrong |= r->open_calls != 0;
        r->ends++;
        line(r, e->damaged ? "damaged" : "end");
    }
    return 0;
}

static struct waste_ids markup_ids(const struct waste_tokenizer *t, const char *text)
{
    struct waste_ids ids = {0};

    assert_int_equal(waste_tokenizer_encode_markup(t, text, strlen(text), &ids), 0);
    return ids;
}

/* The events of ids cut into pieces of at most `most`; 0: all at once. */
static char *events_of(const struct waste_tokenizer *t, const struct waste_ids *prompt,
                       const uint32_t *ids, size_t count, uint32_t most, struct record *out)
{
    struct record own = {.last = -1}, *r = out != NULL ? out : &own;
    struct waste_parser p;

    *r = (struct record){.last = -1};
    waste_parser_init(&p, t, record_event, r);
    if (prompt != NULL)
        waste_parser_prompt(&p, prompt->id, prompt->count);
    for (size_t at = 0; at < count;) {
        size_t n = most == 0 ? count : 1 + random_below(most);

        if (n > count - at)
            n = count - at;
        assert_int_equal(waste_parser_add(&p, ids + at, n), 0);
        at += n;
    }
    assert_int_equal(waste_parser_end(&p), 0);
    return r->text.data != NULL ? r->text.data : strdup("");
}

static void assert_events_of(const struct waste_tokenizer *t, const char *opening,
                             const char *reply, const char *want)
{
    struct waste_ids prompt = markup_ids(t, opening), ids = markup_ids(t, reply);
    char *got = events_of(t, &prompt, ids.id, ids.count, 1, NULL);

    if (strcmp(got, want) != 0)
        fail_msg("%s\ngave:%s\nnot:%s", reply, got, want);
    free(got);
    waste_ids_finish(&prompt);
    waste_ids_finish(&ids);
}

#define OPEN(tag) "<|open|>" tag "<|sep|>"
#define CLOSE(tag) "<|close|>" tag "<|sep|>"
#define END CLOSE("message") "<|end_of_msg|>"
#define ASSISTANT OPEN("message role=\"assistant\"")
#define THINKING ASSISTANT OPEN("think")

static void assert_events(const char *reply, const char *want)
{
    assert_events_of(demo, THINKING, reply, want);
}

static void a_whole_reply_has_its_channels_and_calls(void **state)
{
    assert_events("Hm." CLOSE("think") OPEN("response") "Yes. é" CLOSE("response") END,
                  "\nthink Hm.\ntext Yes. é\nend");
    assert_events(
        CLOSE("think") OPEN("response") CLOSE("response") OPEN("tools")
            OPEN("call tool=\"get\" index=\"1\"")
                OPEN("argument key=\"city\" type=\"string\"") "Paris" CLOSE("argument")
                    OPEN("argument key=\"n\" type=\"number\"") "1.50" CLOSE("argument")
                        CLOSE("call") OPEN("call tool=\"f&quot;g\" index=\"7\"")
                            OPEN("json type=\"object\"") "{\"a\"" CLOSE("json") CLOSE("call")
                                CLOSE("tools") END,
        "\ncall 1 get\nargument string city\nvalue Paris\nargument end\nargument number n\nvalue "
        "1.50\nargument end\ncall end\ncall 7 f\"g\njson\nvalue {\"a\"\nargument end\ncall "
        "end\nend");
}

static void damage_is_marked_and_takes_nothing_along(void **state)
{
    /* cut off */
    assert_events("Hm", "\nthink Hm\ndamaged");
    assert_events("Hm" CLOSE("think") OPEN("response") "A\xc3",
                  "\nthink Hm\ntext A\xef\xbf\xbd\ndamaged");
    assert_events(CLOSE("think") OPEN("tools") OPEN("call tool=\"f\" index=\"1\"")
                      OPEN("argument key=\"a\" type=\"string\"") "x",
                  "\ncall 1 f\nargument string a\nvalue x\nargument damaged\ncall "
                  "damaged\ndamaged");
    /* a channel begins while another is open */
    assert_events("Hm" OPEN("response") "A" CLOSE("response") END, "\nthink Hm\ntext A\ndamaged");
    /* a call where none can be is words, in the channel it is in */
    assert_events("a" OPEN("call tool=\"f\"") "b" CLOSE("call") "c" CLOSE("think") OPEN("response")
                      OPEN("argument key=\"a\"") "d" CLOSE("argument"),
                  "\nthink abc\ntext d\ndamaged");
    /* an argument outside of a call */
    assert_events(CLOSE("think") OPEN("tools") OPEN("argument key=\"a\"") "d" CLOSE("argument")
                      OPEN("call tool=\"f\"") CLOSE("call") CLOSE("tools") END,
                  "\ntools d\ncall 1 f\ncall end\ndamaged");
    /* calls and arguments that were not closed */
    assert_events(CLOSE("think") OPEN("tools") OPEN("call tool=\"f\"")
                      OPEN("argument key=\"a\"") "1" OPEN("argument key=\"b\"") "2" OPEN(
                          "call tool=\"g\"") CLOSE("call") CLOSE("tools") END,
                  "\ncall 1 f\nargument string a\nvalue 1\nargument damaged\nargument string "
                  "b\nvalue 2\nargument damaged\ncall damaged\ncall 2 g\ncall end\ndamaged");
    /* a closing tag of nothing */
    assert_events("a" CLOSE("response") "b" CLOSE("think") END, "\nthink ab\ndamaged");
    /* what comes behind the reply is not the reply's */
    assert_events(CLOSE("think") OPEN("response") "A" CLOSE("response")
                      END OPEN("message role=\"user\"") OPEN("response") "B" CLOSE("response") END
                  "C",
                  "\ntext A\nend\nother B\nend\nother C");
    assert_events(CLOSE("think") OPEN("response") "A" CLOSE("response") CLOSE("message") "B",
                  "\ntext A\nother B\ndamaged");
    /* no name, no key, no quotes */
    assert_events(CLOSE("think") OPEN("tools") OPEN("call")
                      OPEN("argument key=a type=\"number\"") "1" CLOSE("argument") CLOSE("call"),
                  "\ncall 1 \nargument string \nvalue 1\nargument end\ncall damaged\ndamaged");
    /* attributes in another order */
    assert_events(CLOSE("think") OPEN("tools") OPEN("call index=\"3\" tool=\"f\"")
                      OPEN("argument type=\"number\" key=\"a b\"") "1" CLOSE("argument")
                          CLOSE("call") CLOSE("tools") END,
                  "\ncall 3 f\nargument number a b\nvalue 1\nargument end\ncall end\nend");
}

static void kimi_linears_calls(void **state)
{
#define CALL(name, args)                                                                           \
    "<|tool_call_begin|>" name "<|tool_call_argument_begin|>" args "<|tool_call_end|>"
#define TOOLS(calls) "<|tool_calls_section_begin|>" calls "<|tool_calls_section_end|>"
    static const char opening[] = "<|im_assistant|>assistant<|im_middle|>";

    assert_events_of(linear, opening, "Hi.<|im_end|>", "\ntext Hi.\nend");
    assert_events_of(linear, opening,
                     "Hi." TOOLS(CALL("functions.f:0", "{\"a\": 1}") CALL("g", "")) "<|im_end|>",
                     "\ntext Hi.\ncall 1 f\njson\nvalue {\"a\": 1}\nargument end\ncall end\ncall 2 "
                     "g\njson\nargument end\ncall end\nend");
    assert_events_of(linear, opening, "Hi." TOOLS("<|tool_call_begin|>f:3"), "\ntext Hi.\ndamaged");
    assert_events_of(linear, opening, "<|im_user|>user<|im_middle|>x",
                     "\ndamaged\nother x\ndamaged");
}

static json_t *assembled(const char *reply, bool *damaged)
{
    struct waste_ids prompt = markup_ids(demo, THINKING), ids = markup_ids(demo, reply);
    struct waste_assembly m = {0};
    struct waste_parser p;

    waste_parser_init(&p, demo, waste_assembly_event, &m);
    waste_parser_prompt(&p, prompt.id, prompt.count);
    assert_int_equal(waste_parser_add(&p, ids.id, ids.count), 0);
    assert_int_equal(waste_parser_end(&p), 0);
    json_t *out = waste_assembly_json(&m);
    *damaged = m.damaged;
    waste_assembly_finish(&m);
    waste_ids_finish(&prompt);
    waste_ids_finish(&ids);
    return out;
}

static void a_message_is_put_together(void **state)
{
    static const char reply[] = "Hm" CLOSE("think") OPEN("response") "A" CLOSE("response")
        OPEN("tools") OPEN("call tool=\"f\" index=\"1\"")
            OPEN("argument key=\"s\" type=\"string\"") "\"" CLOSE("argument")
                OPEN("argument key=\"n\" type=\"number\"") "1.50" CLOSE("argument") CLOSE("call")
                    OPEN("call tool=\"g\" index=\"2\"")
                        OPEN("argument key=\"n\" type=\"number\"") "many" CLOSE("argument")
                            CLOSE("call") OPEN("call tool=\"h\" index=\"3\"") CLOSE("call")
                                OPEN("call tool=\"i\" index=\"4\"")
                                    OPEN("json type=\"object\"") "{\"a\": x" CLOSE("json")
                                        CLOSE("call") CLOSE("tools") END;
    bool damaged;
    json_t *got = assembled(reply, &damaged);
    static const char *const arguments[] = {"{\"s\":\"\\\"\",\"n\":1.50}", "{\"n\":\"many\"}", "{}",
                                            "{\"a\": x"};

    assert_string_equal(json_string_value(json_object_get(got, "content")), "A");
    assert_string_equal(json_string_value(json_object_get(got, "reasoning_content")), "Hm");
    assert_true(damaged); /* a number that is none */
    for (size_t i = 0; i < 4; i++) {
        const json_t *call = json_array_get(json_object_get(got, "tool_calls"), i);
        const json_t *function = json_object_get(call, "function");

        assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                            arguments[i]);
    }
    json_decref(got);
}

/* Rendered and parsed again, every assistant's message of the cases is what it was. */
static void what_is_rendered_is_parsed_again(void **state)
{
    json_t *cases = json_load_file(WASTE_TEST_DATA "/xtml_cases.json", 0, NULL), *one, *message;
    const char *name;
    size_t i, compared = 0;

    json_object_foreach(cases, name, one)
    {
        json_array_foreach(json_object_get(json_object_get(one, "input"), "messages"), i, message)
        {
            const char *role = json_string_value(json_object_get(message, "role"));
            struct waste_conversation *c = NULL;
            struct waste_segments s = {0};
            struct waste_error err;
            struct waste_assembly m = {0};
            struct waste_ids ids = {0};
            struct waste_parser p;
            json_t *input, *got;

            if (strcmp(role, "assistant") != 0)
                continue;
            input = json_pack("{s:[O],s:b}", "messages", message, "add_generation_prompt", 0);
            assert_int_equal(waste_conversation_make(input, &c, &err), 0);
            assert_int_equal(waste_markup_render(NULL, c, &s, &err), 0);
            assert_int_equal(waste_segments_encode(&s, demo, &ids), 0);
            waste_parser_init(&p, demo, waste_assembly_event, &m);
            assert_int_equal(waste_parser_add(&p, ids.id, ids.count), 0);
            assert_int_equal(waste_parser_end(&p), 0);
            assert_true(m.ended && !m.damaged);
            got = waste_assembly_json(&m);
            json_t *again = json_pack("{s:[o],s:b}", "messages", got, "add_generation_prompt", 0);
            struct waste_conversation *c2 = NULL;
            struct waste_segments s2 = {0};
            assert_int_equal(waste_conversation_make(again, &c2, &err), 0);
            assert_int_equal(waste_markup_render(NULL, c2, &s2, &err), 0);
            assert_string_equal(s2.text.data, s.text.data);
            compared++;
            waste_segments_finish(&s);
            waste_segments_finish(&s2);
            waste_conversation_destroy(c);
            waste_conversation_destroy(c2);
            waste_assembly_finish(&m);
            waste_ids_finish(&ids);
            json_decref(input);
            json_decref(again);
        }
    }
    assert_true(compared >= 8);
    json_decref(cases);
}

/* ---- mutated streams ---- */

static const char *const whole[] = {
    "Hm, é 中 👩." CLOSE("think") OPEN("response") "Yes & no.\n" CLOSE("response") END,
    CLOSE("think") OPEN("response") "I call." CLOSE("response") OPEN("tools")
        OPEN("call tool=\"get_weather\" index=\"1\"")
            OPEN("argument key=\"city\" type=\"string\"") "São Paulo" CLOSE("argument")
                OPEN("argument key=\"n\" type=\"number\"") "12" CLOSE("argument") CLOSE("call")
                    OPEN("call tool=\"f\" index=\"2\"")
                        OPEN("json type=\"object\"") "{\"a\": 1" CLOSE("json") CLOSE("call")
                            CLOSE("tools") END,
    "Thought" CLOSE("think") OPEN("response") "One" CLOSE("response")
        END OPEN("message role=\"user\"") "Two" END OPEN("message role=\"assistant\"")
            OPEN("response") "Three" CLOSE("response") END,
};

/* Random changes: ids left out, doubled, swapped, replaced, specials and tags put in, cut off. */
static void mutate(struct waste_ids *ids)
{
    static const char *const tags[] = {"message role=\"assistant\"",
                                       "message role=\"user\"",
                                       "think",
                                       "response",
                                       "tools",
                                       "call tool=\"x\"",
                                       "argument key=\"k\"",
                                       "json",
                                       "nonsense"};

    for (uint32_t n = 1 + random_below(4); n > 0 && ids->count > 2; n--) {
        uint32_t at = random_below((uint32_t)ids->count - 1);

        switch (random_below(7)) {
        case 0:
            memmove(ids->id + at, ids->id + at + 1, (--ids->count - at) * sizeof(*ids->id));
            break;
        case 1:
            ids->id[at] = random_below(1345);
            break;
        case 2:
            ids->id[at] = 1280 + random_below(11);
            break;
        case 3: {
            uint32_t id = ids->id[at];
            ids->id[at] = ids->id[at + 1];
            ids->id[at + 1] = id;
            break;
        }
        case 4:
            ids->count = at + 1;
            break;
        case 5:
            ids->id[at] = random_below(256);
            break;
        default: {
            char text[80];
            struct waste_ids put = {0}, tail = {0};

            snprintf(text, sizeof(text), "%s%s<|sep|>", random_below(2) ? "<|open|>" : "<|close|>",
                     tags[random_below(sizeof(tags) / sizeof(tags[0]))]);
            put = markup_ids(demo, text);
            waste_ids_append(&tail, ids->id + at, ids->count - at);
            ids->count = at;
            waste_ids_append(ids, put.id, put.count);
            waste_ids_append(ids, tail.id, tail.count);
            waste_ids_finish(&put);
            waste_ids_finish(&tail);
        }
        }
    }
}

/*
 * A second reading, of whole tags in a list and with no state but that list: the bytes of text and
 * where each belongs, as one letter a byte (t text, h think, o tools, v value, x another's).
 */
struct reading {
    char tag[64][80];
    size_t depth;
    bool other, behind;
    struct waste_text bytes, letters;
};

static bool named(const char *tag, const char *name)
{
    size_t n = strlen(name);

    return strncmp(tag, name, n) == 0 && (tag[n] == '\0' || tag[n] == ' ');
}

static int index_of(const struct reading *r, const char *name)
{
    for (size_t i = r->depth; i-- > 0;)
        if (named(r->tag[i], name))
            return (int)i;
    return -1;
}

static char letter(const struct reading *r)
{
    if (r->other || r->behind)
        return 'x';
    for (size_t i = r->depth; i-- > 0;) {
        if (named(r->tag[i], "argument") || named(r->tag[i], "json"))
            return 'v';
        if (named(r->tag[i], "call") || named(r->tag[i], "tools"))
            return 'o';
        if (named(r->tag[i], "think"))
            return 'h';
        if (named(r->tag[i], "response"))
            return 't';
    }
    return 't';
}

static void read_open(struct reading *r, const char *tag)
{
    static const char *const known[] = {"think", "response", "tools", "call", "argument", "json"};
    int below = -1;
    bool is_known = false;

    if (named(tag, "message")) {
        r->depth = 0;
        r->behind = false;
        r->other = strncmp(tag, "message role=\"assistant\"", 24) != 0;
    } else {
        for (size_t i = 0; i < 6; i++)
            is_known |= named(tag, known[i]);
        if (named(tag, "call"))
            below = index_of(r, "tools");
        else if (named(tag, "argument") || named(tag, "json"))
            below = index_of(r, "call");
        else
            below = index_of(r, "message");
        if ((named(tag, "call") || named(tag, "argument") || named(tag, "json")) &&
            (below < 0 || r->other || r->behind))
            is_known = false;
        if (is_known)
            r->depth = (size_t)(below + 1);
    }
    assert_true(r->depth < 64);
    /* an unknown tag, and one out of place, is nobody's */
    snprintf(r->tag[r->depth++], sizeof(r->tag[0]), "%.79s",
             is_known || named(tag, "message") ? tag : "*");
}

static void read_close(struct reading *r, const char *tag)
{
    static const char *const known[] = {"message", "think",    "response", "tools",
                                        "call",    "argument", "json"};
    const char *name = "*";
    int at;

    for (size_t i = 0; i < 7; i++)
        if (named(tag, known[i]))
            name = known[i];
    at = index_of(r, name);
    if (at >= 0)
        r->depth = (size_t)at;
    if (at >= 0 && named(tag, "message"))
        r->behind = true;
}

/* Expects no tag longer than the parser takes. */
static void where_text_belongs(const struct waste_ids *prompt, const struct waste_ids *ids,
                               struct reading *r)
{
    char tag[4096];
    size_t tag_bytes = 0;
    int in_tag = 0; /* 1: open, 2: close */

    for (size_t i = 0; i < prompt->count + ids->count; i++) {
        uint32_t id = i < prompt->count ? prompt->id[i] : ids->id[i - prompt->count];
        size_t bytes = 0;
        const char *text = waste_tokenizer_bytes(demo, id, &bytes);
        bool special = text != NULL && waste_tokenizer_is_special(demo, id);

        if (special && bytes == 8 && memcmp(text, "<|open|>", 8) == 0) {
            in_tag = 1;
            tag_bytes = 0;
        } else if (special && bytes == 9 && memcmp(text, "<|close|>", 9) == 0) {
            in_tag = 2;
            tag_bytes = 0;
        } else if (special && bytes == 7 && memcmp(text, "<|sep|>", 7) == 0) {
            tag[tag_bytes] = '\0';
            if (in_tag == 1)
                read_open(r, tag);
            else if (in_tag == 2)
                read_close(r, tag);
            in_tag = 0;
        } else if (special && bytes == 14 && memcmp(text, "<|end_of_msg|>", 14) == 0) {
            r->depth = in_tag = 0;
            r->behind = true;
            r->other = false;
        } else if (!special && text != NULL && in_tag) {
            for (size_t k = 0; k < bytes; k++) /* a zero byte is a byte like others */
                tag[tag_bytes++] = text[k] != '\0' ? text[k] : '\1';
        } else if (!special && text != NULL) {
            char where = letter(r);

            waste_text_add(&r->bytes, text, bytes);
            for (size_t k = 0; k < bytes; k++)
                waste_text_add(&r->letters, &where, 1);
        }
    }
}

/* What the parser says, in the same letters; bytes that are no characters are left out of both. */
struct letters {
    struct waste_text bytes, letters;
};

static int letter_event(void *arg, const struct waste_event *e)
{
    static const char of_channel[] = {'t', 'h', 'o', 'x', '?', 'v'};
    struct letters *l = arg;
    char where = e->kind == WASTE_EVENT_VALUE ? 'v' : of_channel[e->channel];

    if (e->kind != WASTE_EVENT_TEXT && e->kind != WASTE_EVENT_VALUE)
        return 0;
    for (size_t i = 0; i < e->bytes; i++)
        if ((uint8_t)e->text[i] < 0x80) {
            waste_text_add(&l->bytes, e->text + i, 1);
            waste_text_add(&l->letters, &where, 1);
        }
    return 0;
}

static void check_places(const struct waste_ids *prompt, const struct waste_ids *ids)
{
    struct reading r = {0};
    struct letters l = {0};
    struct waste_parser p;
    size_t n = 0;

    where_text_belongs(prompt, ids, &r);
    for (size_t i = 0; i < r.bytes.bytes; i++)
        if ((uint8_t)r.bytes.data[i] < 0x80) {
            r.bytes.data[n] = r.bytes.data[i];
            r.letters.data[n++] = r.letters.data[i];
        }
    waste_parser_init(&p, demo, letter_event, &l);
    waste_parser_prompt(&p, prompt->id, prompt->count);
    waste_parser_add(&p, ids->id, ids->count);
    waste_parser_end(&p);
    if (l.bytes.bytes != n || (n > 0 && (memcmp(l.bytes.data, r.bytes.data, n) != 0 ||
                                         memcmp(l.letters.data, r.letters.data, n) != 0))) {
        struct waste_text text = {0};

        waste_detokenize(demo, WASTE_DETOK_SPECIALS, ids->id, ids->count, &text);
        fail_msg("%s\ngave %.*s\nnot  %.*s", text.data, (int)l.letters.bytes, l.letters.data,
                 (int)n, r.letters.data);
    }
    waste_text_finish(&r.bytes);
    waste_text_finish(&r.letters);
    waste_text_finish(&l.bytes);
    waste_text_finish(&l.letters);
}

/* Every token in its bytes: the same text in other ids. */
static struct waste_ids in_bytes(const struct waste_ids *ids)
{
    struct waste_ids out = {0};

    for (size_t i = 0; i < ids->count; i++) {
        size_t bytes = 0;
        const char *text = waste_tokenizer_bytes(demo, ids->id[i], &bytes);

        if (text == NULL || waste_tokenizer_is_special(demo, ids->id[i]))
            waste_ids_add(&out, ids->id[i]);
        else
            for (size_t k = 0; k < bytes; k++)
                waste_ids_add(&out, (uint8_t)text[k]);
    }
    return out;
}

static void check_closing(const struct waste_markup *m, const struct waste_ids *prompt,
                          const struct waste_ids *ids)
{
    struct waste_ids all = {0};
    struct waste_parser p;

    waste_ids_append(&all, prompt->id, prompt->count);
    waste_ids_append(&all, ids->id, ids->count);
    size_t count = all.count;
    assert_int_equal(waste_markup_close(m, all.id, count, ids->count, &all), 0);
    waste_parser_init(&p, demo, NULL, NULL);
    waste_parser_prompt(&p, prompt->id, prompt->count);
    waste_parser_add(&p, all.id + prompt->count, all.count - prompt->count);
    assert_true(p.ended && p.depth == 0 && p.tag < 0);
    waste_ids_finish(&all);
}

static void mutated_streams_do_no_harm(void **state)
{
    struct waste_ids prompt = markup_ids(demo, THINKING);
    struct waste_error err;
    struct waste_markup *m = NULL;

    assert_int_equal(waste_markup_open(WASTE_DEMO_MODEL, demo, false, &m, &err), 0);
    for (int i = 0; i < MUTATIONS; i++) {
        struct waste_ids ids = markup_ids(demo, whole[i % 3]), bytes;
        struct record r;
        char *once, *split, *in_pieces;

        mutate(&ids);
        once = events_of(demo, &prompt, ids.id, ids.count, 0, &r);
        if (r.wrong || r.open_calls != 0 || r.open_arguments != 0)
            fail_msg("mutation %d: events do not match up:%s", i, once);
        split = events_of(demo, &prompt, ids.id, ids.count, 1 + (uint32_t)i % 5, NULL);
        assert_string_equal(split, once);
        bytes = in_bytes(&ids);
        in_pieces = events_of(demo, &prompt, bytes.id, bytes.count, 3, NULL);
        assert_string_equal(in_pieces, once);
        check_places(&prompt, &ids);
        if (i % 4 == 0)
            check_closing(m, &prompt, &ids);
        free(once);
        free(split);
        free(in_pieces);
        waste_ids_finish(&ids);
        waste_ids_finish(&bytes);
    }
    waste_markup_destroy(m);
    waste_ids_finish(&prompt);
}

/* Random ids of Kimi-Linear's, mostly control tokens. */
static void any_ids_of_kimi_linear_do_no_harm(void **state)
{
    for (int i = 0; i < 20000; i++) {
        uint32_t ids[40];
        struct record r;

        for (size_t k = 0; k < 40; k++)
            ids[k] = random_below(2) ? 2000 + random_below(11) : random_below(300);
        char *once = events_of(linear, NULL, ids, 40, 0, &r);
        assert_false(r.wrong || r.open_calls != 0 || r.open_arguments != 0);
        char *split = events_of(linear, NULL, ids, 40, 3, NULL);
        assert_string_equal(split, once);
        free(split);
        free(once);
    }
}

static int set_up(void **state)
{
    static const char *const specials[] = {"<|im_user|>",         "<|im_middle|>",
                                           "<|im_end|>",          "<|im_system|>",
                                           "<|im_assistant|>",    "<|tool_calls_section_begin|>",
                                           "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                                           "<|tool_call_end|>",   "<|tool_calls_section_end|>"};
    char path[] = "/tmp/waste-test-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "wb");
    struct waste_error err;

    fputs("[", f);
    for (size_t i = 0; i < sizeof(specials) / sizeof(specials[0]); i++)
        fprintf(f, "%s{\"id\": %zu, \"text\": \"%s\"}", i > 0 ? "," : "", 2000 + i, specials[i]);
    fputs("]", f);
    fclose(f);
    int ret = waste_tokenizer_open(WASTE_DEMO_MODEL, 0, &demo, &err);
    if (ret == 0)
        ret =
            waste_tokenizer_open_files(WASTE_DEMO_MODEL "/tokenizer.model", path, 0, &linear, &err);
    remove(path);
    return ret;
}

static int tear_down(void **state)
{
    waste_tokenizer_destroy(demo);
    waste_tokenizer_destroy(linear);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_reply_has_its_channels_and_calls),
        cmocka_unit_test(damage_is_marked_and_takes_nothing_along),
        cmocka_unit_test(kimi_linears_calls),
        cmocka_unit_test(a_message_is_put_together),
        cmocka_unit_test(what_is_rendered_is_parsed_again),
        cmocka_unit_test(mutated_streams_do_no_harm),
        cmocka_unit_test(any_ids_of_kimi_linear_do_no_harm),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
