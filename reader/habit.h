/*
 * What a layer is likely to choose at its next turns, learned from what it chose so far.
 *
 * A turn is one demand of one layer: a token's. For every expert of a layer, in memory or not, it
 * keeps counts that fade with half-lives of 0.7, 3, 16 and 256 turns, and sees what followed the
 * places of the last 256 turns that are like this one (likeness.h). A logistic regression, one for
 * all layers, makes a chance of these eight features. It is trained as it goes, by each turn's
 * outcome, so it needs no tuning to a model or a text.
 *
 * The chance is that of the next turn and, fading by LOOK a turn, of those after it: sum of
 * (1 - LOOK) LOOK^k p_k. An expert that misses its next turn may still be worth its place. Training
 * takes the chances after the next turn from the new estimate (temporal differences: Sutton,
 * "Learning to predict by the methods of temporal differences", 1988), so nothing has to wait.
 *
 * No I/O, no clock; the same turns give the same chances. Memory: 28 bytes an expert of the model
 * and 512 bytes x top_k a layer where the caller says, and half of that of its own. A turn costs
 * one pass over the layer's experts: microseconds (tests/bench/policy.c). One thread.
 */
#ifndef WASTE_READER_HABIT_H
#define WASTE_READER_HABIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reader/likeness.h"
#include "shm/habit.h"

struct waste_habit {
    uint32_t layers, experts, top_k;
    float base; /* top_k / experts */
    void *own;  /* notes that are nobody else's; NULL */
    struct waste_habit_notes *notes;
    waste_f4 *count;                   /* [layers * experts] in the notes, as the next four */
    struct waste_habit_sample *sample; /* [layers][waste_habit_sample_size] */
    float *chance;                     /* [layers * experts] */
    uint32_t *last;                    /* [layers * experts] the turn that chose it, from 1 */
    uint32_t *turns;                   /* [layers] */
    struct waste_likeness likeness;
    waste_f4 *follows; /* [experts + 1] of the turn at work, as the next three */
    waste_f4 *weighed; /* [experts up to a multiple of 4] */
    float *judged;     /* the same */
    uint8_t *chosen;   /* [experts]; else 0 */
};

/*
 * experts: of a layer, at most 65535; top_k at least 1. `notes`: waste_habit_notes_bytes of memory,
 * 16-aligned, zero or what another habit of the same shape left there, which may have died in the
 * middle of a turn, or been written over: what it learned is learned, as far as it can be. NULL:
 * the habit's own. 0 or -ENOMEM.
 */
int waste_habit_init(struct waste_habit *h, uint32_t layers, uint32_t experts, uint32_t top_k,
                     void *notes);
void waste_habit_finish(struct waste_habit *h);

/* The layer has chosen these, at most top_k, each an expert it has. All its chances are new. */
void waste_habit_turn(struct waste_habit *h, uint32_t layer, const uint32_t *expert,
                      uint32_t count);

/* Has it had a turn? */
bool waste_habit_begun(const struct waste_habit *h);

/* Before the first turn: an expert that was chosen in this share of the turns before, 0 to 1. */
void waste_habit_recall(struct waste_habit *h, uint32_t layer, uint32_t expert, float share);

/* [experts] of the layer, 0 to 1. */
static inline const float *waste_habit_chances(const struct waste_habit *h, uint32_t layer)
{
    return &h->chance[(size_t)layer * h->experts];
}

/* What it is worth in uses: the longest count, as if each use was 1 and faded from then on. */
float waste_habit_uses(const struct waste_habit *h, uint32_t key);

/* Turns of its layer since it was chosen, 1: at the newest; 0: never. */
uint32_t waste_habit_age(const struct waste_habit *h, uint32_t key);

/* Uses of an expert that is chosen at every turn, for ever. */
float waste_habit_memory(void);

#endif
