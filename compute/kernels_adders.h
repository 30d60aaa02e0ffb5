/*
 * MLA scores and mixing for CPUs that add beside multiplying: Zen 4 and later have two adders next
 * to the two multipliers, and a multiply-add takes one of the latter only.
 *
 * Two terms of an inner product cost one multiplication less and two additions more as
 *
 *     a x + b y = (a + y) (b + x) - a b - x y
 *
 * (S. Winograd, A new algorithm for inner product, IEEE Trans. Comp. C-17, 1968): a b belongs to a
 * row and x y to a head, so each is found once for all that share it. Of six terms, four go this
 * way in two pairs and two are multiplied as they are: four additions and four multiplications
 * instead of six, 2/3 of the time. The second pair is subtracted with its signs turned,
 * -(a - y) (b - x) = a x + b y - a b - x y, so that the sums of a b and of x y stay small.
 *
 * Rounding errors are relative to (|row|^2 + |head|^2) / 2 and not to |row| |head|. So a head's
 * side is multiplied by the power of two that makes both about the same; |row| is estimated from
 * the first few rows, as all come out of one norm. What is left is an error two to four times that
 * of the plain sum.
 */
#ifndef WASTE_COMPUTE_KERNELS_ADDERS_H
#define WASTE_COMPUTE_KERNELS_ADDERS_H

#include "compute/kernels_int.h"

enum {
    SCORE_UNIT = 6 * V_LANES, /* columns: 16 times six terms */
    SCORE_COLS = 3 * SCORE_UNIT,
    SCORE_HEIGHT = 8, /* rows of a register tile of one or two tiles of heads */
    MIX_STEP = 8,
    MIX_UNIT = 6 * MIX_STEP, /* rows */
    MIX_ROWS = 4 * MIX_UNIT,
    MIX_HEADS = 32,
    SAMPLE_ROWS = 8, /* for the size of all */
};

/* sum += a x + b y, but for - a b - x y */
static inline vf add_pair(vf sum, vf a, vf b, vf x, vf y)
{
    return v_fma(v_add(a, y), v_add(b, x), sum);
}

/* sum += a x + b y, but for + a b + x y */
static inline vf add_turned_pair(vf sum, vf a, vf b, vf x, vf y)
{
    return v_fnma(v_sub(a, y), v_sub(b, x), sum);
}

/* Squares of the first rows, the sum of a row's. */
static float sample_squares(const float *rows, uint32_t row_stride, uint32_t cols, uint32_t n)
{
    uint32_t count = n < SAMPLE_ROWS ? n : SAMPLE_ROWS;
    float sum = 0;
    for (uint32_t t = 0; t < count; t++)
        sum += sum_squares(rows + (size_t)t * row_stride, cols);
    return sum / (float)count;
}

/* The power of two by whose square `from` comes to about `to`; 1 where that is nothing. */
static inline vf scale_between(vf from, float to)
{
    if (!(to > 0))
        return v_set1(1);
    vf ratio = v_div(_mm512_sqrt_ps(v_set1(to)), _mm512_sqrt_ps(from));
    ratio = v_min(v_max(ratio, v_set1(0x1p-60f)), v_set1(0x1p60f)); /* nor NaN */
    return v_ldexp(v_set1(1), _mm512_getexp_ps(ratio));
}

/* ---- scores ---- */

/* Queries of up to 16 heads in a block of columns. */
struct score_queries {
    float x[SCORE_COLS * WASTE_TILE]; /* [col][head], scaled */
    float own[WASTE_TILE];            /* what pairs leave of a head's own products */
    float factor[WASTE_TILE];         /* undoes the scale */
} __attribute__((aligned(64)));

