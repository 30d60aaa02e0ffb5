/* Eight weights of a vector-quantised row, over the v8 operations of a simd_*.h. */
#ifndef WASTE_COMPUTE_KERNELS_VQ_INDEX_H
#define WASTE_COMPUTE_KERNELS_VQ_INDEX_H

#include "compute/kernels_int.h"

/* Byte offset of the entry whose index is at `bit` of the 192 (128) bits that 8 rows take at one
 * position: the field is masked where its shift has already multiplied it. */
static inline uint32_t entry_offset(const uint64_t words[3], uint32_t bit, uint32_t bits)
{
    enum { SHIFT = 5 }; /* an entry is 32 bytes */
    uint32_t mask = ((1u << bits) - 1) << SHIFT;
    uint64_t v = bit % 64 < SHIFT ? words[bit / 64] << (SHIFT - bit % 64)
                                  : words[bit / 64] >> (bit % 64 - SHIFT);
    if (bit % 64 + bits > 64)
        v |= words[bit / 64 + 1] << (64 - bit % 64 + SHIFT);
    return (uint32_t)v & mask;
}

/* The sum of the entries that the indices from `bit` on stand for. */
WASTE_INLINE v8 vq_weights(const float *books, const uint64_t words[3], uint32_t bit, uint32_t bits,
                           struct waste_vq_shape s)
{
    const char *at = (const char *)books;
    v8 w = v8_load((const float *)(at + entry_offset(words, bit, bits)));
#pragma GCC unroll 4
    for (uint32_t j = 1; j < s.stages; j++) {
        uint32_t offset = entry_offset(words, bit + bits * j, bits);
        w = v8_add(w, v8_load((const float *)(at + j * s.entries * 32 + offset)));
    }
    return w;
}

#endif
