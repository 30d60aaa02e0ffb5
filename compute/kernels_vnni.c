/*
 * AVX-512 with VBMI and VNNI: Q4G and Q3G products in exact integers.
 *
 * prepare turns each group of x into 24-bit integers with one scale and cuts them into three signed
 * bytes, so that vpdpbusd multiplies them with the stored integers; the three sums join to one
 * int32. What is lost is the rounding of x to 2^-24 of its group's largest value. 6 multiplications
 * and some 10 other instructions for 128 weights, half of what float needs.
 */
#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "compute/kernels_int.h"

typedef __m512i vi;
typedef __m512 vf;

enum {
    DIGITS = 3,
    LIMIT = 8355000, /* three signed bytes hold +-127 * (65536 + 256 + 1) */
    ROWS = 4,
    PREFETCH_BYTES = 16384,
};

/*
 * A group of prepared x. Byte b of even (odd) is a digit of x[2 b] (x[2 b + 1]): the order in which
 * the low (high) nibbles of a Q4G group lie. The scales of all groups follow the last one.
 */
struct digit_group {
    int32_t
        bias[16]; /* -8 times the sum of x under each dword: the stored 4 bits are 8 too large */
    int8_t even[DIGITS][64], odd[DIGITS][64];
};
static_assert(sizeof(struct digit_group) + sizeof(float) <= WASTE_GROUP * sizeof(float),
              "prepared x must fit waste_act_floats");

/* The integers of 128 values in dwords of 16, and their scale; NaN if one of them is not finite. */
static float quantise_group(int32_t q[WASTE_GROUP], const float *x, uint32_t n)
{
    vf v[8], largest = _mm512_setzero_ps();
    __mmask16 odd = 0;
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t left = n > 16 * i ? n - 16 * i : 0;
        __mmask16 mask = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        v[i] = _mm512_maskz_loadu_ps(mask, x + 16 * i);
        odd |= _mm512_fpclass_ps_mask(v[i], 0x99); /* NaN or infinite */
        largest = _mm512_max_ps(largest, _mm512_abs_ps(v[i]));
    }
    float top = fmaxf(_mm512_reduce_max_ps(largest), 0x1p-126f);
    for (uint32_t i = 0; i < 8; i++) {
        vf scaled = _mm512_mul_ps(_mm512_mul_ps(v[i], _mm512_set1_ps(1 / top)),
                                  _mm512_set1_ps((float)LIMIT));
        _mm512_store_si512(q + 16 * i, _mm512_cvtps_epi32(scaled));
    }
    return odd ? NAN : top / (float)LIMIT;
}

static void prepare(float *xp, const float *x, uint32_t cols)
{
    uint32_t groups = waste_act_floats(cols) / WASTE_GROUP;
    struct digit_group *out = (struct digit_group *)xp;
    float *scale = (float *)(out + groups);
    for (uint32_t g = 0; g < groups; g++, out++) {
        int32_t q[WASTE_GROUP] __attribute__((aligned(64)));
        uint32_t c = g * WASTE_GROUP;
        scale[g] = quantise_group(q, x + c, cols - c < WASTE_GROUP ? cols - c : WASTE_GROUP);
        for (uint32_t i = 0; i < 8; i++) {
            /* Adding 128 to each byte makes the carries; taking it off again, signed digits. */
            vi v = _mm512_load_si512(q + 16 * i), bytes = _mm512_set1_epi32(0x808080);
            _mm512_store_si512(q + 16 * i, _mm512_xor_si512(_mm512_add_epi32(v, bytes), bytes));
            vi sum = _mm512_add_epi32(v, _mm512_srli_epi64(v, 32)); /* in even dwords */
            sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, 0x4e));
            sum = _mm512_add_epi32(sum, _mm512_permutex_epi64(sum, 0x4e));
            sum = _mm512_mullo_epi32(sum, _mm512_set1_epi32(-8));
            out->bias[2 * i] = _mm_cvtsi128_si32(_mm512_castsi512_si128(sum));
            out->bias[2 * i + 1] = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(sum, 2));
        }
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t d = 0; d < DIGITS; d++) {
                vi low = _mm512_load_si512(q + 32 * i), high = _mm512_load_si512(q + 32 * i + 16);
                vi shifted[2] = {_mm512_srli_epi32(low, 8 * d), _mm512_srli_epi32(high, 8 * d)};
                __m128i a = _mm512_cvtepi32_epi8(shifted[0]), b = _mm512_cvtepi32_epi8(shifted[1]);
                const __m128i byte = _mm_set1_epi16(255);
                _mm_storeu_si128((__m128i *)(out->even[d] + 16 * i),
                                 _mm_packus_epi16(_mm_and_si128(a, byte), _mm_and_si128(b, byte)));
                _mm_storeu_si128((__m128i *)(out->odd[d] + 16 * i),
                                 _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
            }
    }
}

