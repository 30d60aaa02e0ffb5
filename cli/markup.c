#include "cli/markup.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/detokenizer.h"

enum { CHAT_JSON_BYTES = 1 << 20 };

/* The texts of a format: for each role what goes before and after; `open` begins a reply. */
struct format {
    const char *around[WASTE_ROLE_COUNT][2];
    const char *open;
};

static const struct format xtml = {
    {{"<|open|>message role=\"system\"<|sep|>", "<|close|>message<|sep|><|end_of_msg|>"},
     {"<|open|>message role=\"user\"<|sep|>", "<|close|>message<|sep|><|end_of_msg|>"},
     {"<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>",
      "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"}},
    "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>",
};
static const char xtml_end_of_thinking[] = "<|close|>think<|sep|><|open|>response<|sep|>";

static const struct format chatml = {
    {{"<|im_system|>system<|im_middle|>", "<|im_end|>"},
     {"<|im_user|>user<|im_middle|>", "<|im_end|>"},
     {"<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"}},
    "<|im_assistant|>assistant<|im_middle|>",
};

static const struct format raw_format = {{{"", ""}, {"", ""}, {"", ""}}, ""};

static const char *const role_name[WASTE_ROLE_COUNT] = {"system", "user", "assistant"};

struct waste_markup {
    const struct waste_tokenizer *tokenizer;
    enum waste_markup_kind kind;
    struct waste_ids around[WASTE_ROLE_COUNT][2], open;
    struct waste_ids end_of_thinking; /* from there to where the assistant's suffix closes the
                                         response; empty: the format has no such thing */
};

/* The format in ids. */
static int translate(struct waste_markup *m, const struct format *format)
{
    const struct waste_tokenizer *t = m->tokenizer;
    int64_t close = waste_tokenizer_special(t, "<|close|>");
    const struct waste_ids *suffix = &m->around[WASTE_ROLE_ASSISTANT][1];
    int ret = waste_tokenizer_encode_markup(t, format->open, strlen(format->open), &m->open);

    for (int role = 0; role < WASTE_ROLE_COUNT; role++)
        for (int side = 0; side < 2 && ret == 0; side++)
            ret = waste_tokenizer_encode_markup(t, format->around[role][side],
                                                strlen(format->around[role][side]),
                                                &m->around[role][side]);
    if (ret == 0 && suffix->count > 0 && suffix->id[0] == close)
        ret = waste_tokenizer_encode_markup(t, xtml_end_of_thinking, strlen(xtml_end_of_thinking),
                                            &m->end_of_thinking);
    return ret;
}

static int read_string(const json_t *value, const char *field, const char **out,
                       struct waste_error *err)
{
    if (!json_is_string(value))
        return waste_error_set(err, -EINVAL, "chat.json: %s: %s", field,
                               value == NULL ? "missing" : "not a string");
    *out = json_string_value(value);
    return 0;
}

/* The strings belong to `root`. */
static int read_format(const json_t *root, struct format *format, struct waste_error *err)
{
    for (int role = 0; role < WASTE_ROLE_COUNT; role++) {
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
    struct format format;
    json_error_t why;
    json_t *root = NULL;
    char *text = NULL;
    size_t bytes = 0;
    int ret = waste_container_read_file(dir, "chat.json", CHAT_JSON_BYTES, &text, &bytes, err);

    if (ret < 0)
        return ret == -ENOENT ? 0 : ret;
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(root)) {
        ret = waste_error_set(err, -EINVAL, "chat.json: line %d: %s", root ? 1 : why.line,
                              root ? "not an object" : why.text);
        goto out;
    }
    if ((ret = read_format(root, &format, err)) < 0)
        goto out;
    m->kind = WASTE_MARKUP_FILE;
    ret = translate(m, &format);
    ret = ret < 0 ? waste_error_set(err, ret, "chat.json: out of memory") : 1;
out:
    json_decref(root);
    free(text);
    return ret;
}

static int open_built_in(struct waste_markup *m, bool raw, struct waste_error *err)
{
    const struct format *format = &raw_format;

    if (!raw && waste_tokenizer_special(m->tokenizer, "<|open|>") >= 0 &&
        waste_tokenizer_special(m->tokenizer, "<|close|>") >= 0 &&
        waste_tokenizer_special(m->tokenizer, "<|sep|>") >= 0) {
        m->kind = WASTE_MARKUP_XTML;
        format = &xtml;
    } else if (!raw && waste_tokenizer_special(m->tokenizer, "<|im_user|>") >= 0 &&
               waste_tokenizer_special(m->tokenizer, "<|im_middle|>") >= 0 &&
               waste_tokenizer_special(m->tokenizer, "<|im_end|>") >= 0) {
        m->kind = WASTE_MARKUP_CHATML;
        format = &chatml;
    }
    if (translate(m, format) < 0)
        return waste_error_set(err, -ENOMEM, "chat markup: out of memory");
    return 0;
}

int waste_markup_open(const char *dir, const struct waste_tokenizer *tokenizer, bool raw,
                      struct waste_markup **out, struct waste_error *err)
{
    struct waste_markup *m = calloc(1, sizeof(*m));
    int ret = 0;