static void score_pack(struct score_queries *out, const float *q, uint32_t q_stride, uint32_t heads,
                       uint32_t cols, float row_squares, float scale)
{
    pack(out->x, q, q_stride, NULL, heads, cols);
    vf squares = v_zero(), own = v_zero();
    for (uint32_t c = 0; c < cols; c++) {
        vf x = v_load(out->x + c * WASTE_TILE);
        squares = v_fma(x, x, squares);
    }
    vf by = scale_between(squares, row_squares);
    for (uint32_t c = 0; c < cols; c++)
        v_store(out->x + c * WASTE_TILE, v_mul(by, v_load(out->x + c * WASTE_TILE)));
    for (const float *x = out->x; x + SCORE_UNIT * WASTE_TILE <= out->x + cols * WASTE_TILE;
         x += SCORE_UNIT * WASTE_TILE)
        for (uint32_t j = 0; j < V_LANES; j++) {
            const float *at = x + j * WASTE_TILE;
            own = v_fma(v_load(at), v_load(at + 16 * WASTE_TILE), own);
            own = v_fnma(v_load(at + 32 * WASTE_TILE), v_load(at + 48 * WASTE_TILE), own);
        }
    v_store(out->own, own);
    v_store(out->factor, v_div(v_set1(scale), by));
}

/* yt[tile][row][16 heads] += the products of SCORE_HEIGHT rows and `tiles` (constant) tiles of
 * heads. `ahead`: where the next rows are, to be fetched. */
WASTE_INLINE void score_tile(float *yt, size_t y_tile, const float *rows, size_t stride,
                             const float *ahead, const struct score_queries *q, uint32_t cols,
                             uint32_t tiles)
{
    vf sum[SCORE_HEIGHT][2];
    uint32_t c = 0;
    for (uint32_t r = 0; r < SCORE_HEIGHT; r++)
        for (uint32_t v = 0; v < tiles; v++)
            sum[r][v] = v_zero();
#define QUERY(col) v_load(q[v].x + (c + j + (col)) * WASTE_TILE)
#define ROW(col) v_load1(rows + r * stride + c + j + (col))
    for (; c + SCORE_UNIT <= cols; c += SCORE_UNIT)
        for (uint32_t j = 0; j < V_LANES; j++) {
            vf x[2], y[2];
            const float *next = ahead + j / 2 * stride + c + j % 2 * 3 * V_LANES;
            for (uint32_t line = 0; line < 3; line++)
                v_prefetch(next + line * V_LANES);
            for (uint32_t v = 0; v < tiles; v++)
                x[v] = QUERY(0), y[v] = QUERY(16);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < SCORE_HEIGHT; r++) {
                vf a = ROW(0), b = ROW(16);
                for (uint32_t v = 0; v < tiles; v++)
                    sum[r][v] = add_pair(sum[r][v], a, b, x[v], y[v]);
            }
            for (uint32_t v = 0; v < tiles; v++)
                x[v] = QUERY(64);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < SCORE_HEIGHT; r++)
                for (uint32_t v = 0; v < tiles; v++)
                    sum[r][v] = v_fma(ROW(64), x[v], sum[r][v]);
            for (uint32_t v = 0; v < tiles; v++)
                x[v] = QUERY(32), y[v] = QUERY(48);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < SCORE_HEIGHT; r++) {
                vf a = ROW(32), b = ROW(48);
                for (uint32_t v = 0; v < tiles; v++)
                    sum[r][v] = add_turned_pair(sum[r][v], a, b, x[v], y[v]);
            }
            for (uint32_t v = 0; v < tiles; v++)
                x[v] = QUERY(80);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < SCORE_HEIGHT; r++)
                for (uint32_t v = 0; v < tiles; v++)
                    sum[r][v] = v_fma(ROW(80), x[v], sum[r][v]);
        }
    uint32_t whole = c;
    for (const uint32_t j = 0; c < cols; c++)
#pragma GCC unroll 8
        for (uint32_t r = 0; r < SCORE_HEIGHT; r++)
            for (uint32_t v = 0; v < tiles; v++)
                sum[r][v] = v_fma(ROW(0), QUERY(0), sum[r][v]);
