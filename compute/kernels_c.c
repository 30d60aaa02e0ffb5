/*
 * The C reference: plain loops in a fixed order, the meaning of every kernel. Dot products run in
 * LANES partial sums, which is what keeps a 7,168-long one at float precision.
 */
#include <math.h>
#include <string.h>

#include "compute/kernels_unpack_c.h"

enum { LANES = 16 };

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Adds neighbours, then pairs of neighbours, and so on: the shortest dependence on order. */
static float sum_lanes(float lane[LANES])
{
    for (uint32_t step = LANES / 2; step > 0; step /= 2)
        for (uint32_t i = 0; i < step; i++)
            lane[i] += lane[i + step];
    return lane[0];
}

static float dot_c(const float *a, const float *b, uint32_t n)
{
    float lane[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++)
            lane[j] += a[i + j] * b[i + j];
    for (uint32_t j = 0; i + j < n; j++)
        lane[j] += a[i + j] * b[i + j];
    return sum_lanes(lane);
}

static void prepare_c(float *xp, const float *x, uint32_t cols)
{
    memcpy(xp, x, cols * sizeof *x);
    memset(xp + cols, 0, (waste_act_floats(cols) - cols) * sizeof *x);
}

WASTE_INLINE void matvec_quantised(float *y, const struct waste_matrix *w, const float *xp,
                                   uint32_t r0, uint32_t r1, uint32_t group_bytes,
                                   void (*unpack)(float *, const uint8_t *))
{
    for (uint32_t r = r0; r < r1; r++) {
        const uint8_t *row = w->data + r * w->row_bytes;
        const uint16_t *scales = w->scales + (size_t)r * w->groups;
        float lane[LANES] = {0}, v[WASTE_GROUP];
        for (uint32_t g = 0; g < w->groups; g++) {
            unpack(v, row + (size_t)g * group_bytes);
            const float *xg = xp + (size_t)g * WASTE_GROUP;
            float part[LANES] = {0}, scale = waste_half_to_float(scales[g]);
            for (uint32_t i = 0; i < WASTE_GROUP; i += LANES)
                for (uint32_t j = 0; j < LANES; j++)
                    part[j] += v[i + j] * xg[i + j];
            for (uint32_t j = 0; j < LANES; j++)
                lane[j] += scale * part[j];
        }
        y[r] = sum_lanes(lane);
    }
}

WASTE_INLINE void axpy_rows_quantised(float *y, const struct waste_matrix *w, const float *a,
                                      uint32_t r0, uint32_t n, uint32_t group_bytes,
                                      void (*unpack)(float *, const uint8_t *))
{
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *row = w->data + (r0 + i) * w->row_bytes;
        const uint16_t *scales = w->scales + (size_t)(r0 + i) * w->groups;
        for (uint32_t g = 0; g < w->groups; g++) {
            float v[WASTE_GROUP], scale = a[i] * waste_half_to_float(scales[g]);
            uint32_t c0 = g * WASTE_GROUP, m = min_u32(WASTE_GROUP, w->cols - c0);
            unpack(v, row + (size_t)g * group_bytes);
            for (uint32_t c = 0; c < m; c++)
                y[c0 + c] += scale * v[c];
        }
    }
}

WASTE_INLINE void decode_row_quantised(float *y, const uint8_t *payload, const uint8_t *scales,
                                       uint32_t cols, uint32_t group_bytes,
                                       void (*unpack)(float *, const uint8_t *))
{
    for (uint32_t c0 = 0, g = 0; c0 < cols; c0 += WASTE_GROUP, g++) {
        float v[WASTE_GROUP], scale = waste_half_to_float(waste_load_u16(scales + 2 * (size_t)g));
        uint32_t m = min_u32(WASTE_GROUP, cols - c0);
        unpack(v, payload + (size_t)g * group_bytes);
        for (uint32_t c = 0; c < m; c++)
            y[c0 + c] = scale * v[c];
    }
}

