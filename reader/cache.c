#include "reader/cache_int.h"
#include "shm/inject.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- places: free stack, predicted list, heap ---- */

static void unlink_predicted(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    *(s->prev == NONE ? &c->first_predicted[s->layer] : &c->slot[s->prev].next) = s->next;
    if (s->next != NONE)
        c->slot[s->next].prev = s->prev;
    c->predicted--;
}

static void link_predicted(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    uint32_t *first = &c->first_predicted[s->layer];
    s->prev = NONE;
    s->next = *first;
    if (s->next != NONE)
        c->slot[s->next].prev = slot;
    *first = slot;
    c->predicted++;
}

/* The predicted slot that is needed last: of the layer farthest ahead. */
static uint32_t last_predicted(const struct waste_cache *c)
{
    uint32_t layers = c->shm->model->config.layers;
    for (uint32_t back = 0; c->predicted > 0 && back < layers; back++) {
        uint32_t slot = c->first_predicted[(c->layer + layers - back) % layers];
        if (slot != NONE)
            return slot;
    }
    return NONE;
}

/* Takes a READY slot out of the list or the heap, whichever has it. */
static void displace(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (s->held)
        return;
    if (s->predicted)
        unlink_predicted(c, slot);
    else
        waste_policy_remove(&c->policy, slot);
}

static void forget_prediction(struct waste_cache *c, uint32_t slot);

/* Puts a READY slot where its flags say. Too many predictions: the one needed
 * last is forgotten. */
void waste_cache_settle(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (s->held)
        return;
    if (!s->predicted) {
        waste_policy_add(&c->policy, slot, key_index(c, s->layer, s->expert));
        return;
    }
    link_predicted(c, slot);
    while (c->predicted > c->predicted_limit)
        forget_prediction(c, last_predicted(c));
}

static void forget_prediction(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (s->state != WASTE_SLOT_READY || s->held) {
        s->predicted = 0;
        return;
    }
    displace(c, slot);
    s->predicted = 0;
    waste_cache_settle(c, slot);
}

/* ---- what became of prefetches ---- */

/* Its layer is over, or its slot is another's, before it was demanded. */
static void prefetch_wasted(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (!s->open)
        return;
    s->open = 0;
    waste_foresight_close(&c->foresight, s->risk, true);
    waste_count(c->shm->control, WASTE_C_PREFETCH_WASTED, 1);
}

static void prefetch_dropped(struct waste_cache *c, uint32_t slot)
{
    if (c->slot[slot].open)
        waste_foresight_close(&c->foresight, c->slot[slot].risk, false);
    c->slot[slot].open = 0;
}

/* Demanded, the first time. */
static void prefetch_used(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    waste_count(c->shm->control, WASTE_C_PREFETCH_USED, 1);
    if (s->open)
        waste_foresight_close(&c->foresight, s->risk, true);
    s->open = s->prefetched = 0;
}

/* ---- moves of the slot word ---- */

/* FAILED (or spoilt, out of its place) -> EMPTY and free. */
static void give_up(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    set_directory(c, key_index(c, s->layer, s->expert), NONE);
    WASTE_POINT(SLOT_UNLISTED);
    waste_cache_reset_word(c, slot);
    s->state = WASTE_SLOT_EMPTY;
    prefetch_dropped(c, slot);
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

/*
 * EMPTY or READY -> READING for a new expert. The order: claim (from here on nobody can pin the
 * old expert), old directory entry away, new entry in, then the read. False if compute has it
 * pinned.
 */
static bool claim(struct waste_cache *c, uint32_t slot, uint32_t layer, uint32_t expert)
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
    prefetch_wasted(c, slot);
    *s = (struct waste_cache_slot){
        .layer = layer, .expert = expert, .state = WASTE_SLOT_READING, .prev = NONE, .next = NONE};
    set_directory(c, key_index(c, layer, expert), slot);
    WASTE_POINT(SLOT_LISTED);
    /* relaxed: as in hold; the last expert's time is not this one's */
    atomic_store_explicit(&c->shm->slot[slot].last_used, 0, memory_order_relaxed);
    return true;
}

