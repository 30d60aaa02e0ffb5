#include "compute/experts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "shm/inject.h"

/* How long the reader may leave an expert untouched after taking the demand before it is posted
 * again: it may be queueing for room. */
#define REPOST_NS INT64_C(20000000)

/* Demands left unread in the ring before the reader is woken for its own sake. */
enum { RING_BACKLOG = WASTE_DEMAND_RING / 4 };

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void waste_experts_begin(struct waste_experts *e, uint64_t step, uint32_t layer)
{
    e->step = step;
    e->layer = layer;
    e->count = e->missing = 0;
    e->posted = false;
}

struct waste_slot *waste_experts_find(const struct waste_shm *shm, uint32_t layer, uint32_t expert,
                                      uint32_t *number)
{
    uint64_t entry = (uint64_t)layer * shm->model->config.experts + expert;
    /* acquire: the slot's key; pairs with the reader's release */
    uint32_t n = atomic_load_explicit(&shm->directory[entry], memory_order_acquire);
    struct waste_slot *slot;

    if (n >= shm->control->slot_count)
        return NULL;
    slot = &shm->slot[n];
    /* acquire: nothing below may be read before the key was seen */
    if (atomic_load_explicit(&slot->key, memory_order_acquire) != waste_slot_key(layer, expert))
        return NULL;
    *number = n;
    return slot;
}

static struct waste_slot *find(const struct waste_experts *e, uint32_t expert, uint32_t *number)
{
    return waste_experts_find(e->shm, e->layer, expert, number);
}

/* False while the ring is full: the reader is far behind or dead, and the next take tries again. */
static bool post(struct waste_experts *e)
{
    struct waste_want *want = waste_ring_claim(e->shm->demand);

    if (!want)
        return false;
    want->step = e->step;
    want->layer = e->layer;
    want->count = e->count;
    want->session = 0;
    want->outlook = 0;
    want->kind = WASTE_WANT_STEP;
    want->hold = 0;
    memcpy(want->expert, e->id, e->count * sizeof e->id[0]);
    WASTE_POINT(DEMAND_WRITTEN);
    waste_ring_publish(e->shm->demand);
    WASTE_POINT(DEMAND_POSTED);
    e->posted = true;
    /* acquire: pairs with the supervisor's store before it starts a reader */
    e->incarnation = atomic_load_explicit(&e->shm->control->stage[WASTE_STAGE_READER].incarnation,
                                          memory_order_acquire);
    /* relaxed: our own cursor */
    e->mark = atomic_load_explicit(&e->shm->demand->head, memory_order_relaxed);
    e->posted_ns = now_ns();
    return true;
}

bool waste_experts_ready(const struct waste_shm *shm, uint32_t layer, uint32_t expert)
{
    uint32_t n;
    struct waste_slot *slot = waste_experts_find(shm, layer, expert, &n);

    /* relaxed: a hint; taking it pins properly */
    return slot && waste_slot_state(atomic_load_explicit(&slot->word, memory_order_relaxed)) ==
                       WASTE_SLOT_READY;
}

static void wake_reader(struct waste_experts *e)
{
    waste_bell_ring_fd(&e->shm->control->reader_bell, e->reader_event);
}

void waste_experts_demand(struct waste_experts *e, uint32_t count)
{
    bool absent = false;

    e->count = e->missing = count;
    for (uint32_t i = 0; i < count; i++) {
        e->slot[i] = WASTE_SLOT_NONE;
        e->record[i] = NULL;
        absent |= !waste_experts_ready(e->shm, e->layer, e->id[i]);
    }
    if (!post(e) || absent || waste_ring_used(e->shm->demand) > RING_BACKLOG)
        wake_reader(e);
}

int waste_experts_failed(const struct waste_shm *shm, uint32_t layer, uint32_t expert,
                         struct waste_slot *slot, char *text, size_t text_bytes)
{
    /* relaxed: ordered by the acquire load of the FAILED word */
    uint32_t error = atomic_load_explicit(&slot->error, memory_order_relaxed);
    uint32_t detail = atomic_load_explicit(&slot->detail, memory_order_relaxed);
    const char *file = waste_model_layer(shm->model, layer)->bank.file;

    snprintf(text, text_bytes, "%s: layer %u expert %u: %s%s%s", file, layer, expert,
             waste_slot_error_text(error), detail ? ": " : "", detail ? strerror((int)detail) : "");
    return -EIO;
}

/* The reader will not act on the demand any more: it died since, or it took the record and the
 * expert is gone again. */
static bool lost(const struct waste_experts *e, bool untouched)
{
    const struct waste_stage *reader = &e->shm->control->stage[WASTE_STAGE_READER];

    /* acquire: pairs with the supervisor's store before it starts a reader */
    if (atomic_load_explicit(&reader->incarnation, memory_order_acquire) != e->incarnation)
        return true;
    /* acquire: what the reader did before it took the record; pairs with waste_ring_release */
    return untouched &&
           atomic_load_explicit(&e->shm->demand->tail, memory_order_acquire) >= e->mark &&
           now_ns() - e->posted_ns > REPOST_NS;
}

/* A FAILED slot answers this demand only once the reader has taken the record: before, it is what
 * an earlier request left behind, and the reader tries again. */
static bool is_answer(const struct waste_experts *e)
{
    return e->posted &&
           atomic_load_explicit(&e->shm->demand->tail, memory_order_acquire) >= e->mark;
}

int waste_experts_take(struct waste_experts *e, uint32_t *taken, uint32_t *count, char *text,
                       size_t text_bytes)
{
    bool untouched = false;
    uint32_t n = 0, number;

    for (uint32_t i = 0; i < e->count; i++) {
        if (e->slot[i] != WASTE_SLOT_NONE)
            continue;
        bool answer = is_answer(e); /* before the word is read: see is_answer */
        struct waste_slot *slot = find(e, e->id[i], &number);
        if (!slot) {
            untouched = true;
            continue;
        }
        if (waste_slot_pin(slot, waste_slot_key(e->layer, e->id[i]))) {
            WASTE_POINT(EXPERT_PINNED);
            e->slot[i] = number;
            e->record[i] = e->cache + number * e->shm->control->slot_bytes;
            taken[n++] = i;
            continue;
        }
        /* acquire: error and detail; pairs with waste_slot_fail */
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
        enum waste_slot_state state = waste_slot_state(word);
        if (state == WASTE_SLOT_FAILED && answer && find(e, e->id[i], &number) == slot)
            return waste_experts_failed(e->shm, e->layer, e->id[i], slot, text, text_bytes);
        untouched |= state == WASTE_SLOT_EMPTY;
    }
    e->missing -= n;
    *count = n;
    if (e->missing && (!e->posted || lost(e, untouched)) && post(e))
        wake_reader(e);
    return 0;
}

void waste_experts_release(struct waste_experts *e)
{
    for (uint32_t i = 0; i < e->count; i++) {
        if (e->slot[i] == WASTE_SLOT_NONE)
            continue;
        waste_slot_unpin(&e->shm->slot[e->slot[i]]);
        WASTE_POINT(EXPERT_UNPINNED);
    }
    e->count = e->missing = 0;
}
