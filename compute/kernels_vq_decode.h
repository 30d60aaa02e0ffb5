/*
 * Vector-quantised products where no byte lookup is wide enough: 8 rows at a time are decoded from
 * f32 codebooks in L1 and multiplied. Written over the v8 operations of a simd_*.h (8 floats).
 *
 * prep: the books as they are. tables: struct decode_tables, then x. acc: natural row order.
 */
#ifndef WASTE_COMPUTE_KERNELS_VQ_DECODE_H
#define WASTE_COMPUTE_KERNELS_VQ_DECODE_H

#include "compute/kernels_int.h"

struct decode_tables {
    const float *books;
    char pad[64 - sizeof(const float *)];
};

static size_t vq_prep_bytes(uint32_t fmt)
{
    struct waste_vq_shape s = waste_vq_shape(fmt);
    return (size_t)s.stages * s.entries * WASTE_VEC_DIM * sizeof(float);
}

static size_t vq_table_bytes(uint32_t fmt, uint32_t positions)
{
    return sizeof(struct decode_tables) + (size_t)positions * WASTE_VEC_DIM * sizeof(float);
}

static void vq_tables(void *tables, const void *prep, const float *x, uint32_t positions)
{
    struct decode_tables *t = tables;
    t->books = prep;
    memcpy(t + 1, x, (size_t)positions * WASTE_VEC_DIM * sizeof *x);
}

/* The index at `bit` of the 192 (128) bits that 8 rows take at one position. */
static inline uint32_t index_field(const uint64_t words[3], uint32_t bit, uint32_t bits)
{
    uint64_t v = words[bit / 64] >> bit % 64;
    if (bit % 64 + bits > 64)
        v |= words[bit / 64 + 1] << (64 - bit % 64);
    return (uint32_t)v & ((1u << bits) - 1);
}

/* acc[0 .. 8) += 8 rows over n positions; index = their bytes at the first position. */
WASTE_INLINE void decode_rows(float *acc, const float *books, const float *x, const uint8_t *index,
                              uint32_t n, struct waste_vq_shape s)
{
    uint32_t bits = s.entries == 256 ? 8 : 6;
    v8 sum[8];
    for (uint32_t k = 0; k < 8; k++)
        sum[k] = v8_zero();
    for (uint32_t p = 0; p < n; p++) {
        v8 xp = v8_load(x + (size_t)p * WASTE_VEC_DIM);
        uint64_t words[3];
        memcpy(words, index + (size_t)p * WASTE_ROW_BLOCK * s.index_bytes, 8 * s.index_bytes);
#pragma GCC unroll 8
        for (uint32_t k = 0; k < 8; k++) {
            v8 w = v8_load(books + index_field(words, bits * s.stages * k, bits) * WASTE_VEC_DIM);
#pragma GCC unroll 4
            for (uint32_t j = 1; j < s.stages; j++) {
                uint32_t entry = index_field(words, bits * (s.stages * k + j), bits);
                w = v8_add(w, v8_load(books + (j * s.entries + entry) * WASTE_VEC_DIM));
            }
            sum[k] = v8_fma(w, xp, sum[k]);
        }
    }
    v8_add_sums(acc, sum);
}

WASTE_INLINE void vq_apply_decode(float *acc, const void *tables, const uint8_t *index,
                                  uint32_t rows, uint32_t all_positions, uint32_t p0, uint32_t n,
                                  struct waste_vq_shape s)
{
    const struct decode_tables *t = tables;
    size_t block_bytes = (size_t)all_positions * WASTE_ROW_BLOCK * s.index_bytes;
    const uint8_t *block = index + (size_t)p0 * WASTE_ROW_BLOCK * s.index_bytes;
    for (uint32_t b = 0; b < waste_row_blocks(rows); b++, block += block_bytes)
        for (uint32_t r = 0; r < WASTE_ROW_BLOCK; r += 8)
            decode_rows(acc + b * WASTE_ROW_BLOCK + r, t->books, (const float *)(t + 1),
                        block + (size_t)r * s.index_bytes, n, s);
}

#define VECTOR_QUANTISED(name, FMT)                                                                \
    static void vq_prep_##name(void *prep, const float *books)                                     \
    {                                                                                              \
        memcpy(prep, books, vq_prep_bytes(FMT));                                                   \
    }                                                                                              \
    static void vq_apply_##name(float *acc, const void *tables, const uint8_t *index,              \
                                uint32_t rows, uint32_t all_positions, uint32_t p0, uint32_t n,    \
                                const uint8_t *next)                                               \
    {                                                                                              \
        vq_apply_decode(acc, tables, index, rows, all_positions, p0, n, waste_vq_shape(FMT));      \
    }
VECTOR_QUANTISED(vq3r, WASTE_FMT_VQ3R)
VECTOR_QUANTISED(vq2r, WASTE_FMT_VQ2R)
VECTOR_QUANTISED(vq4p, WASTE_FMT_VQ4P)
#undef VECTOR_QUANTISED

static void fill_vq_decode(struct waste_kernels *k)
{
    k->vq_prep_bytes = vq_prep_bytes;
    k->vq_table_bytes = vq_table_bytes;
    k->vq_prep[WASTE_FMT_VQ3R] = vq_prep_vq3r;
    k->vq_prep[WASTE_FMT_VQ2R] = vq_prep_vq2r;
    k->vq_prep[WASTE_FMT_VQ4P] = vq_prep_vq4p;
    k->vq_tables[WASTE_FMT_VQ3R] = vq_tables;
    k->vq_tables[WASTE_FMT_VQ2R] = vq_tables;
    k->vq_tables[WASTE_FMT_VQ4P] = vq_tables;
    k->vq_apply[WASTE_FMT_VQ3R] = vq_apply_vq3r;
    k->vq_apply[WASTE_FMT_VQ2R] = vq_apply_vq2r;
    k->vq_apply[WASTE_FMT_VQ4P] = vq_apply_vq4p;
    k->lookup_tokens[WASTE_FMT_VQ3R] = 2;
    k->lookup_tokens[WASTE_FMT_VQ2R] = 4;
    k->lookup_tokens[WASTE_FMT_VQ4P] = 2;
}

#endif
