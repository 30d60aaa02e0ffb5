/*
 * Every kernel of a level against a double-precision model and against the C level: odd sizes,
 * pointers off alignment, guards around all memory, subnormal scales, outliers, zero, tiny and huge
 * activations, and NaN and infinity, which must come out as something not finite.
 *
 * Errors are relative to what the result is made of (the root of the sum of squared terms for a
 * sum), so one bound serves large and cancelling results.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/kernels_int.h"
#include "tests/kernels/check.h"

struct waste_kernels kernels, reference;
static int failures;
static double worst; /* of the current kernel, in units of its bound */

void fail(const char *kernel, const char *what, uint32_t n, double value)
{
    if (failures++ < 20)
        fprintf(stderr, "%s: %s: %s (at %u: %g)\n", kernels.level, kernel, what, n, value);
}

void check(const char *kernel, const float *got, const float *c, const double *want,
           const double *size, uint32_t n, double bound)
{
    for (uint32_t i = 0; i < n; i++) {
        double allowed = bound * size[i] + 1e-34; /* sigmoid underflows */
        double error = fmax(fabs(got[i] - want[i]), fabs(c[i] - want[i])) / allowed;
        if (!(error <= 1))
            fail(kernel, "wrong value", i, error);
        if (error > worst)
            worst = error;
    }
    if (!test_guard_ok(got))
        fail(kernel, "wrote outside its output", 0, 0);
}

float *floats(uint32_t n)
{
    return test_alloc(n * sizeof(float), sizeof(float));
}

float *gauss(uint32_t n, float scale)
{
    float *x = floats(n);
    for (uint32_t i = 0; i < n; i++)
        x[i] = scale * test_gauss();
    return x;
}

double *doubles(uint32_t n)
{
    return test_alloc(n * sizeof(double), sizeof(double));
}

static float *copy(const float *x, uint32_t n)
{
    return memcpy(floats(n), x, n * sizeof *x);
}

float *activations(uint32_t n, enum kind kind)
{
    static const float scale[KINDS] = {1, 1, 0, 1e-25f, 1e25f};
    float *x = gauss(n, scale[kind]);
    for (uint32_t i = 0; kind == OUTLIERS && i < 4; i++)
        x[test_below(n)] *= 100;
    return x;
}

static const uint32_t sizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 128, 129, 253, 513};
#define EACH_SIZE(n)                                                                               \
    for (uint32_t i_ = 0, n = sizes[0]; i_ < sizeof sizes / sizeof *sizes;                         \
         i_++, n = sizes[i_ % (sizeof sizes / sizeof *sizes)])

static const uint32_t trunk_fmts[] = {WASTE_FMT_F32, WASTE_FMT_Q8G, WASTE_FMT_Q4G, WASTE_FMT_Q3G};
static const uint32_t vq_fmts[] = {WASTE_FMT_VQ3R, WASTE_FMT_VQ2R, WASTE_FMT_VQ4P};

static void matvec_rows(const struct waste_kernels *k, float *y, const struct waste_matrix *w,
                        const float *x, uint32_t r0, uint32_t r1)
{
    float *xp = test_alloc(waste_act_floats(w->cols) * sizeof(float), 64);
    k->prepare(xp, x, w->cols);
    if (!test_guard_ok(xp))
        fail("prepare", "wrote outside its output", w->cols, 0);
    k->matvec[w->fmt](y, w, x, xp, r0, r1);
}

static void check_matvec(uint32_t fmt, uint32_t rows, uint32_t cols, enum kind kind)
{
    struct waste_matrix w = test_matrix(fmt, rows, cols);
    float *x = activations(cols, kind), *y = floats(rows), *c = floats(rows);
    double *want = doubles(rows), *size = doubles(rows);
    for (uint32_t r = 0; r < rows; r++) {
        double sum = 0, square = 0, top = 0;
        for (uint32_t i = 0; i < cols; i++) {
            double weight = test_matrix_at(&w, r, i), term = weight * x[i];
            for (uint32_t j = i; i % 128 == 0 && j < cols && j < i + 128; j++)
                top = fmax(j == i ? 0 : top, fabs(x[j]));
            double rounding = 0.1 * weight * top; /* x may be rounded to a scale a group */
            sum += term;
            square += term * term + rounding * rounding;
        }
        want[r] = sum;
        size[r] = sqrt(square);
    }
    matvec_rows(&reference, c, &w, x, 0, rows);
    uint32_t cut = test_below(rows + 1); /* any division of rows gives the same bits */
    matvec_rows(&kernels, y, &w, x, cut, rows);
    matvec_rows(&kernels, y, &w, x, 0, cut);
    check(test_fmt_name(fmt), y, c, want, size, rows, 1.5e-6);

    x[test_below(cols)] = test_below(2) ? NAN : -INFINITY;
    matvec_rows(&kernels, y, &w, x, 0, rows);
    for (uint32_t r = 0; r < rows; r++)
        if (isfinite(y[r]))
            fail(test_fmt_name(fmt), "swallowed a non-finite activation", r, y[r]);
}

