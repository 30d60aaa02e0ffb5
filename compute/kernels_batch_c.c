/* Products of many tokens in plain C: what panels, tiles and their product mean. */
#include "compute/kernels_unpack_c.h"

static void pack_c(float *xt, const float *x, size_t ldx, const uint32_t *index, uint32_t n,
                   uint32_t cols)
{
    memset(xt, 0, (size_t)cols * WASTE_TILE * sizeof *xt);
    for (uint32_t i = 0; i < n; i++) {
        const float *row = x + (index ? index[i] : i) * ldx;
        for (uint32_t c = 0; c < cols; c++)
            xt[(size_t)c * WASTE_TILE + i] = row[c];
    }
}

static void unpack_c(float *y, size_t ldy, const uint32_t *index, const float *weight,
                     const float *yt, uint32_t n, uint32_t rows)
{
    for (uint32_t i = 0; i < n; i++) {
        float *row = y + (index ? index[i] : i) * ldy;
        for (uint32_t r = 0; r < rows; r++) {
            float v = yt[(size_t)r * WASTE_TILE + i];
            row[r] = weight ? row[r] + weight[i] * v : v;
        }
    }
}

WASTE_INLINE void panel_any(float *panel, const struct waste_matrix *w, uint32_t r0, uint32_t rows,
                            uint32_t g, uint32_t group_bytes,
                            void (*unpack)(float *, const uint8_t *))
{
    for (uint32_t r = 0; r < rows; r++)
        unpack(panel + r * WASTE_GROUP,
               w->data + (r0 + r) * w->row_bytes + (size_t)g * group_bytes);
}

static void panel_q8g_c(float *panel, const struct waste_matrix *w, uint32_t r0, uint32_t rows,
                        uint32_t g)
{
    panel_any(panel, w, r0, rows, g, Q8G_BYTES, unpack_q8g);
}

static void panel_q4g_c(float *panel, const struct waste_matrix *w, uint32_t r0, uint32_t rows,
                        uint32_t g)
{
    panel_any(panel, w, r0, rows, g, Q4G_BYTES, unpack_q4g);
}

static void panel_q3g_c(float *panel, const struct waste_matrix *w, uint32_t r0, uint32_t rows,
                        uint32_t g)
{
    panel_any(panel, w, r0, rows, g, Q3G_BYTES, unpack_q3g);
}

static void panel_f32_c(float *panel, const struct waste_matrix *w, uint32_t r0, uint32_t rows,
                        uint32_t g)
{
    uint32_t c0 = g * WASTE_GROUP, left = w->cols - c0;
    uint32_t n = left < WASTE_GROUP ? left : WASTE_GROUP;

    for (uint32_t r = 0; r < rows; r++)
        memcpy(panel + r * WASTE_GROUP, (const float *)(w->data + (r0 + r) * w->row_bytes) + c0,
               n * sizeof *panel);
}

WASTE_INLINE void vq_panel_any(float *panel, const float *books, const uint8_t *index,
                               uint32_t rows, uint32_t positions, struct waste_vq_shape s)
{
    for (uint32_t p = 0; p < positions; p++)
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *q = index + ((size_t)p * WASTE_ROW_BLOCK + r) * s.index_bytes;
            float *y = panel + r * WASTE_GROUP + p * WASTE_VEC_DIM;
            uint32_t bits = 0;
            for (uint32_t i = 0; i < s.index_bytes; i++)
                bits |= (uint32_t)q[i] << 8 * i;
            for (uint32_t d = 0; d < WASTE_VEC_DIM; d++)
                y[d] = 0;
            for (uint32_t j = 0; j < s.stages; j++) {
                uint32_t entry = j * s.entries + bits % s.entries;
                bits /= s.entries;
                for (uint32_t d = 0; d < WASTE_VEC_DIM; d++)
                    y[d] += books[entry * WASTE_VEC_DIM + d];
            }
        }
}

#define VQ_PANEL(name, FMT)                                                                        \
    static void vq_panel_##name##_c(float *panel, const float *books, const uint8_t *index,        \
                                    uint32_t rows, uint32_t positions)                             \
    {                                                                                              \
        vq_panel_any(panel, books, index, rows, positions, waste_vq_shape(FMT));                   \
    }
VQ_PANEL(vq3r, WASTE_FMT_VQ3R)
VQ_PANEL(vq2r, WASTE_FMT_VQ2R)
VQ_PANEL(vq4p, WASTE_FMT_VQ4P)
#undef VQ_PANEL

static void panel_multiply_c(float *yt, size_t y_tile, const float *panel, const float *scale,
                             const float *xt, size_t x_tile, uint32_t rows, uint32_t cols,
                             uint32_t n)
{
    for (uint32_t t = 0; t < n; t += WASTE_TILE, yt += y_tile, xt += x_tile)
        for (uint32_t r = 0; r < rows; r++) {
            float sum[WASTE_TILE] = {0}, *y = yt + r * WASTE_TILE;
            for (uint32_t c = 0; c < cols; c++)
                for (uint32_t i = 0; i < WASTE_TILE; i++)
                    sum[i] += panel[r * WASTE_GROUP + c] * xt[c * WASTE_TILE + i];
            for (uint32_t i = 0; i < WASTE_TILE; i++)
                y[i] += scale[r] * sum[i];
        }
}

static uint64_t multiply_adds_c(float *sink, uint64_t n)
{
    enum { CHAINS = 32 };
    float sum[CHAINS];
    uint64_t rounds = n / CHAINS + 1;

    for (uint32_t i = 0; i < CHAINS; i++)
        sum[i] = (float)i;
    for (uint64_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < CHAINS; i++)
            sum[i] = sum[i] * 0.5f + 1;
    for (uint32_t i = 0; i < CHAINS; i++)
        sink[i % WASTE_TILE] += sum[i];
    return rounds * CHAINS;
}

void waste_kernels_fill_batch_c(struct waste_kernels *k)
{
    k->pack = pack_c;
    k->unpack = unpack_c;
    k->panel[WASTE_FMT_F32] = panel_f32_c;
    k->panel[WASTE_FMT_Q8G] = panel_q8g_c;
    k->panel[WASTE_FMT_Q4G] = panel_q4g_c;
    k->panel[WASTE_FMT_Q3G] = panel_q3g_c;
    k->vq_panel[WASTE_FMT_VQ3R] = vq_panel_vq3r_c;
    k->vq_panel[WASTE_FMT_VQ2R] = vq_panel_vq2r_c;
    k->vq_panel[WASTE_FMT_VQ4P] = vq_panel_vq4p_c;
    k->panel_multiply = panel_multiply_c;
    k->multiply_adds = multiply_adds_c;
    k->lookup_tokens[WASTE_FMT_VQ3R] = 1;
    k->lookup_tokens[WASTE_FMT_VQ2R] = 1;
    k->lookup_tokens[WASTE_FMT_VQ4P] = 1;
}
