/*
 * Products of many tokens: every format against double precision and C, and what batch.h promises
 * of bits: a token's result is the same alone, in any company and for any division of the rows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compute/batch.h"
#include "tests/kernels/check.h"

/* Tokens x[index[i]], rows of w. `vq` or `w` is NULL. */
struct batch {
    const struct waste_matrix *w;
    const struct test_vq *vq;
    uint32_t rows, cols, tokens;
    const float *x;
    size_t ldx;
    const uint32_t *index;
};

static double weight_at(const struct batch *b, uint32_t r, uint32_t c)
{
    return b->w ? test_matrix_at(b->w, r, c) : test_vq_at(b->vq, r, c) * test_vq_scale(b->vq, r);
}

static float *aligned(size_t n)
{
    return test_alloc(n * sizeof(float), 64);
}

static void run(const struct waste_kernels *k, float *yt, const struct batch *b, const float *xt,
                const void *prep, uint32_t tokens, uint32_t r0, uint32_t r1, float *scratch)
{
    if (b->w) {
        waste_batch_product(k, yt, b->w, xt, tokens, r0, r1, scratch);
        return;
    }
    struct waste_vq_matrix m = {
        b->vq->fmt, b->rows, b->vq->positions, b->vq->index, b->vq->scales, b->vq->books, prep};
    waste_batch_expert(k, yt, &m, xt, tokens, r0, r1, scratch);
}

/* y[token][row], in two runs of rows, for `tokens` tokens from `first` on. */
static void product(const struct waste_kernels *k, float *y, const struct batch *b, uint32_t first,
                    uint32_t tokens)
{
    uint32_t tiles = waste_batch_tiles(tokens), part = test_below(tiles + 1);
    uint32_t cut = b->w ? test_below(b->rows + 1) : 64 * test_below((b->rows + 63) / 64);
    float *xt = aligned(waste_batch_floats(b->cols, tokens));
    float *yt = aligned(waste_batch_floats(b->rows, tokens));
    float *scratch = aligned(waste_batch_scratch_floats(k, tokens, b->rows));
    void *prep = NULL;
    if (b->vq) {
        prep = test_alloc(k->vq_prep_bytes(b->vq->fmt), 64);
        k->vq_prep[b->vq->fmt](prep, b->vq->books);
    }
    waste_batch_pack(k, xt, b->x, b->ldx, b->index + first, tokens, b->cols, part, tiles);
    waste_batch_pack(k, xt, b->x, b->ldx, b->index + first, tokens, b->cols, 0, part);
    run(k, yt, b, xt, prep, tokens, cut, b->rows, scratch);
    run(k, yt, b, xt, prep, tokens, 0, cut, scratch);
    if (!test_guard_ok(xt) || !test_guard_ok(yt) || !test_guard_ok(scratch))
        fail("batch", "wrote outside its tiles", tokens, 0);
    waste_batch_unpack(k, y, b->rows, NULL, NULL, yt, tokens, b->rows, cut, b->rows);
    waste_batch_unpack(k, y, b->rows, NULL, NULL, yt, tokens, b->rows, 0, cut);
}

static void check_values(const char *name, const struct batch *b, const float *y, const float *c)
{
    uint32_t n = b->rows * b->tokens;
    double *want = doubles(n), *size = doubles(n), *weight = doubles(b->rows * b->cols);
    for (uint32_t r = 0; r < b->rows; r++)
        for (uint32_t col = 0; col < b->cols; col++)
            weight[r * b->cols + col] = weight_at(b, r, col);
    for (uint32_t i = 0; i < b->tokens; i++)
        for (uint32_t r = 0; r < b->rows; r++) {
            const float *x = b->x + b->index[i] * b->ldx;
            double sum = 0, square = 0, norm = 0;
            for (uint32_t col = 0; col < b->cols; col++) {
                double term = weight[r * b->cols + col] * x[col];
                sum += term;
                square += term * term;
                norm += (double)x[col] * x[col];
            }
            want[i * b->rows + r] = sum;
            /* Tables share a scale: there the bound is relative to |x| times a typical weight. */
            size[i * b->rows + r] = b->w ? sqrt(square) : sqrt(norm) * test_vq_scale(b->vq, r);
        }
    check(name, y, c, want, size, n, b->w ? 3e-6 : 4e-6); /* of 128 terms added one by one */
    double error = 0, allowed = 0;
    for (uint32_t i = 0; i < n; i++) {
        error += (y[i] - want[i]) * (y[i] - want[i]);
        allowed += size[i] * size[i];
    }
    double bound = b->w ? 5e-7 : 1.5e-6;
    if (error > bound * bound * allowed)
        fail(name, "root mean square error", b->tokens, sqrt(error / allowed));
}