static void check_axpy_rows(uint32_t fmt, uint32_t rows, uint32_t cols)
{
    struct waste_matrix w = test_matrix(fmt, rows, cols);
    uint32_t r0 = test_below(rows), n = 1 + test_below(rows - r0);
    float *a = gauss(n, 1), *y = gauss(cols, 1), *c = copy(y, cols);
    double *want = doubles(cols), *size = doubles(cols);
    for (uint32_t i = 0; i < cols; i++) {
        double sum = y[i], square = sum * sum;
        for (uint32_t r = 0; r < n; r++) {
            double term = a[r] * test_matrix_at(&w, r0 + r, i);
            sum += term;
            square += term * term;
        }
        want[i] = sum;
        size[i] = sqrt(square);
    }
    reference.axpy_rows[fmt](c, &w, a, r0, n);
    kernels.axpy_rows[fmt](y, &w, a, r0, n);
    check("axpy_rows", y, c, want, size, cols, 1e-6);
}

static void check_decode_row(uint32_t fmt, uint32_t cols)
{
    struct waste_matrix w = test_matrix(fmt, 1, cols);
    float *y = floats(cols), *c = floats(cols);
    double *want = doubles(cols), *size = doubles(cols);
    uint8_t *payload = (uint8_t *)test_alloc(w.row_bytes + 1, 1) + 1;
    uint8_t *scales = (uint8_t *)test_alloc(2 * w.groups + 1, 1) + 1;
    memcpy(payload, w.data, w.row_bytes);
    if (w.groups > 0)
        memcpy(scales, w.scales, 2 * w.groups);
    for (uint32_t i = 0; i < cols; i++) {
        want[i] = test_matrix_at(&w, 0, i);
        size[i] = fabs(want[i]);
    }
    reference.decode_row[fmt](c, payload, scales, cols);
    kernels.decode_row[fmt](y, payload, scales, cols);
    check("decode_row", y, c, want, size, cols, 1e-7);
}

/* As the engine does it: slices of WASTE_VQ_BLOCK positions, each with its acc, joined at the end.
 */
static void vq_product(const struct waste_kernels *k, float *y, const struct test_vq *m,
                       const float *x)
{
    uint32_t padded = (m->rows + 63) / 64 * 64;
    void *prep = test_alloc(k->vq_prep_bytes(m->fmt), 64);
    float *total = test_alloc(padded * sizeof(float), 64);
    float *acc = test_alloc(padded * sizeof(float), 64);
    memset(total, 0, padded * sizeof *total);
    k->vq_prep[m->fmt](prep, m->books);
    for (uint32_t p0 = 0; p0 < m->positions; p0 += WASTE_VQ_BLOCK) {
        uint32_t n = m->positions - p0 < WASTE_VQ_BLOCK ? m->positions - p0 : WASTE_VQ_BLOCK;
        void *tables = test_alloc(k->vq_table_bytes(m->fmt, n), 64);
        k->vq_tables[m->fmt](tables, prep, x + 8 * (size_t)p0, n);
        memset(acc, 0, padded * sizeof *acc);
        k->vq_apply[m->fmt](acc, tables, m->index, m->rows, m->positions, p0, n,
                            p0 ? NULL : m->index);
        if (!test_guard_ok(tables) || !test_guard_ok(acc) || !test_guard_ok(prep))
            fail(test_fmt_name(m->fmt), "wrote outside its tables", n, 0);
        for (uint32_t i = 0; i < padded; i++)
            total[i] += acc[i];
    }
    uint32_t cut = 64 * test_below(padded / 64); /* finishing in two runs of rows is the same */
    k->vq_finish(y, total, m->scales, cut);
    k->vq_finish(y + cut, total + cut, m->scales + 2 * (size_t)cut, m->rows - cut);
}

