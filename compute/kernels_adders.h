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
    TERMS = 6,
    SCORE_UNIT = TERMS * V_LANES, /* columns */
    SCORE_HEIGHT = 8,             /* rows of a register tile of one or two tiles of heads */
    MIX_STEP = 8,
    MIX_UNIT = TERMS * MIX_STEP, /* rows */
    MIX_ROWS = 4 * MIX_UNIT,
    MIX_HEADS = 32,
    MIX_HEIGHT = 8,  /* heads of a register tile ... */
    MIX_WIDTH = 2,   /* ... and vectors of columns */
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

/* x[16 terms each][16][head] of a unit -> [16][six terms][head], as score_tile reads them. */
static void interleave_unit(float *x)
{
    float by_term[SCORE_UNIT * WASTE_TILE];
    memcpy(by_term, x, sizeof by_term);
    for (uint32_t c = 0; c < SCORE_UNIT; c++) {
        uint32_t place = c % V_LANES * TERMS + c / V_LANES;
        v_store(x + place * WASTE_TILE, v_load(by_term + c * WASTE_TILE));
    }
}

/* Queries of 16 heads, x[dim][head]: scaled, units interleaved; then what pairs leave of a head's
 * own products, then what undoes the scale. */
static void adders_query_tile(float *x, uint32_t dim, float scale, float row_squares)
{
    vf squares = v_zero(), own = v_zero();
    for (uint32_t c = 0; c < dim; c++) {
        vf q = v_load(x + c * WASTE_TILE);
        squares = v_fma(q, q, squares);
    }
    vf by = scale_between(squares, row_squares);
    for (uint32_t c = 0; c < dim; c++)
        v_store(x + c * WASTE_TILE, v_mul(by, v_load(x + c * WASTE_TILE)));
    for (uint32_t c = 0; c + SCORE_UNIT <= dim; c += SCORE_UNIT) {
        float *unit = x + c * WASTE_TILE;
        interleave_unit(unit);
        for (uint32_t j = 0; j < V_LANES; j++, unit += TERMS * WASTE_TILE) {
            own = v_fma(v_load(unit), v_load(unit + WASTE_TILE), own);
            own = v_fnma(v_load(unit + 2 * WASTE_TILE), v_load(unit + 3 * WASTE_TILE), own);
        }
    }
    v_store(x + dim * WASTE_TILE, own);
    v_store(x + (dim + 1) * WASTE_TILE, v_div(v_set1(scale), by));
}

static void adders_mla_queries(float *queries, const float *q, uint32_t q_stride, uint32_t heads,
                               uint32_t dim, float scale, float row_squares)
{
    for (uint32_t h = 0; h < heads; h += WASTE_TILE, queries += waste_mla_query_floats(dim)) {
        pack(queries, q + (size_t)h * q_stride, q_stride, NULL, heads - h, dim);
        adders_query_tile(queries, dim, scale, row_squares);
    }
}

/* own[r] += what pairs leave of a unit of row r with itself, to be summed over lanes. */
WASTE_INLINE void score_own(vf *own, const float *rows, size_t stride, uint32_t height)
{
    for (uint32_t r = 0; r < height; r++, rows += stride) {
        own[r] = v_fma(v_load(rows), v_load(rows + 16), own[r]);
        own[r] = v_fnma(v_load(rows + 32), v_load(rows + 48), own[r]);
    }
}

/* yt[tile][row][16 heads] = the scores of `height` rows and `tiles` (both constant) tiles of heads.
 * The rows after them are fetched. */
