/* Taking over the cache that a dead incarnation of the reader left behind. */
#include <string.h>

#include "reader/cache_int.h"
#include "shm/inject.h"
#include "shm/segment.h"

/* A slot as a dead incarnation left it: true if it can be kept. */
static bool keep_slot(struct waste_cache *c, uint32_t slot)
{
    struct waste_slot *shared = &c->shm->slot[slot];
    struct waste_cache_slot *s = &c->slot[slot];
    /* acquire: pairs with the dead reader's publish */
    uint64_t word = atomic_load_explicit(&shared->word, memory_order_acquire);
    uint64_t key = atomic_load_explicit(&shared->key, memory_order_relaxed);
    if (!waste_slot_valid(word) || waste_slot_state(word) != WASTE_SLOT_READY)
        return false;
    if (!key_exists(c, key >> 32, key & UINT32_MAX))
        return false;
    s->layer = (uint32_t)(key >> 32);
    s->expert = (uint32_t)key;
    uint32_t index = key_index(c, s->layer, s->expert);
    if (c->slot_of[index] != NONE)
        return false; /* a second copy */
    c->slot_of[index] = slot;
    s->state = WASTE_SLOT_READY;
    return true;
}

/*
 * Anything but READY, made EMPTY. -errno: its pages cannot be thrown away, so it stays READING and
 * belongs to nobody.
 */
static int empty_slot(struct waste_cache *c, uint32_t slot, int cache_fd,
                      struct waste_cache_repair *repair)
{
    struct waste_slot *shared = &c->shm->slot[slot];
    uint64_t word = atomic_load_explicit(&shared->word, memory_order_acquire);
    c->slot[slot].state = WASTE_SLOT_EMPTY;
    if (waste_slot_valid(word) && waste_slot_state(word) == WASTE_SLOT_EMPTY)
        return 0;
    if (waste_slot_state(word) == WASTE_SLOT_READING || !waste_slot_valid(word)) {
        /* the supervisor should have done this: a read of the dead process may still be running,
         * and its late bytes must not land in pages that are used again */
        uint64_t bytes = c->shm->control->slot_bytes;
        int rc = cache_fd < 0 ? 0 : waste_segment_punch(cache_fd, slot * bytes, bytes);
        if (rc < 0) {
            c->slot[slot].state = WASTE_SLOT_READING;
            return rc;
        }
        repair->punched++;
    } else {
        repair->emptied++;
    }
    /* also over pins: they are on a slot that nobody could have used (a second copy, an unknown
     * key), or FAILED; compute's unpin leaves a word without pins alone */
    waste_cache_reset_word(c, slot);
    return 0;
}

int waste_cache_rebuild(struct waste_cache *c, int cache_fd, struct waste_cache_repair *repair)
{
    uint32_t keys = c->shm->model->config.layers * c->experts;
    memset(repair, 0, sizeof(*repair));
    for (uint32_t i = 0; i < keys; i++)
        c->slot_of[i] = NONE;
    for (uint32_t i = 0; i < c->shm->model->config.layers; i++)
        c->first_predicted[i] = NONE;
    for (uint32_t slot = c->slots; slot-- > 0;) {
        if (keep_slot(c, slot)) {
            repair->kept++;
            continue;
        }
        int rc = empty_slot(c, slot, cache_fd, repair);
        WASTE_POINT(REBUILD_SLOT);
        if (rc == 0)
            push_free(c, slot);
        else if (c->slots - ++repair->lost < c->floor)
            return rc;
    }
    for (uint32_t slot = 0; slot < c->slots; slot++) {
        struct waste_cache_slot *s = &c->slot[slot];
        if (s->state != WASTE_SLOT_READY)
            continue;
        waste_ghost_put(&c->ghost, key_index(c, s->layer, s->expert));
        waste_cache_settle(c, slot);
    }
    WASTE_POINT(REBUILD_DIRECTORY);
    /* only entries that are wrong are touched: compute may be looking at the others right now */
    for (uint32_t i = 0; i < keys; i++) {
        if (atomic_load_explicit(&c->shm->directory[i], memory_order_relaxed) == c->slot_of[i])
            continue;
        set_directory(c, i, c->slot_of[i]);
        repair->directory++;
    }
    return 0;
}
