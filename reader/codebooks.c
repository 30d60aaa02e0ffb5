#include "reader/codebooks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reader/container_int.h"
#include "reader/read.h"

/* f16 -> f32, subnormals read as zero (public readers do so, and logits depend on it). */
static float codebook_value(uint32_t half)
{
    uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31;
    uint32_t bits = exponent ? (exponent + 112) << 23 | (half & 0x3ffu) << 13 : 0;
    float out;
    bits |= sign;
    memcpy(&out, &bits, sizeof(out));
    return out;
}

static int expand(const struct waste_codebooks *c, const uint8_t *book, uint32_t number,
                  struct waste_error *err)
{
    const struct waste_expert_format *x = &c->model->expert;
    size_t values = (size_t)x->entries * WASTE_VEC_DIM;
    float *out = (float *)(c->base + x->codebook_data) + number * values;
    int rc = waste_codebook_check_header(x, book, number, err);
    if (rc < 0)
        return rc;
    book += WASTE_CODEBOOK_HEADER;
    for (size_t i = 0; i < values; i++) {
        uint32_t half = book[2 * i] | (uint32_t)book[2 * i + 1] << 8;
        if ((half & 0x7c00) == 0x7c00)
            return waste_error_set(err, -EINVAL,
                                   "%s/" WASTE_CODEBOOK_FILE ": codebook %u: entry %zu is not "
                                   "finite",
                                   c->dir, number, i / WASTE_VEC_DIM);
        out[i] = codebook_value(half);
    }
    return 0;
}

/* The next bytes of codebooks.bin against integrity.json; *crc is of the piece begun. */
static int check(const struct waste_codebooks *c, const uint8_t *data, uint64_t bytes, uint64_t off,
                 uint32_t *crc, struct waste_error *err)
{
    const struct waste_integrity_file *f = waste_integrity_find(c->integrity, WASTE_CODEBOOK_FILE);
    uint64_t total = waste_codebook_bytes(&c->model->expert) * c->model->expert.codebooks;
    if (!f)
        return 0;
    if (f->bytes != total)
        return waste_error_set(err, -EINVAL,
                               "%s/" WASTE_CODEBOOK_FILE ": size is %llu, " WASTE_INTEGRITY_FILE
                               " says %llu",
                               c->dir, (unsigned long long)total, (unsigned long long)f->bytes);
    while (bytes) {
        uint32_t piece = (uint32_t)(off / WASTE_INTEGRITY_PIECE);
        uint64_t end =
            (uint64_t)piece * WASTE_INTEGRITY_PIECE + waste_integrity_piece_bytes(total, piece);
        size_t n = end - off < bytes ? (size_t)(end - off) : (size_t)bytes;
        *crc = waste_integrity_crc(*crc, data, n);
        data += n;
        off += n;
        bytes -= n;
        if (off == end && *crc != f->crc[piece])
            return waste_integrity_damaged(c->dir, WASTE_CODEBOOK_FILE, total, piece, "", err);
        if (off == end)
            *crc = 0;
    }
    return 0;
}

int waste_codebooks_load(const struct waste_codebooks *c, bool (*tick)(void *), void *ctx,
                         struct waste_error *err)
{
    const struct waste_expert_format *x = &c->model->expert;
    size_t stride = (size_t)waste_codebook_bytes(x), batch = 64;
    char path[4096];
    int rc = 0;
    uint32_t crc = 0;
    uint8_t *books = malloc(batch * stride);
    snprintf(path, sizeof(path), "%s/" WASTE_CODEBOOK_FILE, c->dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || !books) {
        rc = waste_error_set(err, fd < 0 ? -errno : -ENOMEM, "%s: %s", path,
                             strerror(fd < 0 ? errno : ENOMEM));
        goto out;
    }
    for (uint32_t b = 0; b < x->codebooks && rc == 0; b++) {
        size_t in_batch = b % batch;
        if (in_batch == 0) {
            size_t count = x->codebooks - b < batch ? x->codebooks - b : batch;
            ssize_t n = waste_read_at(fd, books, count * stride, b * stride);
            if (n != (ssize_t)(count * stride))
                rc = waste_error_set(err, n < 0 ? (int)n : -EINVAL, "%s: codebook %u and after: %s",
                                     path, b, n < 0 ? strerror((int)-n) : "file ends too early");
            else
                rc = check(c, books, (uint64_t)n, b * stride, &crc, err);
            if (rc == 0)
                waste_trunk_note_loaded(c->control, (uint64_t)n);
            if (rc == 0 && !tick(ctx))
                rc = -ECANCELED;
        }
        if (rc == 0)
            rc = expand(c, books + in_batch * stride, b, err);
    }
out:
    if (fd >= 0)
        close(fd);
    free(books);
    return rc;
}
