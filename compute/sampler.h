/*
 * From logits to a token. There is no sampler state: the random number of log index i is a hash of
 * (seed, i), so a step that is done again draws the same token.
 */
#ifndef WASTE_COMPUTE_SAMPLER_H
#define WASTE_COMPUTE_SAMPLER_H

#include <stdint.h>

#include "compute/kernels.h"

struct waste_sampling {
    float temperature; /* 0 = greedy */
    float top_p;       /* of what top_k left; 1 = off */
    uint32_t top_k;    /* 0 = off */
    uint64_t seed;
};

/* Scratch of a vocabulary's size. */
struct waste_sampler {
    float *share;    /* [vocab] */
    uint32_t *order; /* [vocab] */
    uint32_t vocab;
};

/* 0 or -ENOMEM. */
int waste_sampler_init(struct waste_sampler *s, uint32_t vocab);
void waste_sampler_finish(struct waste_sampler *s);

/* Index of the first logit that is no finite number, or vocab. */
uint32_t waste_sampler_first_bad(const float *logits, uint32_t vocab);

/*
 * The token for log index `index`. Logits are finite, temperature finite and >= 0, 0 < top_p <= 1.
 * Greedy takes the largest logit, the lowest id on a tie. Else p = softmax(logits / temperature),
 * cut to the top_k likeliest, then to the fewest of those that reach top_p of their sum (at least
 * one); equal shares rank by id.
 */
uint32_t waste_sampler_draw(struct waste_sampler *s, const struct waste_kernels *k,
                            const float *logits, const struct waste_sampling *how, uint64_t index);

/* The draw's number in [0, 1). */
double waste_sampler_random(uint64_t seed, uint64_t index);

#endif