static void check_vq(uint32_t fmt, uint32_t rows, uint32_t positions, enum kind kind)
{
    struct test_vq m = test_vq(fmt, rows, positions);
    uint32_t cols = 8 * positions;
    float *x = activations(cols, kind), *y = floats(rows), *c = floats(rows);
    double *want = doubles(rows), *size = doubles(rows);
    double norm = 0; /* tables share a scale: the bound is relative to |x| times a typical weight */
    for (uint32_t i = 0; i < cols; i++)
        norm += (double)x[i] * x[i];
    for (uint32_t r = 0; r < rows; r++) {
        double sum = 0;
        for (uint32_t i = 0; i < cols; i++)
            sum += test_vq_at(&m, r, i) * x[i];
        want[r] = sum * test_vq_scale(&m, r);
        size[r] = sqrt(norm) * test_vq_scale(&m, r);
    }
    vq_product(&reference, c, &m, x);
    vq_product(&kernels, y, &m, x);
    check(test_fmt_name(fmt), y, c, want, size, rows, 4e-6);
    double error = 0, power = 0;
    for (uint32_t r = 0; r < rows; r++) {
        error += (y[r] - want[r]) * (y[r] - want[r]);
        power += want[r] * want[r];
    }
    if (rows >= 32 && error > 1.5e-6 * 1.5e-6 * power)
        fail(test_fmt_name(fmt), "root mean square error", rows, sqrt(error / power));

    x[test_below(cols)] = test_below(2) ? NAN : INFINITY;
    vq_product(&kernels, y, &m, x);
    for (uint32_t r = 0; r < rows; r++)
        if (isfinite(y[r]) && test_vq_scale(&m, r) != 0)
            fail(test_fmt_name(fmt), "swallowed a non-finite activation", r, y[r]);
}

static void check_products(void)
{
    for (size_t f = 0; f < sizeof trunk_fmts / sizeof *trunk_fmts; f++) {
        for (enum kind kind = 0; kind < KINDS; kind++) {
            EACH_SIZE(cols)
            {
                check_matvec(trunk_fmts[f], 1 + test_below(9), cols, kind);
                test_free_all();
            }
            check_matvec(trunk_fmts[f], 3, 2304 + test_below(2000), kind);
            test_free_all();
        }
        EACH_SIZE(cols)
        {
            check_axpy_rows(trunk_fmts[f], 1 + test_below(20), cols);
            check_decode_row(trunk_fmts[f], cols);
            test_free_all();
        }
    }
}

static void check_vector_quantised(void)
{
    static const uint32_t shapes[][2] = {{1, 1},    {64, 1},  {65, 3},   {63, 16},   {128, 8},
                                         {100, 17}, {192, 9}, {320, 31}, {257, 130}, {640, 23}};
    for (size_t f = 0; f < sizeof vq_fmts / sizeof *vq_fmts; f++)
        for (enum kind kind = 0; kind < KINDS; kind++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                check_vq(vq_fmts[f], shapes[s][0], shapes[s][1], kind);
                test_free_all();
            }
}

static void check_sums(uint32_t n)
{
    float *a = gauss(n, 3), *b = gauss(n, 1), *y = gauss(n, 1), *c = copy(y, n), *d = gauss(n, 1);
    double *want = doubles(n), *size = doubles(n);
    double sum = 0, square = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)a[i] * b[i];
        square += (double)a[i] * b[i] * a[i] * b[i];
    }
    float *got = floats(1), *got_c = floats(1);
    want[0] = sum, size[0] = sqrt(square);
    got[0] = kernels.dot(a, b, n), got_c[0] = reference.dot(a, b, n);
    check("dot", got, got_c, want, size, 1, 1e-6);

    want[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        want[0] += (double)a[i] * a[i];
    size[0] = want[0];
    got[0] = kernels.sum_squares(a, n), got_c[0] = reference.sum_squares(a, n);
    check("sum_squares", got, got_c, want, size, 1, 1e-6);

    for (uint32_t i = 0; i < n; i++) {
        want[i] = (double)y[i] + 0.7f * (double)a[i];
        size[i] = fabs(y[i]) + fabs(a[i]);
    }
    kernels.axpy(y, 0.7f, a, n), reference.axpy(c, 0.7f, a, n);
    check("axpy", y, c, want, size, n, 2e-7);

    for (uint32_t i = 0; i < n; i++)
        want[i] = (double)c[i] + b[i], size[i] = fabs(c[i]) + fabs(b[i]);
    memcpy(y, c, n * sizeof *y);
    kernels.add(y, b, n), reference.add(c, b, n);
    check("add", y, c, want, size, n, 1e-7);

    for (uint32_t i = 0; i < n; i++)
        want[i] = (double)c[i] * -0.3f, size[i] = fabs(want[i]);
    memcpy(y, c, n * sizeof *y);
    kernels.scale(y, -0.3f, n), reference.scale(c, -0.3f, n);
    check("scale", y, c, want, size, n, 1e-7);

    for (uint32_t i = 0; i < n; i++)
        want[i] = (double)a[i] * 0.3f * d[i], size[i] = fabs(want[i]);
    kernels.scale_mul(y, a, 0.3f, d, n), reference.scale_mul(c, a, 0.3f, d, n);
    check("scale_mul", y, c, want, size, n, 2e-7);
}

