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
