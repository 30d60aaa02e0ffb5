/* Rows of trunk tensors in the formats of a container, by the writer's rule. */
#ifndef WASTE_FETCHER_QUANTISE_H
#define WASTE_FETCHER_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

/*
 * One row of `cols` finite values as Q8G, Q4G or Q3G: waste_fill_row_bytes(fmt, cols) bytes of
 * payload (the last group padded with zero weights) and one f16 scale a group. Scale = largest
 * |value| of a group / 127, 7 or 3, at least 1e-8; value / scale rounded half to even; the f32
 * scale quantises, the f16 one is stored. 0, or -ERANGE if a scale doesn't fit f16.
 */
int waste_quantise_row(const float *row, uint32_t cols, uint32_t fmt, uint8_t *payload,
                       uint8_t *scales);

#endif
