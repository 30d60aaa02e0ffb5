/* NEON (aarch64). Vector-quantised products decode from codebooks in L1. */
#include "compute/simd_neon.h"

#include "compute/kernels_tmpl.h"

#include "compute/kernels_batch.h"

#include "compute/kernels_vq_decode.h"

void waste_kernels_fill_neon(struct waste_kernels *k)
{
    fill_tmpl(k);
    fill_batch(k);
    fill_vq_decode(k);
}
