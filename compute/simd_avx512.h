/* The vector operations of kernels_tmpl.h in AVX-512 (F, BW, DQ, VL). */
#ifndef WASTE_COMPUTE_SIMD_AVX512_H
#define WASTE_COMPUTE_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

enum {
    V_LANES = 16,
    V_TILE = 4, /* rows (or vectors) of a register tile that is 4 wide: 16 accumulators of 32 */
    /* Rows of a register tile with two, one and half a tile of tokens. */
    V_PAIR_ROWS = 8,
    V_TILE_ROWS = 16,
    V_HALF_ROWS = 16,
};

typedef __m512 vf;
typedef __m512i vi;

static inline __mmask16 v_mask(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}

static inline vf v_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}

/* All lanes *p. As integers: the load port spreads those, a floating-point one takes an adder and a
 * multiplier of Zen 4 as well. */
static inline vf v_load1(const float *p)
{
    int bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}

static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void v_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

/* The first n lanes, the others zero; n <= V_LANES. */
static inline vf v_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v_mask(n), p);
}

static inline void v_store_n(float *p, vf x, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v_mask(n), x);
}

/* Past the caches; p aligned to the vector. v_fence before anybody else may read it. */
static inline void v_stream(float *p, vf x)
{
    _mm512_stream_ps(p, x);
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
    return _mm512_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* a b + c */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a b */
static inline vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* The larger (smaller) of a and b, b if either is NaN. */
static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf v_abs(vf a)
{
    return _mm512_abs_ps(a);
}

/* |a| with the sign of b */
static inline vf v_copysign(vf a, vf b)
{
    const vf sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b));
}

static inline vf v_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a 2^n, n integral */
static inline vf v_ldexp(vf a, vf n)
{
    return _mm512_scalef_ps(a, n);
}

static inline float v_sum(vf a)
{
    return _mm512_reduce_add_ps(a);
}

static inline float v_largest(vf a)
{
    return _mm512_reduce_max_ps(a);
}

/* out[t] lane i = p[4 i + t] */
static inline void v_load4(vf out[4], const float *p)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    vf a = v_load(p), b = v_load(p + 16), c = v_load(p + 32), d = v_load(p + 48);
    vf ab02 = _mm512_permutex2var_ps(a, even, b), ab13 = _mm512_permutex2var_ps(a, odd, b);
    vf cd02 = _mm512_permutex2var_ps(c, even, d), cd13 = _mm512_permutex2var_ps(c, odd, d);
    out[0] = _mm512_permutex2var_ps(ab02, even, cd02);
    out[1] = _mm512_permutex2var_ps(ab13, even, cd13);
    out[2] = _mm512_permutex2var_ps(ab02, odd, cd02);
    out[3] = _mm512_permutex2var_ps(ab13, odd, cd13);
}

/* v[i] lane j = v[j] lane i */
static inline void v_transpose(vf v[16])
{
    vf a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    /* b[4 k + i] holds columns i, i + 4, i + 8, i + 12 of rows 4 k .. 4 k + 3 in its quarters */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        vf low = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
        vf high = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
        v[i] = _mm512_shuffle_f32x4(low, high, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(low, high, 0xdd);
        low = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
        high = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
        v[i + 4] = _mm512_shuffle_f32x4(low, high, 0x88);
        v[i + 12] = _mm512_shuffle_f32x4(low, high, 0xdd);
    }
}

/* f16 to all lanes */
static inline vf v_half(const uint16_t *p)
{
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(*p)));
}

static inline vf v_from_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline vi v_load_u32(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

static inline vi v_shift_right_20(vi a)
{
    return _mm512_srli_epi32(a, 20);
}

/* (a & mask) | bits, as a float */
static inline vf v_and_or(vi a, uint32_t mask, uint32_t bits)
{
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(a, _mm512_set1_epi32((int)mask),
                                                         _mm512_set1_epi32((int)bits), 0xea));
}

/* Weights [16 i, 16 i + 16) of a Q3G group. */
static inline vf v_from_q3(const uint8_t *group, uint32_t i)
{
    const vi shift = _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 0, 3, 6, 9, 12, 15, 18, 21);
    const vf value = _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);
    uint32_t low, high;
    __builtin_memcpy(&low, group + 6 * i, 4);
    __builtin_memcpy(&high, group + 6 * i + 3, 4);
    vi bits = _mm512_mask_set1_epi32(_mm512_set1_epi32((int)low), 0xff00, (int)high);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(bits, shift), value);
}

/* Weights [16 i, 16 i + 16) of a Q4G group: a byte's nibbles in the low bits of two dwords, of
 * which vpermps takes no others. */
static inline vf v_from_q4(const uint8_t *group, uint32_t i)
{
    const vf value = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    vi bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(group + 8 * i)));
    return _mm512_permutexvar_ps(_mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28)), value);
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

#endif
