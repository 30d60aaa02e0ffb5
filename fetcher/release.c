#include "fetcher/release.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fetcher/io.h"
#include "fetcher/listing.h"

/* A probe has as many values at least, and is no smaller than what one request for a header brings.
 */
enum { PROBE_VALUES = 1 << 16, PROBE_LEAST = 1 << 20 };
enum { ROOM = 1024, SHARD_LIMIT = 100000, TENSOR_LIMIT = 1 << 24 };

/* While the list is made: how a tensor's bytes are to be taken if it turns out to be half of a
 * pair. */
enum { RAW_BYTES = WASTE_RELEASE_OTHER + 1, RAW_F4, TAKEN };

void waste_release_close(struct waste_release *r)
{
    if (r->ops && r->ops->close)
        r->ops->close(r);
    for (uint32_t i = 0; i < r->tensors; i++)
        free(r->tensor[i].name);
    free(r->tensor);
    for (uint32_t i = 0; i < r->shards; i++) {
        if (r->shard[i].fd >= 0)
            close(r->shard[i].fd);
        free(r->shard[i].name);
    }
    free(r->shard);
    free(r->path);
    memset(r, 0, sizeof(*r));
}

static uint8_t type_of(const char *dtype)
{
    static const struct {
        const char *name;
        uint8_t type;
    } known[] = {{"BF16", WASTE_RELEASE_BF16}, {"F16", WASTE_RELEASE_F16},
                 {"F32", WASTE_RELEASE_F32},   {"U8", RAW_BYTES},
                 {"F8_E8M0", RAW_BYTES},       {"F4", RAW_F4}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(dtype, known[i].name))
            return known[i].type;
    return WASTE_RELEASE_OTHER;
}

static int add_tensor(void *ctx, const struct waste_safetensors_entry *e)
{
    struct waste_release *r = ctx;
    if (r->tensors == r->tensor_room) {
        uint32_t room = r->tensor_room ? 2 * r->tensor_room : ROOM;
        void *grown = room > TENSOR_LIMIT ? NULL : realloc(r->tensor, room * sizeof(*r->tensor));
        if (!grown)
            return -ENOMEM;
        r->tensor = grown;
        r->tensor_room = room;
    }
    struct waste_release_tensor *t = &r->tensor[r->tensors];
    *t = (struct waste_release_tensor){.name = strdup(e->name),
                                       .type = type_of(e->dtype),
                                       .axes = (uint8_t)e->axes,
                                       .data = {r->shards, e->off, e->bytes}};
    if (!t->name)
        return -ENOMEM;
    memcpy(t->shape, e->shape, sizeof(t->shape));
    r->tensors++;
    return 0;
}

static int list_shard(struct waste_release *r, const char *name, uint64_t file_bytes,
                      const char *json, size_t json_bytes)
{
    struct waste_error err;
    struct waste_release_shard *grown =
        r->shards >= SHARD_LIMIT ? NULL : realloc(r->shard, (r->shards + 1) * sizeof(*grown));
    char *copy = grown ? strdup(name) : NULL;
    if (grown)
        r->shard = grown;
    if (!copy)
        return waste_fetch_fail("%s: out of memory", name);
    int rc = waste_safetensors_parse(name, file_bytes, json, json_bytes, add_tensor, r, &err);
    r->shard[r->shards++] =
        (struct waste_release_shard){.name = copy, .bytes = file_bytes, .fd = -1};
    if (rc == -ENOMEM)
        return waste_fetch_fail("%s: out of memory", name);
    return rc ? waste_fetch_fail("%s/%s", r->path, err.text) : 0;
}

size_t waste_release_probe(uint64_t file_bytes, size_t json_bytes)
{
    size_t n = 8 + json_bytes + PROBE_VALUES;
    n = n > PROBE_LEAST ? n : PROBE_LEAST;
    return n < file_bytes ? n : (size_t)file_bytes;
}

