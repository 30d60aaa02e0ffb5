#include "fetcher/encode.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "compute/kernels.h"
#include "fetcher/fill.h"

enum { DIM = WASTE_BOOK_DIM };
#define ROUND 12582912.0f /* added and taken away, it rounds half to even */

enum { HALF_INFINITY = 0x7c00, HALF_MAX = 0x7bff };

static uint16_t half_of(double v)
{
    return v < 65520 ? waste_half_of((float)v) : HALF_INFINITY;
}

uint16_t waste_encode_scale(const float *row, uint32_t cols)
{
    double sum[DIM] = {0};
    for (uint32_t c = 0; c < cols; c += DIM)
        for (uint32_t d = 0; d < DIM; d++)
            sum[d] += (double)row[c + d] * row[c + d];
    double all = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    return half_of(4 * sqrt(all / cols));
}

void waste_encode_normalise(const float *row, uint32_t cols, uint16_t scale, int16_t (*x)[DIM])
{
    const float limit = WASTE_BOOK_LIMIT;
    float s = waste_half_to_float(scale), inverse = scale ? WASTE_BOOK_UNIT / s : 0;
    int16_t *out = &x[0][0];
    for (uint32_t c = 0; c < cols; c++) {
        float v = row[c] * inverse;
        v = v > limit ? limit : v < -limit ? -limit : v;
        out[c] = (int16_t)(int32_t)(v + ROUND - ROUND);
    }
}

/* With these codes the best scale is scale * <x, q> / <q, q>; past f16's end, that end. */
static double fit(const struct waste_books *books, const int16_t (*x)[DIM],
                  const uint8_t (*code)[WASTE_BOOK_STAGES], uint32_t vectors)
{
    int64_t xq = 0, qq = 0;
    for (uint32_t i = 0; i < vectors; i++) {
        int32_t q[DIM];
        waste_books_decode(books, code[i], q);
        for (uint32_t d = 0; d < DIM; d++) {
            xq += (int64_t)x[i][d] * q[d];
            qq += (int64_t)q[d] * q[d];
        }
    }
    return xq > 0 && qq > 0 ? (double)xq / (double)qq : 0;
}

static double error_of(const struct waste_books *books, const float *row, uint32_t cols,
                       uint16_t scale, const uint8_t (*code)[WASTE_BOOK_STAGES])
{
    double sum[DIM] = {0}, s = (double)waste_half_to_float(scale) / WASTE_BOOK_UNIT;
    for (uint32_t c = 0; c < cols; c += DIM) {
        int32_t q[DIM];
        waste_books_decode(books, code[c / DIM], q);
        for (uint32_t d = 0; d < DIM; d++) {
            double e = row[c + d] - s * q[d];
            sum[d] += e * e;
        }
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

int waste_encode_row(const struct waste_encoder *how, const struct waste_books *books,
                     const float *row, uint32_t cols, int16_t (*x)[DIM],
                     uint8_t (*code)[WASTE_BOOK_STAGES], uint8_t (*try)[WASTE_BOOK_STAGES],
                     uint16_t *scale, double error[2])
{
    uint32_t vectors = cols / DIM;
    uint16_t now = waste_encode_scale(row, cols);
    double best = INFINITY;
    for (uint32_t pass = 0; pass < how->passes; pass++) {
        if (now == HALF_INFINITY)
            return -ERANGE;
        waste_encode_normalise(row, cols, now, x);
        how->search->code(books, (const int16_t(*)[DIM])x, vectors, how->width, try);
        uint16_t next = half_of((double)waste_half_to_float(now) *
                                fit(books, (const int16_t(*)[DIM])x,
                                    (const uint8_t(*)[WASTE_BOOK_STAGES])try, vectors));
        next = next < HALF_MAX ? next : HALF_MAX;
        double e = error_of(books, row, cols, next, (const uint8_t(*)[WASTE_BOOK_STAGES])try);
        if (e < best) {
            best = e;
            *scale = next;
            memcpy(code, try, vectors * sizeof(*code));
        }
        if (next == now)
            break;
        now = next;
    }
    double length = 0;
    for (uint32_t c = 0; c < cols; c++)
        length += (double)row[c] * row[c];
    error[0] += best;
    error[1] += length;
    return 0;
}
