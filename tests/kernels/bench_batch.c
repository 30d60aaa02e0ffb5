/*
 * Products of many tokens on one core: the share of its multiply-adds that are reached, by the
 * number of tokens, and for experts where decoding overtakes lookups.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/batch.h"
#include "compute/kernels_int.h"
#include "tests/kernels/kernels_test.h"

enum { MOST_TOKENS = 512, ROWS = 512, COLS = 2304, PASSES = 20 };

struct data {
    float *x, *xt, *yt, *scratch;
    uint8_t *weights;
    uint16_t *scales;
    float *books;
    void *prep;
};

static double multiply_adds_a_second(const struct waste_kernels *k)
{
    float sink[WASTE_TILE];
    double best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = test_now();
        double done = (double)k->multiply_adds(sink, 1 << 24);
        double rate = done / (test_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static void run(const struct waste_kernels *k, uint32_t fmt, const struct data *d, uint32_t tokens)
{
    uint32_t groups = COLS / WASTE_GROUP;
    if (fmt == WASTE_FMT_VQ3R || fmt == WASTE_FMT_VQ2R || fmt == WASTE_FMT_VQ4P) {
        struct waste_vq_matrix m = {
            fmt, ROWS, COLS / 8, d->weights, (const uint8_t *)d->scales, d->books, d->prep};
        waste_batch_expert(k, d->yt, &m, d->xt, tokens, 0, ROWS, d->scratch);
        return;
    }
    struct waste_matrix w = {.data = d->weights, .rows = ROWS, .cols = COLS, .fmt = fmt};
    w.scales = fmt == WASTE_FMT_F32 ? NULL : d->scales;
    w.groups = fmt == WASTE_FMT_F32 ? 0 : groups;
    w.row_bytes = fmt == WASTE_FMT_F32   ? COLS * 4
                  : fmt == WASTE_FMT_Q8G ? groups * 128
                  : fmt == WASTE_FMT_Q4G ? groups * 64
                                         : groups * 48 + 1;
    waste_batch_product(k, d->yt, &w, d->xt, tokens, 0, ROWS, d->scratch);
}

static double seconds_of(const struct waste_kernels *k, uint32_t fmt, const struct data *d,
                         uint32_t tokens)
{
    double best = 1e9, total = 0;
    for (int pass = 0; pass < PASSES || total < 0.01; pass++) {
        double start = test_now();
        run(k, fmt, d, tokens);
        double seconds = test_now() - start;
        total += seconds;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p)
        abort();
    return p;
}

static struct data make_data(const struct waste_kernels *k)
{
    struct data d = {
        .x = memory(sizeof(float) * MOST_TOKENS * COLS),
        .xt = memory(sizeof(float) * waste_batch_floats(COLS, MOST_TOKENS)),
        .yt = memory(sizeof(float) * waste_batch_floats(ROWS, MOST_TOKENS)),
        .scratch = memory(sizeof(float) * waste_batch_scratch_floats(k, MOST_TOKENS, ROWS)),
        .weights = memory((size_t)ROWS * COLS * 4 + 64),
        .scales = memory(sizeof(uint16_t) * ROWS * COLS / WASTE_GROUP),
        .books = memory(sizeof(float) * 768 * WASTE_VEC_DIM),
        .prep = memory(k->vq_prep_bytes(WASTE_FMT_VQ3R)),
    };
    for (size_t i = 0; i < MOST_TOKENS * COLS; i++)
        d.x[i] = test_gauss();
    for (size_t i = 0; i < 768 * WASTE_VEC_DIM; i++)
        d.books[i] = test_gauss();
    for (size_t i = 0; i < ROWS * COLS / WASTE_GROUP; i++)
        d.scales[i] = test_float_to_half(0.02f);
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++)
        ((float *)(void *)d.weights)[i] = test_gauss();
    waste_batch_pack(k, d.xt, d.x, COLS, NULL, MOST_TOKENS, COLS, 0,
                     waste_batch_tiles(MOST_TOKENS));
    return d;
}

static void free_data(struct data *d)
{
    void *const all[] = {d->x, d->xt, d->yt, d->scratch, d->weights, d->scales, d->books, d->prep};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* A copy of the table that always takes one of the two ways. */
static struct waste_kernels with_lookups(const struct waste_kernels *k, bool lookups)
{
    struct waste_kernels copy = *k;
    for (uint32_t fmt = 0; fmt < WASTE_FMT_COUNT; fmt++)
        copy.lookup_tokens[fmt] = lookups ? UINT32_MAX : 0;
    return copy;
}

static void print_case(const char *name, const struct waste_kernels *k, uint32_t fmt,
                       const struct data *d, double peak, bool json, bool *first)
{
    static const uint32_t tokens[] = {1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 128, 512};
    if (!json)
        printf("| %-13s |", name);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        double seconds = seconds_of(k, fmt, d, tokens[i]);
        double rate = (double)ROWS * COLS * tokens[i] / seconds;
        if (json)
            printf("%s\n    {\"kernel\": \"%s\", \"tokens\": %u, \"multiply_adds_per_s\": %.0f, "
                   "\"share\": %.3f}",
                   *first ? "" : ",", name, tokens[i], rate, rate / peak);
        else
            printf(" %3.0f |", 100 * rate / peak);
        *first = false;
        fflush(stdout);
    }
    if (!json)
        printf("\n");
}

void test_bench_batch(const struct waste_kernels *k, double clock_hz, bool json, const char *only)
{
    static const uint32_t fmts[] = {WASTE_FMT_F32,  WASTE_FMT_Q8G,  WASTE_FMT_Q4G, WASTE_FMT_Q3G,
                                    WASTE_FMT_VQ3R, WASTE_FMT_VQ2R, WASTE_FMT_VQ4P};
    if (only && !strstr("batch", only))
        return;
    struct data d = make_data(k);
    double peak = multiply_adds_a_second(k);
    bool first = true;
    if (json)
        printf(", \"multiply_adds_per_s\": %.0f, \"batch\": [", peak);
    else
        printf(
            "\n%.1f G multiply-adds a second, %.1f a cycle; per cent of that by tokens:\n\n"
            "| 512x2304      |   1 |   2 |   3 |   4 |   6 |   8 |  12 |  16 |  20 |  24 |  32 | "
            " 48 |  64 | 128 | 512 |\n"
            "|---------------|-----|-----|-----|-----|-----|-----|-----|-----|-----|-----|-----|-"
            "----|-----|-----|-----|\n",
            peak * 1e-9, peak / clock_hz);
    for (size_t f = 0; f < sizeof fmts / sizeof *fmts; f++) {
        bool expert =
            fmts[f] == WASTE_FMT_VQ3R || fmts[f] == WASTE_FMT_VQ2R || fmts[f] == WASTE_FMT_VQ4P;
        for (int lookups = 0; lookups <= expert; lookups++) {
            struct waste_kernels way = with_lookups(k, lookups);
            char name[32];
            snprintf(name, sizeof name, "%s%s", test_fmt_name(fmts[f]), lookups ? " lookups" : "");
            if (expert)
                k->vq_prep[fmts[f]](d.prep, d.books);
            print_case(name, &way, fmts[f], &d, peak, json, &first);
        }
    }
    if (json)
        printf("\n]");
    free_data(&d);
}