int waste_release_add_shard(struct waste_release *r, const char *name, uint64_t file_bytes,
                            const char *first, size_t json_bytes)
{
    struct waste_digest d;
    if (waste_digest_bytes(first, waste_release_probe(file_bytes, json_bytes), false, &d))
        return waste_fetch_fail("%s: out of memory", name);
    int rc = list_shard(r, name, file_bytes, first + 8, json_bytes);
    if (rc == 0)
        memcpy(r->shard[r->shards - 1].sum, d.sha256, sizeof(d.sha256));
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct waste_release_tensor *)a)->name,
                  ((const struct waste_release_tensor *)b)->name);
}

static struct waste_release_tensor *find(const struct waste_release *r, const char *name)
{
    struct waste_release_tensor key = {.name = (char *)name};
    return r->tensors ? bsearch(&key, r->tensor, r->tensors, sizeof(key), by_name) : NULL;
}

const struct waste_release_tensor *waste_release_find(const struct waste_release *r,
                                                      const char *name)
{
    return find(r, name);
}

static const char *shard_name(const struct waste_release *r, const struct waste_release_tensor *t)
{
    return r->shard[t->data.shard].name;
}

static int check_twice(const struct waste_release *r)
{
    for (uint32_t i = 1; i < r->tensors; i++)
        if (!strcmp(r->tensor[i - 1].name, r->tensor[i].name))
            return waste_fetch_fail("%s: %s is in %s and in %s", r->path, r->tensor[i].name,
                                    shard_name(r, &r->tensor[i - 1]), shard_name(r, &r->tensor[i]));
    return 0;
}

/* The weight map, a new reference. */
static json_t *weight_map(const char *path, const char *index)
{
    json_error_t error;
    json_t *root = json_loads(index, JSON_REJECT_DUPLICATES, &error);
    json_t *map = root ? json_incref(json_object_get(root, "weight_map")) : NULL;
    json_decref(root);
    if (json_is_object(map))
        return map;
    json_decref(map);
    waste_fetch_fail("%s/" WASTE_INDEX_NAME ": %s", path, root ? "has no weight_map" : error.text);
    return NULL;
}

static int check_index(const struct waste_release *r, const char *index)
{
    json_t *map = weight_map(r->path, index), *shard;
    const char *name;
    int rc = map ? 0 : -1;
    if (!map)
        return -1;
    json_object_foreach(map, name, shard)
    {
        const struct waste_release_tensor *t = find(r, name);
        const char *in = json_string_value(shard);
        if (rc == 0 && !t)
            rc =
                waste_fetch_fail("%s: the index puts %s in %s, it is not there", r->path, name, in);
        else if (rc == 0 && strcmp(shard_name(r, t), in) != 0)
            rc = waste_fetch_fail("%s: the index puts %s in %s, it is in %s", r->path, name, in,
                                  shard_name(r, t));
    }
    for (uint32_t i = 0; i < r->tensors && rc == 0; i++)
        if (!json_object_get(map, r->tensor[i].name))
            rc = waste_fetch_fail("%s: %s of %s is not in the index", r->path, r->tensor[i].name,
                                  shard_name(r, &r->tensor[i]));
    json_decref(map);
    return rc;
}

