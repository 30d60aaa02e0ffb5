/*
 * The search for a vector's code, behind one table: C, then what the CPU has and WASTE_CPU leaves
 * on (compute/kernels.h knows which). Whole numbers only: every level gives the same codes.
 *
 * A beam over the stages. With s the sum of the entries so far, half the error of adding c is what
 * it was + |c|^2 / 2 - x . c + s . c: x . c is computed once a vector for all entries, s . c comes
 * from tables (books->cross). A group of 16 entries is searched side by side and each of
 * the 16 lanes keeps its own best, which is the beam: candidates never have to be sorted.
 */
#ifndef WASTE_FETCHER_SEARCH_H
#define WASTE_FETCHER_SEARCH_H

#include <stdint.h>

#include "fetcher/books.h"

struct waste_search {
    const char *level;

    /* code[i][stage] for x[i], i < n; stages the books don't have get 0. width: candidates kept
     * between stages, 1, 2, 4, 8 or 16. |x| <= WASTE_BOOK_LIMIT. */
    void (*code)(const struct waste_books *books, const int16_t (*x)[WASTE_BOOK_DIM], uint32_t n,
                 uint32_t width, uint8_t (*code)[WASTE_BOOK_STAGES]);

    /* Nearest entry of one stage; |x| <= 4 WASTE_BOOK_LIMIT. */
    void (*nearest)(const struct waste_books *books, uint32_t stage,
                    const int16_t (*x)[WASTE_BOOK_DIM], uint32_t n, uint8_t *entry);

    /* Fills books->cross, half and minus from `entry`. */
    void (*prepare)(struct waste_books *books);

    /* sum[d] -= weight[k] * center[k][d] over k < n, n a multiple of 16; four partial sums, of
     * every fourth k, in double precision without fused operations: the same at every level. */
    void (*subtract)(double sum[WASTE_BOOK_DIM], const double *weight,
                     const double (*center)[WASTE_BOOK_DIM], uint32_t n);
};

/* By WASTE_CPU. 0, or -1 with the reason printed. */
int waste_search_init(struct waste_search *search);

/* The table of a level that may be above what this CPU has; NULL if it isn't built. For tests. */
const struct waste_search *waste_search_level(const char *level);

#endif
