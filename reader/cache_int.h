/* The cache's insides, shared by the cache_*.c. */
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

/* Has compute come to this layer, or passed it? */
static inline bool passed(const struct waste_cache *c, uint64_t step, uint32_t layer)
{
    return c->any_demand && (step < c->step || (step == c->step && layer <= c->layer));
}

/* ---- cache_slots.c ---- */

/* Puts a READY slot that is in no place where its flags say; takes it out of there. */
void waste_cache_settle(struct waste_cache *c, uint32_t slot);
void waste_cache_displace(struct waste_cache *c, uint32_t slot);

/* A free slot, else what the policy would forget, else, for demand, the predicted one that is
 * needed last: out of its place, EMPTY or READY. NONE if there is none. */
uint32_t waste_cache_vacant(struct waste_cache *c, bool demand);

/* The slot's word becomes EMPTY of the same generation, whatever it says. Returns it. */
uint64_t waste_cache_reset_word(struct waste_cache *c, uint32_t slot);

/* EMPTY or READY, out of its place -> READING for this expert. False if compute has it pinned. */
bool waste_cache_claim(struct waste_cache *c, uint32_t slot, uint32_t layer, uint32_t expert);

/* A slot READING for this expert, or NONE. Pinned victims are passed over and put back. */
uint32_t waste_cache_take(struct waste_cache *c, uint32_t layer, uint32_t expert, bool demand);

/* FAILED (or spoilt, out of its place) -> EMPTY and free. */
void waste_cache_give_up(struct waste_cache *c, uint32_t slot);

/* ---- cache_prefetch.c ---- */

/* A READY slot's place among the predicted ones. Too many: the one needed last is forgotten. */
void waste_cache_link_predicted(struct waste_cache *c, uint32_t slot);
void waste_cache_unlink_predicted(struct waste_cache *c, uint32_t slot);

/* The predicted slot that is needed last: of the layer farthest ahead. */
uint32_t waste_cache_last_predicted(const struct waste_cache *c);

/* What became of a read for a prediction, once: its layer is over, or its slot is another's, before
 * it was demanded; it will never be read; it is demanded. */
void waste_cache_prefetch_wasted(struct waste_cache *c, uint32_t slot);
void waste_cache_prefetch_dropped(struct waste_cache *c, uint32_t slot);
void waste_cache_prefetch_used(struct waste_cache *c, uint32_t slot);

/* The new record's layer has come: was the router right? */
void waste_cache_judge_predictions(struct waste_cache *c, const struct waste_want *want);

/* From the record before (old_step, old_layer) to the new one: predictions whose layer has come. */
void waste_cache_expire_predictions(struct waste_cache *c, uint64_t old_step, uint32_t old_layer);

/* Claims slots for up to `room` predicted experts that are worth it. Returns how many. */
uint32_t waste_cache_plan_prefetch(struct waste_cache *c, struct waste_cache_read *out,
                                   uint32_t room);

/* ---- cache_resize.c, cache_repair.c ---- */

/* prefetch_limit and predicted_limit, from the slots in use. */
void waste_cache_set_limits(struct waste_cache *c);

/* Start: of the free slots, those beyond `wanted` slots in use are retired, the last ones first. */
void waste_cache_retire_free(struct waste_cache *c, uint32_t wanted);

/* Fills the empty cache *c from what is in shared memory. 0 or what punching said. */
int waste_cache_rebuild(struct waste_cache *c, int cache_fd, struct waste_cache_repair *repair);

#endif