static bool is_shard_name(const char *name)
{
    static const char end[] = ".safetensors";
    size_t n = name ? strlen(name) : 0, m = sizeof(end) - 1;
    return n > m && n < 200 && name[0] != '.' && !strchr(name, '/') && !strcmp(name + n - m, end);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the shards by the index's text; the list must be freed with its strings. */
static int index_shards(const char *path, const char *index, char ***names, uint32_t *count)
{
    json_t *map = weight_map(path, index), *shard, *seen = json_object();
    const char *name;
    uint32_t n = 0;
    char **list = NULL;
    int rc = map && seen ? 0 : -1;
    if (!map)
        goto out;
    json_object_foreach(map, name, shard)
    {
        const char *in = json_string_value(shard);
        if (rc == 0 && !is_shard_name(in))
            rc = waste_fetch_fail("%s/" WASTE_INDEX_NAME ": %s: \"%s\" is no shard's name", path,
                                  name, in ? in : "");
        if (rc == 0)
            json_object_set_new(seen, in, json_null());
    }
    list = calloc(json_object_size(seen) + 1, sizeof(*list));
    rc = rc == 0 && !list ? waste_fetch_fail("out of memory") : rc;
    if (rc == 0)
        json_object_foreach(seen, name, shard) if (!(list[n++] = strdup(name))) abort();
    if (rc == 0 && n == 0)
        rc = waste_fetch_fail("%s/" WASTE_INDEX_NAME ": names no shard", path);
    if (rc == 0) {
        qsort(list, n, sizeof(*list), by_text);
        *names = list;
        *count = n;
        list = NULL;
    }
out:
    free(list);
    json_decref(map);
    json_decref(seen);
    return rc;
}

/* If `name` ends with `end`, its length without it, else 0. */
static size_t stem(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && !strcmp(name + n - m, end) ? n - m : 0;
}

/* X.weight_packed becomes X.weight, X.weight_scale goes. */
static int join(struct waste_release *r, struct waste_release_tensor *t)
{
    char name[WASTE_SAFETENSORS_NAME + 8];
    size_t n = stem(t->name, ".weight_packed");
    if (!n)
        return 0;
    snprintf(name, sizeof(name), "%.*s.weight_scale", (int)n, t->name);
    struct waste_release_tensor *s = find(r, name);
    if (!s)
        return waste_fetch_fail("%s: %s has no %s", r->path, t->name, name);
    uint32_t last = t->axes ? t->axes - 1u : 0;
    uint64_t cols = (uint64_t)t->shape[last] * (t->type == RAW_BYTES ? 2 : 1);
    bool fits = t->axes && s->axes == t->axes && cols <= UINT32_MAX &&
                !memcmp(s->shape, t->shape, last * sizeof(t->shape[0])) &&
                (uint64_t)s->shape[last] * WASTE_MXFP4_GROUP == cols;
    if ((t->type != RAW_BYTES && t->type != RAW_F4) || s->type != RAW_BYTES || !fits)
        return waste_fetch_fail("%s: %s and %s do not make a pair: types U8, one scale for %d "
                                "values of a row",
                                r->path, t->name, name, WASTE_MXFP4_GROUP);
    t->type = WASTE_RELEASE_MXFP4;
    t->shape[last] = (uint32_t)cols;
    t->scale = s->data;
    s->type = TAKEN;
    return 0;
}

static int join_pairs(struct waste_release *r)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->tensors; i++)
        if (join(r, &r->tensor[i]))
            return -1;
    for (uint32_t i = 0; i < r->tensors; i++) {
        struct waste_release_tensor *t = &r->tensor[i];
        if (t->type == TAKEN) {
            free(t->name);
            continue;
        }
        if (t->type == WASTE_RELEASE_MXFP4)
            t->name[strlen(t->name) - strlen("_packed")] = 0;
        else if (t->type > WASTE_RELEASE_OTHER)
            t->type = WASTE_RELEASE_OTHER;
        r->tensor[kept++] = *t;
    }
    r->tensors = kept;
    return 0;
}

static void sort(struct waste_release *r)
{
    if (r->tensors)
        qsort(r->tensor, r->tensors, sizeof(*r->tensor), by_name);
}

/* After the last shard: pairs are joined, the list is sorted, no name twice; with `index` (its
 * text, or NULL) both say the same. */
static int finish_list(struct waste_release *r, const char *index)
{
    sort(r);
    if (check_twice(r) || (index && check_index(r, index)) || join_pairs(r))
        return -1;
    sort(r);
    return check_twice(r);
}