static double sigmoid_d(double x)
{
    return 1 / (1 + exp(-x));
}

/* From the middle to where everything saturates; zero and signs included. */
static float *wide(uint32_t n)
{
    float *x = gauss(n, 1);
    for (uint32_t i = 0; i < n; i++)
        x[i] *= powf(10, (float)test_below(9) - 6);
    x[test_below(n)] = test_below(2) ? 0.0f : -200.0f;
    return x;
}

static void check_activations(uint32_t n)
{
    float *g = wide(n), *u = wide(n), *y = floats(n), *c = floats(n);
    double *want = doubles(n), *size = doubles(n);
    for (uint32_t i = 0; i < n; i++)
        want[i] = size[i] = sigmoid_d(g[i]);
    kernels.sigmoid(y, g, n), reference.sigmoid(c, g, n);
    check("sigmoid", y, c, want, size, n, 4e-7);

    for (uint32_t i = 0; i < n; i++)
        want[i] = u[i] * sigmoid_d(g[i]), size[i] = fabs(want[i]);
    memcpy(y, u, n * sizeof *y), memcpy(c, u, n * sizeof *c);
    kernels.sigmoid_mul(y, g, n), reference.sigmoid_mul(c, g, n);
    check("sigmoid_mul", y, c, want, size, n, 5e-7);

    static const struct waste_act acts[] = {{WASTE_ACTIVATION_SILU, 0, 0},
                                            {WASTE_ACTIVATION_SITU, 4, 25},
                                            {WASTE_ACTIVATION_SITU, 0.9f, 0}};
    for (size_t a = 0; a < sizeof acts / sizeof *acts; a++) {
        double beta = acts[a].beta, linear = acts[a].linear_beta;
        for (uint32_t i = 0; i < n; i++) {
            double left = acts[a].kind == WASTE_ACTIVATION_SILU ? g[i] : beta * tanh(g[i] / beta);
            double right = linear != 0 ? linear * tanh(u[i] / linear) : u[i];
            want[i] = left * sigmoid_d(g[i]) * right;
            size[i] = fabs(want[i]);
        }
        kernels.glu(y, g, u, n, &acts[a]), reference.glu(c, g, u, n, &acts[a]);
        check("glu", y, c, want, size, n, 1e-6);
        uint32_t at = test_below(n);
        float was = g[at];
        g[at] = NAN;
        kernels.glu(y, g, u, n, &acts[a]);
        if (isfinite(y[at]) && u[at] != 0)
            fail("glu", "swallowed a non-finite activation", at, y[at]);
        g[at] = was;
    }

    float *bias = gauss(n, 1);
    for (int lower = 0; lower < 2; lower++) {
        for (uint32_t i = 0; i < n; i++) {
            double z = (double)g[i] + bias[i], v = (float)z;
            double log_decay =
                lower ? -5 * sigmoid_d(1.3f * v) : -1.3f * (fmax(v, 0) + log1p(exp(-fabs(v))));
            want[i] = exp(log_decay);
            size[i] = want[i] * (1 + fabs(log_decay));
        }
        kernels.kda_decay(y, g, bias, 1.3f, lower, -5, n);
        reference.kda_decay(c, g, bias, 1.3f, lower, -5, n);
        check("kda_decay", y, c, want, size, n, 1e-6);
    }
}

