/*
 * Every kernel of the engine, behind one table. The table is filled with the C reference, then
 * overridden upward by the instruction sets the CPU has and WASTE_CPU
 * (c|avx2|avx512|vnni|zen4|neon: the highest level allowed) leaves on.
 *
 * All activations are float32. A level may differ from C by rounding within the bounds
 * tests/kernels checks; within one level results do not depend on how rows or slices are divided
 * among threads. Pointers need no alignment beyond their type unless said; matrices from the trunk
 * segment start on 64 bytes and may be read up to 64 bytes past their end. Kernels touch no global
 * state and allocate nothing.
 */
#ifndef WASTE_COMPUTE_KERNELS_H
#define WASTE_COMPUTE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/model.h"

/* A trunk matrix resolved to pointers, [rows][cols]. */
struct waste_matrix {
    const uint8_t *data;    /* payload, row_bytes a row */
    const uint16_t *scales; /* f16 [rows][groups]; NULL for F32 */
    uint64_t row_bytes;
    uint32_t rows, cols, groups;
    uint32_t fmt;
};

/* Positions (of 8 columns) a set of vector-quantisation tables covers at most. */
enum { WASTE_VQ_BLOCK = 8 };

/* Products of many tokens: weights decoded to f32 panel[WASTE_PANEL_ROWS][WASTE_GROUP], which is
 * half of an L1 cache, and tokens in tiles of WASTE_TILE. */
enum { WASTE_PANEL_ROWS = 32, WASTE_TILE = 16 };

enum waste_activation { WASTE_ACTIVATION_SILU, WASTE_ACTIVATION_SITU };
struct waste_act {
    enum waste_activation kind;
    float beta, linear_beta; /* SiTU; linear_beta 0: up is taken as it is */
};

struct waste_kernels {
    const char *level; /* "c", "avx2", "avx512", "vnni", "zen4", "neon" */

    /*
     * Prepared activations. xp = what the quantised products of this level want of x (for instance
     * transposed within a group of 128, padded with zeros). waste_act_floats(cols) floats long,
     * 64-aligned.
     */
    void (*prepare)(float *xp, const float *x, uint32_t cols);

    /* y[r] = sum_c W[r][c] x[c] for r in [r0, r1). x and xp = prepare(x), both for all cols. By
     * format. */
    void (*matvec[WASTE_FMT_COUNT])(float *y, const struct waste_matrix *w, const float *x,
                                    const float *xp, uint32_t r0, uint32_t r1);

    /* y[c] += a[i] * W[r0 + i][c] for i in [0, n): the transposed product (absorbed MLA query), all
     * cols. By format. */
    void (*axpy_rows[WASTE_FMT_COUNT])(float *y, const struct waste_matrix *w, const float *a,
                                       uint32_t r0, uint32_t n);

    /* One row to f32 (embedding). payload and scales as on disk, scales unaligned. */
    void (*decode_row[WASTE_FMT_COUNT])(float *y, const uint8_t *payload, const uint8_t *scales,
                                        uint32_t cols);

    /*
     * Vector-quantised products, by format:
     *
     * y[r] = scale[r] sum_p sum_s book[s][index[p][r][s]] . x[8p .. 8p+7]
     *
     * in four steps, so that one set of tables serves several matrices of one x, and positions can
     * be divided among threads.
     */

    /* Once a codebook triple: books f32 [stages][entries][8] -> prep (64-aligned). */
    size_t (*vq_prep_bytes)(uint32_t fmt);
    void (*vq_prep[WASTE_FMT_COUNT])(void *prep, const float *books);

    /* Tables (64-aligned) of x[8 * positions], at most WASTE_VQ_BLOCK positions. */
    size_t (*vq_table_bytes)(uint32_t fmt, uint32_t positions);
    void (*vq_tables[WASTE_FMT_COUNT])(void *tables, const void *prep, const float *x,
                                       uint32_t positions);

