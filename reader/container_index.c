#include "reader/container_index.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_LIMIT = 1 << 20, NAME_LIMIT = 256 };

int waste_trunk_index_error(const struct waste_parse *p, const struct waste_trunk_entry *e,
                            const char *text)
{
    return waste_error_set(p->err, -EINVAL, WASTE_MANIFEST ": trunk[%u] (%s): %s", e->number,
                           e->name, text);
}

const char *waste_trunk_index_shape(const struct waste_trunk_entry *e, char *out, size_t bytes)
{
    size_t n = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < e->axes; i++)
        n += (size_t)snprintf(out + n, bytes - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)e->shape[i]);
    return out;
}

/* Shape -> rows x cols, all products bounded by the file's size (an element takes 3 bits or more).
 */
static int parse_shape(struct waste_parse *p, const struct waste_json_at *at,
                       struct waste_trunk_entry *e)
{
    const json_t *shape;
    char what[NAME_LIMIT + 48];
    int rc = waste_json_array(at, "shape", WASTE_TRUNK_AXES, &shape);
    if (rc < 0)
        return rc;
    snprintf(what, sizeof(what), "%s.shape", at->path);
    e->axes = (uint32_t)json_array_size(shape);
    e->rows = e->cols = 1;
    for (uint32_t i = 0; i < e->axes; i++) {
        rc = waste_json_element(json_array_get(shape, i), p->err, what, i, 1, UINT32_MAX,
                                &e->shape[i]);
        if (rc < 0)
            return rc;
        if (i + 1 == e->axes)
            e->cols = e->shape[i];
        else
            e->rows *= e->shape[i];
        if (e->rows > UINT32_MAX || e->rows * e->cols / 8 > p->trunk_file_bytes)
            return waste_trunk_index_error(
                p, e, "shape has more elements than " WASTE_TRUNK_FILE " can hold");
    }
    return 0;
}

void waste_trunk_index_rows(struct waste_trunk_entry *e)
{
    e->groups = e->fmt == WASTE_FMT_F32 ? 0 : waste_align_up(e->cols, WASTE_GROUP) / WASTE_GROUP;
    switch (e->fmt) {
    case WASTE_FMT_Q8G:
        e->row_bytes = e->groups * WASTE_GROUP;
        break;
    case WASTE_FMT_Q4G:
        e->row_bytes = e->groups * WASTE_GROUP / 2;
        break;
    case WASTE_FMT_Q3G:
        e->row_bytes = e->groups * WASTE_GROUP * 3 / 8 + 1; /* one guard byte a row */
        break;
    default:
        e->row_bytes = e->cols * sizeof(float);
    }
}

/* The range [off, off + bytes) must lie in trunk.bin. */
static int check_range(const struct waste_parse *p, const struct waste_trunk_entry *e,
                       const char *field, uint64_t off, uint64_t bytes)
{
    if (off <= p->trunk_file_bytes && bytes <= p->trunk_file_bytes - off)
        return 0;
    return waste_error_set(p->err, -EINVAL,
                           WASTE_MANIFEST ": trunk[%u] (%s): %s %llu + %llu bytes is beyond the "
                                          "%llu bytes of " WASTE_TRUNK_FILE,
                           e->number, e->name, field, (unsigned long long)off,
                           (unsigned long long)bytes, (unsigned long long)p->trunk_file_bytes);
}

/*
 * A tensor outside the prefix is never used, so only its bounds matter: a quantised one of the
 * vision tower has more than two axes and is flattened in another way.
 */
static int check_layout(struct waste_parse *p, const struct waste_trunk_entry *e, uint64_t bytes)
{
    uint64_t payload = e->rows * e->row_bytes, scales = e->rows * e->groups * 2;
    char shape[WASTE_TRUNK_SHAPE_TEXT];
    int rc = check_range(p, e, "off", e->off, bytes);
    if (rc < 0)
        return rc;
    if (!e->ours)
        return e->groups ? check_range(p, e, "scale_off", e->scale_off, 0) : 0;
    if (bytes != payload + scales)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": trunk[%u] (%s): bytes is %llu, must be %llu for "
                                              "shape [%s] of fmt %u",
                               e->number, e->name, (unsigned long long)bytes,
                               (unsigned long long)(payload + scales),
                               waste_trunk_index_shape(e, shape, sizeof(shape)), e->fmt);
    return check_range(p, e, "scale_off", e->scale_off, scales);
}

