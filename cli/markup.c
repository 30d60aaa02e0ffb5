#include "cli/markup.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/closing.h"
#include "cli/render.h"

enum { CHAT_JSON_BYTES = 1 << 20, FILE_ROLES = WASTE_ROLE_TOOL };

static const char *const role_name[FILE_ROLES] = {"system", "user", "assistant"};

/* What a chat.json says: for each role what goes before and after; `open` begins a reply. */
struct format {
    char *around[FILE_ROLES][2];
    char *open;
};

struct waste_markup {
    const struct waste_tokenizer *tokenizer;
    enum waste_markup_kind kind;
    bool thinks;
    int64_t end; /* the format's own end of a reply, or -1 */
    struct format file;
    struct waste_ids suffix; /* FILE: of the assistant */
};

static int read_string(const json_t *value, const char *field, char **out, struct waste_error *err)
{
    if (!json_is_string(value))
        return waste_error_set(err, -EINVAL, "chat.json: %s: %s", field,
                               value == NULL ? "missing" : "not a string");
    *out = strdup(json_string_value(value));
    return *out != NULL ? 0 : waste_error_set(err, -ENOMEM, "chat.json: out of memory");
}

static int read_format(const json_t *root, struct format *format, struct waste_error *err)
{
    for (int role = 0; role < FILE_ROLES; role++) {
        const json_t *pair = json_object_get(root, role_name[role]);

        if (!json_is_array(pair) || json_array_size(pair) != 2)
            return waste_error_set(err, -EINVAL, "chat.json: %s: %s", role_name[role],
                                   pair == NULL ? "missing" : "not [prefix, suffix]");
        for (size_t side = 0; side < 2; side++) {
            int ret = read_string(json_array_get(pair, side), role_name[role],
                                  &format->around[role][side], err);
            if (ret < 0)
                return ret;
        }
    }
    return read_string(json_object_get(root, "open"), "open", &format->open, err);
}

/* 1: done; 0: there is no chat.json. */
static int open_file(struct waste_markup *m, const char *dir, struct waste_error *err)
{
    json_error_t why;
    json_t *root = NULL;
    char *text = NULL;
    size_t bytes = 0;
    int ret = waste_container_read_file(dir, "chat.json", CHAT_JSON_BYTES, &text, &bytes, err);

    if (ret < 0)
        return ret == -ENOENT ? 0 : ret;
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(root))
        ret = waste_error_set(err, -EINVAL, "chat.json: line %d: %s", root ? 1 : why.line,
                              root ? "not an object" : why.text);
    else
        ret = read_format(root, &m->file, err);
    json_decref(root);
    free(text);
    return ret < 0 ? ret : 1;
}

static bool has(const struct waste_markup *m, const char *special)
{
    return waste_tokenizer_special(m->tokenizer, special) >= 0;
}

/* The format that the special tokens stand for. */
static enum waste_markup_kind built_in(const struct waste_markup *m)
{
    if (has(m, "<|open|>") && has(m, "<|close|>") && has(m, "<|sep|>"))
        return WASTE_MARKUP_XTML;
    if (has(m, "<|im_user|>") && has(m, "<|im_middle|>") && has(m, "<|im_end|>"))
        return WASTE_MARKUP_CHATML;
    return WASTE_MARKUP_RAW;
}

/* A message of words, in a built-in format. */
static void render_words(enum waste_markup_kind kind, enum waste_role role, const char *text,
                         size_t bytes, struct waste_segments *out)
{
    struct waste_part part = {.text = {text, bytes}};
    struct waste_message message = {.role = role, .parts = &part, .part_count = bytes > 0};

    if (kind == WASTE_MARKUP_XTML)
        waste_render_xtml_message(&message, false, out);
    else
        waste_render_chatml_message(&message, out);
}

static bool is_text(const struct waste_segments *s, const char *a, const char *b)
{
    size_t first = strlen(a);

    return s->error == 0 && s->text.bytes == first + strlen(b) &&
           memcmp(s->text.data, a, first) == 0 && memcmp(s->text.data + first, b, strlen(b)) == 0;
}

/* Does the file say what the built-in format does? Then *thinks is what its `open` does. */
static bool same_as(const struct waste_markup *m, enum waste_markup_kind kind, bool *thinks)
{
    const struct format *f = &m->file;
    struct waste_segments s = {0};
    bool same = kind != WASTE_MARKUP_RAW;

    for (int role = 0; role < FILE_ROLES && same; role++) {
        render_words(kind, (enum waste_role)role, NULL, 0, &s);
        same = is_text(&s, f->around[role][0], f->around[role][1]);
        waste_segments_finish(&s);
    }
    for (int thinking = 0; thinking < 2 && same; thinking++) {
        if (kind == WASTE_MARKUP_XTML)
            waste_render_xtml_reply(thinking, &s);
        else
            waste_render_chatml_reply(&s);
        *thinks = kind == WASTE_MARKUP_XTML && thinking;
        bool found = is_text(&s, f->open, "");
        waste_segments_finish(&s);
        if (found)
            return true;
    }
    return false;
}

