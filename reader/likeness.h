/*
 * Which turns of the past were like the newest ones, and what was chosen after them.
 *
 * Two places in the past are alike as far as the same experts were chosen there: in this layer, and
 * in all layers since, for a token's choices in all layers tell more of what the text is about than
 * those of one. A place is named by its lag: so many tokens ago. A turn of a layer adds to each lag
 * the experts that it shares with the turn of that layer so long ago, and what was added before
 * fades within about half a token.
 *
 * Each expert has a bit for each turn of the window that chose it, so a turn costs what there is to
 * find and not a pass over the window.
 *
 * No I/O, no clock. One thread.
 */
#ifndef WASTE_READER_LIKENESS_H
#define WASTE_READER_LIKENESS_H

#include <stdint.h>

#include "reader/fours.h"
#include "shm/habit.h"

/* What followed, by what makes the places alike. */
enum waste_follow {
    WASTE_FOLLOW_LAYER,   /* experts shared in this layer, to the fourth */
    WASTE_FOLLOW_ALL,     /* likeness in all layers, to the fourth */
    WASTE_FOLLOW_CLOSELY, /* the same to the twelfth: little but the places most alike */
    WASTE_FOLLOW_LATER,   /* not right after, but two turns and more: to the eighth */
};

struct waste_likeness {
    uint32_t layers, experts, top_k;
    uint32_t *turns;   /* [layers] so far; the caller's, as are the next two */
    uint16_t *history; /* [layers][WASTE_HABIT_WINDOW][top_k], a ring of rows; experts fills up */
    float *alike;      /* [WASTE_HABIT_WINDOW] by lag */
    uint64_t (*when)[WASTE_HABIT_WINDOW / 64];     /* [layers * experts] rows that have it */
    _Alignas(16) float shared[WASTE_HABIT_WINDOW]; /* by lag: experts of the turn at work */
    float fade;
};

/* turns, history and alike must make sense (waste_likeness_make_sense). 0 or -ENOMEM. */
int waste_likeness_init(struct waste_likeness *l, uint32_t layers, uint32_t experts, uint32_t top_k,
                        uint32_t *turns, uint16_t *history, float *alike);
void waste_likeness_finish(struct waste_likeness *l);

/* Memory that may have been written over: ids become experts or none, likeness a number. */
void waste_likeness_make_sense(uint32_t layers, uint32_t experts, uint32_t top_k, uint16_t *history,
                               float *alike);

/* The layer has chosen these, at most top_k and none twice. */
void waste_likeness_turn(struct waste_likeness *l, uint32_t layer, const uint32_t *expert,
                         uint32_t count);

/*
 * After the turn: how much each of the layer's experts followed the places like this one.
 * follows[experts + 1]: set, by enum waste_follow; the last one is nobody's. The sum of the weights
 * that made it: what an expert that always followed has. 0 if nothing was alike.
 */
waste_f4 waste_likeness_follow(const struct waste_likeness *l, uint32_t layer, waste_f4 *follows);

#endif
