/*
 * Does something pay that is done or left out from step to step? It is tried: blocks of steps with
 * it and without it take turns until it is clear, then the faster way is kept for a while, and it
 * is tried again: each time it shows the same, it is kept twice as long. Compared are medians, so
 * that a step which something else held up decides nothing; how far apart they have to be is the
 * less, the more there was to see, and after all pairs the faster way is kept, however little it
 * is. One thread.
 */
#ifndef WASTE_COMPUTE_TRIAL_H
#define WASTE_COMPUTE_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    WASTE_TRIAL_FIRST =
        8, /* steps with it before the first trial: the first ones of all are slow */
    WASTE_TRIAL_BLOCK = 4,       /* steps */
    WASTE_TRIAL_PAIRS_LEAST = 2, /* blocks with it, and as many without */
    WASTE_TRIAL_PAIRS = 8,       /* at most */
    WASTE_TRIAL_KEEP = 400,      /* steps until the next trial, the first time */
    WASTE_TRIAL_KEEP_MOST = 3200,
    WASTE_TRIAL_SAMPLES = WASTE_TRIAL_PAIRS * WASTE_TRIAL_BLOCK,
};

/* All zero: the beginning. */
struct waste_trial {
    uint32_t step;                      /* of the trial, or since the last one */
    uint32_t keep;                      /* steps that its result lasts; 0: there was none yet */
    bool trying, worse;                 /* what the last one showed */
    int64_t median[2];                  /* of the steps with it, and without it */
    int64_t ns[2][WASTE_TRIAL_SAMPLES]; /* a step each */
};

/* Is the next step with it? */
bool waste_trial_on(const struct waste_trial *t);

/* That step took ns. Returns true if a trial ended with it; median[] says what it showed. */
bool waste_trial_step(struct waste_trial *t, int64_t ns);

#endif
