#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "cli/snapshot_int.h"
#include "shm/inject.h"

/* Floats hardly get smaller; a higher level costs time and nothing else. */
enum { LEVEL = 1 };

struct writer {
    int fd;
    ZSTD_CCtx *zstd;
    char *block; /* [WASTE_SNAPSHOT_BLOCK] */
    struct waste_snapshot_header header;
    unsigned section; /* at hand */
};

static int put(int fd, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t n = write(fd, at, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

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
        int ret = put(w->fd, w->block, out.pos);
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
    int ret = put(w->fd, &w->header, sizeof(w->header)); /* its place; written again at the end */

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
    if (ret == 0 && lseek(w->fd, 0, SEEK_SET) < 0)
        ret = -errno;
    if (ret == 0)
        ret = put(w->fd, &w->header, sizeof(w->header));
    WASTE_POINT(SAVE_WRITTEN);
    if (ret == 0 && fsync(w->fd) != 0)
        ret = -errno;
    WASTE_POINT(SAVE_FLUSHED);
    return ret;
}

/* A rename lasts when its directory was flushed. */
static int flush_directory(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int fd, ret;

    if (slash == NULL)
        strcpy(dir, ".");
    else
        snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ret = fsync(fd) == 0 || errno == EINVAL ? 0 : -errno; /* EINVAL: not on this file system */
    close(fd);
    return ret;
}

/* From beside its place into it. */
static int move_in(const char *beside, const char *path, bool keep_old)
{
    char old[PATH_MAX];

    if (keep_old && snprintf(old, sizeof(old), "%s.old", path) < (int)sizeof(old) &&
        access(path, F_OK) == 0) {
        unlink(old);
        /* a file system without hard links has no older file */
        if (link(path, old) != 0 && errno != EPERM && errno != EOPNOTSUPP && errno != EMLINK)
            return -errno;
    }
    WASTE_POINT(SAVE_LINKED);
    if (rename(beside, path) != 0)
        return -errno;
    WASTE_POINT(SAVE_RENAMED);
    return flush_directory(path);
}

static int set_up(struct writer *w, const char *beside)
{
    w->zstd = ZSTD_createCCtx();
    w->block = malloc(WASTE_SNAPSHOT_BLOCK);
    if (w->zstd == NULL || w->block == NULL ||
        ZSTD_isError(ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, LEVEL)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_checksumFlag, 1)))
        return -ENOMEM;
    w->fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    return w->fd >= 0 ? 0 : -errno;
}

int waste_snapshot_write(const char *path, const struct waste_snapshot_shape *shape,
                         const struct waste_snapshot *s, bool keep_old, struct waste_error *err)
{
    struct writer w = {
        .fd = -1,
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
    char beside[PATH_MAX];
    int ret = snprintf(beside, sizeof(beside), "%s.new", path) < (int)sizeof(beside)
                  ? set_up(&w, beside)
                  : -ENAMETOOLONG;

    if (ret == 0)
        ret = write_all(&w, s);
    if (w.fd >= 0 && close(w.fd) != 0 && ret == 0)
        ret = -errno;
    if (ret == 0)
        ret = move_in(beside, path, keep_old);
    if (ret < 0 && w.fd >= 0)
        unlink(beside);
    ZSTD_freeCCtx(w.zstd);
    free(w.block);
    return ret < 0 ? waste_error_set(err, ret, "cannot write %s: %s", path, strerror(-ret)) : 0;
}