/* Tokens that a call treats the same way: all, or those that are looked up alone. */
static bool same_way(const struct batch *b, uint32_t tokens)
{
    return b->w || (tokens > kernels.lookup_tokens[b->vq->fmt]) ==
                       (b->tokens > kernels.lookup_tokens[b->vq->fmt]);
}

static void check_bits(const char *name, const struct batch *b, float *x, const float *y)
{
    uint32_t first = test_below(b->tokens), n = 1 + test_below(b->tokens - first);
    float *alone = floats(b->rows * b->tokens);
    if (same_way(b, n)) {
        product(&kernels, alone, b, first, n);
        if (memcmp(alone, y + first * b->rows, sizeof(float) * b->rows * n) != 0)
            fail(name, "a token depends on its company", n, first);
    }
    /* A value that is no number spoils its own token, and only that. */
    float *spoilt = x + b->index[first] * b->ldx + test_below(b->cols);
    *spoilt = test_below(2) ? NAN : INFINITY;
    product(&kernels, alone, b, 0, b->tokens);
    for (uint32_t i = 0; i < b->tokens; i++)
        for (uint32_t r = 0; r < b->rows; r++) {
            float v = alone[i * b->rows + r];
            if (b->index[i] != b->index[first] ? v != y[i * b->rows + r]
                                               : isfinite(v) && (b->w || test_vq_scale(b->vq, r)))
                fail(name, "a non-finite activation was swallowed, or spread", i, v);
        }
}

static void check_product(const char *name, struct batch b, enum kind kind)
{
    uint32_t stored = b.tokens + test_below(4), *index = test_alloc(b.tokens * 4, 4);
    b.ldx = b.cols + test_below(3);
    float *x = activations(stored * (uint32_t)b.ldx, kind);
    for (uint32_t i = 0; i < b.tokens; i++)
        index[i] = test_below(stored);
    b.x = x;
    b.index = index;
    float *y = floats(b.rows * b.tokens), *c = floats(b.rows * b.tokens);
    product(&kernels, y, &b, 0, b.tokens);
    product(&reference, c, &b, 0, b.tokens);
    check_values(name, &b, y, c);
    check_bits(name, &b, x, y);
}

static void check_trunk(uint32_t fmt, uint32_t rows, uint32_t cols, uint32_t tokens, enum kind kind)
{
    struct waste_matrix w = test_matrix(fmt, rows, cols);
    struct batch b = {.w = &w, .rows = rows, .cols = cols, .tokens = tokens};
    check_product(test_fmt_name(fmt), b, kind);

    /* Into rows directly: the same bits, and nothing between the rows. */
    float *xt = aligned(waste_batch_floats(cols, tokens)), *x = activations(cols * tokens, kind);
    float *yt = aligned(waste_batch_floats(rows, tokens));
    float *scratch = aligned(waste_batch_scratch_floats(&kernels, tokens, rows));
    uint32_t ldy = rows + 3, cut = test_below(rows + 1);
    float *y = floats(tokens * ldy), *same = floats(tokens * ldy);
    waste_batch_pack(&kernels, xt, x, cols, NULL, tokens, cols, 0, waste_batch_tiles(tokens));
    waste_batch_product(&kernels, yt, &w, xt, tokens, 0, rows, scratch);
    waste_batch_unpack(&kernels, same, ldy, NULL, NULL, yt, tokens, rows, 0, rows);
    waste_batch_product_rows(&kernels, y, ldy, &w, xt, tokens, 0, cut, scratch);
    waste_batch_product_rows(&kernels, y, ldy, &w, xt, tokens, cut, rows, scratch);
    if (memcmp(y, same, sizeof(float) * tokens * ldy) != 0)
        fail(test_fmt_name(fmt), "rows differ from tiles", tokens, rows);
    if (!test_guard_ok(y) || !test_guard_ok(scratch))
        fail(test_fmt_name(fmt), "wrote outside its rows", tokens, rows);
}