#undef QUERY
#undef ROW
#pragma GCC unroll 8
    for (uint32_t r = 0; r < SCORE_HEIGHT; r++) {
        vf own = v_zero();
        for (const float *x = rows + r * stride; x < rows + r * stride + whole; x += SCORE_UNIT) {
            own = v_fma(v_load(x), v_load(x + 16), own);
            own = v_fnma(v_load(x + 32), v_load(x + 48), own);
        }
        own = v_set1(v_sum(own));
        for (uint32_t v = 0; v < tiles; v++) {
            float *y = yt + v * y_tile + r * WASTE_TILE;
            vf rest = v_sub(v_sub(sum[r][v], own), v_load(q[v].own));
            v_store(y, v_fma(v_load(q[v].factor), rest, v_load(y)));
        }
    }
}

/* Scores of n <= MIX_ROWS rows and up to two tiles of heads. */
WASTE_INLINE void adders_score_block(float *score, uint32_t score_stride, const float *q,
                                     uint32_t q_stride, uint32_t heads, const float *rows,
                                     uint32_t dim, uint32_t row_stride, uint32_t n, float scale,
                                     uint32_t tiles)
{
    enum { Y_TILE = MIX_ROWS * WASTE_TILE };
    float yt[2 * Y_TILE] __attribute__((aligned(64)));
    float edge[SCORE_HEIGHT * SCORE_COLS]; /* the last rows, filled up with zeros */
    struct score_queries queries[2];
    uint32_t whole = n / SCORE_HEIGHT * SCORE_HEIGHT;
    memset(yt, 0, tiles * Y_TILE * sizeof *yt);
    memset(edge, 0, sizeof edge);
    for (uint32_t c = 0; c < dim; c += SCORE_COLS) {
        uint32_t cols = dim - c < SCORE_COLS ? dim - c : SCORE_COLS;
        float squares = sample_squares(rows + c, row_stride, cols, n);
        for (uint32_t v = 0; v < tiles; v++)
            score_pack(&queries[v], q + (size_t)v * WASTE_TILE * q_stride + c, q_stride,
                       heads - v * WASTE_TILE, cols, squares, scale);
        for (uint32_t t = 0; t < whole; t += SCORE_HEIGHT)
            score_tile(yt + t * WASTE_TILE, Y_TILE, rows + (size_t)t * row_stride + c, row_stride,
                       rows + (size_t)(t + SCORE_HEIGHT) * row_stride + c, queries, cols, tiles);
        for (uint32_t t = whole; t < n; t++)
            memcpy(edge + (t - whole) * SCORE_COLS, rows + (size_t)t * row_stride + c,
                   cols * sizeof *edge);
        if (whole < n)
            score_tile(yt + whole * WASTE_TILE, Y_TILE, edge, SCORE_COLS, edge, queries, cols,
                       tiles);
    }
    for (uint32_t v = 0; v < tiles; v++) {
        uint32_t left = heads - v * WASTE_TILE;
        unpack(score + (size_t)v * WASTE_TILE * score_stride, score_stride, NULL, NULL,
               yt + v * Y_TILE, left < WASTE_TILE ? left : WASTE_TILE, n);
    }
}

static void adders_mla_scores(float *score, uint32_t score_stride, const float *q,
                              uint32_t q_stride, uint32_t heads, const float *rows, uint32_t dim,
                              uint32_t row_stride, uint32_t n, float scale)
{
    for (uint32_t t = 0; t < n; t += MIX_ROWS) {
        const float *from = rows + (size_t)t * row_stride;
        uint32_t count = n - t < MIX_ROWS ? n - t : MIX_ROWS, h = 0;
        for (; h + WASTE_TILE < heads; h += 2 * WASTE_TILE)
            adders_score_block(score + (size_t)h * score_stride + t, score_stride,
                               q + (size_t)h * q_stride, q_stride, heads - h, from, dim, row_stride,
                               count, scale, 2);
        if (h < heads)
            adders_score_block(score + (size_t)h * score_stride + t, score_stride,
                               q + (size_t)h * q_stride, q_stride, heads - h, from, dim, row_stride,
                               count, scale, 1);
    }
}

