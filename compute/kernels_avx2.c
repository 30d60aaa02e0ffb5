/* AVX2, FMA and F16C. Vector-quantised products decode from codebooks in L1. */
#include "compute/simd_avx2.h"

#include "compute/kernels_tmpl.h"

#include "compute/kernels_batch.h"

#include "compute/kernels_vq_decode.h"

void waste_kernels_fill_avx2(struct waste_kernels *k)
{
    fill_tmpl(k);
    fill_batch(k);
    fill_vq_decode(k);
}