    /*
     * Adds the partial products of positions [p0, p0 + n) to acc[ceil(rows / 64) * 64] (64-aligned,
     * zeroed by the caller). `tables` are of exactly these positions; p0 is a multiple of
     * WASTE_VQ_BLOCK; index = the matrix's start, [row block of 64][all positions][64][stage].
     * next: where the caller goes on reading, as the first byte of a run of positions of a matrix
     * of the same shape, to be fetched early; or NULL.
     *
     * acc is in a level-private row order inside each block of 64 rows, so acc of several slices
     * may be added element by element before vq_finish.
     */
    void (*vq_apply[WASTE_FMT_COUNT])(float *acc, const void *tables, const uint8_t *index,
                                      uint32_t rows, uint32_t all_positions, uint32_t p0,
                                      uint32_t n, const uint8_t *next);

    /* y[r] = scale[r] * acc of r, natural order, scales f16 unaligned. For any run of rows that
     * starts at a multiple of 64: y, acc and scales all advanced to it. */
    void (*vq_finish)(float *y, const float *acc, const uint8_t *scales, uint32_t rows);

    /*
     * Products of many tokens (batch.h puts these together). Activations are tiled: of WASTE_TILE
     * tokens, [col][token].
     *
     * pack: one tile of n <= WASTE_TILE tokens out of rows; token i is row index[i] of x (index
     * NULL: row i), ldx floats apart; the places of missing tokens become 0.
     * unpack: y[row of token i][r] = yt[r][i] for r < rows, or with `weight`: += weight[i]
     * yt[r][i].
     */
    void (*pack)(float *xt, const float *x, size_t ldx, const uint32_t *index, uint32_t n,
                 uint32_t cols);
    void (*unpack)(float *y, size_t ldy, const uint32_t *index, const float *weight,
                   const float *yt, uint32_t n, uint32_t rows);

    /* The stored integers (F32: the values) of rows [r0, r0 + rows), rows <= WASTE_PANEL_ROWS, in
     * column group g as f32; columns past the matrix are left as they are or hold padding. */
    void (*panel[WASTE_FMT_COUNT])(float *panel, const struct waste_matrix *w, uint32_t r0,
                                   uint32_t rows, uint32_t g);
    /* The same for `rows` (a multiple of 8) of a 64-row block of a vector-quantised matrix, without
     * their scales: at most 16 positions, from the first row's and position's bytes at `index`. */
    void (*vq_panel[WASTE_FMT_COUNT])(float *panel, const float *books, const uint8_t *index,
                                      uint32_t rows, uint32_t positions);
    /*
     * yt[tile][r][t] += scale[r] sum_c panel[r][c] xt[tile][c][t] for r < rows, c < cols <=
     * WASTE_GROUP and n tokens; tiles y_tile and x_tile floats apart, all 64-aligned. All of a
     * tile is computed. The order of the sum is the same for every token, row and n.
     */
    void (*panel_multiply)(float *yt, size_t y_tile, const float *panel, const float *scale,
                           const float *xt, size_t x_tile, uint32_t rows, uint32_t cols,
                           uint32_t n);
    /* This level's multiply-adds at full rate, with nothing to load: does about `n`, returns how
     * many. sink[WASTE_TILE] keeps them from being optimised away. */
    uint64_t (*multiply_adds)(float *sink, uint64_t n);
    /* For so many tokens or fewer, tables and lookups beat a panel (measured: README). */
    uint32_t lookup_tokens[WASTE_FMT_COUNT];

    /* sum of squares of x[n]; y = x * scale * w (RMSNorm's second half, scale = 1/sqrt(mean + eps))
     */
    float (*sum_squares)(const float *x, uint32_t n);
    void (*scale_mul)(float *y, const float *x, float scale, const float *w, uint32_t n);
    float (*dot)(const float *a, const float *b, uint32_t n);
    void (*axpy)(float *y, float a, const float *x, uint32_t n); /* y += a x */
    void (*add)(float *y, const float *x, uint32_t n);           /* y += x */
    void (*scale)(float *y, float a, uint32_t n);                /* y *= a */

