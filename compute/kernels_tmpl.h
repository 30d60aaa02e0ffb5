/*
 * The kernels that read the same on every vector instruction set, written over the operations of a
 * simd_*.h that the including kernels_*.c has included before. All functions are static; fill_tmpl
 * puts them into the table.
 */
#ifndef WASTE_COMPUTE_KERNELS_TMPL_H
#define WASTE_COMPUTE_KERNELS_TMPL_H

#include <math.h>
#include <string.h>

#include "compute/kernels_int.h"

enum {
    GROUP_VECTORS = WASTE_GROUP / V_LANES,
    PREFETCH_BYTES = 8192,    /* ahead in a stream of weights */
    KDA_VECTORS = 2 * V_TILE, /* columns at a time, all of a row if registers do: S streams best */
};

static inline uint32_t v_part(uint32_t n, uint32_t i)
{
    return n - i < V_LANES ? n - i : V_LANES;
}

/*
 * exp(x) = 2^n (1 + p), n = round(x / ln 2), p = e^r - 1 by its series to r^7 (|r| <= 0.347: the
 * next term is 5e-9). Clamped where the result is certainly 0 or infinite; NaN passes both clamps.
 */
static inline vf exp_parts(vf x, vf *n)
{
    x = v_max(v_set1(-104.0f), v_min(v_set1(89.0f), x));
    *n = v_round(v_mul(x, v_set1(0x1.715476p+0f)));
    vf r = v_fma(*n, v_set1(-0x1.62e4p-1f), x);
    r = v_fma(*n, v_set1(-0x1.7f7d1cp-20f), r);
    vf p = v_set1(1.0f / 5040);
    p = v_fma(p, r, v_set1(1.0f / 720));
    p = v_fma(p, r, v_set1(1.0f / 120));
    p = v_fma(p, r, v_set1(1.0f / 24));
    p = v_fma(p, r, v_set1(1.0f / 6));
    p = v_fma(p, r, v_set1(0.5f));
    return v_fma(v_mul(p, r), r, r);
}

static inline vf exp_of(vf x)
{
    vf n, p = exp_parts(x, &n);
    return v_ldexp(v_add(p, v_set1(1)), n);
}

static inline vf sigmoid_of(vf x)
{
    return v_div(v_set1(1), v_add(v_set1(1), exp_of(v_sub(v_zero(), x))));
}

/* tanh |x| = -m / (2 + m) with m = e^(-2|x|) - 1, which keeps small x exact. */
static inline vf tanh_of(vf x)
{
    vf n, p = exp_parts(v_mul(v_set1(-2), v_abs(x)), &n);
    vf power = v_ldexp(v_set1(1), n);
    vf m = v_fma(power, p, v_sub(power, v_set1(1)));
    return v_copysign(v_div(m, v_add(v_set1(2), m)), x);
}

/* log(1 + e^x) = max(x, 0) + 2 atanh(s), s = t / (2 + t), t = e^-|x|; s <= 1/3. */
static inline vf softplus_of(vf x)
{
    vf t = exp_of(v_sub(v_zero(), v_abs(x)));
    vf s = v_div(t, v_add(v_set1(2), t)), z = v_mul(s, s), p = v_set1(1.0f / 15);
    for (int k = 13; k > 0; k -= 2)
        p = v_fma(p, z, v_set1(1.0f / (float)k));
    return v_fma(v_add(s, s), p, v_max(v_zero(), x));
}

static float dot(const float *a, const float *b, uint32_t n)
{
    vf acc[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    uint32_t i = 0;
    for (; i + 4 * V_LANES <= n; i += 4 * V_LANES)
        for (uint32_t j = 0; j < 4; j++)
            acc[j] = v_fma(v_load(a + i + j * V_LANES), v_load(b + i + j * V_LANES), acc[j]);
    for (; i < n; i += V_LANES)
        acc[0] = v_fma(v_load_n(a + i, v_part(n, i)), v_load_n(b + i, v_part(n, i)), acc[0]);
    return v_sum(v_add(v_add(acc[0], acc[1]), v_add(acc[2], acc[3])));
}

static float sum_squares(const float *x, uint32_t n)
{
    return dot(x, x, n);
}

static void scale_mul(float *y, const float *x, float scale, const float *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += V_LANES) {
        uint32_t m = v_part(n, i);
        vf v = v_mul(v_load_n(x + i, m), v_set1(scale));
        v_store_n(y + i, v_mul(v, v_load_n(w + i, m)), m);
    }
}

