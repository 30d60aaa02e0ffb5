/* A cache that becomes smaller or larger while it is used. */
#include "reader/cache_int.h"

void waste_cache_set_limits(struct waste_cache *c)
{
    /* newest demand: top_k; obtainable for the next one: top_k; the rest may be prefetch reads */
    uint32_t spare = waste_cache_in_use(c) - c->floor;
    c->prefetch_limit = c->prefetch_most < spare ? c->prefetch_most : spare;
    c->predicted_limit = spare / 2 + 1;
    if (c->ghost.most != waste_cache_in_use(c))
        waste_ghost_resize(&c->ghost, waste_cache_in_use(c));
}

void waste_cache_retire_free(struct waste_cache *c, uint32_t wanted)
{
    uint32_t *end = &c->free, free = 0, full, keep;
    for (uint32_t slot = c->free; slot != NONE; slot = c->slot[slot].next)
        free++;
    full = c->slots - c->lost - free;
    keep = wanted > full ? wanted - full : 0;
    for (uint32_t i = 0; i < keep && *end != NONE; i++)
        end = &c->slot[*end].next;
    c->retired = *end;
    *end = NONE;
    c->retired_count = free > keep ? free - keep : 0;
}

/* The slot to give back next, EMPTY and in no place; NONE if none can be had now. */
static uint32_t vacate(struct waste_cache *c)
{
    uint32_t slot = waste_cache_vacant(c, false);
    if (slot == NONE || c->slot[slot].state == WASTE_SLOT_EMPTY)
        return slot;
    struct waste_cache_slot *s = &c->slot[slot];
    /* acquire: pairs with the release of compute's unpin: it has finished reading */
    uint64_t word = atomic_load_explicit(&c->shm->slot[slot].word, memory_order_acquire);
    bool ready = waste_slot_state(word) == WASTE_SLOT_READY;
    if (ready && !waste_slot_empty(&c->shm->slot[slot], word)) {
        waste_cache_settle(c, slot);
        return NONE; /* pinned: a layer further on it is not */
    }
    /* from here on nobody can pin it; a look at the old entry finds an EMPTY slot */
    set_directory(c, key_index(c, s->layer, s->expert), NONE);
    if (!ready)
        waste_cache_reset_word(c, slot); /* a stray write of somebody else */
    *s = (struct waste_cache_slot){.state = WASTE_SLOT_EMPTY, .prev = NONE, .next = NONE};
    waste_count(c->shm->control, WASTE_C_EVICTIONS, 1);
    return slot;
}

uint32_t waste_cache_wanted_slots(const struct waste_cache *c)
{
    /* relaxed: a wish; nothing is read because of it */
    uint32_t wanted = atomic_load_explicit(&c->shm->control->slots_wanted, memory_order_relaxed);
    uint32_t most = c->slots - c->lost;
    return wanted == 0 || wanted > most ? most : wanted < c->floor ? c->floor : wanted;
}

uint32_t waste_cache_resize(struct waste_cache *c, uint32_t *out, uint32_t room)
{
    uint32_t wanted = waste_cache_wanted_slots(c), n = 0, slot;
    while (waste_cache_in_use(c) < wanted && c->retired != NONE) {
        slot = c->retired;
        c->retired = c->slot[slot].next;
        c->retired_count--;
        push_free(c, slot);
    }
    while (n < room && waste_cache_in_use(c) > wanted && (slot = vacate(c)) != NONE) {
        c->slot[slot].next = c->retired;
        c->retired = slot;
        c->retired_count++;
        out[n++] = slot;
    }
    waste_cache_set_limits(c);
    return n;
}
