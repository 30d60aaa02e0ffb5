/*
 * Which expert to forget: the least valuable of the slots that may be taken.
 *
 * An expert is worth its chance to be chosen at its layer's next turns (habit.h), over the time
 * that its slot is taken until then: layers come in turn, so what the layer just past has is the
 * farthest away, and what the next one has is due at once. The time counts by its root (NEARNESS in
 * policy.c), for a chance is only an estimate.
 *
 * That decides about admission too: what was read for the newest demand may be taken when the next
 * one comes, and then it is the farthest away. An expert that is not worth its place goes there and
 * then, before any that was kept for longer.
 *
 * One heap a layer, because all chances of a layer change at its turn and no others do. add and
 * remove cost O(log experts), a victim a look at the least of each layer, a turn a pass over the
 * layer (habit.h). No I/O, no shared memory, no clock: the reader's cache and tests/bench/cachesim
 * link the same code. One thread.
 */
#ifndef WASTE_READER_POLICY_H
#define WASTE_READER_POLICY_H

#include <stdint.h>

#include "reader/habit.h"

#define WASTE_POLICY_NONE UINT32_MAX

struct waste_policy {
    uint32_t slots, layers, experts;
    uint32_t now;                      /* the layer whose turn was last */
    struct waste_habit habit;          /* zeroed when the chances are another's */
    const struct waste_habit *chances; /* NULL: our own */
    float *nearness;                   /* [layers + 1] by how many layers away a turn is */
    uint32_t *count;                   /* [layers] evictable slots of the layer's experts */
    float *least;                      /* [layers] the smallest chance among them */
    uint16_t *heap;                    /* [layers][experts] what they hold, least likely first */
    uint16_t *place; /* [layers * experts] index into the layer's heap, if evictable */
    uint32_t *slot;  /* [layers * experts] the slot, if evictable */
    uint32_t *key;   /* [slots] what an evictable slot holds; WASTE_POLICY_NONE: not evictable */
};

/* `notes`: waste_habit_init. 0 or -ENOMEM. */
int waste_policy_init(struct waste_policy *p, uint32_t slots, uint32_t layers, uint32_t experts,
                      uint32_t top_k, void *notes);
/* Another choice of slots, of as many, by the same chances: `of` has its turn first. `of` must
 * outlive it. */
int waste_policy_init_beside(struct waste_policy *p, const struct waste_policy *of);
void waste_policy_finish(struct waste_policy *p);

/* `layer` has chosen these, no more than top_k. */
void waste_policy_turn(struct waste_policy *p, uint32_t layer, const uint32_t *expert,
                       uint32_t count);

/* It is the turn of `layer`, and nothing is to be learned from what it chose. */
void waste_policy_pass(struct waste_policy *p, uint32_t layer);

/* Before the first turn, and before its slot is added: waste_habit_recall. */
void waste_policy_recall(struct waste_policy *p, uint32_t key, float share);

/* From now on `slot`, holding `key`, may be taken; no longer (does nothing if it was not). No two
 * slots hold the same key. */
void waste_policy_add(struct waste_policy *p, uint32_t slot, uint32_t key);
void waste_policy_remove(struct waste_policy *p, uint32_t slot);

/* The evictable slot worth least, or WASTE_POLICY_NONE. It stays evictable. */
uint32_t waste_policy_victim(const struct waste_policy *p);

/* What it is worth now. */
float waste_policy_value(const struct waste_policy *p, uint32_t key);

#endif