static void check_softmax(uint32_t n)
{
    float *x = gauss(n, 5), *c = copy(x, n), top, top_c;
    double *want = doubles(n), *size = doubles(n), max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        max = fmax(max, x[i]);
    for (uint32_t i = 0; i < n; i++) {
        want[i] = exp(x[i] - max);
        size[i] = want[i] * (1 + max - x[i]);
        sum += want[i];
    }
    float got = kernels.softmax_part(x, n, &top), got_c = reference.softmax_part(c, n, &top_c);
    check("softmax_part", x, c, want, size, n, 5e-7);
    if (top != (float)max || top_c != (float)max || !(fabs(got / sum - 1) <= 1e-6) ||
        !(fabs(got_c / sum - 1) <= 1e-6))
        fail("softmax_part", "wrong maximum or sum", n,
             fmax(fabs(got / sum - 1), fabs(got_c / sum - 1)));
    x[test_below(n)] = NAN;
    if (isfinite(kernels.softmax_part(x, n, &top)))
        fail("softmax_part", "swallowed a non-finite score", n, got);
}

static void check_conv(uint32_t n, uint32_t width)
{
    uint32_t stride = n + test_below(5);
    float *x = gauss(n, 1), *weight = gauss(n * width, 1);
    float *history = gauss(stride * (width - 1) + 1, 1), *y = floats(n), *c = floats(n);
    double *want = doubles(n), *size = doubles(n);
    for (uint32_t i = 0; i < n; i++) {
        double sum = (double)weight[i * width + width - 1] * x[i], parts = fabs(sum);
        for (uint32_t t = 0; t + 1 < width; t++) {
            double term = (double)weight[i * width + t] * history[t * stride + i];
            sum += term;
            parts += fabs(term);
        }
        want[i] = sum * sigmoid_d(sum);
        size[i] = parts;
    }
    kernels.conv_silu(y, x, history, weight, n, stride, width);
    reference.conv_silu(c, x, history, weight, n, stride, width);
    check("conv_silu", y, c, want, size, n, 1e-6);
    uint32_t cut = test_below(n + 1); /* in place, and in two parts: the same bits */
    kernels.conv_silu(x, x, history, weight, cut, stride, width);
    kernels.conv_silu(x + cut, x + cut, history + cut, weight + (size_t)cut * width, n - cut,
                      stride, width);
    if (memcmp(x, y, n * sizeof *x) != 0)
        fail("conv_silu", "depends on where it is written or divided", cut, 0);
}

static void check_kda(uint32_t dim, bool in_place, size_t align)
{
    uint32_t cells = dim * dim;
    float *s_in = test_alloc(cells * sizeof(float), align), *s_c = floats(cells);
    float *s_out = in_place ? s_in : test_alloc(cells * sizeof(float), align);
    float *q = gauss(dim, 0.1f), *k = gauss(dim, 0.1f), *v = gauss(dim, 1), *decay = floats(dim);
    float *o = floats(dim), *o_c = floats(dim), beta = 0.6f;
    double *want = doubles(dim), *size = doubles(dim), *state = doubles(cells);
    double *state_size = doubles(cells);
    for (uint32_t i = 0; i < cells; i++)
        s_in[i] = test_gauss();
    for (uint32_t i = 0; i < dim; i++)
        decay[i] = expf(-fabsf(test_gauss()));
    for (uint32_t j = 0; j < dim; j++) {
        double u = 0, u_size = fabs(v[j]), out = 0, out_size = 0;
        for (uint32_t i = 0; i < dim; i++) {
            double term = (double)decay[i] * s_in[i * dim + j] * k[i];
            u += term;
            u_size += fabs(term);
        }
        for (uint32_t i = 0; i < dim; i++) {
            double kept = (double)decay[i] * s_in[i * dim + j];
            state[i * dim + j] = kept + beta * k[i] * (v[j] - u);
            state_size[i * dim + j] = fabs(kept) + fabs(beta * k[i]) * u_size;
            out += state[i * dim + j] * q[i];
            out_size += state_size[i * dim + j] * fabs(q[i]);
        }
        want[j] = out;
        size[j] = out_size;
    }
    reference.kda_step(o_c, s_c, s_in, q, k, v, decay, beta, dim);
    kernels.kda_step(o, s_out, s_in, q, k, v, decay, beta, dim);
    check("kda_step output", o, o_c, want, size, dim, 6e-7);
    check("kda_step state", s_out, s_c, state, state_size, cells, 4e-7);
}

