/* Eight weights of a vector-quantised row, over the v8 operations of a simd_*.h. */
#ifndef WASTE_COMPUTE_KERNELS_VQ_INDEX_H
#define WASTE_COMPUTE_KERNELS_VQ_INDEX_H

#include "compute/kernels_int.h"

/* The index at `bit` of the 192 (128) bits that 8 rows take at one position. */
static inline uint32_t index_field(const uint64_t words[3], uint32_t bit, uint32_t bits)
{
    uint64_t v = words[bit / 64] >> bit % 64;
    if (bit % 64 + bits > 64)
        v |= words[bit / 64 + 1] << (64 - bit % 64);
    return (uint32_t)v & ((1u << bits) - 1);
}

/* The sum of the entries that the indices from `bit` on stand for. */
WASTE_INLINE v8 vq_weights(const float *books, const uint64_t words[3], uint32_t bit, uint32_t bits,
                           struct waste_vq_shape s)
{
    v8 w = v8_load(books + index_field(words, bit, bits) * WASTE_VEC_DIM);
#pragma GCC unroll 4
    for (uint32_t j = 1; j < s.stages; j++) {
        uint32_t entry = index_field(words, bit + bits * j, bits);
        w = v8_add(w, v8_load(books + (j * s.entries + entry) * WASTE_VEC_DIM));
    }
    return w;
}

#endif