    /* h[i] = act(gate[i], up[i]): silu(g) u, or SiTU beta tanh(g/beta) sigmoid(g) * lb tanh(u/lb)
     */
    void (*glu)(float *h, const float *gate, const float *up, uint32_t n,
                const struct waste_act *act);
    void (*sigmoid_mul)(float *y, const float *gate, uint32_t n); /* y *= sigmoid(gate) */
    void (*sigmoid)(float *y, const float *x, uint32_t n);

    /* Causal depthwise convolution of width w and SiLU: history [w-1][stride] oldest first, weight
     * [n][w]. y[n], which may be x. A channel's result does not depend on n. */
    void (*conv_silu)(float *y, const float *x, const float *history, const float *weight,
                      uint32_t n, uint32_t stride, uint32_t width);

    /*
     * One KDA step of one head. S [dim keys][dim values] read from s_in, written to s_out (may be
     * equal). S' = diag(decay) S; u = S'^T k; S = S' + beta k (v - u)^T; o = S^T q.  decay[dim] =
     * exp(g).
     */
    void (*kda_step)(float *o, float *s_out, const float *s_in, const float *q, const float *k,
                     const float *v, const float *decay, float beta, uint32_t dim);

    /* decay[i] = exp(g): g = lower * sigmoid(rate z) if has_lower, else -rate softplus(z); z + bias
     * first. decay may be z. */
    void (*kda_decay)(float *decay, const float *z, const float *bias, float rate, bool has_lower,
                      float lower, uint32_t n);

    /*
     * MLA over n rows of the latent cache (row_stride floats apart), for several heads at once so
     * that a row loaded serves all of them. A head's result does not depend on `heads`.
     *
     * queries: scale * q[h * q_stride ..][dim] as mla_scores wants them, every WASTE_TILE heads
     * waste_mla_query_floats(dim) from the last ones, 64-aligned. row_squares: about what the sum
     * of squares of a row is, which some levels' rounding errors are the smaller for.
     * score[h * score_stride + t] = query h . row[t][0 .. dim)
     * o[h * o_stride + d] += sum over t of p[h * p_stride + t] row[t][d], d < dim
     */
    void (*mla_queries)(float *queries, const float *q, uint32_t q_stride, uint32_t heads,
                        uint32_t dim, float scale, float row_squares);
    void (*mla_scores)(float *score, uint32_t score_stride, const float *queries, uint32_t heads,
                       const float *rows, uint32_t dim, uint32_t row_stride, uint32_t n);
    void (*mla_mix)(float *o, uint32_t o_stride, const float *p, uint32_t p_stride, uint32_t heads,
                    const float *rows, uint32_t dim, uint32_t row_stride, uint32_t n);

    /* One part of a softmax: x[i] = exp(x[i] - *max) in place, *max the largest x; returns the sum
     * of the new x. */
    float (*softmax_part)(float *x, uint32_t n, float *max);
};

/* Floats that xp of `cols` columns takes (a multiple of 16). */
static inline uint32_t waste_act_floats(uint32_t cols)
{
    return (cols + WASTE_GROUP - 1) / WASTE_GROUP * WASTE_GROUP;
}

/* Floats of the queries of WASTE_TILE heads: [dim][head], and two more a head. */
static inline size_t waste_mla_query_floats(uint32_t dim)
{
    return (size_t)WASTE_TILE * (dim + 2);
}

/*
 * Fills the table for this CPU. `limit` is WASTE_CPU's value or NULL. Returns false (table
 * untouched) if limit names no level, or one this CPU does not have.
 */
bool waste_kernels_init(struct waste_kernels *k, const char *limit);

/* The levels this CPU has, lowest first, with ", " between them. Returns `text`. */
const char *waste_kernels_levels(char *text, size_t size);

/*
 * Router choice, the same in compute and router: score = sigmoid(logit); the top_k of score + bias,
 * ties to the lowest id, in descending order. ids[top_k], weights[top_k] = the plain scores.
 * scratch[experts]. ids are distinct and in range whatever the logits are (NaN counts as lowest).
 */
void waste_top_k(uint32_t *ids, float *weights, const float *logits, const float *bias,
                 uint32_t experts, uint32_t top_k, float *scratch);

float waste_half_to_float(uint16_t h);

#endif
