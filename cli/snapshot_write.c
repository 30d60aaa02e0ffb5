#include <errno.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "cli/beside.h"
#include "cli/snapshot_int.h"
#include "shm/inject.h"

/* Floats hardly get smaller; a higher level costs time and nothing else. */
enum { LEVEL = 1 };

struct writer {
    struct waste_beside to;
    ZSTD_CCtx *zstd;
    char *block; /* [WASTE_SNAPSHOT_BLOCK] */
    struct waste_snapshot_header header;
    unsigned section; /* at hand */
};

/* Feeds the section at hand; `end`: and closes it. */
static int pack(struct writer *w, const void *data, size_t bytes, bool end)
{
    ZSTD_inBuffer in = {.src = data, .size = bytes};
    size_t left;

    do {
        ZSTD_outBuffer out = {.dst = w->block, .size = WASTE_SNAPSHOT_BLOCK};
        left = ZSTD_compressStream2(w->zstd, &out, &in, end ? ZSTD_e_end : ZSTD_e_continue);
        if (ZSTD_isError(left))
            return -ENOMEM;
        int ret = waste_beside_put(&w->to, w->block, out.pos);
        if (ret < 0)
            return ret;
        w->header.section[w->section].packed_bytes += out.pos;
        w->header.section[w->section].crc =
            libdeflate_crc32(w->header.section[w->section].crc, w->block, out.pos);
    } while (end ? left > 0 : in.pos < in.size);
    w->section += end;
    return 0;
}

static int pack_rows(struct writer *w, const struct waste_snapshot *s)
{
    uint64_t bytes = (uint64_t)s->position * w->header.row_bytes;
    int ret = 0;

    for (uint32_t i = 0; ret == 0 && i < w->header.mla_layers; i++)
        ret = pack(w, s->state.rows + i * s->state.layer_stride, bytes, false);
    return ret == 0 ? pack(w, NULL, 0, true) : ret;
}

static int write_all(struct writer *w, const struct waste_snapshot *s)
{
    /* its place; written again at the end */
    int ret = waste_beside_put(&w->to, &w->header, sizeof(w->header));

    WASTE_POINT(SAVE_BEGUN);
    if (ret == 0)
        ret = pack(w, s->ids, s->count * sizeof(*s->ids), true);
    if (ret == 0)
        ret = pack(w, s->text, s->text_bytes, true);
    if (ret == 0)
        ret = pack(w, s->state.bank, s->position > 0 ? w->header.bank_bytes : 0, true);
    if (ret == 0)
        ret = pack_rows(w, s);
    w->header.crc = libdeflate_crc32(0, &w->header, offsetof(struct waste_snapshot_header, crc));
    if (ret == 0 && lseek(w->to.fd, 0, SEEK_SET) < 0)
        ret = -errno;
    if (ret == 0)
        ret = waste_beside_put(&w->to, &w->header, sizeof(w->header));
    WASTE_POINT(SAVE_WRITTEN);
    return ret;
}

static int set_up(struct writer *w, const char *path)
{
    int ret = waste_beside_open(&w->to, path);

    w->zstd = ZSTD_createCCtx();
    w->block = malloc(WASTE_SNAPSHOT_BLOCK);
    if (ret == 0 &&
        (w->zstd == NULL || w->block == NULL ||
         ZSTD_isError(ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, LEVEL)) ||
         ZSTD_isError(ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_checksumFlag, 1))))
        ret = -ENOMEM;
    return ret;
}

int waste_snapshot_write(const char *path, const struct waste_snapshot_shape *shape,
                         const struct waste_snapshot *s, bool keep_old, struct waste_error *err)
{
    struct writer w = {
        .header = {.magic = WASTE_SNAPSHOT_MAGIC,
                   .version = WASTE_SNAPSHOT_VERSION,
                   .header_bytes = sizeof(w.header),
                   .fingerprint = shape->fingerprint,
                   .bank_bytes = shape->bank_bytes,
                   .mla_layers = shape->mla_layers,
                   .row_bytes = shape->row_bytes,
                   .tokens = s->count,
                   .position = s->position,
                   .text_bytes = s->text_bytes},
    };
    int ret = set_up(&w, path);

    if (ret == 0)
        ret = write_all(&w, s);
    if (ret == 0)
        ret = waste_beside_move_in(&w.to, keep_old);
    waste_beside_drop(&w.to);
    ZSTD_freeCCtx(w.zstd);
    free(w.block);
    return ret < 0 ? waste_error_set(err, ret, "cannot write %s: %s", path, strerror(-ret)) : 0;
}