static void axpy(float *y, float a, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += V_LANES) {
        uint32_t m = v_part(n, i);
        v_store_n(y + i, v_fma(v_set1(a), v_load_n(x + i, m), v_load_n(y + i, m)), m);
    }
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += V_LANES) {
        uint32_t m = v_part(n, i);
        v_store_n(y + i, v_add(v_load_n(y + i, m), v_load_n(x + i, m)), m);
    }
}

static void scale(float *y, float a, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += V_LANES)
        v_store_n(y + i, v_mul(v_set1(a), v_load_n(y + i, v_part(n, i))), v_part(n, i));
}

static void sigmoid(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += V_LANES)
        v_store_n(y + i, sigmoid_of(v_load_n(x + i, v_part(n, i))), v_part(n, i));
}

static void sigmoid_mul(float *y, const float *gate, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += V_LANES) {
        uint32_t m = v_part(n, i);
        v_store_n(y + i, v_mul(v_load_n(y + i, m), sigmoid_of(v_load_n(gate + i, m))), m);
    }
}

static void glu(float *h, const float *gate, const float *up, uint32_t n,
                const struct waste_act *act)
{
    const vf beta = v_set1(act->beta), linear = v_set1(act->linear_beta);
    for (uint32_t i = 0; i < n; i += V_LANES) {
        uint32_t m = v_part(n, i);
        vf g = v_load_n(gate + i, m), u = v_load_n(up + i, m), s = sigmoid_of(g);
        if (act->kind == WASTE_ACTIVATION_SITU) {
            g = v_mul(beta, tanh_of(v_div(g, beta)));
            if (act->linear_beta != 0.0f)
                u = v_mul(linear, tanh_of(v_div(u, linear)));
        }
        v_store_n(h + i, v_mul(v_mul(g, s), u), m);
    }
}

static float softmax_part(float *x, uint32_t n, float *max)
{
    vf top = v_set1(-INFINITY), sum = v_zero();
    uint32_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        top = v_max(v_load(x + i), top);
    float largest = v_largest(top);
    for (uint32_t j = i; j < n; j++)
        largest = x[j] > largest ? x[j] : largest;
    for (i = 0; i + V_LANES <= n; i += V_LANES) {
        vf e = exp_of(v_sub(v_load(x + i), v_set1(largest)));
        v_store(x + i, e);
        sum = v_add(sum, e);
    }
    if (i < n) {
        uint32_t m = v_part(n, i);
        v_store_n(x + i, exp_of(v_sub(v_load_n(x + i, m), v_set1(largest))), m);
        sum = v_add(sum, v_load_n(x + i, m));
    }
    *max = largest;
    return v_sum(sum);
}

static void kda_decay(float *decay, const float *z, const float *bias, float rate, bool has_lower,
                      float lower, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += V_LANES) {
        uint32_t m = v_part(n, i);
        vf v = v_add(v_load_n(z + i, m), v_load_n(bias + i, m));
        vf g = has_lower ? v_mul(v_set1(lower), sigmoid_of(v_mul(v_set1(rate), v)))
                         : v_mul(v_set1(-rate), softplus_of(v));
        v_store_n(decay + i, exp_of(g), m);
    }
}

/* Four taps are what models have; other widths gather their weights one by one. */
static void conv_silu(float *y, const float *x, const float *history, const float *weight,
                      uint32_t n, uint32_t stride, uint32_t width)
{
    for (uint32_t i = 0; i < n; i += V_LANES) {
        uint32_t m = v_part(n, i);
        bool four = width == 4 && m == V_LANES;
        vf tap[4], sum = v_zero();
        if (four)
            v_load4(tap, weight + (size_t)i * 4);
        for (uint32_t t = 0; t < width; t++) {
            const float *from = t + 1 < width ? history + (size_t)t * stride : x;
            vf w;
            if (four) {
                w = tap[t];
            } else {
                float lane[V_LANES] = {0};
                for (uint32_t j = 0; j < m; j++)
                    lane[j] = weight[(size_t)(i + j) * width + t];
                w = v_load(lane);
            }
            sum = v_fma(w, v_load_n(from + i, m), sum);
        }
        v_store_n(y + i, v_mul(sum, sigmoid_of(sum)), m);
    }
}

/*
 * `vectors` full vectors of value columns, or (vectors 1) m columns of one. The first pass reads S
 * from memory and finds u and diag(decay) S^T q; the second, from L1, writes the new state:
 * o = S^T q = (diag(decay) S)^T q + (k . q) beta (v - u).
 */
