/*
 * The cache as it would be without prefetching: the same demand, the same policy, as many slots,
 * and no bytes. It says how many reads demand would have needed, which is what prefetching is
 * measured by: a prefetch takes a slot before its time, so even one that is right may cost a read
 * elsewhere.
 *
 * Costs about as much as the policy's heaps. No I/O, no shared memory. One thread.
 */
#ifndef WASTE_READER_GHOST_H
#define WASTE_READER_GHOST_H

#include "reader/policy.h"

struct waste_ghost {
    struct waste_policy policy; /* heaps of its own; chances of the cache's */
    uint32_t most, used;        /* slots it may use; slots ever used: [0, used) */
    uint32_t *free;             /* [free_count] slots given back */
    uint32_t free_count;
    uint32_t *slot_of; /* [layers * experts] */
    uint32_t *key_of;  /* [slots] */
    uint64_t reads;    /* that demand needed */
};

/* `policy` is the cache's and outlives it. 0 or -ENOMEM. */
int waste_ghost_init(struct waste_ghost *g, const struct waste_policy *policy);
void waste_ghost_finish(struct waste_ghost *g);

/* Slots that may be used from now on, at least top_k. */
void waste_ghost_resize(struct waste_ghost *g, uint32_t most);

/* The cache has this expert, and not because of a prediction. */
void waste_ghost_put(struct waste_ghost *g, uint32_t key);

/* The demand of a layer, or a part of it; after the cache's policy has had its turn. */
void waste_ghost_demand(struct waste_ghost *g, uint32_t layer, const uint32_t *expert,
                        uint32_t count);

#endif
