/* AVX-512 F, BW, DQ and VL. Vector-quantised products stay at the level below: decoding is bound by
 * its 32-byte loads. */
#include "compute/simd_avx512.h"

#include "compute/kernels_tmpl.h"

#include "compute/kernels_batch.h"

#include "compute/kernels_adders.h"

void waste_kernels_fill_avx512(struct waste_kernels *k)
{
    fill_tmpl(k);
    fill_batch(k);
}

void waste_kernels_fill_zen4(struct waste_kernels *k)
{
    fill_adders(k);
}
