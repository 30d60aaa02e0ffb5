#include "fetcher/quantise.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "fetcher/fill.h"
#include "fetcher/record.h"
#include "shm/model.h"

/* f32 of this size have no fraction: adding and taking it away rounds half to even, in a vector
 * too. */
#define ROUND 12582912.0f

static void pack(const int8_t *q, uint32_t fmt, uint8_t *out)
{
    if (fmt == WASTE_FMT_Q8G) {
        memcpy(out, q, WASTE_GROUP);
    } else if (fmt == WASTE_FMT_Q4G) {
        for (uint32_t i = 0; i < WASTE_GROUP; i += 2)
            *out++ = (uint8_t)((q[i] + 8) | (q[i + 1] + 8) << 4);
    } else {
        for (uint32_t i = 0; i < WASTE_GROUP; i += 8) {
            uint32_t bits = 0;
            for (uint32_t k = 0; k < 8; k++)
                bits |= (uint32_t)(q[i + k] + 4) << 3 * k;
            *out++ = (uint8_t)bits;
            *out++ = (uint8_t)(bits >> 8);
            *out++ = (uint8_t)(bits >> 16);
        }
    }
}

int waste_quantise_row(const float *row, uint32_t cols, uint32_t fmt, uint8_t *payload,
                       uint8_t *scales)
{
    const float most = fmt == WASTE_FMT_Q8G ? 127 : fmt == WASTE_FMT_Q4G ? 7 : 3;
    size_t step = waste_fill_row_bytes(fmt, WASTE_GROUP) - (fmt == WASTE_FMT_Q3G);
    if (fmt == WASTE_FMT_Q3G)
        payload[waste_fill_row_bytes(fmt, cols) - 1] = 0; /* the guard, one a row */
    for (uint32_t c = 0; c < cols; c += WASTE_GROUP, payload += step, scales += 2) {
        uint32_t n = cols - c < WASTE_GROUP ? cols - c : WASTE_GROUP;
        int8_t q[WASTE_GROUP] = {0};
        float largest = 0;
        for (uint32_t i = 0; i < n; i++)
            largest = fmaxf(largest, fabsf(row[c + i]));
        float scale = fmaxf(largest / most, 1e-8f);
        if (scale >= 65520)
            return -ERANGE;
        for (uint32_t i = 0; i < n; i++)
            q[i] = (int8_t)(int32_t)(row[c + i] / scale + ROUND - ROUND);
        pack(q, fmt, payload);
        waste_put16(scales, waste_half_of(scale));
    }
    return 0;
}
