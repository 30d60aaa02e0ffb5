/* The vector operations of kernels_tmpl.h in AVX2, FMA and F16C; simd_avx512.h explains them. */
#ifndef WASTE_COMPUTE_SIMD_AVX2_H
#define WASTE_COMPUTE_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>

enum {
    V_LANES = 8,
    V_TILE = 2, /* 8 accumulators of 16 registers */
    V_PAIR_ROWS = 0,
    V_TILE_ROWS = 4,
    V_HALF_ROWS = 8,
};

typedef __m256 vf;
typedef __m256i vi;

static inline vi v_mask(uint32_t n)
{
    const vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

static inline vf v_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf v_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}

static inline vf v_load_n(const float *p, uint32_t n)
{
    return n == V_LANES ? v_load(p) : _mm256_maskload_ps(p, v_mask(n));
}

static inline void v_store_n(float *p, vf x, uint32_t n)
{
    if (n == V_LANES)
        v_store(p, x);
    else
        _mm256_maskstore_ps(p, v_mask(n), x);
}

static inline void v_stream(float *p, vf x)
{
    _mm256_stream_ps(p, x);
}

static inline void v_fence(void)
{
    _mm_sfence();
}

/* Into L2. In assembly: gcc takes a function that does nothing but prefetch for one without effect
 * and leaves its calls out. */
static inline void v_prefetch(const void *p)
{
    __asm__ volatile("prefetcht1 %0" : : "m"(*(const char *)p));
}

static inline vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline vf v_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

static inline vf v_copysign(vf a, vf b)
{
    const vf sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b));
}

static inline vf v_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* 2^n, n in the exponents of normal floats */
static inline vf v_exp2i(vi n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* In two steps, since n may go down to -150 and up to 128. */
static inline vf v_ldexp(vf a, vf n)
{
    vi whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return v_mul(v_mul(a, v_exp2i(half)), v_exp2i(_mm256_sub_epi32(whole, half)));
}

static inline float v_sum(vf a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float v_largest(vf a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* out[i] = sum of the lanes of a[i] */
static inline void v_sum4(float out[4], const vf a[4])
{
    __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
    __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}

/* Four 4 x 4 blocks: rows of channel i and i + 4 share a register. */
static inline void v_load4(vf out[4], const float *p)
{
    vf r[4];
    for (int i = 0; i < 4; i++)
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 4 * i)),
                                    _mm_loadu_ps(p + 16 + 4 * i), 1);
    vf a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    vf c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    out[0] = _mm256_shuffle_ps(a, c, 0x44);
    out[1] = _mm256_shuffle_ps(a, c, 0xee);
    out[2] = _mm256_shuffle_ps(b, d, 0x44);
    out[3] = _mm256_shuffle_ps(b, d, 0xee);
}

static inline void v_transpose(vf v[8])
{
    vf a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

static inline vf v_half(const uint16_t *p)
{
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(*p)));
}

static inline vf v_from_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline vi v_load_u32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline vi v_shift_right_20(vi a)
{
    return _mm256_srli_epi32(a, 20);
}

static inline vf v_and_or(vi a, uint32_t mask, uint32_t bits)
{
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(a, _mm256_set1_epi32((int)mask)),
                                               _mm256_set1_epi32((int)bits)));
}

static inline vf v_from_q3(const uint8_t *group, uint32_t i)
{
    const vi shift = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
    const vf value = _mm256_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3);
    uint32_t bits;
    __builtin_memcpy(&bits, group + 3 * i, 4);
    return _mm256_permutevar8x32_ps(value, _mm256_srlv_epi32(_mm256_set1_epi32((int)bits), shift));
}

static inline vf v_from_q4(const uint8_t *group, uint32_t i)
{
    int four;
    __builtin_memcpy(&four, group + 4 * i, 4);
    vi bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    vi nibbles = _mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28));
    nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi32(15));
    return _mm256_sub_ps(_mm256_cvtepi32_ps(nibbles), _mm256_set1_ps(8));
}

/* Eight floats: a codebook entry, or half a tile of tokens. */
typedef __m256 v8;

static inline v8 v8_zero(void)
{
    return _mm256_setzero_ps();
}

static inline v8 v8_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline v8 v8_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void v8_store(float *p, v8 x)
{
    _mm256_storeu_ps(p, x);
}

static inline v8 v8_add(v8 a, v8 b)
{
    return _mm256_add_ps(a, b);
}

static inline v8 v8_fma(v8 a, v8 b, v8 c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* acc[i] += sum of a[i] */
static inline void v8_add_sums(float acc[8], const v8 a[8])
{
    float sum[8];
    v_sum4(sum, a);
    v_sum4(sum + 4, a + 4);
    v_store(acc, v_add(v_load(acc), v_load(sum)));
}

#endif
