#include "reader/trunk_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reader/container_int.h"

static int by_begin(const void *a, const void *b)
{
    const struct waste_trunk_extent *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void add(struct waste_trunk_check *c, uint32_t id, uint64_t off, uint64_t bytes,
                uint64_t data)
{
    if (bytes)
        c->extent[c->extents++] = (struct waste_trunk_extent){off, off + bytes, data, id};
}

int waste_trunk_check_init(struct waste_trunk_check *c)
{
    c->extents = 0;
    c->extent = calloc(2 * (size_t)c->model->tensor_count, sizeof(c->extent[0]));
    if (!c->extent)
        return -ENOMEM;
    for (uint32_t id = 1; id < c->model->tensor_count; id++) {
        const struct waste_tensor *t = waste_model_tensor(c->model, id);
        if (!t->data)
            continue;
        add(c, id, t->file_off, t->payload_bytes, t->data);
        add(c, id, t->file_scale_off, (uint64_t)t->rows * t->groups * 2, t->scales);
    }
    qsort(c->extent, c->extents, sizeof(c->extent[0]), by_begin);
    /* bytes that serve twice (a tied head) count once */
    uint32_t kept = c->extents != 0;
    for (uint32_t i = 1; i < c->extents; i++)
        if (c->extent[i].begin >= c->extent[kept - 1].end)
            c->extent[kept++] = c->extent[i];
    c->extents = kept;
    return 0;
}

void waste_trunk_check_finish(struct waste_trunk_check *c)
{
    free(c->extent);
    c->extent = NULL;
}

/* The first extent that ends behind `at`. */
static uint32_t extent_at(const struct waste_trunk_check *c, uint64_t at)
{
    uint32_t low = 0, high = c->extents;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (c->extent[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Of [at, end), which is not in the segment. Half the buffer is for the read, half for its result.
 */
static int crc_from_disk(const struct waste_trunk_check *c, uint64_t at, uint64_t end,
                         uint8_t *buffer, size_t buffer_bytes, uint32_t *crc)
{
    size_t half = buffer_bytes / 2 / WASTE_DIRECT_ALIGN * WASTE_DIRECT_ALIGN,
           most = half - WASTE_DIRECT_ALIGN;
    while (at < end) {
        size_t n = end - at < most ? (size_t)(end - at) : most;
        int rc = waste_direct_read(c->trunk, at, n, buffer + half, buffer);
        if (rc < 0)
            return rc;
        *crc = waste_integrity_crc(*crc, buffer + half, n);
        at += n;
    }
    return 0;
}

static int damaged(const struct waste_trunk_check *c, uint32_t piece, uint64_t at, uint64_t end,
                   struct waste_error *err)
{
    char name[128], where[192] = "";
    uint32_t first = extent_at(c, at), last = first;
    while (last < c->extents && c->extent[last].begin < end)
        last++;
    if (last > first) {
        waste_container_tensor_name(c->model, c->extent[first].tensor, name, sizeof(name));
        snprintf(where, sizeof(where), ", %s%s", name, last - first > 1 ? " and others" : "");
    }
    return waste_integrity_damaged(c->dir, WASTE_TRUNK_FILE, c->file->bytes, piece, where, err);
}

int waste_trunk_check_piece(const struct waste_trunk_check *c, uint32_t piece, uint8_t *buffer,
                            size_t buffer_bytes, struct waste_error *err)
{
    uint64_t begin = (uint64_t)piece * WASTE_INTEGRITY_PIECE;
    uint64_t end = begin + waste_integrity_piece_bytes(c->file->bytes, piece), at = begin;
    uint32_t crc = 0;
    for (uint32_t i = extent_at(c, begin); at < end; i++) {
        const struct waste_trunk_extent *x = i < c->extents ? &c->extent[i] : NULL;
        uint64_t gap = x && x->begin < end ? x->begin : end;
        int rc = gap > at ? crc_from_disk(c, at, gap, buffer, buffer_bytes, &crc) : 0;
        if (rc < 0)
            return waste_error_set(err, rc == -ENODATA ? -EINVAL : rc,
                                   "%s/" WASTE_TRUNK_FILE ": reading at byte %llu: %s", c->dir,
                                   (unsigned long long)at, strerror(-rc));
        at = gap > at ? gap : at;
        if (at >= end)
            break;
        uint64_t to = x->end < end ? x->end : end;
        crc = waste_integrity_crc(crc, c->base + x->data + (at - x->begin), (size_t)(to - at));
        at = to;
    }
    return crc == c->file->crc[piece] ? 0 : damaged(c, piece, begin, end, err);
}
