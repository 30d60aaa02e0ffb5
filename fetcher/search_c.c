/* The search in plain C: what the others are compared with. */
#include "fetcher/search_int.h"

typedef struct {
    int32_t lane[16];
} v16;

static inline v16 v16_set1(int32_t x)
{
    v16 v;
    for (int i = 0; i < 16; i++)
        v.lane[i] = x;
    return v;
}

static inline v16 v16_load(const int32_t *p)
{
    v16 v;
    for (int i = 0; i < 16; i++)
        v.lane[i] = p[i];
    return v;
}

static inline void v16_store(int32_t *p, v16 v)
{
    for (int i = 0; i < 16; i++)
        p[i] = v.lane[i];
}

static inline v16 v16_add(v16 a, v16 b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] += b.lane[i];
    return a;
}

static inline v16 v16_min(v16 a, v16 b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}

static inline v16 v16_dot(v16 acc, const int16_t *pairs, v16 x)
{
    int32_t low = (int16_t)x.lane[0], high = x.lane[0] >> 16;
    for (int i = 0; i < 16; i++)
        acc.lane[i] += pairs[2 * i] * low + pairs[2 * i + 1] * high;
    return acc;
}

static inline v16 v16_tag(v16 v, int32_t tag)
{
    for (int i = 0; i < 16; i++)
        v.lane[i] = (v.lane[i] & ~15) | tag;
    return v;
}

static inline void v16_choose(v16 *best, v16 *from, v16 v, int32_t tag)
{
    for (int i = 0; i < 16; i++)
        if (v.lane[i] < best->lane[i]) {
            best->lane[i] = v.lane[i];
            from->lane[i] = tag;
        }
}

#define SEARCH_INLINE
#define SEARCH_UNROLL
#define SEARCH_NAME waste_search_c
#define SEARCH_LEVEL "c"
#include "fetcher/search_tmpl.h"
