/*
 * The codebooks of one kind of expert matrix (gate, up or down of a layer) while they are made and
 * used: whole numbers in steps of 1/WASTE_BOOK_UNIT of a row scale, so that every sum the coder
 * makes is exact and comes out the same on every machine, in every order.
 *
 * A row of a matrix is divided by its scale, multiplied by WASTE_BOOK_UNIT and rounded; 8 such
 * numbers are a vector x. Its code is one entry a stage; what it decodes to is their sum.
 */
#ifndef WASTE_FETCHER_BOOKS_H
#define WASTE_FETCHER_BOOKS_H

#include <stdint.h>

enum {
    WASTE_BOOK_DIM = 8,
    WASTE_BOOK_STAGES = 4,    /* at most */
    WASTE_BOOK_ENTRIES = 256, /* at most */
    WASTE_BOOK_LANES = 16,    /* entries searched side by side: a group */
    WASTE_BOOK_GROUPS = WASTE_BOOK_ENTRIES / WASTE_BOOK_LANES,
    /* |x| and every number of an entry stay at or under it: with four stages no sum of the search
     * leaves 31 bits: 4 halves of 2^26 and 10 products of 2^27 */
    WASTE_BOOK_LIMIT = 4095,
    WASTE_BOOK_UNIT = 1024, /* one row scale; a row's numbers spread by about a quarter of it */
};

struct waste_books {
    uint32_t stages, entries;
    int16_t entry[WASTE_BOOK_STAGES][WASTE_BOOK_ENTRIES][WASTE_BOOK_DIM];
    /* made of `entry` by the search (search.h), which needs them: */
    /* minus the entries, [group][pair of dimensions][lane][2] */
    _Alignas(64) int16_t minus[WASTE_BOOK_STAGES][WASTE_BOOK_GROUPS][4][WASTE_BOOK_LANES][2];
    /* half the squared length */
    _Alignas(64) int32_t half[WASTE_BOOK_STAGES][WASTE_BOOK_ENTRIES];
    /* scalar products of entries of stages s < t, low four bits 0: cross[s][t][entry s][entry t] */
    int32_t (*cross[WASTE_BOOK_STAGES][WASTE_BOOK_STAGES])[WASTE_BOOK_ENTRIES];
};

/* stages 2 to 4, entries a multiple of 16. On the heap, 64-aligned; NULL without memory. */
struct waste_books *waste_books_create(uint32_t stages, uint32_t entries);
void waste_books_destroy(struct waste_books *books);

/* What `code` stands for. */
static inline void waste_books_decode(const struct waste_books *b, const uint8_t *code,
                                      int32_t out[WASTE_BOOK_DIM])
{
    for (uint32_t d = 0; d < WASTE_BOOK_DIM; d++)
        out[d] = b->entry[0][code[0]][d];
    for (uint32_t s = 1; s < b->stages; s++)
        for (uint32_t d = 0; d < WASTE_BOOK_DIM; d++)
            out[d] += b->entry[s][code[s]][d];
}

#endif