/* Adds ROWS rows' sums over a group, each in 16 dwords, times their scales. */
WASTE_INLINE void add_group(vf *total, const float *scale, const struct digit_group *x, vi bias,
                            const vi *even, const vi *odd, uint32_t rows)
{
    vi z[ROWS][DIGITS];
    for (uint32_t r = 0; r < rows; r++) {
        z[r][0] = bias;
        z[r][1] = z[r][2] = _mm512_setzero_si512();
    }
#pragma GCC unroll 3
    for (uint32_t d = 0; d < DIGITS; d++) {
        vi x_even = _mm512_load_si512(x->even[d]), x_odd = _mm512_load_si512(x->odd[d]);
        for (uint32_t r = 0; r < rows; r++) {
            z[r][d] = _mm512_dpbusd_epi32(z[r][d], even[r], x_even);
            z[r][d] = _mm512_dpbusd_epi32(z[r][d], odd[r], x_odd);
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        vi high = _mm512_add_epi32(_mm512_slli_epi32(z[r][2], 8), z[r][1]);
        vi sum = _mm512_add_epi32(_mm512_slli_epi32(high, 8), z[r][0]);
        total[r] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale[16 * r]), total[r]);
    }
}

/* The stored integers of a group as bytes, in the two orders. */
WASTE_INLINE void unpack_q4g(vi *even, vi *odd, const uint8_t *group)
{
    const vi low = _mm512_set1_epi8(15);
    vi w = _mm512_loadu_si512(group);
    *even = _mm512_and_si512(w, low);
    *odd = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
}

/* 16 weights are 6 bytes, brought into a qword each, of which vpmultishiftqb takes every field. */
WASTE_INLINE void unpack_q3g(vi *even, vi *odd, const uint8_t *group)
{
    const vi spread =
        _mm512_set_epi64(0x2f2e2d2c2b2a, 0x292827262524, 0x232221201f1e, 0x1d1c1b1a1918,
                         0x171615141312, 0x11100f0e0d0c, 0x0b0a09080706, 0x050403020100);
    const vi even_fields = _mm512_set1_epi64(0x2a241e18120c0600);
    const vi odd_fields = _mm512_set1_epi64(0x2d27211b150f0903);
    const vi low = _mm512_set1_epi8(7);
    vi w = _mm512_permutexvar_epi8(spread, _mm512_loadu_si512(group));
    *even = _mm512_and_si512(_mm512_multishift_epi64_epi8(even_fields, w), low);
    *odd = _mm512_and_si512(_mm512_multishift_epi64_epi8(odd_fields, w), low);
}

struct unpacking {
    void (*unpack)(vi *even, vi *odd, const uint8_t *group);
    uint32_t group_bytes;
    int bias_shift; /* the bias of x is for an excess of 8 */
};

/* Rows r to r + rows; they share every load of x. */
WASTE_INLINE void row_products(float *y, const struct waste_matrix *w, const float *xp, uint32_t r,
                               uint32_t rows, struct unpacking u)
{
    const struct digit_group *x = (const struct digit_group *)xp;
    const float *x_scale = (const float *)(x + w->groups);
    const uint8_t *data = w->data + r * w->row_bytes;
    vf total[ROWS];
    for (uint32_t i = 0; i < rows; i++)
        total[i] = _mm512_setzero_ps();
    for (uint32_t g0 = 0; g0 < w->groups; g0 += 16) {
        float scale[ROWS * 16] __attribute__((aligned(64)));
        uint32_t n = w->groups - g0 < 16 ? w->groups - g0 : 16;
        __mmask16 mask = (__mmask16)((1u << n) - 1);
        for (uint32_t i = 0; i < rows; i++) {
            const uint16_t *half = w->scales + (size_t)(r + i) * w->groups + g0;
            vf s = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, half));
            s = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(mask, x_scale + g0));
            _mm512_store_ps(scale + 16 * i, s);
        }
        for (uint32_t g = 0; g < n; g++) {
            const struct digit_group *xg = x + g0 + g;
            vi even[ROWS], odd[ROWS];
            for (uint32_t i = 0; i < rows; i++) {
                const uint8_t *group = data + i * w->row_bytes + (size_t)(g0 + g) * u.group_bytes;
                _mm_prefetch((const char *)group + PREFETCH_BYTES, _MM_HINT_T1);
                u.unpack(&even[i], &odd[i], group);
            }
            vi bias = _mm512_srai_epi32(_mm512_load_si512(xg->bias), u.bias_shift);
            add_group(total, scale + g, xg, bias, even, odd, rows);
        }
    }
    for (uint32_t i = 0; i < rows; i++)
        y[r + i] = _mm512_reduce_add_ps(total[i]);
}

WASTE_INLINE void matvec_any(float *y, const struct waste_matrix *w, const float *xp, uint32_t r0,
                             uint32_t r1, struct unpacking u)
{
    uint32_t r = r0;
    for (; r + ROWS <= r1; r += ROWS)
        row_products(y, w, xp, r, ROWS, u);
    for (; r < r1; r++)
        row_products(y, w, xp, r, 1, u);
}

static void matvec_q4g(float *y, const struct waste_matrix *w, const float *x, const float *xp,
                       uint32_t r0, uint32_t r1)
{
    matvec_any(y, w, xp, r0, r1, (struct unpacking){unpack_q4g, WASTE_GROUP / 2, 0});
}

static void matvec_q3g(float *y, const struct waste_matrix *w, const float *x, const float *xp,
                       uint32_t r0, uint32_t r1)
{
    matvec_any(y, w, xp, r0, r1, (struct unpacking){unpack_q3g, WASTE_GROUP * 3 / 8, 1});
}

void waste_kernels_fill_vnni(struct waste_kernels *k)
{
    k->prepare = prepare;
    k->matvec[WASTE_FMT_Q4G] = matvec_q4g;
    k->matvec[WASTE_FMT_Q3G] = matvec_q3g;
    waste_kernels_fill_vq_vbmi(k);
}
