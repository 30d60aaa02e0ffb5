#include "fetcher/index.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reader/container_int.h"

static uint64_t field(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static void read_shape(const json_t *shape, bool outside, struct waste_index_entry *e)
{
    size_t axes = json_array_size(shape);
    bool first_only = outside && e->fmt != WASTE_FMT_F32 && axes > 1;
    e->rows = e->cols = 1;
    for (size_t i = 0; i < axes; i++) {
        uint64_t side = (uint64_t)json_integer_value(json_array_get(shape, i));
        if (first_only ? i == 0 : i + 1 < axes)
            e->rows *= side;
        else
            e->cols *= side;
    }
}

static int read_entry(const json_t *object, const char *prefix, struct waste_index_entry *e,
                      struct waste_error *err)
{
    const char *name = json_string_value(json_object_get(object, "name"));
    size_t n = strlen(prefix);
    unsigned layer;
    bool ours = strncmp(name, prefix, n) == 0;
    e->name = strdup(name);
    e->layer = ours && sscanf(name + n, "model.layers.%u.", &layer) == 1 ? (int32_t)layer : -1;
    e->fmt = (uint32_t)field(object, "fmt");
    e->off = field(object, "off");
    read_shape(json_object_get(object, "shape"), !ours, e);
    e->groups = e->fmt == WASTE_FMT_F32 ? 0 : waste_align_up(e->cols, WASTE_GROUP) / WASTE_GROUP;
    e->row_bytes = e->fmt == WASTE_FMT_F32   ? e->cols * 4
                   : e->fmt == WASTE_FMT_Q8G ? e->groups * WASTE_GROUP
                   : e->fmt == WASTE_FMT_Q4G ? e->groups * WASTE_GROUP / 2
                                             : e->groups * WASTE_GROUP * 3 / 8 + 1;
    e->payload_bytes = e->rows * e->row_bytes;
    e->scale_off = e->groups ? field(object, "scale_off") : 0;
    e->scale_bytes = e->rows * e->groups * 2;
    uint64_t scales_end = e->scale_off + e->scale_bytes;
    e->end = e->off + e->payload_bytes > scales_end ? e->off + e->payload_bytes : scales_end;
    if (!e->name)
        return waste_error_set(err, -ENOMEM, WASTE_MANIFEST ": out of memory");
    /* the parser has looked at ours; what lies outside in another way is only known to be there */
    if (e->payload_bytes + e->scale_bytes != field(object, "bytes")) {
        e->rows = e->payload_bytes = e->scale_bytes = 0;
        e->end = e->off + field(object, "bytes");
    }
    return 0;
}

int waste_index_load(const char *dir, struct waste_index **out, struct waste_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    int rc =
        waste_container_read_file(dir, WASTE_MANIFEST, WASTE_MANIFEST_LIMIT, &text, &bytes, err);
    if (rc < 0)
        return rc;
    json_t *root = json_loadb(text, bytes, 0, NULL);
    const json_t *trunk = json_object_get(root, "trunk");
    const char *prefix = json_string_value(json_object_get(root, "tensor_prefix"));
    struct waste_index *x = calloc(1, sizeof(*x));
    if (x) {
        x->prefix = strdup(prefix ? prefix : "");
        x->entry = calloc(json_array_size(trunk) + 1, sizeof(x->entry[0]));
    }
    if (!x || !x->prefix || !x->entry)
        rc = waste_error_set(err, -ENOMEM, WASTE_MANIFEST ": out of memory");
    for (size_t i = 0; i < json_array_size(trunk) && rc == 0; i++)
        rc = read_entry(json_array_get(trunk, i), x->prefix, &x->entry[x->count++], err);
    if (rc == 0)
        *out = x;
    else
        waste_index_free(x);
    json_decref(root);
    free(text);
    return rc;
}

void waste_index_free(struct waste_index *x)
{
    if (!x)
        return;
    for (uint32_t i = 0; i < x->count; i++)
        free(x->entry[i].name);
    free(x->entry);
    free(x->prefix);
    free(x);
}
