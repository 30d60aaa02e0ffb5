/*
 * Does something pay that is done or left out from step to step? It is tried: blocks of steps with
 * it and without it take turns, then the faster way is kept for a while, and it is tried again.
 * Compared are medians, so that a step which something else held up decides nothing, and what is on
 * trial stays unless it is clearly slower. One thread.
 */
#ifndef WASTE_COMPUTE_TRIAL_H
#define WASTE_COMPUTE_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    WASTE_TRIAL_BLOCK = 8, /* steps */
    WASTE_TRIAL_PAIRS = 4, /* blocks with it, and as many without */
    WASTE_TRIAL_STEPS = 2 * WASTE_TRIAL_PAIRS * WASTE_TRIAL_BLOCK,
    WASTE_TRIAL_KEEP = 400, /* steps until the next trial */
    WASTE_TRIAL_SAMPLES = WASTE_TRIAL_STEPS / 2,
};

/* All zero: a trial begins. */
struct waste_trial {
    uint32_t step;                      /* of the trial, or of what comes after it */
    bool over, worse;                   /* the trial; what it showed */
    int64_t ns[2][WASTE_TRIAL_SAMPLES]; /* with it, without it */
};

/* Is the next step with it? */
bool waste_trial_on(const struct waste_trial *t);

/* That step took ns. Returns true if a trial ended with it. */
bool waste_trial_step(struct waste_trial *t, int64_t ns);

/* The medians of the last trial, [0] with it. After waste_trial_step() returned true. */
void waste_trial_medians(const struct waste_trial *t, int64_t ns[2]);

#endif
