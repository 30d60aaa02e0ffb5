/*
 * Random weights, the same on every machine: what a byte is depends on the seed and on where it
 * stands (tensor name and row, or layer and expert), never on threads or compilers. Integers only,
 * but for one IEEE multiplication where a float is written.
 */
#ifndef WASTE_FETCHER_FILL_H
#define WASTE_FETCHER_FILL_H

#include <stddef.h>
#include <stdint.h>

/* splitmix64 as a counter: word i of stream `key` is waste_mix(key + (i + 1) * WASTE_GOLDEN). */
#define WASTE_GOLDEN UINT64_C(0x9e3779b97f4a7c15)
static inline uint64_t waste_mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* The key of a stream: (seed, name, n). */
uint64_t waste_fill_key(uint64_t seed, const char *name, uint64_t n);

/* Nearest half, ties to even; too large: the largest finite one. */
uint16_t waste_half_of(float f);

/* n random bytes. dst is 8-aligned. */
void waste_fill_bytes(uint8_t *dst, size_t n, uint64_t key);

/* One row of a quantised tensor of `cols` columns, padding as a writer leaves it (zero weights).
 * `fmt` Q8G, Q4G or Q3G; dst has waste_fill_row_bytes(fmt, cols) bytes, any alignment. */
void waste_fill_row(uint8_t *dst, uint32_t fmt, uint32_t cols, uint64_t key);
size_t waste_fill_row_bytes(uint32_t fmt, uint32_t cols);

/* Standard deviation of the integers waste_fill_row draws. */
double waste_fill_row_deviation(uint32_t fmt);

/* n halves around `scale`: scale * (0.75 .. 1.25). dst any alignment. */
void waste_fill_scales(uint8_t *dst, size_t n, double scale, uint64_t key);

/* n floats, uniform in [low, high). */
void waste_fill_floats(float *dst, size_t n, double low, double high, uint64_t key);

/* One codebook: entries x 8 halves uniform in (-amplitude, amplitude), entry i = -entry[last - i],
 * so that weights are centred exactly. `entries` is even. */
void waste_fill_codebook(uint16_t *dst, uint32_t entries, double amplitude, uint64_t key);

#endif
