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

#include "shm/control.h"

enum { WASTE_FORESIGHT_RANKS = 64 }; /* later ones count as the last */

struct waste_foresight_rate {
    float right, all; /* fading counts */
};

struct waste_foresight_mean {
    float value;
    bool known;
};

/* The newest prediction for a layer from one outlook, until the layer's demand comes. */
struct waste_foresight_guess {
    uint64_t step;
    uint32_t count;
    uint32_t expert[WASTE_FORESIGHT_RANKS];
    bool absent[WASTE_FORESIGHT_RANKS]; /* not in memory when it was predicted */
    struct waste_foresight_rate rate[WASTE_FORESIGHT_RANKS]; /* of the absent ones */
};

struct waste_foresight {
    uint32_t layers;
    struct waste_foresight_guess *guess; /* [layers][WASTE_OUTLOOK_COUNT] */
    /* absent ones, all layers */
    struct waste_foresight_rate rate[WASTE_OUTLOOK_COUNT][WASTE_FORESIGHT_RANKS];
    enum waste_outlook *newest;          /* [layers] of the newest prediction */
    struct waste_foresight_mean *window; /* [layers][WASTE_OUTLOOK_COUNT] ns */
    struct waste_foresight_mean read;    /* ns a record */
    uint64_t needed;                     /* reads without prefetching */
    uint64_t reads;                      /* of demand and of prefetches whose outcome is known */
    double at_risk;                      /* of prefetches whose outcome is open */
};

/* 0 or -ENOMEM. */
int waste_foresight_init(struct waste_foresight *f, uint32_t layers);
void waste_foresight_finish(struct waste_foresight *f);

/* A prediction begins; then, best first, each expert of it. */
void waste_foresight_predict(struct waste_foresight *f, uint32_t layer, enum waste_outlook outlook,
                             uint64_t step);
void waste_foresight_add(struct waste_foresight *f, uint32_t layer, enum waste_outlook outlook,
                         uint32_t expert, bool absent);

/* The layer's demand. right[rank] = 1 or 0 for each rank predicted from this outlook; returns how
 * many there are: 0 if there was no prediction for this (step, layer). */
uint32_t waste_foresight_judge(struct waste_foresight *f, uint32_t layer,
                               enum waste_outlook outlook, const struct waste_want *demand,
                               uint8_t right[WASTE_FORESIGHT_RANKS]);

/* The expert of this rank in the newest prediction; UINT32_MAX if there is none. */
uint32_t waste_foresight_expert(const struct waste_foresight *f, uint32_t layer,
                                enum waste_outlook outlook, uint32_t rank);

/* How likely a prediction of this rank that is not in memory is wrong. */
float waste_foresight_risk(const struct waste_foresight *f, uint32_t layer,
                           enum waste_outlook outlook, uint32_t rank);

/* May a prefetch of this risk be read? If it is, open() it. */
bool waste_foresight_allows(const struct waste_foresight *f, float risk);
void waste_foresight_open(struct waste_foresight *f, float risk);

/* Its end: it was read, demanded or not; it was never read. */
void waste_foresight_close(struct waste_foresight *f, float risk, bool read);

/* So many reads for demand; so many there would have been without prefetching, in all. */
void waste_foresight_count(struct waste_foresight *f, uint32_t reads, uint64_t needed);

/*
 * The width. A prediction has until the next one for its layer, which knows better, or the layer's
 * demand; what is read of it should fit into the part of that in which the drive has no demand to
 * read. window(): that part was ns long, by the time of the next prediction for the layer (before
 * predict()) or its demand (before judge()). read_took(): with the drives busy all the time, the read
 * of a record ended ns after another's.
 */
void waste_foresight_window(struct waste_foresight *f, uint32_t layer, uint64_t step, uint64_t ns);
void waste_foresight_read_took(struct waste_foresight *f, uint64_t ns);

/* Reads that fit, one that fits in part included. UINT32_MAX: not known yet. */
uint32_t waste_foresight_width(const struct waste_foresight *f, uint32_t layer,
                               enum waste_outlook outlook);

#endif