/* ---- mixing ---- */

struct mix_weights {
    float p[MIX_HEADS * MIX_ROWS]; /* scaled */
    float own[MIX_HEADS], factor[MIX_HEADS];
};

static void mix_prepare(struct mix_weights *w, const float *p, uint32_t p_stride, uint32_t heads,
                        uint32_t n, float row_squares)
{
    for (uint32_t h = 0; h < heads; h++, p += p_stride) {
        float *out = w->p + h * MIX_ROWS;
        vf squares = v_set1(sum_squares(p, n)), own = v_zero();
        vf by = scale_between(squares, row_squares * (float)n);
        for (uint32_t t = 0; t < n; t += V_LANES)
            v_store(out + t, v_mul(by, v_load_n(p + t, v_part(n, t))));
        for (const float *x = out; x + MIX_UNIT <= out + n; x += MIX_UNIT) {
            own = v_fma(v_load_n(x, 8), v_load_n(x + 8, 8), own);
            own = v_fnma(v_load_n(x + 24, 8), v_load_n(x + 32, 8), own);
        }
        w->own[h] = v_sum(own);
        v_store_n(w->factor + h, v_div(v_set1(1), by), 1);
    }
    for (uint32_t h = heads; h % 4; h++) /* as many as a register tile has */
        memset(w->p + h * MIX_ROWS, 0, MIX_ROWS * sizeof *w->p);
}

/* What pairs leave of the rows' own products, in V_TILE vectors of columns. */
static inline void mix_own(vf own[V_TILE], const float *rows, size_t stride, uint32_t n)
{
    for (uint32_t v = 0; v < V_TILE; v++)
        own[v] = v_zero();
    for (uint32_t t = 0; t + MIX_UNIT <= n; t += MIX_UNIT)
        for (uint32_t j = 0; j < MIX_STEP; j++) {
            const float *r = rows + (t + j) * stride;
            for (uint32_t v = 0; v < V_TILE; v++, r += V_LANES) {
                own[v] = v_fma(v_load(r), v_load(r + 8 * stride), own[v]);
                own[v] = v_fnma(v_load(r + 24 * stride), v_load(r + 32 * stride), own[v]);
            }
        }
}

static inline void load_columns(vf out[V_TILE], const float *row)
{
    for (uint32_t v = 0; v < V_TILE; v++)
        out[v] = v_load(row + v * V_LANES);
}

