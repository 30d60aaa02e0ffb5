/* Where slots are, and the moves of their words: between free, being read, held and evictable. */
#include "reader/cache_int.h"
#include "shm/inject.h"

/* ---- places: free stack, predicted list, heap ---- */

void waste_cache_displace(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (s->held)
        return;
    if (s->predicted)
        waste_cache_unlink_predicted(c, slot);
    else
        waste_policy_remove(&c->policy, slot);
}

void waste_cache_settle(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (s->held)
        return;
    if (!s->predicted) {
        waste_policy_add(&c->policy, slot, key_index(c, s->layer, s->expert));
        return;
    }
    waste_cache_link_predicted(c, slot);
}

/* ---- moves of the slot word ---- */

uint64_t waste_cache_reset_word(struct waste_cache *c, uint32_t slot)
{
    struct waste_slot *shared = &c->shm->slot[slot];
    /* relaxed: nobody else moves a slot that is not READY; where a stray write has made nonsense of
     * the word there is nothing to be ordered with */
    uint64_t word = atomic_load_explicit(&shared->word, memory_order_relaxed);
    word &= ~(WASTE_SLOT_GEN_ONE - 1);
    /* release: pairs with compute's acquire; the directory entry went first, so who sees EMPTY and
     * looks again finds no way back here */
    atomic_store_explicit(&shared->word, word, memory_order_release);
    return word;
}

void waste_cache_give_up(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    set_directory(c, key_index(c, s->layer, s->expert), NONE);
    WASTE_POINT(SLOT_UNLISTED);
    waste_cache_reset_word(c, slot);
    s->state = WASTE_SLOT_EMPTY;
    waste_cache_prefetch_dropped(c, slot);
    s->predicted = s->prefetched = 0;
    push_free(c, slot);
}

/* The word of a slot that this side knows as READY, EMPTY or about to be claimed; repairs nonsense
 * (a stray write of another process) to EMPTY of the same generation. */
static uint64_t sane_word(struct waste_cache *c, uint32_t slot)
{
    struct waste_slot *shared = &c->shm->slot[slot];
    /* acquire: pairs with the release of compute's unpin, so its reads of the data are over before
     * the claim that follows lets a device write there */
    uint64_t word = atomic_load_explicit(&shared->word, memory_order_acquire);
    if (waste_slot_valid(word) && waste_slot_state(word) == c->slot[slot].state)
        return word;
    c->healed++;
    return waste_cache_reset_word(c, slot);
}

/* The order: claim (from here on nobody can pin the old expert), old directory entry away, new
 * entry in, then the read. */
bool waste_cache_claim(struct waste_cache *c, uint32_t slot, uint32_t layer, uint32_t expert)
{
    struct waste_cache_slot *s = &c->slot[slot];
    uint64_t word = sane_word(c, slot);
    if (!waste_slot_claim(&c->shm->slot[slot], word, waste_slot_key(layer, expert)))
        return false;
    WASTE_POINT(SLOT_CLAIMED);
    if (s->state == WASTE_SLOT_READY) {
        set_directory(c, key_index(c, s->layer, s->expert), NONE);
        WASTE_POINT(SLOT_EVICTED);
        waste_count(c->shm->control, WASTE_C_EVICTIONS, 1);
    }
    waste_cache_prefetch_wasted(c, slot);
    *s = (struct waste_cache_slot){
        .layer = layer, .expert = expert, .state = WASTE_SLOT_READING, .prev = NONE, .next = NONE};
    set_directory(c, key_index(c, layer, expert), slot);
    WASTE_POINT(SLOT_LISTED);
    return true;
}

uint32_t waste_cache_vacant(struct waste_cache *c, bool demand)
{
    uint32_t slot = c->free;
    if (slot != NONE) {
        c->free = c->slot[slot].next;
        return slot;
    }
    slot = waste_policy_victim(&c->policy);
    if (slot == WASTE_POLICY_NONE)
        slot = demand ? waste_cache_last_predicted(c) : NONE;
    if (slot != NONE)
        waste_cache_displace(c, slot);
    return slot;
}

uint32_t waste_cache_take(struct waste_cache *c, uint32_t layer, uint32_t expert, bool demand)
{
    uint32_t refused = NONE, slot;
    while ((slot = waste_cache_vacant(c, demand)) != NONE) {
        if (waste_cache_claim(c, slot, layer, expert))
            break;
        c->slot[slot].next = refused;
        refused = slot;
    }
    while (refused != NONE) {
        uint32_t next = c->slot[refused].next;
        if (c->slot[refused].state == WASTE_SLOT_READY)
            waste_cache_settle(c, refused);
        else
            push_free(c, refused);
        refused = next;
    }
    return slot;
}
