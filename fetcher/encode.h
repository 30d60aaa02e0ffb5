/* Rows of an expert matrix to codes and a scale a row. */
#ifndef WASTE_FETCHER_ENCODE_H
#define WASTE_FETCHER_ENCODE_H

#include <stdint.h>

#include "fetcher/books.h"
#include "fetcher/search.h"

struct waste_encoder {
    const struct waste_search *search;
    uint32_t width;  /* of the search */
    uint32_t passes; /* a row is coded that often, each time with the scale fitted last */
};

/* The f16 scale a row is first divided by: what puts its root mean square at a quarter of a unit.
 * May be infinite (0x7c00) if the row is too large for the format. */
uint16_t waste_encode_scale(const float *row, uint32_t cols);

/* row / scale in steps of 1/WASTE_BOOK_UNIT, clamped to WASTE_BOOK_LIMIT. scale 0 gives zeros. */
void waste_encode_normalise(const float *row, uint32_t cols, uint16_t scale,
                            int16_t (*x)[WASTE_BOOK_DIM]);

/*
 * Codes of a row of `cols` weights (a multiple of 8, at most WASTE_ENCODE_COLS) and its f16 scale,
 * fitted to them. Adds the squared error and the squared length of the row to error[0] and
 * error[1]. 0, or -ERANGE if the scale doesn't fit f16. x and code: scratch and result, cols / 8.
 */
int waste_encode_row(const struct waste_encoder *how, const struct waste_books *books,
                     const float *row, uint32_t cols, int16_t (*x)[WASTE_BOOK_DIM],
                     uint8_t (*code)[WASTE_BOOK_STAGES], uint8_t (*try)[WASTE_BOOK_STAGES],
                     uint16_t *scale, double error[2]);

#endif