/* The format's own end of a reply: the last special token of an assistant's message. */
static int find_end(struct waste_markup *m)
{
    int ret = 0;

    m->end = -1;
    if (m->kind == WASTE_MARKUP_XTML)
        m->end = waste_tokenizer_special(m->tokenizer, "<|end_of_msg|>");
    if (m->kind == WASTE_MARKUP_CHATML)
        m->end = waste_tokenizer_special(m->tokenizer, "<|im_end|>");
    if (m->kind != WASTE_MARKUP_FILE)
        return 0;
    const char *text = m->file.around[WASTE_ROLE_ASSISTANT][1];
    ret = waste_tokenizer_encode_markup(m->tokenizer, text, strlen(text), &m->suffix);
    for (size_t i = m->suffix.count; i-- > 0 && m->end < 0;)
        if (waste_tokenizer_is_special(m->tokenizer, m->suffix.id[i]))
            m->end = m->suffix.id[i];
    return ret;
}

int waste_markup_open(const char *dir, const struct waste_tokenizer *tokenizer, bool raw,
                      struct waste_markup **out, struct waste_error *err)
{
    struct waste_markup *m = calloc(1, sizeof(*m));
    int ret = 0;

    if (m == NULL)
        return waste_error_set(err, -ENOMEM, "chat markup: out of memory");
    m->tokenizer = tokenizer;
    if (!raw) {
        m->kind = built_in(m);
        m->thinks = m->kind == WASTE_MARKUP_XTML;
        ret = open_file(m, dir, err);
    }
    if (ret > 0 && !same_as(m, m->kind, &m->thinks)) {
        m->kind = WASTE_MARKUP_FILE;
        m->thinks = false;
    }
    if (ret >= 0 && find_end(m) < 0)
        ret = waste_error_set(err, -ENOMEM, "chat markup: out of memory");
    if (ret < 0) {
        waste_markup_destroy(m);
        return ret;
    }
    *out = m;
    return 0;
}

void waste_markup_destroy(struct waste_markup *m)
{
    if (m == NULL)
        return;
    for (int role = 0; role < FILE_ROLES; role++)
        for (int side = 0; side < 2; side++)
            free(m->file.around[role][side]);
    free(m->file.open);
    waste_ids_finish(&m->suffix);
    free(m);
}

bool waste_markup_thinks(const struct waste_markup *m)
{
    return m->thinks;
}

bool waste_markup_can_think(const struct waste_markup *m)
{
    return m->kind == WASTE_MARKUP_XTML;
}

enum waste_markup_kind waste_markup_kind(const struct waste_markup *m)
{
    return m->kind;
}

/* ---- conversations ---- */

static void render_message(const struct waste_markup *m, enum waste_role role, const char *text,
                           size_t bytes, struct waste_segments *out)
{
    if (m->kind == WASTE_MARKUP_XTML || m->kind == WASTE_MARKUP_CHATML) {
        render_words(m->kind, role, text, bytes, out);
        return;
    }
    if (m->kind == WASTE_MARKUP_FILE)
        waste_segments_markup(out, m->file.around[role][0]);
    waste_segments_add(out, false, text, bytes);
    if (m->kind == WASTE_MARKUP_FILE)
        waste_segments_markup(out, m->file.around[role][1]);
}

static void render_reply(const struct waste_markup *m, bool thinking, struct waste_segments *out)
{
    if (m->kind == WASTE_MARKUP_XTML)
        waste_render_xtml_reply(thinking, out);
    else if (m->kind == WASTE_MARKUP_CHATML)
        waste_render_chatml_reply(out);
    else if (m->kind == WASTE_MARKUP_FILE)
        waste_segments_markup(out, m->file.open);
}

/* What the conversation has that prefixes and suffixes have no place for, or NULL. */
static const char *not_for_file(const struct waste_conversation *c)
{
    for (size_t i = 0; i < c->count; i++) {
        const struct waste_message *m = &c->messages[i];
        const char *what = m->role == WASTE_ROLE_TOOL || m->call_count > 0 || m->tools != NULL
                               ? "tools"
                           : m->name.bytes > 0      ? "name"
                           : m->reasoning.bytes > 0 ? "reasoning"
                                                    : NULL;
        if (what != NULL)
            return what;
    }
    return c->tools != NULL             ? "tools"
           : c->tool_choice != NULL     ? "tool_choice"
           : c->response_format != NULL ? "response_format"
           : c->effort != NULL          ? "thinking_effort"
                                        : NULL;
}

/* chat.json or none. */
static int render_plain(const struct waste_markup *m, const struct waste_conversation *c,
                        struct waste_segments *out, struct waste_error *err)
{
    const char *too_much = not_for_file(c);

