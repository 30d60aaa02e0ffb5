/* Random values in the types of a release: see checkpoint.h. The same on every machine, as fill.h.
 */
#ifndef WASTE_FETCHER_SOURCE_H
#define WASTE_FETCHER_SOURCE_H

#include <stddef.h>
#include <stdint.h>

/* Types of safetensors that a release has. */
enum waste_dtype { WASTE_DTYPE_BF16, WASTE_DTYPE_F16, WASTE_DTYPE_F32, WASTE_DTYPE_U8 };

/* "BF16", ...; bytes of one value. */
const char *waste_dtype_name(enum waste_dtype type);
size_t waste_dtype_bytes(enum waste_dtype type);

/* n values (a multiple of nothing) with a standard deviation of `deviation`; dst any alignment.
 * BF16, F16 or F32. */
void waste_source_matrix(uint8_t *dst, enum waste_dtype type, size_t n, double deviation,
                         uint64_t key);

/* n values, uniform in [low, high). BF16, F16 or F32. */
void waste_source_vector(uint8_t *dst, enum waste_dtype type, size_t n, double low, double high,
                         uint64_t key);

/* One row of MXFP4 scales: n exponents (E8M0) that give E2M1 values drawn by waste_fill_bytes a
 * standard deviation near `deviation`. */
void waste_source_exponents(uint8_t *dst, size_t n, double deviation, uint64_t key);

#endif