/* Queries of size q_size, and rows around `mean` instead of 0. Pairs that share a multiplication
 * (zen4) may err by more. */
static void check_mla(uint32_t heads, uint32_t dim, uint32_t n, float q_size, float mean)
{
    uint32_t row_stride = dim + test_below(3), q_stride = dim + test_below(3), s_stride = n + 1;
    bool pairs = strcmp(kernels.level, "zen4") == 0;
    float *q = gauss(heads * q_stride, q_size), *rows = gauss(n * row_stride, 1);
    for (uint32_t i = 0; i < n * row_stride; i++)
        rows[i] += mean;
    float *y = gauss(heads * s_stride, 1), *c = copy(y, heads * s_stride);
    double *want = doubles(heads * s_stride), *size = doubles(heads * s_stride);
    for (uint32_t h = 0; h < heads; h++) {
        want[h * s_stride + n] = y[h * s_stride + n]; /* between heads nothing is written */
        size[h * s_stride + n] = 0;
        for (uint32_t t = 0; t < n; t++) {
            double sum = 0, square = 0;
            for (uint32_t d = 0; d < dim; d++) {
                double term = (double)q[h * q_stride + d] * rows[t * row_stride + d];
                sum += term;
                square += term * term;
            }
            want[h * s_stride + t] = 0.07f * sum;
            size[h * s_stride + t] = 0.07f * sqrt(square);
        }
    }
    float *packed = floats((heads + WASTE_TILE - 1) / WASTE_TILE * waste_mla_query_floats(dim));
    float squares = kernels.sum_squares(rows, dim);
    kernels.mla_queries(packed, q, q_stride, heads, dim, 0.07f, squares);
    kernels.mla_scores(y, s_stride, packed, heads, rows, dim, row_stride, n);
    reference.mla_queries(packed, q, q_stride, heads, dim, 0.07f, squares);
    reference.mla_scores(c, s_stride, packed, heads, rows, dim, row_stride, n);
    check("mla_scores", y, c, want, size, heads * s_stride, pairs ? 5e-6 : 2e-6);
    uint32_t h = test_below(heads);
    float *alone = floats(n);
    kernels.mla_queries(packed, q + h * q_stride, q_stride, 1, dim, 0.07f, squares);
    kernels.mla_scores(alone, n, packed, 1, rows, dim, row_stride, n);
    if (!test_guard_ok(packed))
        fail("mla_queries", "wrote outside its output", h, 0);
    if (memcmp(alone, y + h * s_stride, n * sizeof *y) != 0)
        fail("mla_scores", "a head depends on its neighbours", h, 0);

    float *o = gauss(heads * q_stride, 1), *o_c = copy(o, heads * q_stride);
    float *o_alone = copy(o, heads * q_stride);
    double *mix = doubles(heads * q_stride), *mix_size = doubles(heads * q_stride);
    for (uint32_t i = 0; i < heads; i++)
        for (uint32_t d = 0; d < q_stride; d++) {
            double sum = o[i * q_stride + d], parts = fabs(sum);
            for (uint32_t t = 0; t < n && d < dim; t++) {
                double term = (double)y[i * s_stride + t] * rows[t * row_stride + d];
                sum += term;
                parts += fabs(term);
            }
            mix[i * q_stride + d] = sum;
            mix_size[i * q_stride + d] = parts;
        }
    kernels.mla_mix(o, q_stride, y, s_stride, heads, rows, dim, row_stride, n);
    reference.mla_mix(o_c, q_stride, y, s_stride, heads, rows, dim, row_stride, n);
    check("mla_mix", o, o_c, mix, mix_size, heads * q_stride, n > 64 ? 3e-6 : pairs ? 2e-6 : 1e-6);
    kernels.mla_mix(o_alone + h * q_stride, q_stride, y + h * s_stride, s_stride, 1, rows, dim,
                    row_stride, n);
    if (memcmp(o_alone + h * q_stride, o + h * q_stride, dim * sizeof *o) != 0)
        fail("mla_mix", "a head depends on its neighbours", h, 0);
}

