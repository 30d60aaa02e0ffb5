/* The fixed parts of what a container's writer makes: headers of expert records and codebooks. */
#ifndef WASTE_FETCHER_RECORD_H
#define WASTE_FETCHER_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "fetcher/plan.h"

static inline void waste_put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void waste_put32(uint8_t *p, uint32_t v)
{
    waste_put16(p, v);
    waste_put16(p + 2, v >> 16);
}

/* rec: record_bytes of the plan, indices and scales in place. Writes the header, the zeros behind
 * the scales and the checksum. */
void waste_record_finish(uint8_t *rec, const struct waste_plan *plan,
                         const struct waste_shape *shape, uint32_t layer, uint32_t expert);

/* The first of a layer's 3 x stages books. */
uint32_t waste_record_first_book(const struct waste_plan *plan, const struct waste_shape *shape,
                                 uint32_t layer);

/* Bytes of a book; its 16 bytes of header. The entries, f16, follow. */
size_t waste_book_bytes(const struct waste_plan *plan);
void waste_book_header(uint8_t header[16], const struct waste_plan *plan,
                       const struct waste_shape *shape, uint32_t book);

/* "experts-L3.bin" */
void waste_bank_name(char out[32], uint32_t layer);

#endif
