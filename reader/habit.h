/*
 * What a layer is likely to choose at its next turn, learned from what it chose so far.
 *
 * A turn is one demand of one layer: a token's. For every expert of a layer, in memory or not, it
 * keeps what an estimate needs: counts that halve every 2, 16 and 256 turns, the turns since it was
 * chosen last, and how often it followed choices like the newest ones within the last 256 turns (a
 * past turn counts by the number of experts it shares with the newest one, and by the fourth power
 * of it). A logistic regression, one for all layers, makes a chance of that. It is trained as it
 * goes, by each turn's outcome, so it needs no tuning to a model or a text.
 *
 * No I/O, no clock; the same turns give the same chances. Memory: 40 bytes an
 * expert of the model and 512 bytes x top_k a layer, where the caller says. A turn costs a pass
 * over the layer's experts and one over its history: microseconds. One thread.
 */
#ifndef WASTE_READER_HABIT_H
#define WASTE_READER_HABIT_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/habit.h"

struct waste_habit {
    uint32_t layers, experts, top_k;
    float base;                        /* top_k / experts */
    void *own;                         /* notes that are nobody else's; NULL */
    float *weight;                     /* [WASTE_HABIT_FEATURES] in the notes, as the next three */
    struct waste_habit_expert *expert; /* [layers * experts] */
    uint32_t *turns;                   /* [layers] */
    uint16_t *history;        /* [layers][WASTE_HABIT_WINDOW][top_k], a ring; NO_EXPERT fills up */
    float *follows, *closely; /* [experts] of the turn at work */
    uint8_t *chosen;          /* [experts] */
};

/*
 * experts: of a layer, at most 65535; top_k at least 1. `notes`: waste_habit_notes_bytes of memory,
 * 8-aligned, zero or what another habit of the same shape left there, which may have died in the
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

static inline float waste_habit_chance(const struct waste_habit *h, uint32_t key)
{
    return h->expert[key].chance;
}

/* What it is worth in uses: the longest count, as if each use was 1 and faded from then on. */
float waste_habit_uses(const struct waste_habit *h, uint32_t key);

/* Uses of an expert that is chosen at every turn, for ever. */
float waste_habit_memory(void);

#endif