/* The three kernels of a quantised format, with its unpacking inlined. */
#define QUANTISED(name, bytes)                                                                     \
    static void matvec_##name##_c(float *y, const struct waste_matrix *w, const float *x,          \
                                  const float *xp, uint32_t r0, uint32_t r1)                       \
    {                                                                                              \
        matvec_quantised(y, w, xp, r0, r1, bytes, unpack_##name);                                  \
    }                                                                                              \
    static void axpy_rows_##name##_c(float *y, const struct waste_matrix *w, const float *a,       \
                                     uint32_t r0, uint32_t n)                                      \
    {                                                                                              \
        axpy_rows_quantised(y, w, a, r0, n, bytes, unpack_##name);                                 \
    }                                                                                              \
    static void decode_row_##name##_c(float *y, const uint8_t *payload, const uint8_t *scales,     \
                                      uint32_t cols)                                               \
    {                                                                                              \
        decode_row_quantised(y, payload, scales, cols, bytes, unpack_##name);                      \
    }
QUANTISED(q8g, Q8G_BYTES)
QUANTISED(q4g, Q4G_BYTES)
QUANTISED(q3g, Q3G_BYTES)
#undef QUANTISED

static void matvec_f32_c(float *y, const struct waste_matrix *w, const float *x, const float *xp,
                         uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r++)
        y[r] = dot_c((const float *)(w->data + r * w->row_bytes), x, w->cols);
}

static void axpy_c(float *y, float a, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void axpy_rows_f32_c(float *y, const struct waste_matrix *w, const float *a, uint32_t r0,
                            uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        axpy_c(y, a[i], (const float *)(w->data + (r0 + i) * w->row_bytes), w->cols);
}

static void decode_row_f32_c(float *y, const uint8_t *payload, const uint8_t *scales, uint32_t cols)
{
    memcpy(y, payload, cols * sizeof *y);
}

/*
 * Vector-quantised products. prep: the books as they are; tables: [position][stage][entry] = the
 * entry's dot product with x at that position.
 */
static size_t vq_prep_bytes_c(uint32_t fmt)
{
    struct waste_vq_shape s = waste_vq_shape(fmt);
    return (size_t)s.stages * s.entries * WASTE_VEC_DIM * sizeof(float);
}

static size_t vq_table_bytes_c(uint32_t fmt, uint32_t positions)
{
    struct waste_vq_shape s = waste_vq_shape(fmt);
    return (size_t)positions * s.stages * s.entries * sizeof(float);
}

WASTE_INLINE void vq_tables_any(float *tables, const float *books, const float *x,
                                uint32_t positions, struct waste_vq_shape s)
{
    for (uint32_t p = 0; p < positions; p++)
        for (uint32_t e = 0; e < s.stages * s.entries; e++) {
            const float *v = books + (size_t)e * WASTE_VEC_DIM, *xp = x + (size_t)p * WASTE_VEC_DIM;
            float even = (v[0] * xp[0] + v[2] * xp[2]) + (v[4] * xp[4] + v[6] * xp[6]);
            float odd = (v[1] * xp[1] + v[3] * xp[3]) + (v[5] * xp[5] + v[7] * xp[7]);
            *tables++ = even + odd;
        }
}

/* What one row adds at one position; t = that position's tables, q = the row's index bytes. */
static float vq_lookup_vq3r(const float *t, const uint8_t *q)
{
    return t[q[0]] + t[256 + q[1]] + t[512 + q[2]];
}

static float vq_lookup_vq2r(const float *t, const uint8_t *q)
{
    return t[q[0]] + t[256 + q[1]];
}

static float vq_lookup_vq4p(const float *t, const uint8_t *q)
{
    uint32_t bits = q[0] | (uint32_t)q[1] << 8 | (uint32_t)q[2] << 16;
    return (t[bits & 63] + t[64 + (bits >> 6 & 63)]) +
           (t[128 + (bits >> 12 & 63)] + t[192 + (bits >> 18)]);
}

WASTE_INLINE void vq_apply_any(float *acc, const float *tables, const uint8_t *index, uint32_t rows,
                               uint32_t all_positions, uint32_t p0, uint32_t n,
                               struct waste_vq_shape s,
                               float (*lookup)(const float *, const uint8_t *))
{
    enum { RUN = 16 }; /* positions summed before they join acc */
    size_t position_bytes = WASTE_ROW_BLOCK * s.index_bytes, table = s.stages * s.entries;
    for (uint32_t b = 0; b < waste_row_blocks(rows); b++) {
        const uint8_t *block = index + ((size_t)b * all_positions + p0) * position_bytes;
        for (uint32_t q0 = 0; q0 < n; q0 += RUN) {
            float sum[WASTE_ROW_BLOCK] = {0};
            for (uint32_t q = q0; q < min_u32(q0 + RUN, n); q++)
                for (uint32_t r = 0; r < WASTE_ROW_BLOCK; r++)
                    sum[r] += lookup(tables + q * table,
                                     block + q * position_bytes + (size_t)r * s.index_bytes);
            for (uint32_t r = 0; r < WASTE_ROW_BLOCK; r++)
                acc[b * WASTE_ROW_BLOCK + r] += sum[r];
        }
    }
}

#define VECTOR_QUANTISED(name, FMT)                                                                \
    static void vq_prep_##name##_c(void *prep, const float *books)                                 \
    {                                                                                              \
        memcpy(prep, books, vq_prep_bytes_c(FMT));                                                 \
    }                                                                                              \
    static void vq_tables_##name##_c(void *tables, const void *prep, const float *x,               \
                                     uint32_t positions)                                           \
    {                                                                                              \
        vq_tables_any(tables, prep, x, positions, waste_vq_shape(FMT));                            \
    }                                                                                              \
    static void vq_apply_##name##_c(float *acc, const void *tables, const uint8_t *index,          \
                                    uint32_t rows, uint32_t all_positions, uint32_t p0,            \
                                    uint32_t n, const uint8_t *next)                               \
    {                                                                                              \
        vq_apply_any(acc, tables, index, rows, all_positions, p0, n, waste_vq_shape(FMT),          \
                     vq_lookup_##name);                                                            \
    }
VECTOR_QUANTISED(vq3r, WASTE_FMT_VQ3R)
VECTOR_QUANTISED(vq2r, WASTE_FMT_VQ2R)
VECTOR_QUANTISED(vq4p, WASTE_FMT_VQ4P)
#undef VECTOR_QUANTISED

static void vq_finish_c(float *y, const float *acc, const uint8_t *scales, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++)
        y[r] = waste_half_to_float(waste_load_u16(scales + 2 * (size_t)r)) * acc[r];
}

