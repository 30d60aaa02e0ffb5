/*
 * Products of many tokens, over the operations of a simd_*.h: the register tiles of panel_multiply,
 * and what brings weights and activations into their order.
 */
#ifndef WASTE_COMPUTE_KERNELS_BATCH_H
#define WASTE_COMPUTE_KERNELS_BATCH_H

#include "compute/kernels_int.h"

enum {
    TILE_VECTORS = WASTE_TILE / V_LANES,
    MAX_SUMS = 16, /* of a register tile, and so its rows at most */
    HALF_TILE = 8, /* tokens of a v8 */
    SCORE_HEADS = 2 * WASTE_TILE,
    SCORE_ROWS = 256,
    LINE_FLOATS = 16, /* of a cache line */
};

/*
 * `height` rows times one or two tiles: every sum runs over the columns alone in its register, so
 * its order is the same in any shape of tile. height, tiles: constants, of which `rows` are kept.
 * fetch, constant: the rows behind these are what is read next, and not in a cache.
 */
WASTE_INLINE void multiply_tiles(float *yt, size_t y_tile, const float *panel, size_t stride,
                                 const float *scale, const float *xt, size_t x_tile, uint32_t rows,
                                 uint32_t cols, uint32_t height, uint32_t tiles, bool fetch)
{
    uint32_t width = tiles * TILE_VECTORS;
    vf sum[MAX_SUMS];
    for (uint32_t i = 0; i < height * width; i++)
        sum[i] = v_zero();
    for (const float *end = panel + cols; panel < end;) {
        const float *line = fetch && end - panel > LINE_FLOATS ? panel + LINE_FLOATS : end;
        for (uint32_t r = 0; fetch && r < height; r++)
            v_prefetch(panel + (height + r) * stride);
        for (; panel < line; panel++, xt += WASTE_TILE) {
            vf x[MAX_SUMS];
            for (uint32_t v = 0; v < width; v++)
                x[v] = v_load(xt + v / TILE_VECTORS * x_tile + v % TILE_VECTORS * V_LANES);
#pragma GCC unroll 16
            for (uint32_t r = 0; r < height; r++) {
                vf w = v_set1(panel[r * stride]);
                for (uint32_t v = 0; v < width; v++)
                    sum[r * width + v] = v_fma(w, x[v], sum[r * width + v]);
            }
        }
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < height; r++) {
        if (r >= rows)
            break;
        for (uint32_t v = 0; v < width; v++) {
            float *y = yt + v / TILE_VECTORS * y_tile + r * WASTE_TILE + v % TILE_VECTORS * V_LANES;
            v_store(y, v_fma(v_set1(scale[r]), sum[r * width + v], v_load(y)));
        }
    }
}

/* The first half of a tile that has no more tokens. */
WASTE_INLINE void multiply_half(float *yt, const float *panel, size_t stride, const float *scale,
                                const float *xt, uint32_t rows, uint32_t cols, uint32_t height)
{
    v8 sum[MAX_SUMS];
    for (uint32_t r = 0; r < height; r++)
        sum[r] = v8_zero();
    for (const float *end = panel + cols; panel < end; panel++, xt += WASTE_TILE) {
        v8 x = v8_load(xt);
#pragma GCC unroll 16
        for (uint32_t r = 0; r < height; r++)
            sum[r] = v8_fma(v8_set1(panel[r * stride]), x, sum[r]);
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < height; r++) {
        if (r >= rows)
            break;
        float *y = yt + r * WASTE_TILE;
        v8_store(y, v8_fma(v8_set1(scale[r]), sum[r], v8_load(y)));
    }
}

/* A tile (or two) is in L1 while it meets all rows. Rows past the last may be read, up to a
 * register tile of them. */
WASTE_INLINE void multiply_any(float *yt, size_t y_tile, const float *panel, size_t stride,
                               const float *scale, const float *xt, size_t x_tile, uint32_t rows,
                               uint32_t cols, uint32_t n, bool fetch)
{
    for (uint32_t t = 0; t < n;) {
        uint32_t left = n - t, tiles = 1;
        if (left <= HALF_TILE) {
            for (uint32_t r = 0; r < rows; r += V_HALF_ROWS)
                multiply_half(yt + r * WASTE_TILE, panel + r * stride, stride, scale + r, xt,
                              rows - r, cols, V_HALF_ROWS);
        } else if (V_PAIR_ROWS > 0 && left > WASTE_TILE + HALF_TILE) {
            tiles = 2;
            for (uint32_t r = 0; r < rows; r += V_PAIR_ROWS)
                multiply_tiles(yt + r * WASTE_TILE, y_tile, panel + r * stride, stride, scale + r,
                               xt, x_tile, rows - r, cols, V_PAIR_ROWS, 2, fetch);
        } else {
            for (uint32_t r = 0; r < rows; r += V_TILE_ROWS)
                multiply_tiles(yt + r * WASTE_TILE, y_tile, panel + r * stride, stride, scale + r,
                               xt, x_tile, rows - r, cols, V_TILE_ROWS, 1, fetch);
        }
        t += tiles * WASTE_TILE;
        yt += tiles * y_tile;
        xt += tiles * x_tile;
    }
}