WASTE_INLINE void kda_columns(float *o, float *s_out, const float *s_in, const float *q,
                              const float *k, const float *v, const float *decay, float beta,
                              float kq, uint32_t dim, uint32_t vectors, uint32_t m, bool stream)
{
    vf u[KDA_VECTORS], w[KDA_VECTORS], out[KDA_VECTORS];
    for (uint32_t j = 0; j < vectors; j++)
        u[j] = out[j] = v_zero();
    for (uint32_t i = 0; i < dim; i++) {
        const vf di = v_set1(decay[i]), ki = v_set1(k[i]), qi = v_set1(q[i]);
        for (uint32_t j = 0; j < vectors; j++) {
            vf s = v_mul(di, v_load_n(s_in + (size_t)i * dim + j * V_LANES, m));
            u[j] = v_fma(s, ki, u[j]);
            out[j] = v_fma(s, qi, out[j]);
        }
    }
    for (uint32_t j = 0; j < vectors; j++) {
        w[j] = v_mul(v_set1(beta), v_sub(v_load_n(v + j * V_LANES, m), u[j]));
        v_store_n(o + j * V_LANES, v_fma(v_set1(kq), w[j], out[j]), m);
    }
    for (uint32_t i = 0; i < dim; i++) {
        const vf di = v_set1(decay[i]), ki = v_set1(k[i]);
        for (uint32_t j = 0; j < vectors; j++) {
            size_t at = (size_t)i * dim + j * V_LANES;
            vf s = v_fma(ki, w[j], v_mul(di, v_load_n(s_in + at, m)));
            if (stream)
                v_stream(s_out + at, s);
            else
                v_store_n(s_out + at, s, m);
        }
    }
}

static void kda_step(float *o, float *s_out, const float *s_in, const float *q, const float *k,
                     const float *v, const float *decay, float beta, uint32_t dim)
{
    enum { VECTORS = KDA_VECTORS };
    bool stream = s_out != s_in && dim % V_LANES == 0 && (uintptr_t)s_out % 64 == 0;
    float kq = dot(k, q, dim);
    uint32_t c = 0;
    for (; stream && c + VECTORS * V_LANES <= dim; c += VECTORS * V_LANES)
        kda_columns(o + c, s_out + c, s_in + c, q, k, v + c, decay, beta, kq, dim, VECTORS, V_LANES,
                    true);
    for (; c + VECTORS * V_LANES <= dim; c += VECTORS * V_LANES)
        kda_columns(o + c, s_out + c, s_in + c, q, k, v + c, decay, beta, kq, dim, VECTORS, V_LANES,
                    false);
    for (; c < dim; c += V_LANES)
        kda_columns(o + c, s_out + c, s_in + c, q, k, v + c, decay, beta, kq, dim, 1,
                    v_part(dim, c), false);
    if (stream)
        v_fence();
}

/* 4 heads x `vectors` vectors (of m columns) of the output. */
WASTE_INLINE void mix_tile(float *const o[4], const float *const p[4], uint32_t heads,
                           const float *rows, uint32_t row_stride, uint32_t n, uint32_t vectors,
                           uint32_t m)
{
    vf acc[4][V_TILE];
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t i = 0; i < vectors; i++)
            acc[j][i] = v_load_n(o[j] + i * V_LANES, m);
    for (uint32_t t = 0; t < n; t++) {
        vf r[V_TILE];
        for (uint32_t i = 0; i < vectors; i++)
            r[i] = v_load_n(rows + (size_t)t * row_stride + i * V_LANES, m);
        for (uint32_t j = 0; j < 4; j++) {
            const vf pj = v_set1(p[j][t]);
            for (uint32_t i = 0; i < vectors; i++)
                acc[j][i] = v_fma(pj, r[i], acc[j][i]);
        }
    }
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t i = 0; i < vectors; i++)
            if (j < heads) /* not as the loop's bound, which would put acc into memory */
                v_store_n(o[j] + i * V_LANES, acc[j][i], m);
}

static void mla_mix(float *o, uint32_t o_stride, const float *p, uint32_t p_stride, uint32_t heads,
                    const float *rows, uint32_t dim, uint32_t row_stride, uint32_t n)
{
    for (uint32_t h = 0; h < heads; h += 4) {
        uint32_t left = heads - h < 4 ? heads - h : 4, d = 0;
        for (; d < dim;) {
            float *out[4];
            const float *weight[4];
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t head = h + (j < left ? j : left - 1);
                out[j] = o + (size_t)head * o_stride + d;
                weight[j] = p + (size_t)head * p_stride;
            }
            if (d + V_TILE * V_LANES <= dim) {
                mix_tile(out, weight, left, rows + d, row_stride, n, V_TILE, V_LANES);
                d += V_TILE * V_LANES;
            } else {
                mix_tile(out, weight, left, rows + d, row_stride, n, 1, v_part(dim, d));
                d += V_LANES;
            }
        }
    }
}