static float sum_squares_c(const float *x, uint32_t n)
{
    return dot_c(x, x, n);
}

static void scale_mul_c(float *y, const float *x, float scale, const float *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

static void scale_c(float *y, float a, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] *= a;
}

static void add_c(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += x[i];
}

static float sigmoid_of(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static void glu_c(float *h, const float *gate, const float *up, uint32_t n,
                  const struct waste_act *act)
{
    if (act->kind == WASTE_ACTIVATION_SILU) {
        for (uint32_t i = 0; i < n; i++)
            h[i] = gate[i] * sigmoid_of(gate[i]) * up[i];
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float g = act->beta * tanhf(gate[i] / act->beta) * sigmoid_of(gate[i]);
        float u =
            act->linear_beta != 0.0f ? act->linear_beta * tanhf(up[i] / act->linear_beta) : up[i];
        h[i] = g * u;
    }
}

static void sigmoid_c(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = sigmoid_of(x[i]);
}

static void sigmoid_mul_c(float *y, const float *gate, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] *= sigmoid_of(gate[i]);
}

static void conv_silu_c(float *y, const float *x, const float *history, const float *weight,
                        uint32_t n, uint32_t stride, uint32_t width)
{
    for (uint32_t i = 0; i < n; i++) {
        const float *tap = weight + (size_t)i * width;
        float sum = 0;
        for (uint32_t t = 0; t + 1 < width; t++)
            sum += tap[t] * history[(size_t)t * stride + i];
        sum += tap[width - 1] * x[i];
        y[i] = sum * sigmoid_of(sum);
    }
}

static void kda_step_c(float *o, float *s_out, const float *s_in, const float *q, const float *k,
                       const float *v, const float *decay, float beta, uint32_t dim)
{
    for (uint32_t c0 = 0; c0 < dim; c0 += LANES) {
        uint32_t m = min_u32(LANES, dim - c0);
        float u[LANES] = {0}, out[LANES] = {0};
        for (uint32_t i = 0; i < dim; i++)
            for (uint32_t j = 0; j < m; j++)
                u[j] += decay[i] * s_in[(size_t)i * dim + c0 + j] * k[i];
        for (uint32_t i = 0; i < dim; i++)
            for (uint32_t j = 0; j < m; j++) {
                size_t at = (size_t)i * dim + c0 + j;
                float s = decay[i] * s_in[at] + beta * k[i] * (v[c0 + j] - u[j]);
                s_out[at] = s;
                out[j] += s * q[i];
            }
        memcpy(o + c0, out, m * sizeof *o);
    }
}

static float softplus_of(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

static void kda_decay_c(float *decay, const float *z, const float *bias, float rate, bool has_lower,
                        float lower, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float v = z[i] + bias[i];
        decay[i] = expf(has_lower ? lower * sigmoid_of(rate * v) : -rate * softplus_of(v));
    }
}

