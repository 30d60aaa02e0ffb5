/* The vector operations of kernels_tmpl.h in NEON (aarch64); simd_avx512.h explains them. */
#ifndef WASTE_COMPUTE_SIMD_NEON_H
#define WASTE_COMPUTE_SIMD_NEON_H

#include <arm_neon.h>
#include <stdint.h>

enum {
    V_LANES = 4,
    V_TILE = 4, /* 16 accumulators of 32 registers */
    V_PAIR_ROWS = 0,
    V_TILE_ROWS = 4,
    V_HALF_ROWS = 8,
};

typedef float32x4_t vf;
typedef uint32x4_t vi;

static inline vf v_zero(void)
{
    return vdupq_n_f32(0);
}

static inline vf v_set1(float x)
{
    return vdupq_n_f32(x);
}

static inline vf v_load(const float *p)
{
    return vld1q_f32(p);
}

static inline void v_store(float *p, vf x)
{
    vst1q_f32(p, x);
}

static inline vf v_load_n(const float *p, uint32_t n)
{
    if (n == V_LANES)
        return v_load(p);
    float lane[V_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lane[i] = p[i];
    return v_load(lane);
}

static inline void v_store_n(float *p, vf x, uint32_t n)
{
    float lane[V_LANES];
    if (n == V_LANES) {
        v_store(p, x);
        return;
    }
    v_store(lane, x);
    for (uint32_t i = 0; i < n; i++)
        p[i] = lane[i];
}

/* aarch64 detects streams of stores by itself. */
static inline void v_stream(float *p, vf x)
{
    v_store(p, x);
}

static inline void v_fence(void)
{
}

/* Into L2. In assembly: gcc takes a function that does nothing but prefetch for one without effect
 * and leaves its calls out. */
static inline void v_prefetch(const void *p)
{
    __asm__ volatile("prfm pldl2keep, [%0]" : : "r"(p));
}

static inline vf v_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}

/* As on x86: b if either is NaN. */
static inline vf v_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline vf v_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

static inline vf v_abs(vf a)
{
    return vabsq_f32(a);
}

static inline vf v_copysign(vf a, vf b)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), b, a);
}

static inline vf v_round(vf a)
{
    return vrndnq_f32(a);
}

static inline vf v_exp2i(int32x4_t n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

static inline vf v_ldexp(vf a, vf n)
{
    int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1);
    return v_mul(v_mul(a, v_exp2i(half)), v_exp2i(vsubq_s32(whole, half)));
}

static inline float v_sum(vf a)
{
    return vaddvq_f32(a);
}

static inline float v_largest(vf a)
{
    return vmaxvq_f32(a);
}

static inline void v_sum4(float out[4], const vf a[4])
{
    v_store(out, vpaddq_f32(vpaddq_f32(a[0], a[1]), vpaddq_f32(a[2], a[3])));
}

static inline void v_load4(vf out[4], const float *p)
{
    float32x4x4_t r = vld4q_f32(p);
    for (int i = 0; i < 4; i++)
        out[i] = r.val[i];
}

static inline void v_transpose(vf v[4])
{
    float32x4x2_t low = vtrnq_f32(v[0], v[1]), high = vtrnq_f32(v[2], v[3]);
    for (int i = 0; i < 2; i++) {
        v[i] = vcombine_f32(vget_low_f32(low.val[i]), vget_low_f32(high.val[i]));
        v[i + 2] = vcombine_f32(vget_high_f32(low.val[i]), vget_high_f32(high.val[i]));
    }
}

static inline vf v_half(const uint16_t *p)
{
    return vdupq_laneq_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(*p))), 0);
}

static inline vf v_from_i8(const int8_t *p)
{
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

static inline vi v_load_u32(const uint8_t *p)
{
    return vreinterpretq_u32_u8(vld1q_u8(p));
}

static inline vi v_shift_right_20(vi a)
{
    return vshrq_n_u32(a, 20);
}

static inline vf v_and_or(vi a, uint32_t mask, uint32_t bits)
{
    return vreinterpretq_f32_u32(vorrq_u32(vandq_u32(a, vdupq_n_u32(mask)), vdupq_n_u32(bits)));
}

static inline vf v_from_q3(const uint8_t *group, uint32_t i)
{
    static const int32_t shift[4] = {0, -3, -6, -9};
    uint32_t bits;
    __builtin_memcpy(&bits, group + 3 * (i / 2), 4);
    vi field = vshlq_u32(vdupq_n_u32(bits >> 12 * (i % 2)), vld1q_s32(shift));
    return vsubq_f32(vcvtq_f32_u32(vandq_u32(field, vdupq_n_u32(7))), vdupq_n_f32(4));
}

static inline vf v_from_q4(const uint8_t *group, uint32_t i)
{
    static const int32_t shift[4] = {0, -4, -8, -12};
    uint32_t bits = group[2 * i] | (uint32_t)group[2 * i + 1] << 8;
    vi field = vandq_u32(vshlq_u32(vdupq_n_u32(bits), vld1q_s32(shift)), vdupq_n_u32(15));
    return vsubq_f32(vcvtq_f32_u32(field), vdupq_n_f32(8));
}

/* Eight floats: a codebook entry, or half a tile of tokens. */
typedef float32x4x2_t v8;

static inline v8 v8_zero(void)
{
    return (v8){{vdupq_n_f32(0), vdupq_n_f32(0)}};
}

static inline v8 v8_set1(float x)
{
    return (v8){{vdupq_n_f32(x), vdupq_n_f32(x)}};
}

static inline void v8_store(float *p, v8 x)
{
    vst1q_f32(p, x.val[0]);
    vst1q_f32(p + 4, x.val[1]);
}

static inline v8 v8_load(const float *p)
{
    return (v8){{vld1q_f32(p), vld1q_f32(p + 4)}};
}

static inline v8 v8_add(v8 a, v8 b)
{
    return (v8){{vaddq_f32(a.val[0], b.val[0]), vaddq_f32(a.val[1], b.val[1])}};
}

static inline v8 v8_fma(v8 a, v8 b, v8 c)
{
    return (v8){{vfmaq_f32(c.val[0], a.val[0], b.val[0]), vfmaq_f32(c.val[1], a.val[1], b.val[1])}};
}

static inline void v8_add_sums(float acc[8], const v8 a[8])
{
    for (int i = 0; i < 8; i += 4) {
        vf half[4];
        float sum[4];
        for (int j = 0; j < 4; j++)
            half[j] = vaddq_f32(a[i + j].val[0], a[i + j].val[1]);
        v_sum4(sum, half);
        v_store(acc + i, v_add(v_load(acc + i), v_load(sum)));
    }
}

#endif
