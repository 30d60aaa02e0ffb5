/* The search in AVX2: a vector of 16 is two registers. */
#include <immintrin.h>

#include "fetcher/search_int.h"

typedef struct {
    __m256i a, b;
} v16;

static inline v16 v16_set1(int32_t x)
{
    return (v16){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

static inline v16 v16_load(const int32_t *p)
{
    return (v16){_mm256_load_si256((const __m256i *)p), _mm256_load_si256((const __m256i *)p + 1)};
}

static inline void v16_store(int32_t *p, v16 v)
{
    _mm256_store_si256((__m256i *)p, v.a);
    _mm256_store_si256((__m256i *)p + 1, v.b);
}

static inline v16 v16_add(v16 x, v16 y)
{
    return (v16){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}

static inline v16 v16_min(v16 x, v16 y)
{
    return (v16){_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)};
}

static inline v16 v16_dot(v16 acc, const int16_t *pairs, v16 x)
{
    const __m256i *p = (const __m256i *)pairs;
    v16 product = {_mm256_madd_epi16(_mm256_load_si256(p), x.a),
                   _mm256_madd_epi16(_mm256_load_si256(p + 1), x.b)};
    return v16_add(acc, product);
}

static inline v16 v16_tag(v16 v, int32_t tag)
{
    __m256i mask = _mm256_set1_epi32(~15), set = _mm256_set1_epi32(tag);
    return (v16){_mm256_or_si256(_mm256_and_si256(v.a, mask), set),
                 _mm256_or_si256(_mm256_and_si256(v.b, mask), set)};
}

static inline void v16_choose(v16 *best, v16 *from, v16 v, int32_t tag)
{
    __m256i set = _mm256_set1_epi32(tag);
    from->a = _mm256_blendv_epi8(from->a, set, _mm256_cmpgt_epi32(best->a, v.a));
    from->b = _mm256_blendv_epi8(from->b, set, _mm256_cmpgt_epi32(best->b, v.b));
    *best = v16_min(*best, v);
}

#define SEARCH_INLINE inline __attribute__((always_inline))
#define SEARCH_UNROLL _Pragma("GCC unroll 16")
#define SEARCH_NAME waste_search_avx2
#define SEARCH_LEVEL "avx2"
#include "fetcher/search_tmpl.h"
