#include "reader/cache_int.h"
#include "shm/inject.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- demand ---- */

static int check(const struct waste_cache *c, const struct waste_want *want, uint32_t most)
{
    if (want->count == 0 || want->count > most)
        return -EINVAL;
    for (uint32_t i = 0; i < want->count; i++)
        if (!key_exists(c, want->layer, want->expert[i]))
            return -EINVAL;
    return 0;
}

int waste_cache_check_demand(const struct waste_cache *c, const struct waste_want *want,
                             uint32_t capacity)
{
    bool turns = want->kind == WASTE_WANT_TURNS;
    if (want->kind >= WASTE_WANT_KINDS || (turns && want->count % c->top_k != 0))
        return -EINVAL;
    return check(c, want, turns ? capacity : c->top_k);
}

int waste_cache_check_prefetch(const struct waste_cache *c, const struct waste_want *want,
                               uint32_t capacity)
{
    return want->outlook < WASTE_OUTLOOK_COUNT ? check(c, want, capacity) : -EINVAL;
}

/* The slots of all records but the newest and `keep` before it: back among the others. */
static void release_held(struct waste_cache *c, uint32_t keep)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < c->held_count; i++) {
        uint32_t slot = c->held[i];
        struct waste_cache_slot *s = &c->slot[slot];
        if (c->records - s->held <= keep) {
            c->held[left++] = slot;
            continue;
        }
        s->held = 0;
        if (s->prefetched) /* foreseen, and not demanded */
            waste_cache_prefetch_wasted(c, slot);
        if (s->state == WASTE_SLOT_READY)
            waste_cache_settle(c, slot);
        else if (s->state == WASTE_SLOT_FAILED)
            waste_cache_give_up(c, slot);
    }
    c->held_count = left;
}

void waste_cache_rest(struct waste_cache *c)
{
    if (!c->held_count)
        return;
    c->records++; /* one that asks for nothing */
    release_held(c, 0);
}

/* For the newest record. */
static void hold(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (!s->held) {
        if (s->state == WASTE_SLOT_READY)
            waste_cache_displace(c, slot);
        c->held[c->held_count++] = slot;
        s->counted = 0;
    }
    s->held = c->records;
    s->predicted = 0;
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
    waste_cache_displace(c, slot);
    waste_cache_give_up(c, slot);
    return false;
}

/* One expert of the new record; `ahead`: it is only foreseen. */
static void demand_expert(struct waste_cache *c, uint32_t layer, uint32_t expert, bool ahead)
{
    struct waste_control *control = c->shm->control;
    uint32_t key = key_index(c, layer, expert), slot = c->slot_of[key];
    if (slot != NONE && c->slot[slot].held == c->records)
        return; /* twice in one record */
    if (slot != NONE && !c->slot[slot].held && c->slot[slot].state == WASTE_SLOT_READY &&
        !heal(c, slot))
        slot = NONE;
    if (slot == NONE) {
        for (uint32_t i = 0; i < c->wanted_count; i++)
            if (c->wanted[i] == expert)
                return;
        waste_count(control, WASTE_C_MISSES, !ahead);
        c->wanted[c->wanted_count++] = expert;
        return;
    }
    struct waste_cache_slot *s = &c->slot[slot];
    hold(c, slot);
    if (ahead || s->counted)
        return;
    if (s->prefetched && s->state == WASTE_SLOT_READING)
        c->prefetch_reading--; /* a demand from now on */
    if (s->prefetched)
        waste_cache_prefetch_used(c, slot);
    s->counted = 1;
    waste_count(control, s->state == WASTE_SLOT_READY ? WASTE_C_HITS : WASTE_C_MISSES, 1);
}

/* Experts of the record that are to be held, and those to be read. */
static void want_experts(struct waste_cache *c, const struct waste_want *want)
{
    c->records++;
    /* a FAILED slot of a record that is over becomes EMPTY here: asked again, read again */
    release_held(c, want->hold);
    c->wanted_layer = want->layer;
    c->wanted_ahead = want->kind == WASTE_WANT_AHEAD;
    c->wanted_next = c->wanted_count = 0;
    for (uint32_t i = 0; i < want->count; i++)
        demand_expert(c, want->layer, want->expert[i], c->wanted_ahead);
}

/* What a chunk's tokens chose, one after the other. */
static void learn_turns(struct waste_cache *c, const struct waste_want *want)
{
    for (uint32_t i = 0; i < want->count; i += c->top_k)
        waste_policy_turn(&c->policy, want->layer, want->expert + i, c->top_k);
}

