#include "fetcher/source.h"

#include <math.h>
#include <string.h>

#include "fetcher/fill.h"

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [WASTE_DTYPE_BF16] = {"BF16", 2},
    [WASTE_DTYPE_F16] = {"F16", 2},
    [WASTE_DTYPE_F32] = {"F32", 4},
    [WASTE_DTYPE_U8] = {"U8", 1},
};

const char *waste_dtype_name(enum waste_dtype type)
{
    return types[type].name;
}

size_t waste_dtype_bytes(enum waste_dtype type)
{
    return types[type].bytes;
}

/* Nearest, ties to even. f is finite and far from the largest. */
static uint16_t bf16_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void put(uint8_t *dst, enum waste_dtype type, size_t i, float f)
{
    uint16_t half = type == WASTE_DTYPE_F16 ? waste_half_of(f) : bf16_of(f);
    if (type == WASTE_DTYPE_F32)
        memcpy(dst + 4 * i, &f, 4);
    else
        memcpy(dst + 2 * i, &half, 2);
}

/* The sum of four bytes, centred: -510 .. 510 around 0, deviation 147.8. */
static inline float bell(uint32_t word)
{
    uint32_t pairs = (word & 0xff00ff) + (word >> 8 & 0xff00ff);
    return (float)((int)((pairs & 0xffff) + (pairs >> 16)) - 510);
}
#define BELL_DEVIATION 147.801 /* sqrt(4 (256^2 - 1) / 12) */

void waste_source_matrix(uint8_t *dst, enum waste_dtype type, size_t n, double deviation,
                         uint64_t key)
{
    const float scale = (float)(deviation / BELL_DEVIATION);
    enum { BLOCK = 256 };
    float value[BLOCK];
    for (size_t at = 0; at < n; at += BLOCK) {
        for (size_t i = 0; i < BLOCK; i += 2) {
            uint64_t r = waste_mix(key + ((at + i) / 2 + 1) * WASTE_GOLDEN);
            value[i] = bell((uint32_t)r) * scale;
            value[i + 1] = bell((uint32_t)(r >> 32)) * scale;
        }
        size_t m = n - at < BLOCK ? n - at : BLOCK;
        uint8_t *to = dst + at * types[type].bytes;
        for (size_t i = 0; i < m; i++)
            put(to, type, i, value[i]);
    }
}

void waste_source_vector(uint8_t *dst, enum waste_dtype type, size_t n, double low, double high,
                         uint64_t key)
{
    for (size_t i = 0; i < n; i++) {
        float f;
        waste_fill_floats(&f, 1, low, high, key + i * WASTE_GOLDEN);
        put(dst, type, i, f);
    }
}

#define E2M1_DEVIATION                                                                             \
    2.926 /* of the sixteen values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives */

void waste_source_exponents(uint8_t *dst, size_t n, double deviation, uint64_t key)
{
    int near = 127 + (int)lround(log2(deviation / E2M1_DEVIATION));
    for (size_t i = 0; i < n; i++) {
        uint64_t r = waste_mix(key + (i + 1) * WASTE_GOLDEN) >> 61; /* one of eight up, one down */
        dst[i] = (uint8_t)(near + (r == 0) - (r == 1));
    }
}
