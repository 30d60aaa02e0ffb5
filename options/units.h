/*
 * Numbers people write and read: sizes with units, lists of CPUs.
 *
 * Parsers return 0 or -EINVAL (malformed), -ERANGE (does not fit); out-parameters are untouched on
 * failure.
 */
#ifndef WASTE_OPTIONS_UNITS_H
#define WASTE_OPTIONS_UNITS_H

#include <stddef.h>
#include <stdint.h>

/* "46G", "512M", "1.5GiB", "4096", "64k": units are powers of 1024, case does not matter. */
int waste_units_parse_size(const char *text, uint64_t *out);

/* Whole decimal numbers; no sign, no blanks. */
int waste_units_parse_u64(const char *text, uint64_t *out);

/* A finite decimal number. */
int waste_units_parse_float(const char *text, double *out);

/* "0-3,8,10-11" into a mask of `words` 64-bit words. */
int waste_units_parse_cpus(const char *text, uint64_t *mask, size_t words);

/* "1.5 GiB", "12 KiB", "900 B". At least 24 bytes of room. Returns buf. */
char *waste_units_format_size(uint64_t bytes, char *buf, size_t room);

#endif