/*
 * Q4G. A vector of dwords holds 8 V_LANES weights; lane j's nibble k is weight 8 j + k. Or-ing the
 * exponent of 2^23 onto a nibble where it lies makes the float 2^23 + 16^k v, from which one
 * subtraction leaves 16^k (v - 8), exactly. x is prepared to match: transposed to [k][j], times
 * 16^-k. Nibbles 5 to 7 do not fit a mantissa and are shifted down to places 0 to 2.
 */
static const float nibble_scale[8] = {1.0f,     0x1p-4f, 0x1p-8f, 0x1p-12f,
                                      0x1p-16f, 1.0f,    0x1p-4f, 0x1p-8f};

WASTE_INLINE vf from_q4(const uint8_t *group, uint32_t i)
{
    uint32_t k = i % 8, place = 4 * (k < 5 ? k : k - 5);
    vi w = v_load_u32(group + (size_t)(i / 8) * 4 * V_LANES);
    if (k >= 5)
        w = v_shift_right_20(w);
    return v_sub(v_and_or(w, 15u << place, 0x4b000000), v_set1(0x1p23f + (float)(8u << place)));
}

WASTE_INLINE vf from_q8(const uint8_t *group, uint32_t i)
{
    return v_from_i8((const int8_t *)group + i * V_LANES);
}

WASTE_INLINE vf from_q3(const uint8_t *group, uint32_t i)
{
    return v_from_q3(group, i);
}

static void prepare(float *xp, const float *x, uint32_t cols)
{
    enum { CHUNK = 8 * V_LANES };
    for (uint32_t c = 0; c < waste_act_floats(cols); c += CHUNK) {
        float edge[CHUNK] = {0};
        const float *from = x + c;
        if (c + CHUNK > cols) {
            memcpy(edge, from, (c < cols ? cols - c : 0) * sizeof *x);
            from = edge;
        }
        for (uint32_t k = 0; k < 8; k++)
            for (uint32_t j = 0; j < V_LANES; j++)
                xp[c + k * V_LANES + j] = from[8 * j + k] * nibble_scale[k];
    }
}

/* How the weights of a group become vectors, and how x must lie for them. */
struct unpacking {
    vf (*vector)(const uint8_t *group, uint32_t i); /* 0 <= i < GROUP_VECTORS */
    uint32_t group_bytes;
    bool prepared; /* x as prepare leaves it, else as it is */
};

