/*
 * Products of many tokens with one matrix: the arithmetic of prefill by chunk.
 *
 * Activations are tiled: WASTE_TILE tokens to a tile, xt[tile][col][token], 64-aligned,
 * waste_batch_floats() long; the last tile is filled up with zeros. Results are tiled too,
 * yt[tile][row][token], so they are the next product's activations as they are (elementwise work
 * between them needs no order: a run of rows of one tile is contiguous). waste_batch_unpack turns
 * them into rows.
 *
 * A panel of weights is decoded once and multiplied with all tokens. A task is a run of rows
 * [r0, r1) for all tokens; any number of workers may share the rows, each with its own scratch.
 *
 * A result depends on the token's activations, the weights and the kernel level: not on the other
 * tokens, nor on the number of them (but for waste_batch_expert's switch to lookups), nor on r0 and
 * r1. NaN and infinities carry through.
 */
#ifndef WASTE_COMPUTE_BATCH_H
#define WASTE_COMPUTE_BATCH_H

#include "compute/kernels.h"

static inline uint32_t waste_batch_tiles(uint32_t tokens)
{
    return (tokens + WASTE_TILE - 1) / WASTE_TILE;
}

/* Floats that `tokens` tokens of `cols` values take in tiles. */
static inline size_t waste_batch_floats(uint32_t cols, uint32_t tokens)
{
    return (size_t)waste_batch_tiles(tokens) * cols * WASTE_TILE;
}

/* Tiles [tile0, tile1) of xt from rows of x, ldx floats apart: token i is row index[i], or row i if
 * index is NULL. */
void waste_batch_pack(const struct waste_kernels *k, float *xt, const float *x, size_t ldx,
                      const uint32_t *index, uint32_t tokens, uint32_t cols, uint32_t tile0,
                      uint32_t tile1);

/* Rows [r0, r1) of yt (of `rows` rows) to y[row of token][r], ldy floats apart, the row of token i
 * being index[i] or i. With `weight`, y[..][r] += weight[i] times it. */
void waste_batch_unpack(const struct waste_kernels *k, float *y, size_t ldy, const uint32_t *index,
                        const float *weight, const float *yt, uint32_t tokens, uint32_t rows,
                        uint32_t r0, uint32_t r1);

/* Floats of a worker's scratch (64-aligned) for the products below; rows: the most that one call of
 * waste_batch_expert gets. */
size_t waste_batch_scratch_floats(const struct waste_kernels *k, uint32_t tokens, uint32_t rows);

/* yt[tile][r][token] = w x for r in [r0, r1); yt has w->rows rows, xt w->cols columns. */
void waste_batch_product(const struct waste_kernels *k, float *yt, const struct waste_matrix *w,
                         const float *xt, uint32_t tokens, uint32_t r0, uint32_t r1,
                         float *scratch);

/* The same into rows: y[token * ldy + r]. */
void waste_batch_product_rows(const struct waste_kernels *k, float *y, size_t ldy,
                              const struct waste_matrix *w, const float *xt, uint32_t tokens,
                              uint32_t r0, uint32_t r1, float *scratch);

/* One matrix of an expert. */
struct waste_vq_matrix {
    uint32_t fmt;             /* WASTE_FMT_VQ3R, VQ2R or VQ4P */
    uint32_t rows, positions; /* positions: of 8 columns */
    const uint8_t *index;     /* [row block of 64][position][64][stage] */
    const uint8_t *scales;    /* f16 [rows], any alignment */
    const float *books;       /* f32 [stages][entries][8] */
    const void *prep;         /* vq_prep's of the same books */
};

/*
 * yt[tile][r][token] = m x for r in [r0, r1), r0 a multiple of 64; xt has 8 * positions columns. Up
 * to k->lookup_tokens[fmt] tokens by tables and lookups, a token at a time; above, decoded and
 * multiplied. Lookups build their tables for each run of rows: give them all rows at once.
 */
void waste_batch_expert(const struct waste_kernels *k, float *yt, const struct waste_vq_matrix *m,
                        const float *xt, uint32_t tokens, uint32_t r0, uint32_t r1, float *scratch);

#endif
