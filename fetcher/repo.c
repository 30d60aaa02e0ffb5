#include "fetcher/repo.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/listing.h"

#define DEFAULT_REVISION "main"

/* What a server without a listing is asked for. */
static const char *const small_names[] = {
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
};

/* Weights that are not the shards: the same in other formats. */
static const char *const other_weights[] = {
    "*.safetensors", "*.bin", "*.pt",  "*.pth",     "*.ckpt",   "*.gguf", "*.ggml", "*.onnx",
    "*.onnx_data",   "*.h5",  "*.npz", "*.msgpack", "*.tflite", "*.ot",   "*.nemo", "*.part",
};

static int no_memory(struct waste_error *err)
{
    return waste_error_set(err, -ENOMEM, "out of memory");
}

/* A file of the checkpoint into memory; -ENOENT if there is none. */
static int get_file(const struct waste_repo *r, const struct waste_catalog *l, const char *name,
                    size_t most, struct waste_http_text *text, struct waste_error *err)
{
    char *url = waste_address_file(r->address, l->revision, name);
    int rc =
        url == NULL ? no_memory(err) : waste_http_get(r->http, url, name, most, r->stop, text, err);

    free(url);
    return rc;
}

/* The shards that the index names. 1: there is no index. */
static int take_index(const struct waste_repo *r, struct waste_catalog *l, bool add,
                      struct waste_error *err)
{
    struct waste_http_text text;
    int rc = get_file(r, l, WASTE_INDEX_NAME, WASTE_INDEX_BYTES, &text, err);

    if (rc != 0)
        return rc == -ENOENT ? 1 : rc;
    rc = waste_listing_parse_index(text.data, text.bytes, add, l, err);
    free(text.data);
    return rc;
}

/* A listing is there: an index in it names the shards, or there is the one file. */
static int take_listed_shards(const struct waste_repo *r, struct waste_catalog *l,
                              struct waste_error *err)
{
    struct waste_file *single = waste_catalog_find(l, WASTE_SINGLE_NAME);

    if (waste_catalog_find(l, WASTE_INDEX_NAME) != NULL) {
        int rc = take_index(r, l, false, err);
        return rc > 0 ? -ENOENT : rc; /* err says what the server said */
    }
    if (single != NULL)
        single->shard = true;
    return 0;
}

static int list_hub(const struct waste_repo *r, struct waste_catalog *l, struct waste_error *err)
{
    const char *asked = r->revision != NULL ? r->revision : DEFAULT_REVISION;
    char *url = waste_address_listing(r->address, asked);
    struct waste_http_text text = {.data = NULL};
    int rc = url == NULL ? no_memory(err)
                         : waste_http_get(r->http, url, r->address->source, WASTE_LISTING_BYTES,
                                          r->stop, &text, err);

    free(url);
    if (rc == 0)
        rc = waste_listing_parse_hub(text.data, text.bytes, l, err);
    free(text.data);
    return rc == 0 ? take_listed_shards(r, l, err) : rc;
}

static int add_optional(struct waste_catalog *l, const char *name)
{
    struct waste_file *f = waste_catalog_find(l, name);

    if (f != NULL)
        return 0;
    f = waste_catalog_add(l, name);
    if (f == NULL)
        return -ENOMEM;
    f->optional = true;
    return 0;
}

static int list_by_index(const struct waste_repo *r, struct waste_catalog *l,
                         struct waste_error *err)
{
    int rc = take_index(r, l, true, err);
    bool single = rc == 1;
    struct waste_file *f;

    if (rc < 0)
        return rc;
    f = waste_catalog_add(l, single ? WASTE_SINGLE_NAME : WASTE_INDEX_NAME);
    if (f == NULL)
        return no_memory(err);
    f->shard = single;
    for (size_t i = 0; i < sizeof(small_names) / sizeof(small_names[0]); i++)
        if (add_optional(l, small_names[i]) != 0)
            return no_memory(err);
    return 0;
}

static int list_url(const struct waste_repo *r, struct waste_catalog *l, struct waste_error *err)
{
    struct waste_http_text text;
    int rc = get_file(r, l, WASTE_SUMS_NAME, WASTE_LISTING_BYTES, &text, err);

    if (rc == -ENOENT)
        return list_by_index(r, l, err);
    if (rc != 0)
        return rc;
    rc = waste_listing_parse_sums(text.data, text.bytes, l, err);
    free(text.data);
    return rc == 0 ? take_listed_shards(r, l, err) : rc;
}