/* The next candidate for a read, out of its place; NONE if there is none. */
static uint32_t candidate(struct waste_cache *c, bool demand)
{
    uint32_t slot = c->free;
    if (slot != NONE) {
        c->free = c->slot[slot].next;
        return slot;
    }
    slot = waste_policy_victim(&c->policy);
    if (slot == WASTE_POLICY_NONE)
        slot = demand ? last_predicted(c) : NONE;
    if (slot != NONE)
        displace(c, slot);
    return slot;
}

/* A slot READING for this expert, or NONE. Pinned victims are passed over and put back. */
static uint32_t take_slot(struct waste_cache *c, uint32_t layer, uint32_t expert, bool demand)
{
    uint32_t refused = NONE, slot;
    while ((slot = candidate(c, demand)) != NONE) {
        if (claim(c, slot, layer, expert))
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

/* ---- demand ---- */

int waste_cache_check(const struct waste_cache *c, const struct waste_want *want,
                      uint32_t max_count)
{
    if (want->count == 0 || want->count > max_count)
        return -EINVAL;
    for (uint32_t i = 0; i < want->count; i++)
        if (!key_exists(c, want->layer, want->expert[i]))
            return -EINVAL;
    return 0;
}

static bool passed(const struct waste_cache *c, uint64_t step, uint32_t layer)
{
    return c->any_demand && (step < c->step || (step == c->step && layer <= c->layer));
}

/* The slots of the record before: back among the others. */
static void release_held(struct waste_cache *c)
{
    for (uint32_t i = 0; i < c->held_count; i++) {
        uint32_t slot = c->held[i];
        struct waste_cache_slot *s = &c->slot[slot];
        s->held = 0;
        if (s->state == WASTE_SLOT_READY)
            waste_cache_settle(c, slot);
        else if (s->state == WASTE_SLOT_FAILED)
            give_up(c, slot);
    }
    c->held_count = 0;
}

/* Predictions whose layer has come, or of another conversation (`all`). */
static void expire_layer(struct waste_cache *c, uint32_t layer, bool all)
{
    uint32_t next;
    for (uint32_t slot = c->first_predicted[layer]; slot != NONE; slot = next) {
        next = c->slot[slot].next;
        if (all || passed(c, c->slot[slot].for_step, layer)) {
            prefetch_wasted(c, slot);
            forget_prediction(c, slot);
        }
    }
}

/* From the record before (old_step, old_layer) to the new one: mostly one layer. */
static void expire_predictions(struct waste_cache *c, uint64_t old_step, uint32_t old_layer)
{
    uint32_t layers = c->shm->model->config.layers;
    bool back = c->step < old_step || (c->step == old_step && c->layer < old_layer);
    bool near =
        !back && (c->step == old_step || (c->step == old_step + 1 && c->layer <= old_layer));
    uint32_t first = near ? old_layer + 1 : c->layer + 1;
    uint32_t count = near ? c->layer + (c->step > old_step ? layers : 0) - old_layer : layers;
    for (uint32_t i = 0; c->predicted > 0 && i < count; i++)
        expire_layer(c, (first + i) % layers, back);
}

static void hold(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (s->state == WASTE_SLOT_READY)
        displace(c, slot);
    s->held = 1;
    s->predicted = 0;
    c->held[c->held_count++] = slot;
    /* relaxed: only a later incarnation of the reader, and observers, look at it */
    atomic_store_explicit(&c->shm->slot[slot].last_used, c->clock, memory_order_relaxed);
}

/* A READY expert that is demanded: is it what compute will find? Somebody else's stray write must
 * not leave compute waiting for ever. False: the slot was given up. */
static bool heal(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    struct waste_slot *shared = &c->shm->slot[slot];
    uint32_t key = key_index(c, s->layer, s->expert);
    /* relaxed, all: only this process writes them */
    uint64_t word = atomic_load_explicit(&shared->word, memory_order_relaxed);
    bool good = waste_slot_valid(word) && waste_slot_state(word) == WASTE_SLOT_READY &&
                atomic_load_explicit(&shared->key, memory_order_relaxed) ==
                    waste_slot_key(s->layer, s->expert);
    if (good && atomic_load_explicit(&c->shm->directory[key], memory_order_relaxed) == slot)
        return true;
    c->healed++;
    if (good) {
        set_directory(c, key, slot);
        return true;
    }
    displace(c, slot);
    give_up(c, slot);
    return false;
}

/* One expert of the new record. */
static void demand_expert(struct waste_cache *c, uint32_t layer, uint32_t expert)
{
    struct waste_control *control = c->shm->control;
    uint32_t key = key_index(c, layer, expert), slot = c->slot_of[key];
    if (slot != NONE && c->slot[slot].held)
        return; /* twice in one record */
    if (slot != NONE && c->slot[slot].state == WASTE_SLOT_READY && !heal(c, slot))
        slot = NONE;
    if (slot != NONE) {
        struct waste_cache_slot *s = &c->slot[slot];
        if (s->prefetched && s->state == WASTE_SLOT_READING)
            c->prefetch_reading--; /* a demand from now on */
        if (s->prefetched)
            prefetch_used(c, slot);
        waste_count(control, s->state == WASTE_SLOT_READY ? WASTE_C_HITS : WASTE_C_MISSES, 1);
        hold(c, slot);
    } else {
        for (uint32_t i = 0; i < c->wanted_count; i++)
            if (c->wanted[i] == expert)
                return;
        waste_count(control, WASTE_C_MISSES, 1);
        c->wanted[c->wanted_count++] = expert;
    }
}

/* Was the router right about this record? */
static void judge_prediction(struct waste_cache *c, const struct waste_want *want)
{
    struct waste_control *control = c->shm->control;
    uint8_t right[WASTE_FORESIGHT_RANKS];
    uint32_t ranks = waste_foresight_judge(&c->foresight, want->step, want->layer, want->expert,
                                           want->count, right);
    for (uint32_t r = 0; r < ranks && r < WASTE_RANK_RECORDS; r++) {
        /* relaxed: statistics */
        atomic_fetch_add_explicit(&control->rank_predicted[r], 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&control->rank_right[r], right[r], memory_order_relaxed);
    }
}

void waste_cache_demand(struct waste_cache *c, const struct waste_want *want)
{
    release_held(c); /* a FAILED slot of the record before becomes EMPTY here: asked again, read
                        again */
    uint64_t old_step = c->step;
    uint32_t old_layer = c->layer;
    bool again = c->any_demand && want->step == old_step && want->layer == old_layer;
    c->any_demand = true;
    c->step = want->step;
    c->layer = want->layer;
    c->clock++;
    c->wanted_next = c->wanted_count = 0;
    for (uint32_t i = 0; i < want->count; i++)
        demand_expert(c, want->layer, want->expert[i]);
    if (!again) {
        waste_policy_turn(&c->policy, want->layer, want->expert, want->count);
        waste_ghost_demand(&c->ghost, want->layer, want->expert, want->count);
        judge_prediction(c, want);
    }
    waste_foresight_count(&c->foresight, c->wanted_count, c->ghost.reads);
    expire_predictions(c, old_step, old_layer);
    waste_count(c->shm->control, WASTE_C_DEMAND_RECORDS, 1);
}

/* ---- prefetch ---- */

static void drop_wish(struct waste_cache *c)
{
    waste_count(c->shm->control, WASTE_C_PREFETCH_DROPPED, 1);
}

/* An expert that is here, or on its way, and was predicted: keep it until its layer has come. (One
 * that is held is kept anyway, and on from there.) */
static void protect(struct waste_cache *c, uint32_t slot, uint64_t step)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (s->state == WASTE_SLOT_FAILED)
        return;
    if (s->state == WASTE_SLOT_READY)
        displace(c, slot);
    s->predicted = 1;
    s->for_step = step;
    if (s->state == WASTE_SLOT_READY)
        waste_cache_settle(c, slot);
}

void waste_cache_prefetch(struct waste_cache *c, const struct waste_want *want)
{
    waste_foresight_predict(&c->foresight, want->step, want->layer);
    for (uint32_t i = 0; i < want->count; i++) {
        uint32_t slot = c->slot_of[key_index(c, want->layer, want->expert[i])];
        waste_foresight_add(&c->foresight, want->layer, want->expert[i], slot == NONE);
        if (passed(c, want->step, want->layer)) {
            drop_wish(c);
        } else if (slot != NONE) {
            protect(c, slot, want->step);
            drop_wish(c);
        } else if (c->wish_in - c->wish_out == WASTE_CACHE_PREFETCH_QUEUE) {
            drop_wish(c);
        } else {
            c->wish[c->wish_in++ % WASTE_CACHE_PREFETCH_QUEUE] =
                (struct waste_cache_wish){want->step, want->layer, want->expert[i], i};
        }
    }
}

/* Reads for the oldest wishes that are still worth it. */
static uint32_t plan_prefetch(struct waste_cache *c, struct waste_cache_read *out, uint32_t room)
{
    uint32_t n = 0;
    while (c->wish_out < c->wish_in) {
        struct waste_cache_wish w = c->wish[c->wish_out % WASTE_CACHE_PREFETCH_QUEUE];
        uint32_t slot = c->slot_of[key_index(c, w.layer, w.expert)];
        bool late = passed(c, w.step, w.layer);
        if (!late && slot == NONE && (n == room || c->prefetch_reading >= c->prefetch_limit))
            break;
        c->wish_out++;
        float risk = waste_foresight_risk(&c->foresight, w.layer, w.rank);
        if (!late && slot == NONE && !waste_foresight_allows(&c->foresight, risk)) {
            waste_count(c->shm->control, WASTE_C_PREFETCH_WITHHELD, 1);
            continue;
        }
        if (!late && slot != NONE)
            protect(c, slot, w.step);
        if (late || slot != NONE || (slot = take_slot(c, w.layer, w.expert, false)) == NONE) {
            drop_wish(c);
            continue;
        }
        struct waste_cache_slot *s = &c->slot[slot];
        s->prefetched = s->predicted = s->open = 1;
        s->risk = risk;
        waste_foresight_open(&c->foresight, risk);
        s->for_step = w.step;
        c->prefetch_reading++;
        waste_count(c->shm->control, WASTE_C_PREFETCHED, 1);
        out[n++] = (struct waste_cache_read){slot, w.layer, w.expert, false};
    }
    return n;
}

uint32_t waste_cache_plan(struct waste_cache *c, struct waste_cache_read *out, uint32_t room)
{
    uint32_t n = 0;
    while (n < room && waste_cache_wanting(c)) {
        uint32_t expert = c->wanted[c->wanted_next];
        uint32_t slot = take_slot(c, c->layer, expert, true);
        if (slot == NONE)
            return n; /* all pinned or being read: an unpin or the end of a read goes on from here
                       */
        c->wanted_next++;
        hold(c, slot);
        out[n++] = (struct waste_cache_read){slot, c->layer, expert, true};
    }
    return n + plan_prefetch(c, out + n, room - n);
}

/* ---- warming ---- */

void waste_cache_recall(struct waste_cache *c, uint32_t layer, uint32_t expert, float share)
{
    uint32_t key = key_index(c, layer, expert);
    if (c->slot_of[key] == NONE)
        waste_policy_recall(&c->policy, key, share);
}

int waste_cache_warm(struct waste_cache *c, uint32_t layer, uint32_t expert,
                     struct waste_cache_read *out)
{
    uint32_t free = 0, slot = c->free;
    if (c->slot_of[key_index(c, layer, expert)] != NONE)
        return 0;
    for (uint32_t s = slot; s != NONE && free <= 2 * c->top_k; s = c->slot[s].next)
        free++;
    if (free <= 2 * c->top_k)
        return -ENOSPC;
    c->free = c->slot[slot].next;
    if (!claim(c, slot, layer, expert)) {
        push_free(c, slot); /* never: nobody pins an EMPTY slot */
        return -ENOSPC;
    }
    waste_ghost_put(&c->ghost, key_index(c, layer, expert));
    waste_count(c->shm->control, WASTE_C_WARMED, 1);
    *out = (struct waste_cache_read){slot, layer, expert, false};
    return 1;
}

/* ---- ends of reads ---- */

static void end_read(struct waste_cache *c, uint32_t slot)
{
    if (c->slot[slot].prefetched)
        c->prefetch_reading--;
}

void waste_cache_ready(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    end_read(c, slot);
    s->state = WASTE_SLOT_READY;
    /* the record's bytes and the key are in place; the release in here publishes them */
    waste_slot_publish(&c->shm->slot[slot]);
    if (s->predicted && passed(c, s->for_step, s->layer)) {
        prefetch_wasted(c, slot);
        s->predicted = 0;
    }
    waste_cache_settle(c, slot);
}

void waste_cache_failed(struct waste_cache *c, uint32_t slot, enum waste_slot_error error,
                        uint32_t detail)
{
    struct waste_cache_slot *s = &c->slot[slot];
    end_read(c, slot);
    s->state = WASTE_SLOT_FAILED;
    waste_slot_fail(&c->shm->slot[slot], error, detail);
    if (!s->held)
        give_up(c, slot); /* nobody waits for it: demand, when it comes, reads it again */
}

enum waste_cache_prefetch_state waste_cache_prefetch_state(const struct waste_cache *c,
                                                           uint32_t slot)
{
    const struct waste_cache_slot *s = &c->slot[slot];
    if (s->state != WASTE_SLOT_READING)
        return WASTE_CACHE_PREFETCH_OVER;
    if (s->held)
        return WASTE_CACHE_PREFETCH_DEMANDED;
    if (!s->prefetched)
        return WASTE_CACHE_PREFETCH_AHEAD; /* warming, or demand of a record before */
    return passed(c, s->for_step, s->layer) ? WASTE_CACHE_PREFETCH_PASSED
                                            : WASTE_CACHE_PREFETCH_AHEAD;
}

void waste_cache_cancelled(struct waste_cache *c, uint32_t slot)
{
    waste_count(c->shm->control, WASTE_C_PREFETCH_CANCELLED, 1);
    end_read(c, slot);
    give_up(c, slot); /* READING -> EMPTY: no byte of it was asked for */
}

/* ---- start ---- */

int waste_cache_init(struct waste_cache *c, const struct waste_shm *shm, uint32_t prefetch_limit,
                     int cache_fd, struct waste_cache_repair *repair)
{
    const struct waste_config *config = &shm->model->config;
    memset(c, 0, sizeof(*c));
    c->shm = shm;
    c->slots = shm->control->slot_count;
    c->experts = config->experts;
    c->top_k = config->top_k;
    c->free = NONE;
    if (c->top_k == 0 || c->slots / 2 < c->top_k)
        return -EINVAL;
    c->retired = NONE;
    c->prefetch_most = prefetch_limit;
    uint32_t keys = config->layers * config->experts;
    int rc =
        waste_policy_init(&c->policy, c->slots, config->layers, config->experts, config->top_k);
    if (rc < 0)
        return rc;
    rc = waste_foresight_init(&c->foresight, config->layers);
    if (rc == 0)
        rc = waste_ghost_init(&c->ghost, &c->policy);
    if (rc < 0) {
        waste_cache_finish(c);
        return rc;
    }
    c->slot = calloc(c->slots, sizeof(*c->slot));
    c->slot_of = malloc(keys * sizeof(*c->slot_of));
    c->wanted = malloc(c->top_k * sizeof(*c->wanted));
    c->held = malloc(c->top_k * sizeof(*c->held));
    c->first_predicted = malloc(config->layers * sizeof(*c->first_predicted));
    c->wish = malloc(WASTE_CACHE_PREFETCH_QUEUE * sizeof(*c->wish));
    bool complete = c->slot && c->slot_of && c->wanted && c->held && c->first_predicted && c->wish;
    rc = complete ? waste_cache_rebuild(c, cache_fd, repair) : -ENOMEM;
    if (rc < 0) {
        waste_cache_finish(c);
        return rc;
    }
    c->lost = repair->lost;
    waste_cache_retire_free(c, waste_cache_wanted_slots(c));
    waste_cache_set_limits(c);
    return 0;
}

void waste_cache_finish(struct waste_cache *c)
{
    waste_ghost_finish(&c->ghost);
    waste_policy_finish(&c->policy);
    waste_foresight_finish(&c->foresight);
    free(c->slot);
    free(c->slot_of);
    free(c->wanted);
    free(c->held);
    free(c->first_predicted);
    free(c->wish);
    memset(c, 0, sizeof(*c));
}
