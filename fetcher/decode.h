/*
 * A container's weights as f32, written from the format's description alone: it shares nothing with
 * the encoder or the kernels, so that verify does not repeat their mistakes. Nothing is checked
 * here.
 */
#ifndef WASTE_FETCHER_DECODE_H
#define WASTE_FETCHER_DECODE_H

#include <stdint.h>

#include "fetcher/index.h"
#include "reader/container.h"

/* A value of a codebook's entry, two bytes: f16, subnormals read as zero. */
float waste_decode_entry(const uint8_t *value);

/* One row of a trunk tensor: out[cols]. Its payload and its scales (f16). */
void waste_decode_row(const struct waste_index_entry *e, const uint8_t *payload,
                      const uint8_t *scales, float *out);

/* Rows [64 * block, + n) of an expert's matrix: out[n][cols]. `books` are the matrix's, f32
 * [stages][entries][8]; `index` and `scales` the matrix's in its record. */
void waste_decode_block(const struct waste_expert_format *x, const float *books,
                        const uint8_t *index, const uint8_t *scales, uint32_t block, uint32_t n,
                        uint32_t cols, float *out);

#endif