int waste_repo_list(const struct waste_repo *r, struct waste_catalog *l, struct waste_error *err)
{
    l->source = strdup(r->address->source);
    if (r->address->hub)
        l->endpoint = strdup(r->address->endpoint);
    if (r->revision != NULL)
        l->asked = strdup(r->revision);
    if (l->source == NULL || (r->address->hub && l->endpoint == NULL) ||
        (r->revision != NULL && l->asked == NULL))
        return no_memory(err);
    return r->address->hub ? list_hub(r, l, err) : list_url(r, l, err);
}

/* ---- sizes ---- */

struct ask {
    struct waste_file *file;
    struct waste_transfer t;
    char *url;
};

static int take_length(struct waste_transfer *t, const struct waste_response *r)
{
    struct ask *a = t->ctx;

    if (r->length != 0) /* some servers say so of every file */
        a->file->size = r->length;
    return 0;
}

static const struct waste_transfer_ops ask_ops = {.response = take_length};

/* What the server said of one file. */
static int take_answer(const struct ask *a, struct waste_error *err)
{
    bool absent = a->t.status == 404 || a->t.status == 410;

    if (a->t.state != WASTE_TRANSFER_FAILED || (!absent && !a->file->optional))
        return 0;
    if (a->file->optional && (absent || a->t.status == 403)) {
        a->file->absent = true;
        a->file->wanted = false;
        return 0;
    }
    if (!absent)
        return 0;
    *err = a->t.error;
    return -ENOENT;
}

static int ask_all(const struct waste_repo *r, struct ask *ask, uint32_t count,
                   struct waste_error *err)
{
    int rc = 0;

    for (uint32_t i = 0; i < count; i++)
        waste_http_add(r->http, &ask[i].t);
    while (rc == 0 && waste_http_step(r->http, 200) > 0)
        if (atomic_load_explicit(r->stop, memory_order_relaxed))
            rc = waste_error_set(err, -ECANCELED, "stopped");
    for (uint32_t i = 0; i < count; i++) {
        if (rc == 0)
            rc = take_answer(&ask[i], err);
        waste_http_cancel(r->http, &ask[i].t);
    }
    return rc;
}

int waste_repo_ask_sizes(const struct waste_repo *r, struct waste_catalog *l,
                         struct waste_error *err)
{
    struct ask *ask = calloc(l->count + 1, sizeof(*ask));
    uint32_t count = 0;
    int rc = ask == NULL ? no_memory(err) : 0;

    for (uint32_t i = 0; i < l->count && rc == 0; i++) {
        struct waste_file *f = &l->file[i];
        if (!f->wanted || f->size != WASTE_SIZE_UNKNOWN)
            continue;
        struct ask *a = &ask[count++];
        a->file = f;
        a->url = waste_address_file(r->address, l->revision, f->name);
        a->t = (struct waste_transfer){
            .url = a->url, .name = f->name, .head = true, .ops = &ask_ops, .ctx = a};
        if (a->url == NULL)
            rc = no_memory(err);
    }
    if (rc == 0)
        rc = ask_all(r, ask, count, err);
    for (uint32_t i = 0; i < count; i++)
        free(ask[i].url);
    free(ask);
    return rc;
}

/* ---- choice ---- */

static bool matches(const struct waste_strings *globs, const char *name)
{
    for (uint32_t i = 0; i < globs->count; i++)
        if (fnmatch(globs->text[i], name, 0) == 0)
            return true;
    return false;
}

/* Neither hidden nor weights that are no shard. */
static bool by_default(const struct waste_file *f)
{
    if (f->shard)
        return true;
    if (f->name[0] == '.' || strstr(f->name, "/.") != NULL)
        return false;
    for (size_t i = 0; i < sizeof(other_weights) / sizeof(other_weights[0]); i++)
        if (fnmatch(other_weights[i], f->name, 0) == 0)
            return false;
    return true;
}

int waste_repo_select(struct waste_catalog *l, const struct waste_strings *include,
                      const struct waste_strings *exclude, struct waste_error *err)
{
    uint32_t wanted = 0, shards = 0;

    for (uint32_t i = 0; i < l->count; i++) {
        struct waste_file *f = &l->file[i];
        f->wanted = !f->absent &&
                    (include->count > 0 ? matches(include, f->name) : by_default(f)) &&
                    !matches(exclude, f->name);
        wanted += f->wanted;
        shards += f->shard;
    }
    if (include->count == 0 && shards == 0)
        return waste_error_set(err, -ENOENT,
                               "%s has neither %s nor %s: name what you want by --include",
                               l->source, WASTE_INDEX_NAME, WASTE_SINGLE_NAME);
    if (wanted == 0)
        return waste_error_set(
            err, -ENOENT, "%s has no file that --include and --exclude let through", l->source);
    return 0;
}