/* 4 heads x V_TILE vectors of columns. */
WASTE_INLINE void adders_mix_tile(float *o, uint32_t o_stride, const float *p, const float *own,
                                  const float *factor, uint32_t heads, const float *rows,
                                  size_t stride, uint32_t n, const vf row_own[V_TILE])
{
    vf sum[4][V_TILE], a[V_TILE], b[V_TILE];
    uint32_t t = 0;
    for (uint32_t h = 0; h < 4; h++)
        for (uint32_t v = 0; v < V_TILE; v++)
            sum[h][v] = v_zero();
#define WEIGHT(row) v_load1(p + h * MIX_ROWS + t + (row))
    for (; t + MIX_UNIT <= n; t += MIX_STEP * 5)
        for (uint32_t end = t + MIX_STEP; t < end; t++) {
            const float *r = rows + t * stride;
            load_columns(a, r);
            load_columns(b, r + 8 * stride);
            for (uint32_t h = 0; h < 4; h++) {
                vf x = WEIGHT(0), y = WEIGHT(8);
                for (uint32_t v = 0; v < V_TILE; v++)
                    sum[h][v] = add_pair(sum[h][v], x, y, a[v], b[v]);
            }
            load_columns(a, r + 16 * stride);
            for (uint32_t h = 0; h < 4; h++) {
                vf x = WEIGHT(16);
                for (uint32_t v = 0; v < V_TILE; v++)
                    sum[h][v] = v_fma(x, a[v], sum[h][v]);
            }
            load_columns(a, r + 24 * stride);
            load_columns(b, r + 32 * stride);
            for (uint32_t h = 0; h < 4; h++) {
                vf x = WEIGHT(24), y = WEIGHT(32);
                for (uint32_t v = 0; v < V_TILE; v++)
                    sum[h][v] = add_turned_pair(sum[h][v], x, y, a[v], b[v]);
            }
            load_columns(a, r + 40 * stride);
            for (uint32_t h = 0; h < 4; h++) {
                vf x = WEIGHT(40);
                for (uint32_t v = 0; v < V_TILE; v++)
                    sum[h][v] = v_fma(x, a[v], sum[h][v]);
            }
        }
    for (; t < n; t++) {
        load_columns(a, rows + t * stride);
        for (uint32_t h = 0; h < 4; h++) {
            vf x = WEIGHT(0);
            for (uint32_t v = 0; v < V_TILE; v++)
                sum[h][v] = v_fma(x, a[v], sum[h][v]);
        }
    }
#undef WEIGHT
    for (uint32_t h = 0; h < 4; h++)
        for (uint32_t v = 0; v < V_TILE; v++)
            if (h < heads) {
                float *to = o + (size_t)h * o_stride + v * V_LANES;
                vf rest = v_sub(v_sub(sum[h][v], row_own[v]), v_load1(own + h));
                v_store(to, v_fma(rest, v_load1(factor + h), v_load(to)));
            }
}

/* Up to MIX_ROWS rows and MIX_HEADS heads. */
static void adders_mix_block(float *o, uint32_t o_stride, const float *p, uint32_t p_stride,
                             uint32_t heads, const float *rows, uint32_t cols, uint32_t row_stride,
                             uint32_t n, float row_squares)
{
    struct mix_weights w;
    mix_prepare(&w, p, p_stride, heads, n, row_squares);
    for (uint32_t d = 0; d < cols; d += V_TILE * V_LANES) {
        vf row_own[V_TILE];
        mix_own(row_own, rows + d, row_stride, n);
        for (uint32_t h = 0; h < heads; h += 4)
            adders_mix_tile(o + (size_t)h * o_stride + d, o_stride, w.p + h * MIX_ROWS, w.own + h,
                            w.factor + h, heads - h, rows + d, row_stride, n, row_own);
    }
}

static void adders_mla_mix(float *o, uint32_t o_stride, const float *p, uint32_t p_stride,
                           uint32_t heads, const float *rows, uint32_t dim, uint32_t row_stride,
                           uint32_t n)
{
    uint32_t cols = dim / (V_TILE * V_LANES) * (V_TILE * V_LANES);
    for (uint32_t t = 0; cols && t < n; t += MIX_ROWS) {
        uint32_t count = n - t < MIX_ROWS ? n - t : MIX_ROWS;
        const float *from = rows + (size_t)t * row_stride;
        float squares = sample_squares(from, row_stride, cols, count) / (float)cols;
        for (uint32_t h = 0; h < heads; h += MIX_HEADS)
            adders_mix_block(o + (size_t)h * o_stride, o_stride, p + (size_t)h * p_stride + t,
                             p_stride, heads - h < MIX_HEADS ? heads - h : MIX_HEADS, from, cols,
                             row_stride, count, squares);
    }
    mla_mix(o + cols, o_stride, p, p_stride, heads, rows + cols, dim - cols, row_stride, n);
}

static void fill_adders(struct waste_kernels *k)
{
    k->mla_scores = adders_mla_scores;
    k->mla_mix = adders_mla_mix;
}

#endif
