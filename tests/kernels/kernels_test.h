/*
 * Shared by the check and the bench of compute/kernels.h: random data, memory with guards, models
 * of the formats in double precision. No test framework, so that it also builds alone for another
 * CPU.
 */
#ifndef WASTE_TESTS_KERNELS_TEST_H
#define WASTE_TESTS_KERNELS_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/kernels.h"

/* xorshift64*; all data of a run comes from one seed. */
void test_seed(uint64_t seed);
uint64_t test_random(void);
uint32_t test_below(uint32_t limit);
float test_gauss(void);
void test_fill_bytes(void *p, size_t bytes);

uint16_t test_float_to_half(float f); /* truncating; for making scales */
double test_half_to_double(uint16_t h);

/*
 * Memory whose end (rounded up to `align`) touches an unmapped page, with a filled margin before
 * it: reading or writing past the end is a crash, writing before it is found by test_guard_ok.
 */
void *test_alloc(size_t bytes, size_t align);
bool test_guard_ok(const void *p);
void test_free_all(void);

/* A random matrix of a trunk format; 64 readable bytes follow, as the trunk segment promises. */
struct waste_matrix test_matrix(uint32_t fmt, uint32_t rows, uint32_t cols);
double test_matrix_at(const struct waste_matrix *w, uint32_t r, uint32_t c);

/* A random vector-quantised matrix with its books. */
struct test_vq {
    uint32_t fmt, rows, positions, stages, entries, index_bytes;
    float *books;
    uint8_t *index;
    uint8_t *scales; /* f16, one byte off alignment */
};
struct test_vq test_vq(uint32_t fmt, uint32_t rows, uint32_t positions);
double test_vq_at(const struct test_vq *m, uint32_t r, uint32_t c); /* without the row's scale */
double test_vq_scale(const struct test_vq *m, uint32_t r);

const char *test_fmt_name(uint32_t fmt);

double test_now(void); /* seconds of this thread's CPU time */

/* bench.c; 0 or 1 for main. `only`: cases whose name contains it, NULL = all. */
int test_bench(const char *level, bool json, const char *only);

/* bench_batch.c: products of many tokens, one core. */
void test_bench_batch(const struct waste_kernels *k, double clock_hz, bool json, const char *only);

#endif
