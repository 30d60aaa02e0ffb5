/* The small files of a converted container. */
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/tokenizer.h"
#include "fetcher/chat.h"
#include "fetcher/convert.h"
#include "fetcher/io.h"

enum { RANKS_LIMIT = 256 << 20, JSON_LIMIT = 64 << 20 };

static int write_json(const struct waste_convert *c, const char *name, const json_t *value)
{
    char *text = json_dumps(value, JSON_INDENT(1));
    int rc = text ? waste_io_write_file(c->dir, name, text, strlen(text))
                  : waste_fetch_fail("%s: out of memory", name);
    free(text);
    return rc;
}

/* Releases call it either way. */
static int write_ranks(const struct waste_convert *c)
{
    static const char *const names[] = {"tiktoken.model", "tokenizer.model"};
    struct waste_release *r = c->release;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char *text = NULL;
        size_t bytes;
        int rc = r->ops->small(r, names[i], RANKS_LIMIT, &text, &bytes);
        if (rc == 0)
            rc = waste_io_write_file(c->dir, "tokenizer.model", text, bytes);
        free(text);
        if (rc != -ENOENT)
            return rc;
    }
    return waste_fetch_fail("%s has no tiktoken.model", r->path);
}

static int by_id(const void *a, const void *b)
{
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "id"));
    json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "id"));
    return (x > y) - (x < y);
}

/* [{"id", "text"}], by id, from tokenizer_config.json's added_tokens_decoder. */
static json_t *specials_of(const struct waste_convert *c, const json_t *added)
{
    size_t n = json_object_size(added), used = 0;
    json_t **list = calloc(n + 1, sizeof(*list)), *out = json_array(), *v;
    const char *key;
    bool ok = list && out;
    json_object_foreach((json_t *)added, key, v)
    {
        char *end;
        unsigned long id = strtoul(key, &end, 10);
        const char *text = json_string_value(json_object_get(v, "content"));
        if (ok &&
            (!text || !*text || !isdigit((unsigned char)*key) || *end || id >= c->shape.vocab)) {
            waste_fetch_fail("%s/tokenizer_config.json: added token %s is no id under %u with its "
                             "content",
                             c->release->path, key, c->shape.vocab);
            ok = false;
        }
        if (ok)
            list[used++] = json_pack("{s:I, s:s}", "id", (json_int_t)id, "text", text);
    }
    if (used)
        qsort(list, used, sizeof(*list), by_id);
    for (size_t i = 0; i < used; i++)
        json_array_append_new(out, list[i]);
    free(list);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

static int write_specials(const struct waste_convert *c)
{
    struct waste_release *r = c->release;
    char *text = NULL;
    size_t bytes;
    json_error_t error;
    int rc = r->ops->small(r, "tokenizer_config.json", JSON_LIMIT, &text, &bytes);
    if (rc == -ENOENT)
        return waste_fetch_fail("%s has no tokenizer_config.json", r->path);
    json_t *root = rc ? NULL : json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (rc == 0 && !root)
        rc = waste_fetch_fail("%s/tokenizer_config.json: %s", r->path, error.text);
    const json_t *added = json_object_get(root, "added_tokens_decoder");
    if (rc == 0 && !json_is_object(added))
        rc = waste_fetch_fail("%s/tokenizer_config.json: added_tokens_decoder is no object",
                              r->path);
    json_t *specials = rc ? NULL : specials_of(c, added);
    const char *chat = specials ? waste_chat_text(specials) : NULL;
    rc = specials ? write_json(c, "specials.json", specials) : -1;
    if (rc == 0 && chat)
        rc = waste_io_write_file(c->dir, "chat.json", chat, strlen(chat));
    json_decref(specials);
    json_decref(root);
    free(text);
    return rc;
}

static int check_tokens(const struct waste_convert *c, const struct waste_config *config)
{
    struct waste_tokenizer *tokenizer = NULL;
    struct waste_error err;
    if (waste_tokenizer_open_model(c->path, config, &tokenizer, &err))
        return waste_fetch_fail("%s has tokens that cannot be used: %s", c->release->path,
                                err.text);
    waste_tokenizer_destroy(tokenizer);
    return 0;
}

int waste_convert_texts(struct waste_convert *c, const struct waste_config *config)
{
    const json_t *outer = json_object_get(c->shape.config, "_outer");
    const json_t *vision = json_object_get(outer, "vision_config");
    int rc = write_ranks(c);
    if (rc == 0)
        rc = write_specials(c);
    if (rc == 0 && json_is_object(vision))
        rc = write_json(c, "vision.json", vision);
    return rc ? rc : check_tokens(c, config);
}
