/* What this machine gives at this moment: memory and disk read bandwidth, and arithmetic. */
#ifndef WASTE_CLI_PROBE_H
#define WASTE_CLI_PROBE_H

#include <stdint.h>

#include "shm/model.h"

/* Bytes a second that `threads` threads read together from memory no cache holds. 0: no memory. */
double waste_probe_memory(uint32_t threads);

/* f32 multiply-adds a second that `threads` threads do together, at the kernel level in use. */
double waste_probe_multiply_adds(uint32_t threads);

/*
 * Bytes a second of expert records read past the page cache (O_DIRECT), several at once, at random.
 * 0 if the file system does not do O_DIRECT.
 */
double waste_probe_disk(const char *dir, const struct waste_model *model);

/* Bytes of weights a token touches: the trunk but for embeddings, and its experts. */
uint64_t waste_probe_token_bytes(const struct waste_model *model);

/*
 * Multiply-adds that a prompt of that many tokens takes from an empty context on: each matrix of
 * the trunk and of top_k experts once a token, the KDA states, the pairs of positions of MLA with
 * its keys and values expanded, and lm_head for the last token only.
 */
uint64_t waste_probe_prefill_multiply_adds(const struct waste_model *model, uint64_t tokens);

#endif
