#include "fetcher/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Bits of a value of each type of the format. */
static const struct {
    const char *name;
    uint32_t bits;
} types[] = {
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},      {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},    {"U32", 32}, {"F32", 32},    {"F64", 64},    {"I64", 64},
    {"U64", 64},    {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64},
};

struct header {
    const char *file;
    uint64_t data_bytes;
    struct waste_safetensors_entry *entry;
    size_t count;
    struct waste_error *err;
};

int waste_safetensors_length(const char *file, uint64_t file_bytes, const uint8_t first[8],
                             size_t *json_bytes, struct waste_error *err)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | first[i];
    if (file_bytes < 8 || n < 2 || n > WASTE_SAFETENSORS_HEADER || n > file_bytes - 8)
        return waste_error_set(err, -EINVAL,
                               "%s: the header's length is %llu, the file has %llu bytes and the "
                               "limit is %d",
                               file, (unsigned long long)n, (unsigned long long)file_bytes,
                               WASTE_SAFETENSORS_HEADER);
    *json_bytes = (size_t)n;
    return 0;
}

static int refuse(const struct header *h, const char *name, const char *text)
{
    return waste_error_set(h->err, -EINVAL, "%s: %s: %s", h->file, name, text);
}

/* Bits of one value, 0 if the type is none of the format's. */
static uint32_t type_bits(const json_t *dtype, const char **name)
{
    const char *text = json_string_value(dtype);
    for (size_t i = 0; text && i < sizeof(types) / sizeof(types[0]); i++)
        if (!strcmp(text, types[i].name)) {
            *name = types[i].name;
            return types[i].bits;
        }
    return 0;
}

/* The shape, and the bits it takes. */
static int parse_shape(const struct header *h, struct waste_safetensors_entry *e,
                       const json_t *shape, uint64_t *bits)
{
    if (!json_is_array(shape) || json_array_size(shape) > WASTE_SAFETENSORS_AXES)
        return refuse(h, e->name, "shape is no list of at most 6 numbers");
    e->axes = (uint32_t)json_array_size(shape);
    for (uint32_t a = 0; a < e->axes; a++) {
        const json_t *side = json_array_get(shape, a);
        json_int_t n = json_integer_value(side);
        if (!json_is_integer(side) || n < 0 || n > UINT32_MAX)
            return refuse(h, e->name, "a side of shape is no whole number of 32 bits");
        e->shape[a] = (uint32_t)n;
        if (__builtin_mul_overflow(*bits, (uint64_t)n, bits))
            return refuse(h, e->name, "shape has more values than 64 bits count");
    }
    return 0;
}

static int parse_offsets(const struct header *h, struct waste_safetensors_entry *e,
                         const json_t *offsets, uint64_t bits)
{
    const json_t *a = json_array_get(offsets, 0), *b = json_array_get(offsets, 1);
    json_int_t begin = json_integer_value(a), end = json_integer_value(b);
    if (json_array_size(offsets) != 2 || !json_is_integer(a) || !json_is_integer(b))
        return refuse(h, e->name, "data_offsets are no two whole numbers");
    if (begin < 0 || end < begin || (uint64_t)end > h->data_bytes)
        return waste_error_set(
            h->err, -EINVAL, "%s: %s: data_offsets are %lld and %lld of %llu bytes of data",
            h->file, e->name, (long long)begin, (long long)end, (unsigned long long)h->data_bytes);
    e->off = (uint64_t)begin;
    e->bytes = (uint64_t)(end - begin);
    if (bits % 8 || e->bytes != bits / 8)
        return waste_error_set(h->err, -EINVAL, "%s: %s: %llu bytes, type and shape give %llu bits",
                               h->file, e->name, (unsigned long long)e->bytes,
                               (unsigned long long)bits);
    return 0;
}

static int parse_entry(struct header *h, const char *name, const json_t *v)
{
    struct waste_safetensors_entry *e = &h->entry[h->count];
    uint64_t bits;
    if (!*name || strlen(name) >= WASTE_SAFETENSORS_NAME)
        return waste_error_set(h->err, -EINVAL, "%s: a tensor's name has %zu bytes, limit %d",
                               h->file, strlen(name), WASTE_SAFETENSORS_NAME - 1);
    e->name = name;
    if (!json_is_object(v))
        return refuse(h, name, "is no object");
    bits = type_bits(json_object_get(v, "dtype"), &e->dtype);
    if (!bits)
        return refuse(h, name, "dtype is none that safetensors have");
    int rc = parse_shape(h, e, json_object_get(v, "shape"), &bits);
    if (rc == 0)
        rc = parse_offsets(h, e, json_object_get(v, "data_offsets"), bits);
    h->count += rc == 0;
    return rc;
}

static int by_place(const void *a, const void *b)
{
    const struct waste_safetensors_entry *x = a, *y = b;
    if (x->off != y->off)
        return x->off < y->off ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Every byte of the data belongs to exactly one tensor. */
static int check_places(const struct header *h)
{
    uint64_t end = 0;
    for (size_t i = 0; i < h->count; i++) {
        const struct waste_safetensors_entry *e = &h->entry[i];
        if (e->off < end)
            return refuse(h, e->name, "overlaps with another tensor");
        if (e->off > end)
            return refuse(h, e->name, "leaves a gap before its data");
        end = e->off + e->bytes;
    }
    if (end != h->data_bytes)
        return waste_error_set(h->err, -EINVAL, "%s: %llu bytes of data, the tensors take %llu",
                               h->file, (unsigned long long)h->data_bytes, (unsigned long long)end);
    return 0;
}

static int parse_all(struct header *h, json_t *root)
{
    const char *name;
    json_t *v;
    json_object_foreach(root, name, v)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        int rc = parse_entry(h, name, v);
        if (rc < 0)
            return rc;
    }
    if (h->count)
        qsort(h->entry, h->count, sizeof(*h->entry), by_place);
    return check_places(h);
}

int waste_safetensors_parse(const char *file, uint64_t file_bytes, const char *json,
                            size_t json_bytes,
                            int (*each)(void *ctx, const struct waste_safetensors_entry *entry),
                            void *ctx, struct waste_error *err)
{
    json_error_t error;
    struct header h = {.file = file, .err = err, .data_bytes = file_bytes - 8 - json_bytes};
    json_t *root = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &error);
    int rc;
    if (!json_is_object(root)) {
        rc = waste_error_set(err, -EINVAL, "%s: header: %s", file,
                             root ? "is no object" : error.text);
        goto out;
    }
    h.entry = calloc(json_object_size(root) + 1, sizeof(*h.entry));
    rc = h.entry ? parse_all(&h, root) : waste_error_set(err, -ENOMEM, "%s: out of memory", file);
    for (size_t i = 0; i < h.count && rc == 0; i++) {
        h.entry[i].off += 8 + json_bytes;
        rc = each(ctx, &h.entry[i]);
    }
out:
    free(h.entry);
    json_decref(root);
    return rc;
}