WASTE_INLINE vf group_dot(const uint8_t *group, const float *x, struct unpacking u)
{
    vf acc[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
#pragma GCC unroll 32
    for (uint32_t i = 0; i < GROUP_VECTORS; i++)
        acc[i % 4] = v_fma(u.vector(group, i), v_load(x + i * V_LANES), acc[i % 4]);
    return v_add(v_add(acc[0], acc[1]), v_add(acc[2], acc[3]));
}

WASTE_INLINE void matvec_any(float *y, const struct waste_matrix *w, const float *x,
                             const float *xp, uint32_t r0, uint32_t r1, struct unpacking u)
{
    uint32_t whole = u.prepared ? w->groups : w->cols / WASTE_GROUP;
    float tail[WASTE_GROUP] = {0};
    if (u.prepared)
        x = xp;
    else
        memcpy(tail, x + whole * WASTE_GROUP, (w->cols - whole * WASTE_GROUP) * sizeof *x);
    for (uint32_t r = r0; r < r1; r++) {
        const uint8_t *group = w->data + r * w->row_bytes;
        const uint16_t *scale = w->scales + (size_t)r * w->groups;
        vf sum = v_zero();
        for (uint32_t g = 0; g < w->groups; g++, group += u.group_bytes) {
            for (uint32_t line = 0; line < u.group_bytes; line += 64)
                v_prefetch(group + PREFETCH_BYTES + line);
            const float *xg = g < whole ? x + (size_t)g * WASTE_GROUP : tail;
            sum = v_fma(group_dot(group, xg, u), v_half(scale + g), sum);
        }
        y[r] = v_sum(sum);
    }
}

/* A group's columns over all rows, TILE vectors at a time, stay in registers. */
WASTE_INLINE void axpy_rows_any(float *y, const struct waste_matrix *w, const float *a, uint32_t r0,
                                uint32_t n, struct unpacking u)
{
    enum { TILE = 8, ROWS_AHEAD = 64 };
    for (uint32_t g = 0; g < w->groups; g++) {
        float sum[WASTE_GROUP];
        uint32_t c0 = g * WASTE_GROUP, m = w->cols - c0 < WASTE_GROUP ? w->cols - c0 : WASTE_GROUP;
#pragma GCC unroll 4
        for (uint32_t t = 0; t < GROUP_VECTORS; t += TILE) {
            vf acc[TILE];
            for (uint32_t i = 0; i < TILE; i++)
                acc[i] = v_zero();
            for (uint32_t r = r0; r < r0 + n; r++) {
                const uint8_t *group = w->data + r * w->row_bytes + (size_t)g * u.group_bytes;
                /* group by group, so rows are a stride no hardware sees ahead */
                bool turn = r + ROWS_AHEAD >= r0 + n;
                v_prefetch(group + ROWS_AHEAD * w->row_bytes -
                           (turn ? n * w->row_bytes - u.group_bytes : 0));
                vf scale = v_mul(v_set1(a[r - r0]), v_half(w->scales + (size_t)r * w->groups + g));
#pragma GCC unroll 8
                for (uint32_t i = 0; i < TILE; i++)
                    acc[i] = v_fma(u.vector(group, t + i), scale, acc[i]);
            }
            for (uint32_t i = 0; i < TILE; i++)
                v_store(sum + (t + i) * V_LANES, acc[i]);
        }
        for (uint32_t c = 0; c < m; c++) {
            uint32_t k = c % 8, chunk = c / (8 * V_LANES), j = c / 8 % V_LANES;
            y[c0 + c] += u.prepared ? nibble_scale[k] * sum[(chunk * 8 + k) * V_LANES + j] : sum[c];
        }
    }
}

#define QUANTISED(name, bytes, is_prepared)                                                        \
    static void matvec_##name##g(float *y, const struct waste_matrix *w, const float *x,           \
                                 const float *xp, uint32_t r0, uint32_t r1)                        \
    {                                                                                              \
        matvec_any(y, w, x, xp, r0, r1, (struct unpacking){from_##name, bytes, is_prepared});      \
    }                                                                                              \
    static void axpy_rows_##name##g(float *y, const struct waste_matrix *w, const float *a,        \
                                    uint32_t r0, uint32_t n)                                       \
    {                                                                                              \
        axpy_rows_any(y, w, a, r0, n, (struct unpacking){from_##name, bytes, is_prepared});        \
    }
QUANTISED(q8, WASTE_GROUP, false)
QUANTISED(q4, WASTE_GROUP / 2, true)
QUANTISED(q3, WASTE_GROUP * 3 / 8, false)
#undef QUANTISED

static void matvec_f32(float *y, const struct waste_matrix *w, const float *x, const float *xp,
                       uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r++)
        y[r] = dot((const float *)(w->data + r * w->row_bytes), x, w->cols);
}

static void axpy_rows_f32(float *y, const struct waste_matrix *w, const float *a, uint32_t r0,
                          uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        axpy(y, a[i], (const float *)(w->data + (r0 + i) * w->row_bytes), w->cols);
}

static void fill_tmpl(struct waste_kernels *k)
{
    k->prepare = prepare;
    k->matvec[WASTE_FMT_F32] = matvec_f32;
    k->matvec[WASTE_FMT_Q8G] = matvec_q8g;
    k->matvec[WASTE_FMT_Q4G] = matvec_q4g;
    k->matvec[WASTE_FMT_Q3G] = matvec_q3g;
    k->axpy_rows[WASTE_FMT_F32] = axpy_rows_f32;
    k->axpy_rows[WASTE_FMT_Q8G] = axpy_rows_q8g;
    k->axpy_rows[WASTE_FMT_Q4G] = axpy_rows_q4g;
    k->axpy_rows[WASTE_FMT_Q3G] = axpy_rows_q3g;
    k->sum_squares = sum_squares;
    k->scale_mul = scale_mul;
    k->dot = dot;
    k->axpy = axpy;
    k->add = add;
    k->scale = scale;
    k->glu = glu;
    k->sigmoid_mul = sigmoid_mul;
    k->sigmoid = sigmoid;
    k->conv_silu = conv_silu;
    k->kda_step = kda_step;
    k->kda_decay = kda_decay;
    k->mla_mix = mla_mix;
    k->softmax_part = softmax_part;
}

#endif
