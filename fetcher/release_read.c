/* Values of a release as f32. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "compute/kernels.h"
#include "fetcher/io.h"
#include "fetcher/release.h"

enum { CHUNK = 32768 }; /* bytes read at once into the stack */

static int read_part(const struct waste_release *r, const struct waste_release_part *p,
                     uint64_t off, size_t n, uint8_t *out)
{
    const struct waste_release_shard *s = &r->shard[p->shard];
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(s->fd, out + done, n - done, (off_t)(p->off + off + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return waste_fetch_fail("cannot read %s/%s: %s", r->path, s->name,
                                    got ? strerror(errno) : "it is shorter than it was");
        done += (size_t)got;
    }
    return 0;
}

/* True if all are finite. */
static bool decode_bf16(const uint8_t *in, size_t n, float *out)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)(in[2 * i] | in[2 * i + 1] << 8) << 16;
        bad |= (u & 0x7f800000) == 0x7f800000;
        memcpy(&out[i], &u, 4);
    }
    return !bad;
}

static bool decode_f16(const uint8_t *in, size_t n, float *out)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t u = (uint16_t)(in[2 * i] | in[2 * i + 1] << 8);
        bad |= (u & 0x7c00) == 0x7c00;
        out[i] = waste_half_to_float(u);
    }
    return !bad;
}

static bool decode_f32(const uint8_t *in, size_t n, float *out)
{
    uint32_t bad = 0;
    memcpy(out, in, 4 * n);
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &out[i], 4);
        bad |= (u & 0x7f800000) == 0x7f800000;
    }
    return !bad;
}

static int read_plain(const struct waste_release *r, const struct waste_release_tensor *t,
                      uint64_t first, uint64_t count, float *out)
{
    static bool (*const decode[])(const uint8_t *in, size_t n,
                                  float *out) = {[WASTE_RELEASE_BF16] = decode_bf16,
                                                 [WASTE_RELEASE_F16] = decode_f16,
                                                 [WASTE_RELEASE_F32] = decode_f32};
    uint8_t raw[CHUNK];
    size_t size = t->type == WASTE_RELEASE_F32 ? 4 : 2;
    for (uint64_t at = 0; at < count;) {
        size_t n = count - at < CHUNK / size ? (size_t)(count - at) : CHUNK / size;
        if (read_part(r, &t->data, (first + at) * size, n * size, raw))
            return -1;
        if (!decode[t->type](raw, n, out + at))
            return waste_fetch_fail("%s: %s holds a value that is not finite", r->path, t->name);
        at += n;
    }
    return 0;
}

/* Values [0, 32 n) of E2M1 pairs and n exponents; false if one is none. 2^(e - 127) is subnormal
 * for e = 0, which f32 still holds with all values of E2M1; from e = 253 on it does not hold the
 * large ones. */
static bool decode_mxfp4(const uint8_t *packed, const uint8_t *scale, size_t n, float *out)
{
    static const float level[16] = {0,  0.5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    for (size_t g = 0; g < n; g++) {
        if (scale[g] == 255) /* E8M0's NaN */
            return false;
        float s = ldexpf(1, scale[g] - 127), largest = 0;
        for (int i = 0; i < WASTE_MXFP4_GROUP / 2; i++) {
            uint8_t both = packed[g * (WASTE_MXFP4_GROUP / 2) + (size_t)i];
            out[0] = level[both & 15] * s;
            out[1] = level[both >> 4] * s;
            largest = fmaxf(largest, fmaxf(fabsf(out[0]), fabsf(out[1])));
            out += 2;
        }
        if (isinf(largest))
            return false;
    }
    return true;
}

static int read_mxfp4(const struct waste_release *r, const struct waste_release_tensor *t,
                      uint64_t first, uint64_t count, float *out)
{
    enum { GROUPS = CHUNK / WASTE_MXFP4_GROUP };
    uint8_t packed[GROUPS * WASTE_MXFP4_GROUP / 2], scale[GROUPS];
    uint64_t group = first / WASTE_MXFP4_GROUP, end = (first + count) / WASTE_MXFP4_GROUP;
    for (; group < end; group += GROUPS) {
        size_t n = end - group < GROUPS ? (size_t)(end - group) : GROUPS;
        if (read_part(r, &t->data, group * WASTE_MXFP4_GROUP / 2, n * WASTE_MXFP4_GROUP / 2,
                      packed) ||
            read_part(r, &t->scale, group, n, scale))
            return -1;
        if (!decode_mxfp4(packed, scale, n, out))
            return waste_fetch_fail("%s: %s holds a value that is not finite", r->path, t->name);
        out += n * WASTE_MXFP4_GROUP;
    }
    return 0;
}

int waste_release_read(const struct waste_release *r, const struct waste_release_tensor *t,
                       uint64_t first, uint64_t count, float *out)
{
    if (t->type == WASTE_RELEASE_OTHER)
        return waste_fetch_fail("%s: %s is of no type that can be converted: BF16, F16, F32 and "
                                "MXFP4 pairs can",
                                r->path, t->name);
    if (t->type == WASTE_RELEASE_MXFP4)
        return read_mxfp4(r, t, first, count, out);
    return read_plain(r, t, first, count, out);
}