/* Against a plain selection sort; half of the time with many ties. */
static void check_top_k(uint32_t experts, uint32_t top_k, bool ties)
{
    float *logits = gauss(experts, 2), *bias = gauss(experts, 0.1f), *scratch = floats(experts);
    float *weights = floats(top_k);
    uint32_t *ids = test_alloc(top_k * sizeof *ids, sizeof *ids);
    bool *taken = test_alloc(experts, 1);
    memset(taken, 0, experts);
    for (uint32_t e = 0; ties && e < experts; e++)
        logits[e] = (float)test_below(3), bias[e] = 0;
    waste_top_k(ids, weights, logits, bias, experts, top_k, scratch);
    for (uint32_t i = 0; i < top_k; i++) {
        uint32_t best = experts;
        for (uint32_t e = 0; e < experts; e++) {
            float score = 1.0f / (1.0f + expf(-logits[e])) + bias[e];
            if (!taken[e] &&
                (best == experts || score > 1.0f / (1.0f + expf(-logits[best])) + bias[best]))
                best = e;
        }
        taken[best] = true;
        if (ids[i] != best || fabs(weights[i] - sigmoid_d(logits[best])) > 1e-6)
            fail("top_k", "wrong choice", i, ids[i]);
    }
    /* NaN counts as lowest: chosen after all others, by id. */
    uint32_t finite = test_below(experts + 1);
    for (uint32_t e = 0; e < experts; e++) {
        logits[e] = e < experts - finite ? NAN : 2;
        bias[e] = 0;
    }
    waste_top_k(ids, weights, logits, bias, experts, top_k, scratch);
    for (uint32_t i = 0; i < top_k; i++)
        if (ids[i] != (i < finite ? experts - finite + i : i - finite))
            fail("top_k", "wrong choice among NaN", i, ids[i]);
    if (!test_guard_ok(ids) || !test_guard_ok(weights) || !test_guard_ok(scratch))
        fail("top_k", "wrote outside its output", 0, 0);
}

static void check_half(void)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = waste_half_to_float((uint16_t)h);
        bool special = (h & 0x7c00) == 0x7c00;
        if (special ? isfinite(f) : f != (float)test_half_to_double((uint16_t)h))
            fail("half", "wrong value", h, f);
    }
}

static void check_small(void)
{
    EACH_SIZE(n)
    {
        check_sums(n);
        check_activations(n);
        check_softmax(n);
        for (uint32_t width = 1; width <= 5; width++)
            check_conv(n, width);
        test_free_all();
        check_mla(1 + test_below(9), n, 1 + test_below(40), 1, 0);
        check_top_k(n, 1 + test_below(n), test_below(2));
        test_free_all();
    }
    check_mla(32, 576, 192, 1, 0); /* what models have */
    check_mla(96, 192, 128, 0.001f, 0);
    check_mla(33, 700, 257, 300, 0.5f);
    check_mla(17, 97, 400, 1e-15f, 1);
    check_mla(1 + test_below(64), 1 + test_below(900), 1 + test_below(400), 1, 0);
    test_free_all();
    static const uint32_t dims[] = {1, 3, 8, 20, 32, 64, 72, 128};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        check_kda(dims[i], false, 4);
        check_kda(dims[i], false, 64);
        check_kda(dims[i], true, 64);
        test_free_all();
    }
    check_half();
}

static const struct group {
    const char *name;
    void (*run)(void);
} groups[] = {
    {"trunk products", check_products},
    {"vector-quantised products", check_vector_quantised},
    {"products of many tokens", check_batch},
    {"vectors, attention and state", check_small},
};

int main(int argc, char **argv)
{
    const char *level = getenv("WASTE_CPU");
    uint64_t seed = 20240607;
    const char *only = NULL;
    bool bench = false, json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            bench = true;
        else if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (strcmp(argv[i], "--level") == 0 && i + 1 < argc)
            level = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 0);
        else {
            fprintf(stderr,
                    "usage: kernels [--level NAME] [--seed N] [--bench [--json] [--only NAME]]\n");
            return 2;
        }
    }
    if (!waste_kernels_init(&reference, "c") || !waste_kernels_init(&kernels, level)) {
        printf("skipped: this cpu, or this build, has no level %s\n", level);
        return 77;
    }
    test_seed(seed);
    if (bench)
        return test_bench(level, json, only);
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        worst = 0;
        groups[g].run();
        printf("%s: %s: worst error %.2f of its bound\n", kernels.level, groups[g].name, worst);
    }
    printf("%s: seed %llu: %s\n", kernels.level, (unsigned long long)seed,
           failures ? "FAILED" : "passed");
    return failures != 0;
}
