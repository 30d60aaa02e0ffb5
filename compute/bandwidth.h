/* What memory gives: the rate at which the team reads the trunk, the bound of decoding. */
#ifndef WASTE_COMPUTE_BANDWIDTH_H
#define WASTE_COMPUTE_BANDWIDTH_H

#include <stdint.h>

#include "compute/team.h"

/*
 * Bytes a second that all workers together read from the start of `bytes`, the better of two passes
 * over WASTE_BANDWIDTH_BYTES (some 20 ms each). 0 if there are fewer: caches would answer.
 */
#define WASTE_BANDWIDTH_BYTES (UINT64_C(256) << 20)
uint64_t waste_bandwidth_measure(struct waste_team *team, const uint8_t *bytes, uint64_t count);

#endif