static void panel_multiply(float *yt, size_t y_tile, const float *panel, const float *scale,
                           const float *xt, size_t x_tile, uint32_t rows, uint32_t cols, uint32_t n)
{
    multiply_any(yt, y_tile, panel, WASTE_GROUP, scale, xt, x_tile, rows, cols, n, false);
}

/* Weights [V_LANES i, V_LANES (i + 1)) of a group, in their order. */
WASTE_INLINE vf natural_q8(const uint8_t *group, uint32_t i)
{
    return v_from_i8((const int8_t *)group + i * V_LANES);
}

WASTE_INLINE void panel_any(float *panel, const struct waste_matrix *w, uint32_t r0, uint32_t rows,
                            uint32_t g, uint32_t group_bytes,
                            vf (*vector)(const uint8_t *group, uint32_t i))
{
    for (uint32_t r = 0; r < rows; r++) {
        const uint8_t *group = w->data + (r0 + r) * w->row_bytes + (size_t)g * group_bytes;
#pragma GCC unroll 32
        for (uint32_t i = 0; i < WASTE_GROUP / V_LANES; i++)
            v_store(panel + r * WASTE_GROUP + i * V_LANES, vector(group, i));
    }
}

#define PANEL(name, bytes, vector)                                                                 \
    static void panel_##name##g(float *panel, const struct waste_matrix *w, uint32_t r0,           \
                                uint32_t rows, uint32_t g)                                         \
    {                                                                                              \
        panel_any(panel, w, r0, rows, g, bytes, vector);                                           \
    }
PANEL(q8, WASTE_GROUP, natural_q8)
PANEL(q4, WASTE_GROUP / 2, v_from_q4)
PANEL(q3, WASTE_GROUP * 3 / 8, v_from_q3)
#undef PANEL

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

WASTE_INLINE void vq_panel_any(float *panel, const float *books, const uint8_t *index,
                               uint32_t rows, uint32_t positions, struct waste_vq_shape s)
{
    const size_t step = (size_t)WASTE_ROW_BLOCK * s.index_bytes; /* to the next position */
    const uint32_t bits = s.entries == 256 ? 8 : 6;
    for (uint32_t r = 0; r < rows; r += 8)
        for (uint32_t p = 0; p < positions; p++) {
            float *y = panel + r * WASTE_GROUP + p * WASTE_VEC_DIM;
            uint64_t words[3];
            for (uint32_t i = 0; i < s.index_bytes; i++) /* one by one: they stay in registers */
                memcpy(&words[i], index + p * step + r * s.index_bytes + 8 * i, 8);
#pragma GCC unroll 8
            for (uint32_t k = 0; k < 8; k++)
                v8_store(y + k * WASTE_GROUP,
                         vq_weights(books, words, bits * s.stages * k, bits, s));
        }
}

#define VQ_PANEL(name, FMT)                                                                        \
    static void vq_panel_##name(float *panel, const float *books, const uint8_t *index,            \
                                uint32_t rows, uint32_t positions)                                 \
    {                                                                                              \
        vq_panel_any(panel, books, index, rows, positions, waste_vq_shape(FMT));                   \
    }
VQ_PANEL(vq3r, WASTE_FMT_VQ3R)
VQ_PANEL(vq2r, WASTE_FMT_VQ2R)
VQ_PANEL(vq4p, WASTE_FMT_VQ4P)
#undef VQ_PANEL

/* V_LANES columns of V_LANES tokens at a time. */
static void pack(float *xt, const float *x, size_t ldx, const uint32_t *index, uint32_t n,
                 uint32_t cols)
{
    for (uint32_t c = 0; c < cols; c += V_LANES, xt += V_LANES * WASTE_TILE)
        for (uint32_t t = 0; t < WASTE_TILE; t += V_LANES) {
            uint32_t part = cols - c < V_LANES ? cols - c : V_LANES;
            vf v[V_LANES];
            for (uint32_t i = 0; i < V_LANES; i++)
                v[i] = t + i < n ? v_load_n(x + (index ? index[t + i] : t + i) * ldx + c, part)
                                 : v_zero();
            v_transpose(v);
            for (uint32_t i = 0; i < part; i++)
                v_store(xt + i * WASTE_TILE + t, v[i]);
        }
}

static void unpack(float *y, size_t ldy, const uint32_t *index, const float *weight,
                   const float *yt, uint32_t n, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r += V_LANES, yt += V_LANES * WASTE_TILE)
        for (uint32_t t = 0; t < n; t += V_LANES) {
            uint32_t part = rows - r < V_LANES ? rows - r : V_LANES;
            vf v[V_LANES];
            for (uint32_t i = 0; i < V_LANES; i++)
                v[i] = i < part ? v_load(yt + i * WASTE_TILE + t) : v_zero();
            v_transpose(v);
            for (uint32_t i = 0; i < V_LANES && t + i < n; i++) {
                float *to = y + (index ? index[t + i] : t + i) * ldy + r;
                if (weight)
                    v[i] = v_fma(v_set1(weight[t + i]), v[i], v_load_n(to, part));
                v_store_n(to, v[i], part);
            }
        }
}

