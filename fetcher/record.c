#include "fetcher/record.h"

#include <libdeflate.h>
#include <stdio.h>
#include <string.h>

#include "reader/container.h"

enum { PAGE = 4096, HEADER = 48 };

uint32_t waste_record_first_book(const struct waste_plan *p, const struct waste_shape *s,
                                 uint32_t layer)
{
    return (layer - s->dense_layers) * 3 * p->stages;
}

void waste_record_finish(uint8_t *rec, const struct waste_plan *p, const struct waste_shape *s,
                         uint32_t layer, uint32_t expert)
{
    memset(rec, 0, HEADER);
    memset(rec + p->crc_end, 0, p->record_bytes - p->crc_end);
    waste_put32(rec, WASTE_RECORD_MAGIC);
    waste_put16(rec + 4, layer);
    waste_put16(rec + 6, expert);
    rec[8] = (uint8_t)s->expert_fmt;
    waste_put16(rec + 10, waste_record_first_book(p, s, layer));
    waste_put32(rec + 16, p->record_bytes / PAGE);
    waste_put32(rec + 20, p->gate_off);
    waste_put32(rec + 24, p->up_off);
    waste_put32(rec + 28, p->down_off);
    waste_put32(rec + 32, p->scale_off);
    waste_put32(rec + 36, libdeflate_crc32(0, rec + HEADER, p->crc_end - HEADER));
}

size_t waste_book_bytes(const struct waste_plan *p)
{
    return 16 + (size_t)p->entries * 16;
}

void waste_book_header(uint8_t header[16], const struct waste_plan *p, const struct waste_shape *s,
                       uint32_t book)
{
    memset(header, 0, 16);
    waste_put32(header, WASTE_CODEBOOK_MAGIC);
    waste_put16(header + 4, book);
    header[6] = (uint8_t)s->expert_fmt;
    header[7] = 8;
    waste_put32(header + 8, p->entries);
}

void waste_bank_name(char out[32], uint32_t layer)
{
    snprintf(out, 32, "experts-L%u.bin", layer);
}
