/* What the checks of several files share. */
#ifndef WASTE_TESTS_KERNELS_CHECK_H
#define WASTE_TESTS_KERNELS_CHECK_H

#include "compute/kernels_int.h"
#include "tests/kernels/kernels_test.h"

extern struct waste_kernels kernels, reference; /* the level under test, and C */

void fail(const char *kernel, const char *what, uint32_t n, double value);

/* got and c within bound * size of want; size[i] as check.c says. Guards of got are checked. */
void check(const char *kernel, const float *got, const float *c, const double *want,
           const double *size, uint32_t n, double bound);

/* Guarded memory of n values, aligned to one. */
float *floats(uint32_t n);
float *gauss(uint32_t n, float scale);
double *doubles(uint32_t n);

enum kind { GAUSS, OUTLIERS, ZERO, TINY, HUGE_VALUES, KINDS };
float *activations(uint32_t n, enum kind kind);

/* check_batch.c */
void check_batch(void);

#endif