WASTE_INLINE void score_tile(float *yt, size_t y_tile, const float *rows, size_t stride,
                             const float *queries, uint32_t dim, uint32_t height, uint32_t tiles)
{
    const float *q[2] = {queries, queries + waste_mla_query_floats(dim)};
    const float *ahead = rows + height * stride;
    vf sum[SCORE_HEIGHT][2], own[SCORE_HEIGHT];
    uint32_t c = 0;
    for (uint32_t r = 0; r < height; r++) {
        own[r] = v_zero();
        for (uint32_t v = 0; v < tiles; v++)
            sum[r][v] = v_zero();
    }
#define QUERY(term) v_load(q[v] + (c + j * TERMS + (term)) * WASTE_TILE)
#define ROW(term) v_load1(rows + r * stride + c + j + (term)*V_LANES)
    for (; c + SCORE_UNIT <= dim; c += SCORE_UNIT) {
        score_own(own, rows + c, stride, height);
        for (uint32_t j = 0; j < V_LANES; j++) {
            vf x[2], y[2];
            for (uint32_t line = 0; line < height * SCORE_UNIT / (V_LANES * V_LANES); line++)
                v_prefetch(ahead + line * V_LANES);
            ahead += height * SCORE_UNIT / V_LANES;
            for (uint32_t v = 0; v < tiles; v++)
                x[v] = QUERY(0), y[v] = QUERY(1);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < height; r++) {
                vf a = ROW(0), b = ROW(1);
                for (uint32_t v = 0; v < tiles; v++)
                    sum[r][v] = add_pair(sum[r][v], a, b, x[v], y[v]);
            }
            for (uint32_t v = 0; v < tiles; v++)
                x[v] = QUERY(4);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < height; r++)
                for (uint32_t v = 0; v < tiles; v++)
                    sum[r][v] = v_fma(ROW(4), x[v], sum[r][v]);
            for (uint32_t v = 0; v < tiles; v++)
                x[v] = QUERY(2), y[v] = QUERY(3);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < height; r++) {
                vf a = ROW(2), b = ROW(3);
                for (uint32_t v = 0; v < tiles; v++)
                    sum[r][v] = add_turned_pair(sum[r][v], a, b, x[v], y[v]);
            }
            for (uint32_t v = 0; v < tiles; v++)
                x[v] = QUERY(5);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < height; r++)
                for (uint32_t v = 0; v < tiles; v++)
                    sum[r][v] = v_fma(ROW(5), x[v], sum[r][v]);
        }
    }
    for (const uint32_t j = 0; c < dim; c++) /* one column, one term */
#pragma GCC unroll 8
        for (uint32_t r = 0; r < height; r++)
            for (uint32_t v = 0; v < tiles; v++)
                sum[r][v] = v_fma(ROW(0), QUERY(0), sum[r][v]);
#undef QUERY
#undef ROW
#pragma GCC unroll 8
    for (uint32_t r = 0; r < height; r++) {
        vf row_own = v_set1(v_sum(own[r]));
        for (uint32_t v = 0; v < tiles; v++) {
            const float *head = q[v] + dim * WASTE_TILE;
            vf rest = v_sub(v_sub(sum[r][v], row_own), v_load(head));
            v_store(yt + v * y_tile + r * WASTE_TILE, v_mul(v_load(head + WASTE_TILE), rest));
        }
    }
}

/* Scores of n <= MIX_ROWS rows and up to two tiles of heads. */
WASTE_INLINE void adders_score_block(float *score, uint32_t score_stride, const float *queries,
                                     uint32_t heads, const float *rows, uint32_t dim,
                                     uint32_t row_stride, uint32_t n, uint32_t tiles)
{
    enum { Y_TILE = MIX_ROWS * WASTE_TILE };
    float yt[2 * Y_TILE] __attribute__((aligned(64)));
    uint32_t t = 0;
    for (; t + SCORE_HEIGHT <= n; t += SCORE_HEIGHT)
        score_tile(yt + t * WASTE_TILE, Y_TILE, rows + (size_t)t * row_stride, row_stride, queries,
                   dim, SCORE_HEIGHT, tiles);
    for (; t < n; t++)
        score_tile(yt + t * WASTE_TILE, Y_TILE, rows + (size_t)t * row_stride, row_stride, queries,
                   dim, 1, tiles);
    for (uint32_t v = 0; v < tiles; v++) {
        uint32_t left = heads - v * WASTE_TILE;
        unpack(score + (size_t)v * WASTE_TILE * score_stride, score_stride, NULL, NULL,
               yt + v * Y_TILE, left < WASTE_TILE ? left : WASTE_TILE, n);
    }
}

