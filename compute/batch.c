/* Products of many tokens: panels decoded, multiplied and summed in a fixed order. */
#include "compute/batch.h"

#include <string.h>

#include "compute/kernels_int.h"

enum {
    PANEL_FLOATS = WASTE_PANEL_ROWS * WASTE_GROUP,
    PANEL_POSITIONS = WASTE_GROUP / WASTE_VEC_DIM,
    BLOCK_COLS = WASTE_VQ_BLOCK * WASTE_VEC_DIM,
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void waste_batch_pack(const struct waste_kernels *k, float *xt, const float *x, size_t ldx,
                      const uint32_t *index, uint32_t tokens, uint32_t cols, uint32_t tile0,
                      uint32_t tile1)
{
    for (uint32_t tile = tile0; tile < tile1; tile++) {
        uint32_t t = tile * WASTE_TILE;
        k->pack(xt + (size_t)t * cols, index ? x : x + t * ldx, ldx, index ? index + t : NULL,
                min_u32(WASTE_TILE, tokens - t), cols);
    }
}

void waste_batch_unpack(const struct waste_kernels *k, float *y, size_t ldy, const uint32_t *index,
                        const float *weight, const float *yt, uint32_t tokens, uint32_t rows,
                        uint32_t r0, uint32_t r1)
{
    for (uint32_t t = 0; t < tokens; t += WASTE_TILE)
        k->unpack((index ? y : y + t * ldy) + r0, ldy, index ? index + t : NULL,
                  weight ? weight + t : NULL, yt + ((size_t)t * rows + (size_t)r0 * WASTE_TILE),
                  min_u32(WASTE_TILE, tokens - t), r1 - r0);
}

size_t waste_batch_scratch_floats(const struct waste_kernels *k, uint32_t tokens, uint32_t rows)
{
    size_t tables = 0, panel = PANEL_FLOATS + waste_batch_floats(WASTE_PANEL_ROWS, tokens);
    for (uint32_t fmt = 0; fmt < WASTE_FMT_COUNT; fmt++)
        if (k->vq_tables[fmt]) {
            size_t bytes = k->vq_table_bytes(fmt, WASTE_VQ_BLOCK);
            tables = bytes > tables ? bytes : tables;
        }
    size_t lookup = (tables + 63) / 64 * 16 + 2 * (size_t)waste_row_blocks(rows) * WASTE_ROW_BLOCK;
    return panel > lookup ? panel : lookup;
}

static void clear_rows(float *yt, size_t y_tile, uint32_t rows, uint32_t tokens)
{
    for (uint32_t t = 0; t < tokens; t += WASTE_TILE, yt += y_tile)
        memset(yt, 0, (size_t)rows * WASTE_TILE * sizeof *yt);
}

/* At most WASTE_PANEL_ROWS rows from r0 on, to a yt that starts with them. */
static void panel_rows(const struct waste_kernels *k, float *yt, size_t y_tile,
                       const struct waste_matrix *w, const float *xt, uint32_t tokens, uint32_t r0,
                       uint32_t rows, float *panel)
{
    float scale[WASTE_PANEL_ROWS];
    clear_rows(yt, y_tile, rows, tokens);
    for (uint32_t g = 0, c = 0; c < w->cols; g++, c += WASTE_GROUP) {
        for (uint32_t r = 0; r < rows; r++)
            scale[r] =
                w->scales ? waste_half_to_float(w->scales[(size_t)(r0 + r) * w->groups + g]) : 1.0f;
        k->panel[w->fmt](panel, w, r0, rows, g);
        k->panel_multiply(yt, y_tile, panel, scale, xt + (size_t)c * WASTE_TILE,
                          (size_t)w->cols * WASTE_TILE, rows, min_u32(WASTE_GROUP, w->cols - c),
                          tokens);
    }
}

void waste_batch_product(const struct waste_kernels *k, float *yt, const struct waste_matrix *w,
                         const float *xt, uint32_t tokens, uint32_t r0, uint32_t r1, float *scratch)
{
    for (uint32_t r = r0; r < r1; r += WASTE_PANEL_ROWS)
        panel_rows(k, yt + (size_t)r * WASTE_TILE, (size_t)w->rows * WASTE_TILE, w, xt, tokens, r,
                   min_u32(WASTE_PANEL_ROWS, r1 - r), scratch);
}

void waste_batch_product_rows(const struct waste_kernels *k, float *y, size_t ldy,
                              const struct waste_matrix *w, const float *xt, uint32_t tokens,
                              uint32_t r0, uint32_t r1, float *scratch)
{
    float *yt = scratch + PANEL_FLOATS;
    for (uint32_t r = r0; r < r1; r += WASTE_PANEL_ROWS) {
        uint32_t n = min_u32(WASTE_PANEL_ROWS, r1 - r);
        panel_rows(k, yt, (size_t)n * WASTE_TILE, w, xt, tokens, r, n, scratch);
        waste_batch_unpack(k, y + r, ldy, NULL, NULL, yt, tokens, n, 0, n);
    }
}

/* Row r at position p. */
static const uint8_t *index_of(const struct waste_vq_matrix *m, uint32_t r, uint32_t p)
{
    size_t bytes = (size_t)WASTE_ROW_BLOCK * waste_vq_shape(m->fmt).index_bytes;
    const uint8_t *block = m->index + ((size_t)(r / WASTE_ROW_BLOCK) * m->positions + p) * bytes;
    return block + r % WASTE_ROW_BLOCK * waste_vq_shape(m->fmt).index_bytes;
}

static void expert_decoded(const struct waste_kernels *k, float *yt,
                           const struct waste_vq_matrix *m, const float *xt, uint32_t tokens,
                           uint32_t r, uint32_t rows, float *panel)
{
    size_t x_tile = (size_t)m->positions * WASTE_VEC_DIM * WASTE_TILE;
    size_t y_tile = (size_t)m->rows * WASTE_TILE;
    float scale[WASTE_PANEL_ROWS];
    for (uint32_t i = 0; i < rows; i++)
        scale[i] = waste_half_to_float(waste_load_u16(m->scales + 2 * (size_t)(r + i)));
    yt += (size_t)r * WASTE_TILE;
    clear_rows(yt, y_tile, rows, tokens);
    for (uint32_t p = 0; p < m->positions; p += PANEL_POSITIONS) {
        uint32_t n = min_u32(PANEL_POSITIONS, m->positions - p);
        k->vq_panel[m->fmt](panel, m->books, index_of(m, r, p), (rows + 7) / 8 * 8, n);
        k->panel_multiply(yt, y_tile, panel, scale, xt + (size_t)p * WASTE_VEC_DIM * WASTE_TILE,
                          x_tile, rows, n * WASTE_VEC_DIM, tokens);
    }
}

/* One token; yt and xt start with it. */
static void expert_looked_up(const struct waste_kernels *k, float *yt,
                             const struct waste_vq_matrix *m, const float *xt, uint32_t r0,
                             uint32_t r1, float *scratch)
{
    uint32_t rows = r1 - r0, padded = waste_row_blocks(rows) * WASTE_ROW_BLOCK;
    float *acc = scratch, *y = acc + padded, *tables = y + padded;
    memset(acc, 0, padded * sizeof *acc);
    for (uint32_t p = 0; p < m->positions; p += WASTE_VQ_BLOCK) {
        uint32_t n = min_u32(WASTE_VQ_BLOCK, m->positions - p);
        float x[BLOCK_COLS];
        for (uint32_t c = 0; c < n * WASTE_VEC_DIM; c++)
            x[c] = xt[((size_t)p * WASTE_VEC_DIM + c) * WASTE_TILE];
        k->vq_tables[m->fmt](tables, m->prep, x, n);
        k->vq_apply[m->fmt](acc, tables, index_of(m, r0, 0), rows, m->positions, p, n, NULL);
    }
    k->vq_finish(y, acc, m->scales + 2 * (size_t)r0, rows);
    for (uint32_t r = 0; r < rows; r++)
        yt[(size_t)(r0 + r) * WASTE_TILE] = y[r];
}

void waste_batch_expert(const struct waste_kernels *k, float *yt, const struct waste_vq_matrix *m,
                        const float *xt, uint32_t tokens, uint32_t r0, uint32_t r1, float *scratch)
{
    if (tokens > k->lookup_tokens[m->fmt]) {
        for (uint32_t r = r0; r < r1; r += WASTE_PANEL_ROWS)
            expert_decoded(k, yt, m, xt, tokens, r, min_u32(WASTE_PANEL_ROWS, r1 - r), scratch);
        return;
    }
    for (uint32_t t = 0; t < tokens; t += WASTE_TILE)
        clear_rows(yt + ((size_t)t * m->rows + (size_t)r0 * WASTE_TILE), 0, r1 - r0, 1);
    for (uint32_t t = 0; t < tokens; t++) {
        uint32_t tile = t / WASTE_TILE * WASTE_TILE, lane = t % WASTE_TILE;
        expert_looked_up(k, yt + (size_t)tile * m->rows + lane, m,
                         xt + (size_t)tile * m->positions * WASTE_VEC_DIM + lane, r0, r1, scratch);
    }
}