    if (m == NULL)
        return waste_error_set(err, -ENOMEM, "chat markup: out of memory");
    m->tokenizer = tokenizer;
    m->kind = WASTE_MARKUP_RAW;
    if (!raw)
        ret = open_file(m, dir, err);
    if (ret == 0)
        ret = open_built_in(m, raw, err);
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
    for (int role = 0; role < WASTE_ROLE_COUNT; role++)
        for (int side = 0; side < 2; side++)
            waste_ids_finish(&m->around[role][side]);
    waste_ids_finish(&m->open);
    waste_ids_finish(&m->end_of_thinking);
    free(m);
}

enum waste_markup_kind waste_markup_kind(const struct waste_markup *m)
{
    return m->kind;
}

static int append(struct waste_ids *out, const struct waste_ids *more, size_t from)
{
    return from < more->count ? waste_ids_append(out, more->id + from, more->count - from) : 0;
}

int waste_markup_message(const struct waste_markup *m, enum waste_role role, const char *text,
                         size_t bytes, struct waste_ids *out)
{
    int ret = append(out, &m->around[role][0], 0);

    if (ret == 0)
        ret = waste_tokenizer_encode(m->tokenizer, text, bytes, out);
    return ret == 0 ? append(out, &m->around[role][1], 0) : ret;
}

int waste_markup_reply(const struct waste_markup *m, struct waste_ids *out)
{
    return append(out, &m->open, 0);
}

int waste_markup_first(const struct waste_markup *m, const char *system, const char *user,
                       size_t user_bytes, struct waste_ids *out)
{
    int ret = 0;

    if (system != NULL)
        ret = waste_markup_message(m, WASTE_ROLE_SYSTEM, system, strlen(system), out);
    if (ret == 0)
        ret = waste_markup_message(m, WASTE_ROLE_USER, user, user_bytes, out);
    return ret == 0 ? waste_markup_reply(m, out) : ret;
}

/* The most of `closing` that ids[0 .. count) ends with. */
static size_t overlap(const uint32_t *ids, size_t count, const struct waste_ids *closing)
{
    size_t n = count < closing->count ? count : closing->count;

    while (n > 0 && memcmp(ids + count - n, closing->id, n * sizeof(*ids)) != 0)
        n--;
    return n;
}

/* Was the reply at the end of ids[0 .. count) cut off while it was thinking? */
static bool thinking(const struct waste_markup *m, const uint32_t *ids, size_t count)
{
    struct waste_detokenizer d;

    waste_detok_init(&d, m->tokenizer, 0);
    waste_detok_prompt(&d, ids, count);
    return d.depth > 0 && d.depth <= WASTE_DETOK_DEPTH &&
           d.stack[d.depth - 1] == WASTE_CHANNEL_THINK;
}

/* What is missing of the end of the reply. */
static int close_reply(const struct waste_markup *m, const uint32_t *ids, size_t count,
                       size_t generated, struct waste_ids *out)
{
    const struct waste_ids *suffix = &m->around[WASTE_ROLE_ASSISTANT][1];
    const uint32_t *reply = generated > 0 ? ids + count - generated : NULL;
    struct waste_ids all = {0};
    size_t have = overlap(reply, generated, suffix), have_all;
    int ret;

    if (m->end_of_thinking.count == 0)
        return append(out, suffix, have);
    ret = append(&all, &m->end_of_thinking, 0);
    if (ret == 0)
        ret = append(&all, suffix, 0);
    if (ret == 0) {
        have_all = overlap(reply, generated, &all);
        /* both begin with <|close|>: a reply cut off just there tells by what it was in */
        if (have_all > have || (have_all == have && thinking(m, ids, count)))
            ret = append(out, &all, have_all);
        else
            ret = append(out, suffix, have);
    }
    waste_ids_finish(&all);
    return ret;
}

int waste_markup_next(const struct waste_markup *m, const uint32_t *ids, size_t count,
                      size_t generated, const char *user, size_t user_bytes, struct waste_ids *out)
{
    int ret = close_reply(m, ids, count, generated, out);

    if (ret == 0)
        ret = waste_markup_message(m, WASTE_ROLE_USER, user, user_bytes, out);
    return ret == 0 ? waste_markup_reply(m, out) : ret;
}

uint32_t waste_markup_eos(const struct waste_markup *m, const struct waste_config *config,
                          uint32_t eos[WASTE_MAX_EOS])
{
    const struct waste_ids *suffix = &m->around[WASTE_ROLE_ASSISTANT][1];
    uint32_t count = 0;

    /* ours first: it must not be what a long list crowds out */
    for (size_t i = suffix->count; i-- > 0;)
        if (waste_tokenizer_is_special(m->tokenizer, suffix->id[i])) {
            eos[count++] = suffix->id[i];
            break;
        }
    for (uint32_t i = 0; i < config->eos_count && i < WASTE_MAX_EOS; i++)
        if (count < WASTE_MAX_EOS && (count == 0 || config->eos[i] != eos[0]))
            eos[count++] = config->eos[i];
    return count;
}
