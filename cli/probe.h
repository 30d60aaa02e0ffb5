/* What this machine gives at this moment: memory read bandwidth and disk read bandwidth. */
#ifndef WASTE_CLI_PROBE_H
#define WASTE_CLI_PROBE_H

#include <stdint.h>

#include "shm/model.h"

/* Bytes a second that `threads` threads read together from memory no cache holds. 0: no memory. */
double waste_probe_memory(uint32_t threads);

/*
 * Bytes a second of expert records read past the page cache (O_DIRECT), several at once, at random.
 * 0 if the file system does not do O_DIRECT.
 */
double waste_probe_disk(const char *dir, const struct waste_model *model);

/* Bytes of weights a token touches: the trunk but for embeddings, and its experts. */
uint64_t waste_probe_token_bytes(const struct waste_model *model);

#endif
