/* AVX-512 with VBMI and VNNI. */
#include "compute/kernels_int.h"

void waste_kernels_fill_vnni(struct waste_kernels *k)
{
    waste_kernels_fill_vq_vbmi(k);
}