/* Where a head's are: [dim], as they were but scaled. */
static size_t query_place(uint32_t head, uint32_t dim)
{
    return head / WASTE_TILE * waste_mla_query_floats(dim) + (size_t)(head % WASTE_TILE) * dim;
}

static void mla_queries_c(float *queries, const float *q, uint32_t q_stride, uint32_t heads,
                          uint32_t dim, float scale, float row_squares)
{
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t d = 0; d < dim; d++)
            queries[query_place(h, dim) + d] = scale * q[(size_t)h * q_stride + d];
}

static void mla_scores_c(float *score, uint32_t score_stride, const float *queries, uint32_t heads,
                         const float *rows, uint32_t dim, uint32_t row_stride, uint32_t n)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < heads; h++)
            score[(size_t)h * score_stride + t] =
                dot_c(queries + query_place(h, dim), rows + (size_t)t * row_stride, dim);
}

static void mla_mix_c(float *o, uint32_t o_stride, const float *p, uint32_t p_stride,
                      uint32_t heads, const float *rows, uint32_t dim, uint32_t row_stride,
                      uint32_t n)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < heads; h++)
            axpy_c(o + (size_t)h * o_stride, p[(size_t)h * p_stride + t],
                   rows + (size_t)t * row_stride, dim);
}

static float softmax_part_c(float *x, uint32_t n, float *max)
{
    float largest = -INFINITY, lane[LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - largest);
        lane[i % LANES] += x[i];
    }
    *max = largest;
    return sum_lanes(lane);
}

void waste_kernels_fill_c(struct waste_kernels *k)
{
    k->prepare = prepare_c;
    k->matvec[WASTE_FMT_F32] = matvec_f32_c;
    k->matvec[WASTE_FMT_Q8G] = matvec_q8g_c;
    k->matvec[WASTE_FMT_Q4G] = matvec_q4g_c;
    k->matvec[WASTE_FMT_Q3G] = matvec_q3g_c;
    k->axpy_rows[WASTE_FMT_F32] = axpy_rows_f32_c;
    k->axpy_rows[WASTE_FMT_Q8G] = axpy_rows_q8g_c;
    k->axpy_rows[WASTE_FMT_Q4G] = axpy_rows_q4g_c;
    k->axpy_rows[WASTE_FMT_Q3G] = axpy_rows_q3g_c;
    k->decode_row[WASTE_FMT_F32] = decode_row_f32_c;
    k->decode_row[WASTE_FMT_Q8G] = decode_row_q8g_c;
    k->decode_row[WASTE_FMT_Q4G] = decode_row_q4g_c;
    k->decode_row[WASTE_FMT_Q3G] = decode_row_q3g_c;
    k->vq_prep_bytes = vq_prep_bytes_c;
    k->vq_table_bytes = vq_table_bytes_c;
    k->vq_prep[WASTE_FMT_VQ3R] = vq_prep_vq3r_c;
    k->vq_prep[WASTE_FMT_VQ2R] = vq_prep_vq2r_c;
    k->vq_prep[WASTE_FMT_VQ4P] = vq_prep_vq4p_c;
    k->vq_tables[WASTE_FMT_VQ3R] = vq_tables_vq3r_c;
    k->vq_tables[WASTE_FMT_VQ2R] = vq_tables_vq2r_c;
    k->vq_tables[WASTE_FMT_VQ4P] = vq_tables_vq4p_c;
    k->vq_apply[WASTE_FMT_VQ3R] = vq_apply_vq3r_c;
    k->vq_apply[WASTE_FMT_VQ2R] = vq_apply_vq2r_c;
    k->vq_apply[WASTE_FMT_VQ4P] = vq_apply_vq4p_c;
    k->vq_finish = vq_finish_c;
    k->sum_squares = sum_squares_c;
    k->scale_mul = scale_mul_c;
    k->dot = dot_c;
    k->axpy = axpy_c;
    k->add = add_c;
    k->scale = scale_c;
    k->glu = glu_c;
    k->sigmoid_mul = sigmoid_mul_c;
    k->sigmoid = sigmoid_c;
    k->conv_silu = conv_silu_c;
    k->kda_step = kda_step_c;
    k->kda_decay = kda_decay_c;
    k->mla_queries = mla_queries_c;
    k->mla_scores = mla_scores_c;
    k->mla_mix = mla_mix_c;
    k->softmax_part = softmax_part_c;
    waste_kernels_fill_batch_c(k);
}
