/*
 * What the kernel files share: one filler a level, and the layout of the quantised formats.
 *
 * Everything here is static inline or a macro: a file compiled for a newer instruction set must
 * not emit code that a file for an older one could end up calling.
 */
#ifndef WASTE_COMPUTE_KERNELS_INT_H
#define WASTE_COMPUTE_KERNELS_INT_H

#include <string.h>

#include "compute/kernels.h"

/* For what must become constant in its caller, above all functions handed over as arguments. */
#define WASTE_INLINE static inline __attribute__((always_inline))

/* Each overrides the entries its instruction set does better; the table holds the level below. */
void waste_kernels_fill_c(struct waste_kernels *k);
void waste_kernels_fill_batch_c(struct waste_kernels *k); /* part of c */
void waste_kernels_fill_avx2(struct waste_kernels *k);
void waste_kernels_fill_avx512(struct waste_kernels *k);
void waste_kernels_fill_vnni(struct waste_kernels *k);
void waste_kernels_fill_vq_vbmi(struct waste_kernels *k); /* part of vnni */
void waste_kernels_fill_zen4(struct waste_kernels *k);
void waste_kernels_fill_neon(struct waste_kernels *k);

enum {
    WASTE_VEC_DIM = 8,    /* weights a vector-quantised index stands for */
    WASTE_ROW_BLOCK = 64, /* rows of an index block */
};

/* Stages, entries a stage and index bytes a row and position of an expert format. */
struct waste_vq_shape {
    uint32_t stages, entries, index_bytes;
};

static inline struct waste_vq_shape waste_vq_shape(uint32_t fmt)
{
    switch (fmt) {
    case WASTE_FMT_VQ3R:
        return (struct waste_vq_shape){3, 256, 3};
    case WASTE_FMT_VQ2R:
        return (struct waste_vq_shape){2, 256, 2};
    default: /* WASTE_FMT_VQ4P */
        return (struct waste_vq_shape){4, 64, 3};
    }
}

static inline uint32_t waste_row_blocks(uint32_t rows)
{
    return (rows + WASTE_ROW_BLOCK - 1) / WASTE_ROW_BLOCK;
}

static inline uint16_t waste_load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

#endif
