/*
 * The search for codes of expert weights (fetcher/search.h): every level gives what C gives, and C
 * gives what trying all pairs of entries gives, or close to it.
 *
 *     search [LEVEL [SEED]]    only LEVEL against C
 *
 * No library: tests/kernels/neon.sh runs it under an emulator.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/kernels.h"
#include "fetcher/books.h"
#include "fetcher/search.h"

enum { COUNT = 203, DIM = WASTE_BOOK_DIM };

static uint64_t state;

static uint32_t next(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

static int16_t number(uint32_t size)
{
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)next(2 * size + 1) - (int32_t)size;
    sum /= 2;
    return (int16_t)(sum > WASTE_BOOK_LIMIT    ? WASTE_BOOK_LIMIT
                     : sum < -WASTE_BOOK_LIMIT ? -WASTE_BOOK_LIMIT
                                               : sum);
}

static void die(const char *what, const char *level)
{
    printf("%s: %s\n", level, what);
    exit(1);
}

/* size: of the numbers; every stage's entries are half of the one's before. */
static struct waste_books *random_books(uint32_t stages, uint32_t entries, uint32_t size)
{
    struct waste_books *b = waste_books_create(stages, entries);
    if (!b)
        die("no memory", "books");
    for (uint32_t s = 0; s < stages; s++)
        for (uint32_t e = 0; e < entries; e++)
            for (uint32_t d = 0; d < DIM; d++)
                b->entry[s][e][d] = number(size >> s);
    return b;
}

static double error_of(const struct waste_books *b, const int16_t *x, const uint8_t *code)
{
    int32_t q[DIM];
    double sum = 0;
    waste_books_decode(b, code, q);
    for (uint32_t d = 0; d < DIM; d++)
        sum += ((double)x[d] - q[d]) * ((double)x[d] - q[d]);
    return sum;
}

/* Everything a level computes of one set of books and vectors. */
struct result {
    int32_t cross[WASTE_BOOK_ENTRIES][WASTE_BOOK_ENTRIES];
    uint8_t code[5][COUNT][WASTE_BOOK_STAGES], nearest[WASTE_BOOK_STAGES][COUNT];
    double sum[DIM];
};

static void run(const struct waste_search *s, struct waste_books *b, const int16_t (*x)[DIM],
                struct result *r)
{
    double weight[32], center[32][DIM];
    memset(r, 0, sizeof(*r));
    s->prepare(b);
    memcpy(r->cross, b->cross[0][1], b->entries * sizeof(r->cross[0]));
    for (uint32_t i = 0; i < 5; i++)
        s->code(b, x, COUNT, 1u << i, r->code[i]);
    for (uint32_t i = 0; i < b->stages; i++)
        s->nearest(b, i, x, COUNT, r->nearest[i]);
    for (uint32_t k = 0; k < 32; k++) {
        weight[k] = x[k][0];
        for (uint32_t d = 0; d < DIM; d++)
            center[k][d] = x[k][d] / 3.0;
    }
    for (uint32_t d = 0; d < DIM; d++)
        r->sum[d] = x[0][d];
    s->subtract(r->sum, weight, (const double(*)[DIM])center, 32);
}

static const struct {
    uint32_t stages, entries;
} shapes[] = {{3, 256}, {2, 256}, {4, 64}};

static void fill(int16_t (*x)[DIM], uint32_t size)
{
    for (uint32_t i = 0; i < COUNT; i++)
        for (uint32_t d = 0; d < DIM; d++)
            x[i][d] = i == 0   ? WASTE_BOOK_LIMIT
                      : i == 1 ? -WASTE_BOOK_LIMIT
                      : i == 2 ? 0
                               : number(size);
}

static void check_level(const struct waste_search *s)
{
    static struct result want, got;
    int16_t x[COUNT][DIM];
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (uint32_t size = 1; size <= 2 * WASTE_BOOK_LIMIT; size *= 3) {
            struct waste_books *b = random_books(shapes[i].stages, shapes[i].entries, size);
            fill(x, size);
            run(waste_search_level("c"), b, (const int16_t(*)[DIM])x, &want);
            run(s, b, (const int16_t(*)[DIM])x, &got);
            if (memcmp(want.cross, got.cross, sizeof(want.cross)) != 0)
                die("products of entries differ from C's", s->level);
            if (memcmp(want.code, got.code, sizeof(want.code)) != 0)
                die("codes differ from C's", s->level);
            if (memcmp(want.nearest, got.nearest, sizeof(want.nearest)) != 0)
                die("nearest entries differ from C's", s->level);
            if (memcmp(want.sum, got.sum, sizeof(want.sum)) != 0)
                die("sums differ from C's", s->level);
            waste_books_destroy(b);
        }
}

/* With two stages all pairs can be tried. */
static double best_pair(const struct waste_books *b, const int16_t *x)
{
    double best = 1e30;
    for (uint32_t i = 0; i < b->entries; i++)
        for (uint32_t j = 0; j < b->entries; j++) {
            uint8_t code[WASTE_BOOK_STAGES] = {(uint8_t)i, (uint8_t)j};
            double e = error_of(b, x, code);
            best = e < best ? e : best;
        }
    return best;
}

static void check_c(void)
{
    const struct waste_search *s = waste_search_level("c");
    struct waste_books *b = random_books(2, 256, 300);
    int16_t x[COUNT][DIM];
    uint8_t code[COUNT][WASTE_BOOK_STAGES], greedy[COUNT][WASTE_BOOK_STAGES], near[COUNT];
    double best = 0, beam = 0, first = 0;
    fill(x, 300);
    s->prepare(b);
    s->code(b, (const int16_t(*)[DIM])x, COUNT, 16, code);
    s->code(b, (const int16_t(*)[DIM])x, COUNT, 1, greedy);
    s->nearest(b, 0, (const int16_t(*)[DIM])x, COUNT, near);
    for (uint32_t i = 3; i < COUNT; i++) {
        uint8_t one[WASTE_BOOK_STAGES] = {near[i]};
        double least = best_pair(b, x[i]), got = error_of(b, x[i], code[i]);
        if (got < least)
            die("an error is smaller than the smallest", "c");
        best += least;
        beam += got;
        first += error_of(b, x[i], greedy[i]);
        if (greedy[i][0] != one[0])
            die("a beam of one does not begin with the nearest entry", "c");
    }
    printf("error: all pairs 1, beam of 16 %.3f, of 1 %.3f\n", beam / best, first / best);
    if (beam > 1.05 * best)
        die("a beam of 16 is far from the best pairs", "c");
    if (beam >= first)
        die("a beam of 16 is no better than one of 1", "c");
    waste_books_destroy(b);
}

int main(int argc, char **argv)
{
    static const char *const levels[] = {"avx2", "avx512", "neon"};
    struct waste_kernels k;
    const char *only = argc > 1 ? argv[1] : NULL;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    check_c();
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if ((only && strcmp(only, levels[i])) || !waste_search_level(levels[i]) ||
            !waste_kernels_init(&k, levels[i]))
            continue;
        check_level(waste_search_level(levels[i]));
        printf("%s: as C\n", levels[i]);
    }
    return 0;
}
