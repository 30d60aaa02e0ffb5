#include "fetcher/fill.h"

#include <string.h>

#include "shm/model.h"

uint64_t waste_fill_key(uint64_t seed, const char *name, uint64_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    return waste_mix(waste_mix(waste_mix(seed + WASTE_GOLDEN) ^ h) + n * WASTE_GOLDEN);
}

uint16_t waste_half_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    if (mag >= 0x477ff000) /* 65520 and more would round to infinity */
        return (uint16_t)(sign | 0x7bff);
    if (mag < 0x38800000) { /* under 2^-14: subnormal, a multiple of 2^-24 */
        uint32_t shift = 126 - (mag >> 23);
        if (shift > 24 + 1)
            return (uint16_t)sign;
        uint32_t m = (mag & 0x7fffff) | 0x800000, half = 1u << (shift - 1);
        uint32_t q = m >> shift, rest = m & ((1u << shift) - 1);
        q += rest > half || (rest == half && (q & 1));
        return (uint16_t)(sign | q);
    }
    uint32_t q = (mag - 0x38000000) >> 13, rest = mag & 0x1fff;
    q += rest > 0x1000 || (rest == 0x1000 && (q & 1));
    return (uint16_t)(sign | q);
}

void waste_fill_bytes(uint8_t *dst, size_t n, uint64_t key)
{
    uint64_t *d = (uint64_t *)dst;
    size_t words = n / 8;
    for (size_t i = 0; i < words; i++)
        d[i] = waste_mix(key + (i + 1) * WASTE_GOLDEN);
    if (n % 8) {
        uint64_t last = waste_mix(key + (words + 1) * WASTE_GOLDEN);
        memcpy(dst + words * 8, &last, n % 8);
    }
}

/* 16 nibbles stored +8: -8 becomes 0, so that the mean is exactly 0. */
static inline uint64_t centre_nibbles(uint64_t r)
{
    uint64_t any = r | r >> 1;
    any |= any >> 2;
    return r | (~any & UINT64_C(0x1111111111111111)) << 3;
}

/* 8 signed bytes: -128 becomes 0. */
static inline uint64_t centre_bytes(uint64_t r)
{
    uint64_t low = r & UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t any = ((low + UINT64_C(0x7f7f7f7f7f7f7f7f)) & UINT64_C(0x8080808080808080));
    return r & ~(~any & UINT64_C(0x8080808080808080));
}

/* 16 three-bit values stored +4 in 48 bits: -4 becomes 0. */
static inline uint64_t centre_threes(uint64_t r)
{
    const uint64_t ones = UINT64_C(01111111111111111);
    r &= UINT64_C(0xffffffffffff);
    uint64_t any = r | r >> 1 | r >> 2;
    return r | (~any & ones) << 2;
}

size_t waste_fill_row_bytes(uint32_t fmt, uint32_t cols)
{
    size_t padded = (cols + WASTE_GROUP - 1) / WASTE_GROUP * (size_t)WASTE_GROUP;
    switch (fmt) {
    case WASTE_FMT_Q8G:
        return padded;
    case WASTE_FMT_Q4G:
        return padded / 2;
    case WASTE_FMT_Q3G:
        return padded * 3 / 8 + 1; /* the guard byte */
    default:
        return (size_t)cols * 4;
    }
}

double waste_fill_row_deviation(uint32_t fmt)
{
    switch (fmt) {
    case WASTE_FMT_Q8G:
        return 73.3;
    case WASTE_FMT_Q4G:
        return 4.18;
    default:
        return 1.87;
    }
}

/* Bits of one weight, and the stored form of weight 0. */
static void row_code(uint32_t fmt, unsigned *bits, unsigned *zero)
{
    *bits = fmt == WASTE_FMT_Q8G ? 8 : fmt == WASTE_FMT_Q4G ? 4 : 3;
    *zero = fmt == WASTE_FMT_Q8G ? 0 : fmt == WASTE_FMT_Q4G ? 8 : 4;
}

static void zero_padding(uint8_t *dst, uint32_t fmt, uint32_t cols)
{
    unsigned bits, zero;
    row_code(fmt, &bits, &zero);
    for (size_t c = cols; c % WASTE_GROUP; c++)
        for (unsigned b = 0; b < bits; b++) {
            size_t bit = c * bits + b;
            uint8_t mask = (uint8_t)(1u << bit % 8);
            dst[bit / 8] = (uint8_t)((dst[bit / 8] & ~mask) | ((zero >> b & 1) ? mask : 0));
        }
}

void waste_fill_row(uint8_t *dst, uint32_t fmt, uint32_t cols, uint64_t key)
{
    size_t n = waste_fill_row_bytes(fmt, cols);
    size_t step = fmt == WASTE_FMT_Q3G ? 6 : 8; /* 16 three-bit weights are 6 bytes */
    size_t words = n / step;
    for (size_t i = 0; i < words; i++) {
        uint64_t r = waste_mix(key + (i + 1) * WASTE_GOLDEN);
        r = fmt == WASTE_FMT_Q8G   ? centre_bytes(r)
            : fmt == WASTE_FMT_Q4G ? centre_nibbles(r)
                                   : centre_threes(r);
        memcpy(dst + i * step, &r, step);
    }
    memset(dst + words * step, 0, n - words * step);
    if (cols % WASTE_GROUP)
        zero_padding(dst, fmt, cols);
}

void waste_fill_scales(uint8_t *dst, size_t n, double scale, uint64_t key)
{
    uint16_t table[64];
    for (int j = 0; j < 64; j++)
        table[j] = waste_half_of((float)(scale * (0.75 + j / 126.0)));
    for (size_t i = 0; i < n; i++)
        memcpy(dst + 2 * i, &table[waste_mix(key + (i + 1) * WASTE_GOLDEN) >> 58], 2);
}

void waste_fill_floats(float *dst, size_t n, double low, double high, uint64_t key)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t r = waste_mix(key + (i + 1) * WASTE_GOLDEN) >> 40; /* 24 bits: exact in a float */
        dst[i] = (float)(low + (high - low) * ((double)r * 0x1p-24));
    }
}

void waste_fill_codebook(uint16_t *dst, uint32_t entries, double amplitude, uint64_t key)
{
    for (uint32_t e = 0; e < entries / 2; e++)
        for (uint32_t v = 0; v < 8; v++) {
            uint64_t r = waste_mix(key + (e * 8 + v + 1) * WASTE_GOLDEN) >> 52;
            double value = ((double)r - 2047.5) * (amplitude / 2048.0);
            uint16_t h = waste_half_of((float)value);
            dst[e * 8 + v] = h;
            dst[(entries - 1 - e) * 8 + v] = h ^ 0x8000;
        }
}