int waste_release_list(struct waste_release *r, const char *cached)
{
    char single[] = WASTE_SINGLE_NAME, *one = single, *index = NULL, **names = NULL;
    json_t *kept = cached ? json_loads(cached, 0, NULL) : NULL;
    uint32_t count = 0;
    size_t bytes;
    int rc = r->ops->small(r, WASTE_INDEX_NAME, WASTE_INDEX_BYTES, &index, &bytes);

    if (rc == 0)
        rc = index_shards(r->path, index, &names, &count);
    else if (rc == -ENOENT)
        rc = 0;
    if (rc == 0)
        rc = r->ops->add_shards(r, names ? names : &one, names ? count : 1, kept);
    if (rc == 0)
        rc = finish_list(r, index);
    for (uint32_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
    free(index);
    json_decref(kept);
    return rc;
}

uint64_t waste_release_rows(const struct waste_release_tensor *t)
{
    uint64_t rows = 1;
    for (uint32_t a = 0; a + 1 < t->axes; a++)
        rows *= t->shape[a];
    return rows;
}

uint32_t waste_release_cols(const struct waste_release_tensor *t)
{
    return t->axes ? t->shape[t->axes - 1] : 1;
}

int waste_release_want(struct waste_release *r, uint32_t shard)
{
    struct waste_release_shard *s = &r->shard[shard];
    if (s->fd >= 0)
        return 0;
    s->fd = r->ops->want(r, shard);
    return s->fd >= 0 ? 0 : -1;
}

void waste_release_hint(struct waste_release *r, uint32_t shard)
{
    if (r->ops->hint && r->shard[shard].fd < 0)
        r->ops->hint(r, shard);
}

int waste_release_unchanged(const struct waste_release *r)
{
    for (uint32_t i = 0; i < r->shards && r->ops->unchanged; i++)
        if (r->shard[i].fd >= 0 && r->ops->unchanged(r, i))
            return -1;
    return 0;
}

char *waste_release_headers(struct waste_release *r)
{
    return r->ops->headers(r);
}

int waste_release_keep_header(json_t *kept, const struct waste_release_shard *shard,
                              const char *json, size_t json_bytes)
{
    json_t *one = json_pack("{s:I, s:s, s:s%}", "bytes", (json_int_t)shard->bytes, "sum",
                            shard->sum, "header", json, json_bytes);
    return one && !json_object_set_new(kept, shard->name, one)
               ? 0
               : waste_fetch_fail("%s: its header cannot be kept", shard->name);
}

int waste_release_add_kept(struct waste_release *r, const char *name, const json_t *kept)
{
    const json_t *one = json_object_get(kept, name), *text = json_object_get(one, "header");
    uint64_t bytes = (uint64_t)json_integer_value(json_object_get(one, "bytes"));
    const json_t *sum = json_object_get(one, "sum");
    if (!json_is_string(text) || json_string_length(sum) != WASTE_SHA256_TEXT - 1)
        return -ENOENT;
    if (list_shard(r, name, bytes, json_string_value(text), json_string_length(text)))
        return -1;
    struct waste_release_shard *s = &r->shard[r->shards - 1];
    memcpy(s->sum, json_string_value(sum), sizeof(s->sum));
    s->gone = true;
    return 0;
}

int waste_release_done(struct waste_release *r, uint32_t shard)
{
    struct waste_release_shard *s = &r->shard[shard];
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    return r->ops->done ? r->ops->done(r, shard) : 0;
}

static uint64_t mix(uint64_t hash, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t waste_release_fingerprint(const struct waste_release *r)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (uint32_t i = 0; i < r->tensors; i++) {
        const struct waste_release_tensor *t = &r->tensor[i];
        hash = mix(hash, t->name, strlen(t->name) + 1);
        hash = mix(hash, &t->type, 1);
        hash = mix(hash, t->shape, t->axes * sizeof(t->shape[0]));
        hash = mix(hash, shard_name(r, t), strlen(shard_name(r, t)) + 1);
        hash = mix(hash, &t->data.off, sizeof(t->data.off));
    }
    for (uint32_t i = 0; i < r->shards; i++)
        hash = mix(hash, r->shard[i].sum, sizeof(r->shard[i].sum));
    return hash;
}
