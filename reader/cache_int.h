/* The cache's insides, shared by cache.c and cache_repair.c. */
#ifndef WASTE_READER_CACHE_INT_H
#define WASTE_READER_CACHE_INT_H

#include "reader/cache.h"

#define NONE WASTE_SLOT_NONE

static inline uint32_t key_index(const struct waste_cache *c, uint32_t layer, uint32_t expert)
{
    return layer * c->experts + expert;
}

static inline bool key_exists(const struct waste_cache *c, uint64_t layer, uint64_t expert)
{
    const struct waste_model *m = c->shm->model;
    if (layer >= m->config.layers)
        return false;
    const struct waste_layer *l = waste_model_layer(m, (uint32_t)layer);
    return l->is_moe && expert < l->bank.experts && expert < c->experts;
}

static inline void set_directory(struct waste_cache *c, uint32_t key, uint32_t slot)
{
    c->slot_of[key] = slot;
    /* release: pairs with compute's acquire load of the entry, which then sees at least the claim
     * of this slot. It does not depend on it: pinning checks state and key in the slot itself. */
    atomic_store_explicit(&c->shm->directory[key], slot, memory_order_release);
}

static inline void push_free(struct waste_cache *c, uint32_t slot)
{
    c->slot[slot].next = c->free;
    c->free = slot;
}

/* Puts a READY slot that is in no place where its flags say. */
void waste_cache_settle(struct waste_cache *c, uint32_t slot);

/* The slot's word becomes EMPTY of the same generation, whatever it says. Returns it. */
uint64_t waste_cache_reset_word(struct waste_cache *c, uint32_t slot);

/* prefetch_limit and predicted_limit, from the slots in use. */
void waste_cache_set_limits(struct waste_cache *c);

/* Start: of the free slots, those beyond `wanted` slots in use are retired, the last ones first. */
void waste_cache_retire_free(struct waste_cache *c, uint32_t wanted);

/* Fills the empty cache *c from what is in shared memory. 0 or what punching said. */
int waste_cache_rebuild(struct waste_cache *c, int cache_fd, struct waste_cache_repair *repair);

#endif
