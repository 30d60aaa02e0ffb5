#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "cli/snapshot_int.h"

/* A frame may not ask for a larger window: ours have half a megabyte. */
enum { WINDOW_LOG = 23, TEXT_MAX = 1 << 28 };

struct waste_snapshot_file {
    char *path;
    int fd;
    ZSTD_DCtx *zstd;
    char *block; /* [WASTE_SNAPSHOT_BLOCK] */
    struct waste_snapshot_header header;
    struct waste_ids ids;
    struct waste_text text;
};

static int damaged(const struct waste_snapshot_file *f, struct waste_error *err, const char *what)
{
    return waste_error_set(err, -EBADMSG, "%s: %s", f->path, what);
}

/* What the drive has lost is damaged. */
static int unreadable(const struct waste_snapshot_file *f, struct waste_error *err, int ret)
{
    return waste_error_set(err, ret == -EIO ? -EBADMSG : ret, "cannot read %s: %s", f->path,
                           strerror(-ret));
}

/* All of it, or -EBADMSG where the file is too short. */
static int get(const struct waste_snapshot_file *f, uint64_t at, void *to, size_t bytes,
               struct waste_error *err)
{
    for (char *p = to; bytes > 0;) {
        ssize_t n = pread(f->fd, p, bytes, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return unreadable(f, err, -errno);
        if (n == 0)
            return damaged(f, err, "cut off");
        p += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static uint64_t section_at(const struct waste_snapshot_file *f, unsigned section)
{
    uint64_t at = sizeof(f->header);

    for (unsigned i = 0; i < section; i++)
        at += f->header.section[i].packed_bytes;
    return at;
}

/* The sections, and nothing else, are behind the header. */
static int check_bytes(const struct waste_snapshot_file *f, uint64_t bytes, struct waste_error *err)
{
    uint64_t end = sizeof(f->header);

    for (unsigned i = 0; i < WASTE_SNAPSHOT_SECTIONS; i++) {
        if (f->header.section[i].packed_bytes > bytes - end)
            return damaged(f, err, "cut off");
        end += f->header.section[i].packed_bytes;
    }
    return end == bytes ? 0 : damaged(f, err, "something is behind its end");
}

static int check_header(struct waste_snapshot_file *f, const struct waste_snapshot_shape *shape,
                        uint32_t most, uint64_t bytes, struct waste_error *err)
{
    const struct waste_snapshot_header *h = &f->header;
    int ret = bytes == 0 ? damaged(f, err, "empty") : 0;

    if (ret == 0)
        ret = get(f, 0, &f->header, bytes < sizeof(*h) ? bytes : sizeof(*h), err);
    if (ret < 0)
        return ret;
    if (memcmp(h->magic, WASTE_SNAPSHOT_MAGIC, sizeof(h->magic)) != 0)
        return damaged(f, err, "no saved conversation");
    if (bytes < sizeof(*h))
        return damaged(f, err, "cut off");
    bool whole = libdeflate_crc32(0, h, offsetof(struct waste_snapshot_header, crc)) == h->crc;
    /* another version's checksum may be elsewhere, if its header has another size */
    if (h->version != WASTE_SNAPSHOT_VERSION && (whole || h->header_bytes != sizeof(*h)))
        return waste_error_set(err, -ESTALE, "%s: version %" PRIu32 ", this program reads %d",
                               f->path, h->version, WASTE_SNAPSHOT_VERSION);
    if (!whole)
        return damaged(f, err, "damaged: the header's checksum is wrong");
    if (h->fingerprint != shape->fingerprint)
        return waste_error_set(err, -ESTALE,
                               "%s: of another model (weights %016" PRIx64 ", here %016" PRIx64 ")",
                               f->path, h->fingerprint, shape->fingerprint);
    if (h->header_bytes != sizeof(*h) || h->bank_bytes != shape->bank_bytes ||
        h->mla_layers != shape->mla_layers || h->row_bytes != shape->row_bytes ||
        h->position > h->tokens || h->text_bytes > TEXT_MAX)
        return damaged(f, err, "damaged: its sizes are not the model's");
    if (h->tokens > most)
        return waste_error_set(err, -EFBIG,
                               "%s: %" PRIu32 " tokens, the context holds %" PRIu32 " (--ctx)",
                               f->path, h->tokens, most);
    return check_bytes(f, bytes, err);
}

static int check_sections(const struct waste_snapshot_file *f, struct waste_error *err)
{
    static const char *const what[WASTE_SNAPSHOT_SECTIONS] = {
        "damaged: the checksum of its tokens is wrong",
        "damaged: the checksum of its text is wrong",
        "damaged: the checksum of its state is wrong",
        "damaged: the checksum of its latent rows is wrong",
    };

    for (unsigned i = 0; i < WASTE_SNAPSHOT_SECTIONS; i++) {
        uint64_t at = section_at(f, i), left = f->header.section[i].packed_bytes;
        uint32_t crc = 0;

        while (left > 0) {
            size_t n = left < WASTE_SNAPSHOT_BLOCK ? left : WASTE_SNAPSHOT_BLOCK;
            int ret = get(f, at, f->block, n, err);
            if (ret < 0)
                return ret;
            crc = libdeflate_crc32(crc, f->block, n);
            at += n;
            left -= n;
        }
        if (crc != f->header.section[i].crc)
            return damaged(f, err, what[i]);
    }
    return 0;
}

/* One section on its way out of the file. */
struct unpacker {
    struct waste_snapshot_file *f;
    uint64_t at, left; /* packed, not read yet */
    ZSTD_inBuffer in;
    size_t more; /* 0: the frame is over */
};

static void unpack_begin(struct unpacker *u, struct waste_snapshot_file *f, unsigned section)
{
    *u = (struct unpacker){.f = f,
                           .at = section_at(f, section),
                           .left = f->header.section[section].packed_bytes,
                           .in = {.src = f->block},
                           .more = 1};
    ZSTD_DCtx_reset(f->zstd, ZSTD_reset_session_only);
}

/* Exactly the next `bytes` of it; 0 bytes: it must be at its end. */
static int unpack(struct unpacker *u, void *to, size_t bytes, struct waste_error *err)
{
    char spare;
    ZSTD_outBuffer out = {.dst = bytes > 0 ? to : &spare, .size = bytes};

    while (u->more > 0 && (out.pos < out.size || bytes == 0)) {
        size_t had = out.pos;

        if (u->in.pos == u->in.size && u->left > 0) {
            size_t n = u->left < WASTE_SNAPSHOT_BLOCK ? u->left : WASTE_SNAPSHOT_BLOCK;
            int ret = get(u->f, u->at, u->f->block, n, err);
            if (ret < 0)
                return ret;
            u->at += n;
            u->left -= n;
            u->in.size = n;
            u->in.pos = 0;
        }
        size_t before = u->in.pos;
        u->more = ZSTD_decompressStream(u->f->zstd, &out, &u->in);
        if (ZSTD_isError(u->more))
            return damaged(u->f, err, "damaged: a section does not unpack");
        if (u->more > 0 && out.pos == had && u->in.pos == before &&
            (u->left == 0 || u->in.pos < u->in.size))
            return damaged(u->f, err, "damaged: a section has another size");
    }
    if (out.pos != bytes || (bytes == 0 && (u->left > 0 || u->in.pos < u->in.size)))
        return damaged(u->f, err, "damaged: a section has another size");
    return 0;
}

static int read_tokens(struct waste_snapshot_file *f, uint32_t vocab, struct waste_error *err)
{
    uint32_t some[1024];
    struct unpacker u;
    int ret = 0;

    unpack_begin(&u, f, WASTE_SNAPSHOT_TOKENS);
    while (ret == 0 && f->ids.count < f->header.tokens) {
        size_t left = f->header.tokens - f->ids.count, n = left < 1024 ? left : 1024;

        ret = unpack(&u, some, n * sizeof(*some), err);
        for (size_t i = 0; ret == 0 && i < n; i++)
            if (some[i] >= vocab)
                ret = damaged(f, err, "damaged: a token is outside the vocabulary");
        if (ret == 0 && waste_ids_append(&f->ids, some, n) != 0)
            ret = waste_error_set(err, -ENOMEM, "out of memory");
    }
    return ret == 0 ? unpack(&u, NULL, 0, err) : ret;
}

static int read_text(struct waste_snapshot_file *f, struct waste_error *err)
{
    char some[4096];
    struct unpacker u;
    int ret = 0;

    unpack_begin(&u, f, WASTE_SNAPSHOT_TEXT);
    while (ret == 0 && f->text.bytes < f->header.text_bytes) {
        uint64_t left = f->header.text_bytes - f->text.bytes;
        size_t n = left < sizeof(some) ? left : sizeof(some);

        ret = unpack(&u, some, n, err);
        if (ret == 0 && waste_text_add(&f->text, some, n) != 0)
            ret = waste_error_set(err, -ENOMEM, "out of memory");
    }
    return ret == 0 ? unpack(&u, NULL, 0, err) : ret;
}

static int open_file(struct waste_snapshot_file *f, uint64_t *bytes, struct waste_error *err)
{
    struct stat st;

    f->zstd = ZSTD_createDCtx();
    f->block = malloc(WASTE_SNAPSHOT_BLOCK);
    if (f->zstd == NULL || f->block == NULL ||
        ZSTD_isError(ZSTD_DCtx_setParameter(f->zstd, ZSTD_d_windowLogMax, WINDOW_LOG)))
        return waste_error_set(err, -ENOMEM, "out of memory");
    f->fd =
        open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused, not waited for */
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        return unreadable(f, err, -errno);
    if (!S_ISREG(st.st_mode))
        return waste_error_set(err, -EINVAL, "%s: no regular file", f->path);
    *bytes = (uint64_t)st.st_size;
    return 0;
}

int waste_snapshot_open(const char *path, const struct waste_snapshot_shape *shape, uint32_t most,
                        struct waste_snapshot_file **out, struct waste_error *err)
{
    struct waste_snapshot_file *f = calloc(1, sizeof(*f));
    uint64_t bytes = 0;
    int ret;

    if (f == NULL)
        return waste_error_set(err, -ENOMEM, "out of memory");
    f->fd = -1;
    f->path = strdup(path);
    ret = f->path != NULL ? open_file(f, &bytes, err)
                          : waste_error_set(err, -ENOMEM, "out of memory");
    if (ret == 0)
        ret = check_header(f, shape, most, bytes, err);
    if (ret == 0)
        ret = check_sections(f, err);
    if (ret == 0)
        ret = read_tokens(f, shape->vocab, err);
    if (ret == 0)
        ret = read_text(f, err);
    if (ret < 0)
        waste_snapshot_close(f);
    else
        *out = f;
    return ret;
}

void waste_snapshot_close(struct waste_snapshot_file *f)
{
    if (f == NULL)
        return;
    if (f->fd >= 0)
        close(f->fd);
    ZSTD_freeDCtx(f->zstd);
    waste_ids_finish(&f->ids);
    waste_text_finish(&f->text);
    free(f->block);
    free(f->path);
    free(f);
}

const struct waste_ids *waste_snapshot_ids(const struct waste_snapshot_file *f)
{
    return &f->ids;
}

const struct waste_text *waste_snapshot_text(const struct waste_snapshot_file *f)
{
    return &f->text;
}

uint32_t waste_snapshot_position(const struct waste_snapshot_file *f)
{
    return f->header.position;
}

const char *waste_snapshot_path(const struct waste_snapshot_file *f)
{
    return f->path;
}

int waste_snapshot_load(struct waste_snapshot_file *f, const struct waste_snapshot_place *to,
                        struct waste_error *err)
{
    const struct waste_snapshot_header *h = &f->header;
    uint64_t bytes = (uint64_t)h->position * h->row_bytes;
    struct unpacker u;
    int ret = 0;

    unpack_begin(&u, f, WASTE_SNAPSHOT_BANK);
    if (h->position > 0 && h->bank_bytes > 0)
        ret = unpack(&u, to->bank, h->bank_bytes, err);
    if (ret == 0)
        ret = unpack(&u, NULL, 0, err);
    unpack_begin(&u, f, WASTE_SNAPSHOT_ROWS);
    for (uint32_t i = 0; ret == 0 && bytes > 0 && i < h->mla_layers; i++)
        ret = unpack(&u, to->rows + i * to->layer_stride, bytes, err);
    return ret == 0 ? unpack(&u, NULL, 0, err) : ret;
}