static int parse_entry(struct waste_parse *p, const json_t *object, uint32_t number,
                       struct waste_trunk_entry *e)
{
    char path[NAME_LIMIT + 32];
    struct waste_json_at at = {object, path, p->err};
    size_t prefix = strlen(p->prefix);
    uint64_t fmt, group, bytes;
    snprintf(path, sizeof(path), "trunk[%u]", number);
    e->number = number;
    if (!json_is_object(object))
        return waste_error_set(p->err, -EINVAL, WASTE_MANIFEST ": %s is no object", path);
    if (!waste_json_get(&at, "name"))
        return waste_json_missing(&at, "name");
    int rc = waste_json_string_opt(&at, "name", NAME_LIMIT, &e->name);
    if (rc < 0)
        return rc;
    snprintf(path, sizeof(path), "trunk[%u] (%s)", number, e->name);
    if ((rc = waste_json_uint(&at, "fmt", 0, 255, &fmt)) < 0 ||
        (rc = waste_json_uint(&at, "off", 0, INT64_MAX, &e->off)) < 0 ||
        (rc = waste_json_uint(&at, "bytes", 1, INT64_MAX, &bytes)) < 0)
        return rc;
    e->fmt = (uint32_t)fmt;
    if (fmt != WASTE_FMT_F32 && fmt != WASTE_FMT_Q8G && fmt != WASTE_FMT_Q4G &&
        fmt != WASTE_FMT_Q3G)
        return waste_json_wrong(&at, "fmt", "0 (F32), 2 (Q8G), 3 (Q4G) or 7 (Q3G)");
    if (fmt != WASTE_FMT_F32 &&
        ((rc = waste_json_uint(&at, "group", WASTE_GROUP, WASTE_GROUP, &group)) < 0 ||
         (rc = waste_json_uint(&at, "scale_off", 0, INT64_MAX, &e->scale_off)) < 0))
        return rc;
    rc = parse_shape(p, &at, e);
    if (rc < 0)
        return rc;
    waste_trunk_index_rows(e);
    e->ours = strncmp(e->name, p->prefix, prefix) == 0;
    rc = check_layout(p, e, bytes);
    e->name += e->ours ? prefix : 0;
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct waste_trunk_entry *)a)->name,
                  ((const struct waste_trunk_entry *)b)->name);
}

/* Bytes of trunk.bin that belong to a tensor: its payload or its scales. */
struct extent {
    uint64_t begin, end;
    const struct waste_trunk_entry *tensor;
};

static int by_place(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/*
 * Tensors do not overlap, nor do a tensor's payload and scales: where one offset is wrong, this is
 * what notices it, since the bytes of a neighbour are numbers too. The very same bytes may serve
 * twice (an embedding that is the head as well).
 */
static int check_overlaps(const struct waste_parse *p, const struct waste_trunk_index *index)
{
    size_t n = 0;
    int rc = 0;
    struct extent *all = calloc(2 * index->tensors + 1, sizeof(*all));
    if (!all)
        return waste_error_set(p->err, -ENOMEM, WASTE_MANIFEST ": out of memory");
    for (size_t i = 0; i < index->tensors; i++) {
        const struct waste_trunk_entry *e = &index->tensor[i];
        all[n++] = (struct extent){e->off, e->off + e->rows * e->row_bytes, e};
        if (e->groups)
            all[n++] = (struct extent){e->scale_off, e->scale_off + e->rows * e->groups * 2, e};
    }
    qsort(all, n, sizeof(*all), by_place);
    for (size_t i = 1; i < n && rc == 0; i++) {
        const struct extent *a = &all[i - 1], *b = &all[i];
        bool same = a->begin == b->begin && a->end == b->end && a->tensor != b->tensor;
        if (b->begin < a->end && !same)
            rc = waste_error_set(p->err, -EINVAL,
                                 WASTE_MANIFEST ": trunk[%u] (%s) at %llu overlaps trunk[%u] (%s), "
                                                "which ends at %llu",
                                 b->tensor->number, b->tensor->name, (unsigned long long)b->begin,
                                 a->tensor->number, a->tensor->name, (unsigned long long)a->end);
    }
    free(all);
    return rc;
}

int waste_parse_trunk_index(struct waste_parse *p, struct waste_trunk_index *index)
{
    struct waste_json_at top = {p->root, "", p->err};
    const json_t *trunk;
    int rc = waste_json_array(&top, "trunk", TENSORS_LIMIT, &trunk);
    if (rc < 0)
        return rc;
    index->tensor = calloc(json_array_size(trunk) + 1, sizeof(struct waste_trunk_entry));
    if (!index->tensor)
        return waste_error_set(p->err, -ENOMEM, WASTE_MANIFEST ": out of memory");
    for (size_t i = 0; i < json_array_size(trunk); i++) {
        struct waste_trunk_entry *e = &index->tensor[index->tensors];
        memset(e, 0, sizeof(*e));
        rc = parse_entry(p, json_array_get(trunk, i), (uint32_t)i, e);
        if (rc < 0)
            return rc;
        index->tensors += e->ours;
    }
    qsort(index->tensor, index->tensors, sizeof(struct waste_trunk_entry), by_name);
    for (size_t i = 1; i < index->tensors; i++)
        if (strcmp(index->tensor[i].name, index->tensor[i - 1].name) == 0)
            return waste_trunk_index_error(p, &index->tensor[i], "name is there twice");
    return check_overlaps(p, index);
}

const struct waste_trunk_entry *waste_trunk_index_find(const struct waste_trunk_index *index,
                                                       const char *name)
{
    struct waste_trunk_entry key = {.name = name};
    return bsearch(&key, index->tensor, index->tensors, sizeof(key), by_name);
}

void waste_trunk_index_free(struct waste_trunk_index *index)
{
    free(index->tensor);
}