/* Part of a layer of a chunk has come. What was chosen is learned from TURNS. */
static void take_part(struct waste_cache *c, const struct waste_want *want)
{
    waste_policy_pass(&c->policy, want->layer);
    waste_ghost_demand(&c->ghost, want->layer, want->expert, want->count);
}

/* A token's turn of a layer has come. */
static void take_turn(struct waste_cache *c, const struct waste_want *want)
{
    waste_policy_turn(&c->policy, want->layer, want->expert, want->count);
    waste_ghost_demand(&c->ghost, want->layer, want->expert, want->count);
    waste_cache_judge_predictions(c, want);
}

/* Compute is at this layer. */
static void arrive(struct waste_cache *c, const struct waste_want *want)
{
    uint64_t old_step = c->step;
    uint32_t old_layer = c->layer;
    bool again = c->any_demand && want->step == old_step && want->layer == old_layer;
    c->any_demand = true;
    c->step = want->step;
    c->layer = want->layer;
    c->prefetch_begun = 0;
    want_experts(c, want);
    if (want->kind == WASTE_WANT_CHUNK)
        take_part(c, want);
    else if (!again)
        take_turn(c, want);
    waste_foresight_count(&c->foresight, c->wanted_count, c->ghost.reads);
    waste_cache_expire_predictions(c, old_step, old_layer);
    waste_count(c->shm->control, WASTE_C_DEMAND_RECORDS, 1);
}

void waste_cache_demand(struct waste_cache *c, const struct waste_want *want)
{
    if (want->kind == WASTE_WANT_TURNS)
        learn_turns(c, want);
    else if (want->kind == WASTE_WANT_AHEAD)
        want_experts(c, want);
    else
        arrive(c, want);
}

/* A read that is about to start for what a chunk will need: a prefetch without risk. */
static void foresee(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    s->prefetched = s->open = 1;
    s->risk = 0;
    c->prefetch_reading++;
    waste_count(c->shm->control, WASTE_C_PREFETCHED, 1);
}

uint32_t waste_cache_plan(struct waste_cache *c, struct waste_cache_read *out, uint32_t room)
{
    uint32_t n = 0;
    while (n < room && waste_cache_wanting(c)) {
        uint32_t expert = c->wanted[c->wanted_next];
        uint32_t slot = waste_cache_take(c, c->wanted_layer, expert, true);
        if (slot == NONE)
            return n; /* all pinned or being read: an unpin or the end of a read goes on from here
                       */
        c->wanted_next++;
        hold(c, slot);
        if (c->wanted_ahead)
            foresee(c, slot);
        else
            c->slot[slot].counted = 1;
        out[n++] = (struct waste_cache_read){slot, c->wanted_layer, expert, !c->wanted_ahead};
    }
    return n + waste_cache_plan_prefetch(c, out + n, room - n);
}

/* ---- warming ---- */

void waste_cache_recall(struct waste_cache *c, uint32_t layer, uint32_t expert, float share)
{
    if (!waste_habit_begun(&c->policy.habit))
        waste_policy_recall(&c->policy, key_index(c, layer, expert), share);
}

int waste_cache_warm(struct waste_cache *c, uint32_t layer, uint32_t expert,
                     struct waste_cache_read *out)
{
    uint32_t free = 0, slot = c->free;
    if (c->slot_of[key_index(c, layer, expert)] != NONE)
        return 0;
    for (uint32_t s = slot; s != NONE && free <= c->floor; s = c->slot[s].next)
        free++;
    if (free <= c->floor)
        return -ENOSPC;
    c->free = c->slot[slot].next;
    if (!waste_cache_claim(c, slot, layer, expert)) {
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
        waste_cache_prefetch_wasted(c, slot);
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
        waste_cache_give_up(c,
                            slot); /* nobody waits for it: demand, when it comes, reads it again */
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
    c->floor = waste_model_floor_slots(shm->model);
    c->free = NONE;
    if (c->top_k == 0 || c->slots < c->floor)
        return -EINVAL;
    c->retired = NONE;
    c->prefetch_most = prefetch_limit;
    uint32_t keys = config->layers * config->experts;
    int rc = waste_policy_init(&c->policy, c->slots, config->layers, config->experts, config->top_k,
                               shm->habit);
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
    c->held = malloc(c->slots * sizeof(*c->held));
    c->first_predicted = malloc(config->layers * sizeof(*c->first_predicted));
    c->wishes = calloc(config->layers, sizeof(*c->wishes));
    bool complete =
        c->slot && c->slot_of && c->wanted && c->held && c->first_predicted && c->wishes;
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
    free(c->wishes);
    memset(c, 0, sizeof(*c));
}
