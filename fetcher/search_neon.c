/* The search in NEON (aarch64): a vector of 16 is four registers. */
#include <arm_neon.h>

#include "fetcher/search_int.h"

typedef struct {
    int32x4_t q[4];
} v16;

static inline v16 v16_set1(int32_t x)
{
    int32x4_t q = vdupq_n_s32(x);
    return (v16){{q, q, q, q}};
}

static inline v16 v16_load(const int32_t *p)
{
    return (v16){{vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)}};
}

static inline void v16_store(int32_t *p, v16 v)
{
    for (int i = 0; i < 4; i++)
        vst1q_s32(p + 4 * i, v.q[i]);
}

static inline v16 v16_add(v16 a, v16 b)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = vaddq_s32(a.q[i], b.q[i]);
    return a;
}

static inline v16 v16_min(v16 a, v16 b)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = vminq_s32(a.q[i], b.q[i]);
    return a;
}

static inline v16 v16_dot(v16 acc, const int16_t *pairs, v16 x)
{
    int16x4_t both = vget_low_s16(vreinterpretq_s16_s32(x.q[0]));
    for (int i = 0; i < 4; i++) {
        int16x4x2_t p = vld2_s16(pairs + 8 * i);
        acc.q[i] = vmlal_lane_s16(acc.q[i], p.val[0], both, 0);
        acc.q[i] = vmlal_lane_s16(acc.q[i], p.val[1], both, 1);
    }
    return acc;
}

static inline v16 v16_tag(v16 v, int32_t tag)
{
    for (int i = 0; i < 4; i++)
        v.q[i] = vorrq_s32(vandq_s32(v.q[i], vdupq_n_s32(~15)), vdupq_n_s32(tag));
    return v;
}

static inline void v16_choose(v16 *best, v16 *from, v16 v, int32_t tag)
{
    for (int i = 0; i < 4; i++) {
        uint32x4_t less = vcltq_s32(v.q[i], best->q[i]);
        from->q[i] = vbslq_s32(less, vdupq_n_s32(tag), from->q[i]);
        best->q[i] = vminq_s32(best->q[i], v.q[i]);
    }
}

#define SEARCH_INLINE inline __attribute__((always_inline))
#define SEARCH_UNROLL _Pragma("GCC unroll 16")
#define SEARCH_NAME waste_search_neon
#define SEARCH_LEVEL "neon"
#include "fetcher/search_tmpl.h"
