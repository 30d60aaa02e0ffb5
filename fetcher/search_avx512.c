/* The search in AVX-512 (F, BW). */
#include <immintrin.h>

#include "fetcher/search_int.h"

typedef __m512i v16;

static inline v16 v16_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

static inline v16 v16_load(const int32_t *p)
{
    return _mm512_load_si512(p);
}

static inline void v16_store(int32_t *p, v16 v)
{
    _mm512_store_si512(p, v);
}

static inline v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_epi32(a, b);
}

static inline v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_epi32(a, b);
}

static inline v16 v16_dot(v16 acc, const int16_t *pairs, v16 x)
{
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_load_si512(pairs), x));
}

static inline v16 v16_tag(v16 v, int32_t tag)
{
    /* (a & b) | c */
    return _mm512_ternarylogic_epi32(v, _mm512_set1_epi32(~15), _mm512_set1_epi32(tag), 0xea);
}

static inline void v16_choose(v16 *best, v16 *from, v16 v, int32_t tag)
{
    __mmask16 less = _mm512_cmplt_epi32_mask(v, *best);
    *best = _mm512_mask_mov_epi32(*best, less, v);
    *from = _mm512_mask_mov_epi32(*from, less, _mm512_set1_epi32(tag));
}

#define SEARCH_INLINE inline __attribute__((always_inline))
#define SEARCH_UNROLL _Pragma("GCC unroll 16")
#define SEARCH_NAME waste_search_avx512
#define SEARCH_LEVEL "avx512"
#include "fetcher/search_tmpl.h"
