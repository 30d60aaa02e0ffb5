#include "fetcher/decode.h"

#include <math.h>
#include <string.h>

#include "compute/kernels.h"
#include "reader/container_int.h"

enum { BLOCK = 64, DIM = WASTE_VEC_DIM };

static float half_at(const uint8_t *p)
{
    return waste_half_to_float((uint16_t)(p[0] | p[1] << 8));
}

float waste_decode_entry(const uint8_t *value)
{
    float f = half_at(value);

    return fabsf(f) < 0x1p-14f ? 0 : f;
}

void waste_decode_row(const struct waste_index_entry *e, const uint8_t *payload,
                      const uint8_t *scales, float *out)
{
    for (uint64_t c = 0; c < e->cols; c++) {
        int q;
        if (e->fmt == WASTE_FMT_F32) {
            memcpy(&out[c], payload + 4 * c, 4);
            continue;
        }
        if (e->fmt == WASTE_FMT_Q8G)
            q = (int8_t)payload[c];
        else if (e->fmt == WASTE_FMT_Q4G)
            q = (payload[c / 2] >> (c % 2 ? 4 : 0) & 15) - 8;
        else
            q = ((payload[3 * c / 8] | payload[3 * c / 8 + 1] << 8) >> 3 * c % 8 & 7) - 4;
        out[c] = half_at(scales + c / WASTE_GROUP * 2) * (float)q;
    }
}

/* The codes of one row and position. */
static void codes(const struct waste_expert_format *x, const uint8_t *b, uint32_t code[4])
{
    if (x->index_bits == 6) {
        code[0] = b[0] & 63;
        code[1] = b[0] >> 6 | (b[1] & 15) << 2;
        code[2] = b[1] >> 4 | (b[2] & 3) << 4;
        code[3] = b[2] >> 2;
        return;
    }
    for (uint32_t s = 0; s < x->stages; s++)
        code[s] = b[s];
}

void waste_decode_block(const struct waste_expert_format *x, const float *books,
                        const uint8_t *index, const uint8_t *scales, uint32_t block, uint32_t n,
                        uint32_t cols, float *out)
{
    uint32_t positions = cols / DIM, code[4];
    const uint8_t *at = index + (size_t)block * positions * BLOCK * x->index_bytes;
    for (uint32_t p = 0; p < positions; p++)
        for (uint32_t r = 0; r < n; r++) {
            float *to = out + (size_t)r * cols + p * DIM;
            float scale = half_at(scales + 2 * ((size_t)block * BLOCK + r)), sum[DIM] = {0};
            codes(x, at + ((size_t)p * BLOCK + r) * x->index_bytes, code);
            for (uint32_t s = 0; s < x->stages; s++) {
                const float *entry = books + ((size_t)s * x->entries + code[s]) * DIM;
                for (int d = 0; d < DIM; d++)
                    sum[d] += entry[d];
            }
            for (int d = 0; d < DIM; d++)
                to[d] = sum[d] * scale;
        }
}