static void mla_queries(float *queries, const float *q, uint32_t q_stride, uint32_t heads,
                        uint32_t dim, float scale, float row_squares)
{
    for (uint32_t h = 0; h < heads; h += WASTE_TILE, queries += waste_mla_query_floats(dim)) {
        pack(queries, q + (size_t)h * q_stride, q_stride, NULL, heads - h, dim);
        for (float *x = queries; x < queries + dim * WASTE_TILE; x += V_LANES)
            v_store(x, v_mul(v_set1(scale), v_load(x)));
    }
}

/* The latents of n positions are the weights, the queries of up to SCORE_HEADS heads the tokens. */
static void score_block(float *score, uint32_t score_stride, const float *queries, uint32_t heads,
                        const float *rows, uint32_t dim, uint32_t row_stride, uint32_t n,
                        const float *ones)
{
    float yt[SCORE_HEADS * SCORE_ROWS] __attribute__((aligned(64)));
    size_t y_tile = (size_t)n * WASTE_TILE, q_tile = waste_mla_query_floats(dim);
    float edge[MAX_SUMS * WASTE_GROUP]; /* the last rows, where a register tile may read on */
    uint32_t tiles = (heads + WASTE_TILE - 1) / WASTE_TILE, whole = n / MAX_SUMS * MAX_SUMS;
    memset(yt, 0, tiles * y_tile * sizeof *yt);
    for (uint32_t c = 0; c < dim; c += WASTE_GROUP, queries += WASTE_GROUP * WASTE_TILE) {
        uint32_t cols = dim - c < WASTE_GROUP ? dim - c : WASTE_GROUP;
        multiply_any(yt, y_tile, rows + c, row_stride, ones, queries, q_tile, whole, cols, heads,
                     true);
        for (uint32_t t = whole; t < n; t++)
            memcpy(edge + (t - whole) * WASTE_GROUP, rows + (size_t)t * row_stride + c,
                   cols * sizeof *edge);
        multiply_any(yt + whole * WASTE_TILE, y_tile, edge, WASTE_GROUP, ones, queries, q_tile,
                     n - whole, cols, heads, false);
    }
    for (uint32_t h = 0; h < heads; h += WASTE_TILE)
        unpack(score + (size_t)h * score_stride, score_stride, NULL, NULL, yt + h * n,
               heads - h < WASTE_TILE ? heads - h : WASTE_TILE, n);
}

static void mla_scores(float *score, uint32_t score_stride, const float *queries, uint32_t heads,
                       const float *rows, uint32_t dim, uint32_t row_stride, uint32_t n)
{
    float ones[SCORE_ROWS];
    for (uint32_t t = 0; t < SCORE_ROWS; t++)
        ones[t] = 1;
    for (uint32_t t = 0; t < n; t += SCORE_ROWS)
        for (uint32_t h = 0; h < heads; h += SCORE_HEADS)
            score_block(score + (size_t)h * score_stride + t, score_stride,
                        queries + h / WASTE_TILE * waste_mla_query_floats(dim),
                        heads - h < SCORE_HEADS ? heads - h : SCORE_HEADS,
                        rows + (size_t)t * row_stride, dim, row_stride,
                        n - t < SCORE_ROWS ? n - t : SCORE_ROWS, ones);
}

/* As many chains as the longest latency times the most pipes, where registers do. */
static uint64_t multiply_adds(float *sink, uint64_t n)
{
    enum { CHAINS = V_LANES == 8 ? 12 : 16 };
    vf sum[CHAINS], a = v_set1(0.5f), b = v_set1(1);
    uint64_t rounds = n / (CHAINS * V_LANES) + 1;
    for (uint32_t i = 0; i < CHAINS; i++)
        sum[i] = v_set1((float)i);
    for (uint64_t round = 0; round < rounds; round++)
#pragma GCC unroll 16
        for (uint32_t i = 0; i < CHAINS; i++)
            sum[i] = v_fma(sum[i], a, b);
    for (uint32_t i = 1; i < CHAINS; i++)
        sum[0] = v_add(sum[0], sum[i]);
    v_store(sink, sum[0]);
    return rounds * CHAINS * V_LANES;
}

static void fill_batch(struct waste_kernels *k)
{
    k->pack = pack;
    k->unpack = unpack;
    k->panel[WASTE_FMT_Q8G] = panel_q8g;
    k->panel[WASTE_FMT_Q4G] = panel_q4g;
    k->panel[WASTE_FMT_Q3G] = panel_q3g;
    k->vq_panel[WASTE_FMT_VQ3R] = vq_panel_vq3r;
    k->vq_panel[WASTE_FMT_VQ2R] = vq_panel_vq2r;
    k->vq_panel[WASTE_FMT_VQ4P] = vq_panel_vq4p;
    k->panel_multiply = panel_multiply;
    k->multiply_adds = multiply_adds;
    k->mla_queries = mla_queries;
    k->mla_scores = mla_scores;
}

#endif