    if (too_much != NULL)
        return waste_error_set(err, -EINVAL, "%s: this model's chat format has none", too_much);
    for (size_t i = 0; i < c->count; i++) {
        enum waste_role role = c->messages[i].role;

        if (m->kind == WASTE_MARKUP_FILE)
            waste_segments_markup(out, m->file.around[role][0]);
        waste_render_content(&c->messages[i], out);
        if (m->kind == WASTE_MARKUP_FILE)
            waste_segments_markup(out, m->file.around[role][1]);
    }
    if (c->reply)
        render_reply(m, false, out);
    return 0;
}

int waste_markup_render(const struct waste_markup *m, const struct waste_conversation *c,
                        struct waste_segments *out, struct waste_error *err)
{
    int ret = 0;

    if (m == NULL || m->kind == WASTE_MARKUP_XTML)
        waste_render_xtml(c, out);
    else if (m->kind == WASTE_MARKUP_CHATML)
        ret = waste_render_chatml(c, out, err);
    else
        ret = render_plain(m, c, out, err);
    return ret == 0 && out->error != 0 ? waste_error_set(err, out->error, "out of memory") : ret;
}

static int encode_and_finish(const struct waste_markup *m, struct waste_segments *s,
                             struct waste_ids *out)
{
    int ret = waste_segments_encode(s, m->tokenizer, out);

    waste_segments_finish(s);
    return ret;
}

int waste_markup_message(const struct waste_markup *m, enum waste_role role, const char *text,
                         size_t bytes, struct waste_ids *out)
{
    struct waste_segments s = {0};

    render_message(m, role, text, bytes, &s);
    return encode_and_finish(m, &s, out);
}

int waste_markup_reply(const struct waste_markup *m, bool thinking, struct waste_ids *out)
{
    struct waste_segments s = {0};

    render_reply(m, thinking, &s);
    return encode_and_finish(m, &s, out);
}

int waste_markup_first(const struct waste_markup *m, const char *system, const char *user,
                       size_t user_bytes, bool thinking, struct waste_ids *out)
{
    struct waste_segments s = {0};

    if (system != NULL)
        render_message(m, WASTE_ROLE_SYSTEM, system, strlen(system), &s);
    render_message(m, WASTE_ROLE_USER, user, user_bytes, &s);
    render_reply(m, thinking, &s);
    return encode_and_finish(m, &s, out);
}

/* ---- the end of a reply ---- */

/* The most of `closing` that ids[0 .. count) ends with. */
static size_t overlap(const uint32_t *ids, size_t count, const struct waste_ids *closing)
{
    size_t n = count < closing->count ? count : closing->count;

    while (n > 0 && memcmp(ids + count - n, closing->id, n * sizeof(*ids)) != 0)
        n--;
    return n;
}

int waste_markup_close(const struct waste_markup *m, const uint32_t *ids, size_t count,
                       size_t generated, struct waste_ids *out)
{
    struct waste_parser r;
    size_t have;

    if (m->kind == WASTE_MARKUP_FILE) {
        have = overlap(ids + count - generated, generated, &m->suffix);
        return have < m->suffix.count
                   ? waste_ids_append(out, m->suffix.id + have, m->suffix.count - have)
                   : 0;
    }
    if (m->kind == WASTE_MARKUP_RAW)
        return 0;
    waste_parser_init(&r, m->tokenizer, NULL, NULL);
    waste_parser_prompt(&r, ids, count - generated);
    waste_parser_add(&r, ids + count - generated, generated);
    return m->kind == WASTE_MARKUP_XTML ? waste_closing_xtml(&r, ids, count, out)
                                        : waste_closing_chatml(&r, out);
}

int waste_markup_next(const struct waste_markup *m, const uint32_t *ids, size_t count,
                      size_t generated, const char *user, size_t user_bytes, bool thinking,
                      struct waste_ids *out)
{
    struct waste_segments s = {0};
    int ret = waste_markup_close(m, ids, count, generated, out);

    render_message(m, WASTE_ROLE_USER, user, user_bytes, &s);
    render_reply(m, thinking, &s);
    if (ret < 0) {
        waste_segments_finish(&s);
        return ret;
    }
    return encode_and_finish(m, &s, out);
}

uint32_t waste_markup_eos(const struct waste_markup *m, const struct waste_config *config,
                          uint32_t eos[WASTE_MAX_EOS])
{
    uint32_t count = 0;

    if (m->end >= 0) /* ours first: it must not be what a long list crowds out */
        eos[count++] = (uint32_t)m->end;
    for (uint32_t i = 0; i < config->eos_count && i < WASTE_MAX_EOS; i++)
        if (count < WASTE_MAX_EOS && (count == 0 || config->eos[i] != eos[0]))
            eos[count++] = config->eos[i];
    return count;
}
