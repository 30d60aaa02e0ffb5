/* The trunk formats read in plain C. */
#ifndef WASTE_COMPUTE_KERNELS_UNPACK_C_H
#define WASTE_COMPUTE_KERNELS_UNPACK_C_H

#include "compute/kernels_int.h"

enum {
    Q8G_BYTES = WASTE_GROUP,
    Q4G_BYTES = WASTE_GROUP / 2,
    Q3G_BYTES = WASTE_GROUP * 3 / 8,
};

/* The integers of one group of 128 as floats. */
static inline void unpack_q8g(float *v, const uint8_t *group)
{
    for (uint32_t i = 0; i < WASTE_GROUP; i++)
        v[i] = (float)(int8_t)group[i];
}

static inline void unpack_q4g(float *v, const uint8_t *group)
{
    for (uint32_t i = 0; i < Q4G_BYTES; i++) {
        v[2 * i] = (float)((group[i] & 15) - 8);
        v[2 * i + 1] = (float)((group[i] >> 4) - 8);
    }
}

static inline void unpack_q3g(float *v, const uint8_t *group)
{
    for (uint32_t i = 0; i < WASTE_GROUP; i += 8) {
        const uint8_t *p = group + i / 8 * 3;
        uint32_t bits = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
        for (uint32_t j = 0; j < 8; j++)
            v[i + j] = (float)((int)(bits >> 3 * j & 7) - 4);
    }
}

#endif
