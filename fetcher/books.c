#include "fetcher/books.h"

#include <stdlib.h>
#include <string.h>

struct waste_books *waste_books_create(uint32_t stages, uint32_t entries)
{
    struct waste_books *b = NULL;
    if (posix_memalign((void **)&b, 64, sizeof(*b)))
        return NULL;
    memset(b, 0, sizeof(*b));
    b->stages = stages;
    b->entries = entries;
    for (uint32_t s = 0; s < stages; s++)
        for (uint32_t t = s + 1; t < stages; t++)
            if (posix_memalign((void **)&b->cross[s][t], 64, entries * sizeof(*b->cross[s][t]))) {
                b->cross[s][t] = NULL;
                waste_books_destroy(b);
                return NULL;
            }
    return b;
}

void waste_books_destroy(struct waste_books *b)
{
    if (!b)
        return;
    for (uint32_t s = 0; s < WASTE_BOOK_STAGES; s++)
        for (uint32_t t = 0; t < WASTE_BOOK_STAGES; t++)
            free(b->cross[s][t]);
    free(b);
}

static void prepare_stage(struct waste_books *b, uint32_t s)
{
    for (uint32_t e = 0; e < b->entries; e++) {
        int32_t square = 0;
        for (uint32_t d = 0; d < WASTE_BOOK_DIM; d++) {
            int16_t v = b->entry[s][e][d];
            square += v * v;
            b->minus[s][e / WASTE_BOOK_LANES][d / 2][e % WASTE_BOOK_LANES][d % 2] = (int16_t)-v;
        }
        b->half[s][e] = square / 2;
    }
}

static void prepare_pair(struct waste_books *b, uint32_t s, uint32_t t)
{
    for (uint32_t i = 0; i < b->entries; i++) {
        int32_t *out = b->cross[s][t][i];
        const int16_t *x = b->entry[s][i];
        for (uint32_t j = 0; j < b->entries; j++) {
            const int16_t *m = &b->minus[t][j / WASTE_BOOK_LANES][0][j % WASTE_BOOK_LANES][0];
            int32_t sum = 0;
            for (uint32_t p = 0; p < 4; p++)
                sum -= x[2 * p] * m[p * 2 * WASTE_BOOK_LANES] +
                       x[2 * p + 1] * m[p * 2 * WASTE_BOOK_LANES + 1];
            out[j] = sum & ~15;
        }
    }
}

void waste_books_prepare(struct waste_books *b)
{
    for (uint32_t s = 0; s < b->stages; s++)
        prepare_stage(b, s);
    for (uint32_t s = 0; s < b->stages; s++)
        for (uint32_t t = s + 1; t < b->stages; t++)
            prepare_pair(b, s, t);
}
