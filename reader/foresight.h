/*
 * Which predictions are worth a read.
 *
 * A prefetch that turns out wrong is a read for nothing. So it is measured how often the router is
 * right about experts that are not in memory, by layer and rank (the router posts the likeliest
 * first), and there is an account in reads: GAIN for each read that demand would have needed
 * without prefetching (ghost.h), less all reads beyond those. A prefetch whose outcome is open
 * counts with its risk: the share that its rank usually loses. One is allowed while its risk is
 * small beside what is in the account: a full one lets unlikely predictions through, a nearly empty
 * one only sure ones. So prefetching never reads more than a few percent more than no prefetching
 * would, at any cache size and however wrong the router is.
 *
 * Pure arithmetic: no I/O, no shared memory, no clock. One thread.
 */
#ifndef WASTE_READER_FORESIGHT_H
#define WASTE_READER_FORESIGHT_H

#include <stdbool.h>
#include <stdint.h>

enum { WASTE_FORESIGHT_RANKS = 64 }; /* later ones count as the last */

struct waste_foresight_rate {
    float right, all; /* fading counts */
};

/* The newest prediction for a layer, until the layer's demand comes. */
struct waste_foresight_layer {
    uint64_t step;
    uint32_t count;
    uint32_t expert[WASTE_FORESIGHT_RANKS];
    bool absent[WASTE_FORESIGHT_RANKS]; /* not in memory when it was predicted */
    struct waste_foresight_rate rate[WASTE_FORESIGHT_RANKS]; /* of the absent ones */
};

struct waste_foresight {
    uint32_t layers;
    struct waste_foresight_layer *layer;                     /* [layers] */
    struct waste_foresight_rate rate[WASTE_FORESIGHT_RANKS]; /* absent ones, all layers */
    uint64_t needed;                                         /* reads without prefetching */
    uint64_t reads; /* of demand and of prefetches whose outcome is known */
    double at_risk; /* of prefetches whose outcome is open */
};

/* 0 or -ENOMEM. */
int waste_foresight_init(struct waste_foresight *f, uint32_t layers);
void waste_foresight_finish(struct waste_foresight *f);

/* A prediction begins; then, best first, each expert of it. */
void waste_foresight_predict(struct waste_foresight *f, uint64_t step, uint32_t layer);
void waste_foresight_add(struct waste_foresight *f, uint32_t layer, uint32_t expert, bool absent);

/* The layer's demand. right[rank] = 1 or 0 for each predicted rank; returns how many there are: 0
 * if there was no prediction for this (step, layer). */
uint32_t waste_foresight_judge(struct waste_foresight *f, uint64_t step, uint32_t layer,
                               const uint32_t *expert, uint32_t count,
                               uint8_t right[WASTE_FORESIGHT_RANKS]);

/* How likely a prediction of this rank that is not in memory is wrong. */
float waste_foresight_risk(const struct waste_foresight *f, uint32_t layer, uint32_t rank);

/* May a prefetch of this risk be read? If it is, open() it. */
bool waste_foresight_allows(const struct waste_foresight *f, float risk);
void waste_foresight_open(struct waste_foresight *f, float risk);

/* Its end: it was read, demanded or not; it was never read. */
void waste_foresight_close(struct waste_foresight *f, float risk, bool read);

/* So many reads for demand; so many there would have been without prefetching, in all. */
void waste_foresight_count(struct waste_foresight *f, uint32_t reads, uint64_t needed);

#endif
