/*
 * Which expert to forget: the value of every expert, and the least valuable of the slots that may
 * be taken.
 *
 * The value of an expert is how often it was demanded, each demand counting half as much after
 * `half_life` ticks. It is kept for every expert, in memory or not, so an expert that comes back is
 * not a stranger. All values fade at the same rate, so their order never changes by waiting: what
 * is stored is log2(sum of 2^(tick / half_life)), which needs no upkeep and orders like the decayed
 * count. A half_life near 0 is least-recently-used, a huge one is least-frequently-used.
 *
 * No I/O, no shared memory, no clock: the reader's cache and a simulator link the same code. Every
 * operation is O(log slots) at most. One thread.
 */
#ifndef WASTE_READER_POLICY_H
#define WASTE_READER_POLICY_H

#include <stdint.h>

#define WASTE_POLICY_NONE UINT32_MAX

struct waste_policy {
    uint32_t slots, keys;
    double half_life; /* ticks */
    double *value;    /* [keys] -INFINITY: never demanded */
    uint32_t count;   /* evictable slots */
    uint32_t *heap;   /* [count] slots, least valuable first */
    uint32_t *place;  /* [slots] index into heap; WASTE_POLICY_NONE: not evictable */
    uint32_t *key;    /* [slots] what an evictable slot holds */
};

/* keys: layers * experts. 0 or -ENOMEM. */
int waste_policy_init(struct waste_policy *p, uint32_t slots, uint32_t keys, double half_life);
void waste_policy_finish(struct waste_policy *p);

/* `key` was demanded at `tick`, which never goes back. No evictable slot holds it at this moment.
 */
void waste_policy_used(struct waste_policy *p, uint32_t key, uint64_t tick);

/* From now on `slot`, holding `key`, may be taken; no longer (does nothing if it was not). */
void waste_policy_add(struct waste_policy *p, uint32_t slot, uint32_t key);
void waste_policy_remove(struct waste_policy *p, uint32_t slot);

/* The evictable slot worth least, or WASTE_POLICY_NONE. It stays evictable. */
uint32_t waste_policy_victim(const struct waste_policy *p);

#endif