/* Every value of every token is where it should be, and nothing else is touched. */
static void check_tiles(uint32_t cols, uint32_t tokens)
{
    uint32_t stored = tokens + 2, ld = cols + 1, *index = test_alloc(tokens * 4, 4);
    float *x = gauss(stored * ld, 1), *weight = gauss(tokens, 1), *y = gauss(stored * ld, 1);
    float *xt = aligned(waste_batch_floats(cols, tokens)), *before = floats(stored * ld);
    uint32_t c0 = test_below(cols), c1 = c0 + test_below(cols - c0 + 1);
    memcpy(before, y, sizeof(float) * stored * ld);
    for (uint32_t i = 0; i < tokens; i++)
        index[i] = stored - 1 - i;
    waste_batch_pack(&kernels, xt, x, ld, index, tokens, cols, 0, waste_batch_tiles(tokens));
    for (uint32_t t = 0; t < waste_batch_tiles(tokens) * WASTE_TILE; t++)
        for (uint32_t c = 0; c < cols; c++) {
            size_t at = ((size_t)(t / WASTE_TILE) * cols + c) * WASTE_TILE + t % WASTE_TILE;
            if (xt[at] != (t < tokens ? x[index[t] * ld + c] : 0))
                fail("pack", "a value is not in its place", t, c);
        }
    waste_batch_unpack(&kernels, y, ld, index, weight, xt, tokens, cols, c0, c1);
    for (uint32_t i = 0; i < stored; i++)
        for (uint32_t c = 0; c < ld; c++) {
            uint32_t token = stored - 1 - i;
            double want = before[i * ld + c], add = 0;
            if (token < tokens && c >= c0 && c < c1)
                add = (double)weight[token] * x[i * ld + c];
            if (!(fabs(y[i * ld + c] - want - add) <= 2e-7 * (fabs(want) + fabs(add))))
                fail("unpack", "wrong value", i, c);
        }
    if (!test_guard_ok(xt) || !test_guard_ok(y))
        fail("unpack", "wrote outside its output", tokens, cols);
}

void check_batch(void)
{
    static const uint32_t tokens[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 57, 64};
    static const uint32_t cols[] = {1, 8, 31, 100, 127, 128, 129, 253, 513};
    static const uint32_t fmts[] = {WASTE_FMT_F32, WASTE_FMT_Q8G, WASTE_FMT_Q4G, WASTE_FMT_Q3G};
    static const uint32_t vq_fmts[] = {WASTE_FMT_VQ3R, WASTE_FMT_VQ2R, WASTE_FMT_VQ4P};
    for (size_t n = 0; n < sizeof tokens / sizeof *tokens; n++) {
        for (enum kind kind = 0; kind < KINDS; kind++) {
            uint32_t c = cols[test_below(sizeof cols / sizeof *cols)];
            for (size_t f = 0; f < sizeof fmts / sizeof *fmts; f++) {
                check_trunk(fmts[f], 1 + test_below(150), c, tokens[n], kind);
                test_free_all();
            }
            for (size_t f = 0; f < sizeof vq_fmts / sizeof *vq_fmts; f++) {
                uint32_t rows = 1 + test_below(200);
                struct test_vq m = test_vq(vq_fmts[f], rows, 1 + test_below(40));
                struct batch b = {
                    .vq = &m, .rows = rows, .cols = 8 * m.positions, .tokens = tokens[n]};
                check_product(test_fmt_name(vq_fmts[f]), b, kind);
                test_free_all();
            }
        }
        for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
            check_tiles(cols[c], tokens[n]);
            test_free_all();
        }
    }
}