static void adders_mla_scores(float *score, uint32_t score_stride, const float *queries,
                              uint32_t heads, const float *rows, uint32_t dim, uint32_t row_stride,
                              uint32_t n)
{
    for (uint32_t t = 0; t < n; t += MIX_ROWS) {
        const float *from = rows + (size_t)t * row_stride, *q = queries;
        uint32_t count = n - t < MIX_ROWS ? n - t : MIX_ROWS, h = 0;
        for (; h + WASTE_TILE < heads; h += 2 * WASTE_TILE, q += 2 * waste_mla_query_floats(dim))
            adders_score_block(score + (size_t)h * score_stride + t, score_stride, q, heads - h,
                               from, dim, row_stride, count, 2);
        if (h < heads)
            adders_score_block(score + (size_t)h * score_stride + t, score_stride, q, heads - h,
                               from, dim, row_stride, count, 1);
    }
}

/* ---- mixing ---- */

/* Squares of the first rows, the sum of a row's. */
static float sample_squares(const float *rows, uint32_t row_stride, uint32_t cols, uint32_t n)
{
    uint32_t count = n < SAMPLE_ROWS ? n : SAMPLE_ROWS;
    float sum = 0;
    for (uint32_t t = 0; t < count; t++)
        sum += sum_squares(rows + (size_t)t * row_stride, cols);
    return sum / (float)count;
}

struct mix_weights {
    float p[MIX_HEADS * MIX_ROWS]; /* scaled */
    float by[MIX_HEADS], factor[MIX_HEADS], own[MIX_HEADS];
} __attribute__((aligned(64)));

static void mix_scales(struct mix_weights *w, const float *p, uint32_t p_stride, uint32_t heads,
                       uint32_t n, float row_squares)
{
    float squares[MIX_HEADS] = {0};
    for (uint32_t h = 0; h < heads; h++)
        squares[h] = sum_squares(p + (size_t)h * p_stride, n);
    for (uint32_t h = 0; h < MIX_HEADS; h += V_LANES) {
        vf by = scale_between(v_load(squares + h), row_squares * (float)n);
        v_store(w->by + h, by);
        v_store(w->factor + h, v_div(v_set1(1), by));
    }
}

static void mix_prepare(struct mix_weights *w, const float *p, uint32_t p_stride, uint32_t heads,
                        uint32_t n, float row_squares)
{
    mix_scales(w, p, p_stride, heads, n, row_squares);
    for (uint32_t h = 0; h < heads; h++, p += p_stride) {
        float *out = w->p + h * MIX_ROWS;
        vf by = v_set1(w->by[h]), own = v_zero();
        for (uint32_t t = 0; t < n; t += V_LANES)
            v_store(out + t, v_mul(by, v_load_n(p + t, v_part(n, t))));
        for (const float *x = out; x + MIX_UNIT <= out + n; x += MIX_UNIT) {
            own = v_fma(v_load_n(x, 8), v_load_n(x + 8, 8), own);
            own = v_fnma(v_load_n(x + 24, 8), v_load_n(x + 32, 8), own);
        }
        w->own[h] = v_sum(own);
    }
    for (uint32_t h = heads; h % MIX_HEIGHT; h++) /* as many as a register tile has */
        memset(w->p + h * MIX_ROWS, 0, MIX_ROWS * sizeof *w->p);
}

static inline void load_columns(vf out[MIX_WIDTH], const float *row)
{
    for (uint32_t v = 0; v < MIX_WIDTH; v++)
        out[v] = v_load(row + v * V_LANES);
}

/*
 * MIX_HEIGHT heads x MIX_WIDTH vectors of columns. row_own: what pairs leave of the rows' own
 * products, in these columns; the first tile (constant) finds it.
 */
WASTE_INLINE void adders_mix_tile(float *o, uint32_t o_stride, const float *p, const float *own,
                                  const float *factor, uint32_t heads, const float *rows,
                                  size_t stride, uint32_t n, vf row_own[MIX_WIDTH], bool first)
{
    vf sum[MIX_HEIGHT][MIX_WIDTH], a[MIX_WIDTH], b[MIX_WIDTH], c[MIX_WIDTH];
    uint32_t t = 0;
    for (uint32_t h = 0; h < MIX_HEIGHT; h++)
        for (uint32_t v = 0; v < MIX_WIDTH; v++)
            sum[h][v] = v_zero();
    for (uint32_t v = 0; first && v < MIX_WIDTH; v++)
        row_own[v] = v_zero();
#define WEIGHT(row) v_load1(p + h * MIX_ROWS + t + (row))
    for (; t + MIX_UNIT <= n; t += MIX_STEP * 5)
        for (uint32_t end = t + MIX_STEP; t < end; t++) {
            const float *r = rows + t * stride;
            load_columns(a, r);
            load_columns(b, r + 8 * stride);
            load_columns(c, r + 16 * stride);
            for (uint32_t v = 0; first && v < MIX_WIDTH; v++)
                row_own[v] = v_fma(a[v], b[v], row_own[v]);
#pragma GCC unroll 8
            for (uint32_t h = 0; h < MIX_HEIGHT; h++) {
                vf x = WEIGHT(0), y = WEIGHT(8), z = WEIGHT(16);
                for (uint32_t v = 0; v < MIX_WIDTH; v++)
                    sum[h][v] = v_fma(z, c[v], add_pair(sum[h][v], x, y, a[v], b[v]));
            }
            load_columns(a, r + 24 * stride);
            load_columns(b, r + 32 * stride);
            load_columns(c, r + 40 * stride);
            for (uint32_t v = 0; first && v < MIX_WIDTH; v++)
                row_own[v] = v_fnma(a[v], b[v], row_own[v]);
#pragma GCC unroll 8
            for (uint32_t h = 0; h < MIX_HEIGHT; h++) {
                vf x = WEIGHT(24), y = WEIGHT(32), z = WEIGHT(40);
                for (uint32_t v = 0; v < MIX_WIDTH; v++)
                    sum[h][v] = v_fma(z, c[v], add_turned_pair(sum[h][v], x, y, a[v], b[v]));
            }
        }
    for (; t < n; t++) {
        load_columns(a, rows + t * stride);
#pragma GCC unroll 8
        for (uint32_t h = 0; h < MIX_HEIGHT; h++)
            for (uint32_t v = 0; v < MIX_WIDTH; v++)
                sum[h][v] = v_fma(WEIGHT(0), a[v], sum[h][v]);
    }
#undef WEIGHT
#pragma GCC unroll 8
    for (uint32_t h = 0; h < MIX_HEIGHT; h++)
        for (uint32_t v = 0; v < MIX_WIDTH; v++)
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
    for (uint32_t d = 0; d < cols; d += MIX_WIDTH * V_LANES) {
        vf row_own[MIX_WIDTH];
        adders_mix_tile(o + d, o_stride, w.p, w.own, w.factor, heads, rows + d, row_stride, n,
                        row_own, true);
        for (uint32_t h = MIX_HEIGHT; h < heads; h += MIX_HEIGHT)
            adders_mix_tile(o + (size_t)h * o_stride + d, o_stride, w.p + h * MIX_ROWS, w.own + h,
                            w.factor + h, heads - h, rows + d, row_stride, n, row_own, false);
    }
}

static void adders_mla_mix(float *o, uint32_t o_stride, const float *p, uint32_t p_stride,
                           uint32_t heads, const float *rows, uint32_t dim, uint32_t row_stride,
                           uint32_t n)
{
    uint32_t cols = dim / (MIX_WIDTH * V_LANES) * (MIX_WIDTH * V_LANES);
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
    k->mla_queries = adders_mla_queries;
    k->mla_scores = adders_mla_scores;
    k->mla_mix = adders_mla_mix;
}

#endif
