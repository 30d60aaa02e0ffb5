/* The cache's decisions, with no disk: reads end when the test says so. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "reader/cache.h"
#include "reader/container.h"

static struct waste_model *model;
static uint32_t top_k, experts;
static uint64_t seed;

static uint32_t random_below(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)((seed >> 11) % n);
}

struct rig {
    void *base;
    struct waste_shm shm;
    struct waste_cache cache;
    struct waste_cache_repair repair;
    struct waste_cache_read reading[4096]; /* not over yet, in any order */
    uint32_t reading_count;
    uint64_t step;
    union {
        struct waste_want want;
        uint32_t room[256];
    };
};

static void create_shared(struct rig *r, uint32_t slots)
{
    const struct waste_options options = {.threads = 1, .ctx = 64};
    uint64_t bytes = waste_control_bytes(model, slots);
    memset(r, 0, sizeof(*r));
    r->base = aligned_alloc(64, bytes);
    memset(r->base, 0, bytes);
    waste_control_init(r->base, bytes, model, slots, &options, 1, &r->shm);
}

static void create(struct rig *r, uint32_t slots, uint32_t prefetch_limit)
{
    create_shared(r, slots);
    assert_int_equal(waste_cache_init(&r->cache, &r->shm, prefetch_limit, -1, &r->repair), 0);
    /* all predictions are worth a read: test_foresight.c */
    r->cache.ghost.reads = 1000000000;
    waste_foresight_count(&r->cache.foresight, 0, r->cache.ghost.reads);
    for (uint32_t rank = 0; rank < WASTE_FORESIGHT_RANKS; rank++)
        r->cache.foresight.rate[rank] = (struct waste_foresight_rate){1e6f, 1e6f};
}

static void destroy(struct rig *r)
{
    waste_cache_finish(&r->cache);
    free(r->base);
}

static uint64_t word(struct rig *r, uint32_t slot)
{
    return atomic_load(&r->shm.slot[slot].word);
}

static uint32_t directory(struct rig *r, uint32_t layer, uint32_t expert)
{
    return atomic_load(&r->shm.directory[layer * experts + expert]);
}

static bool ready(struct rig *r, uint32_t layer, uint32_t expert)
{
    uint32_t slot = directory(r, layer, expert);
    return slot != WASTE_SLOT_NONE && waste_slot_state(word(r, slot)) == WASTE_SLOT_READY &&
           atomic_load(&r->shm.slot[slot].key) == waste_slot_key(layer, expert);
}

static bool is_held(const struct waste_cache *c, uint32_t slot)
{
    for (uint32_t i = 0; i < c->held_count; i++)
        if (c->held[i] == slot)
            return true;
    return false;
}

/* Every slot is in exactly the one place its state and flags say, and both sides agree. */
static void assert_consistent(struct rig *r)
{
    struct waste_cache *c = &r->cache;
    uint32_t places[4096] = {0}, predicted = 0, in_directory = 0, filled = 0;
    for (uint32_t s = c->free; s != WASTE_SLOT_NONE; s = c->slot[s].next) {
        assert_int_equal(waste_slot_state(word(r, s)), WASTE_SLOT_EMPTY);
        places[s]++;
    }
    for (uint32_t l = 0; l < model->config.layers; l++)
        for (uint32_t s = c->first_predicted[l]; s != WASTE_SLOT_NONE; s = c->slot[s].next) {
            assert_true(c->slot[s].predicted && c->slot[s].state == WASTE_SLOT_READY);
            assert_int_equal(c->slot[s].layer, l);
            assert_true(c->slot[s].for_step > c->step ||
                        (c->slot[s].for_step == c->step && l > c->layer));
            places[s]++;
            predicted++;
        }
    assert_int_equal(predicted, c->predicted);
    for (uint32_t l = 0; l < model->config.layers; l++)
        for (uint32_t i = 0; i < c->policy.count[l]; i++) {
            uint32_t s = c->policy.heap[l * experts + i];
            assert_int_equal(c->policy.place[s], i);
            assert_int_equal(c->slot[s].state, WASTE_SLOT_READY);
            assert_int_equal(c->slot[s].layer, l);
            assert_int_equal(c->policy.key[s], l * experts + c->slot[s].expert);
            places[s]++;
        }
    for (uint32_t s = 0; s < c->slots; s++) {
        assert_int_equal(waste_slot_state(word(r, s)), c->slot[s].state);
        assert_int_equal(c->slot[s].held, is_held(c, s));
        bool alone = c->slot[s].held || c->slot[s].state == WASTE_SLOT_READING;
        assert_int_equal(places[s], alone ? 0 : 1);
        filled += c->slot[s].state != WASTE_SLOT_EMPTY;
    }
    for (uint32_t i = 0; i < model->config.layers * experts; i++) {
        uint32_t s = atomic_load(&r->shm.directory[i]);
        assert_int_equal(s, c->slot_of[i]);
        if (s == WASTE_SLOT_NONE)
            continue;
        in_directory++;
        assert_int_equal(atomic_load(&r->shm.slot[s].key),
                         waste_slot_key(i / experts, i % experts));
    }
    assert_int_equal(in_directory, filled);
}

static void plan(struct rig *r, uint32_t room)
{
    r->reading_count += waste_cache_plan(&r->cache, r->reading + r->reading_count, room);
    assert_true(r->reading_count < 2048);
}

static struct waste_cache_read take_reading(struct rig *r, uint32_t i)
{
    struct waste_cache_read read = r->reading[i];
    r->reading[i] = r->reading[--r->reading_count];
    return read;
}

static void finish_reads(struct rig *r)
{
    while (r->reading_count)
        waste_cache_ready(&r->cache, take_reading(r, random_below(r->reading_count)).slot);
}

static void set_want(struct rig *r, uint64_t step, uint32_t layer, const uint32_t *expert,
                     uint32_t count)
{
    r->want = (struct waste_want){.step = step, .layer = layer, .count = count};
    memcpy(r->want.expert, expert, count * sizeof(*expert));
}

static void demand(struct rig *r, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    set_want(r, r->step, layer, expert, count);
    assert_int_equal(waste_cache_check(&r->cache, &r->want, top_k), 0);
    waste_cache_demand(&r->cache, &r->want);
}

static void prefetch(struct rig *r, uint64_t step, uint32_t layer, const uint32_t *expert,
                     uint32_t count)
{
    set_want(r, step, layer, expert, count);
    assert_int_equal(waste_cache_check(&r->cache, &r->want, 64), 0);
    waste_cache_prefetch(&r->cache, &r->want);
}

static void pick(uint32_t *expert, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
    again:
        expert[i] = random_below(experts);
        for (uint32_t j = 0; j < i; j++)
            if (expert[j] == expert[i])
                goto again;
    }
}

static uint64_t counter(struct rig *r, enum waste_counter id)
{
    return atomic_load(&r->shm.control->counter[id]);
}

/* ---- policy ---- */

/* The heaps against a look at every slot. */
static void the_policys_victim_is_worth_least(void **state)
{
    (void)state;
    enum { SLOTS = 100, LAYERS = 5, EXPERTS = 30, KEYS = LAYERS * EXPERTS };
    struct waste_policy p;
    uint32_t holds[SLOTS], chosen[3];
    assert_int_equal(waste_policy_init(&p, SLOTS, LAYERS, EXPERTS, 3), 0);
    for (uint32_t s = 0; s < SLOTS; s++)
        holds[s] = UINT32_MAX;
    for (uint64_t n = 1; n < 4000; n++) {
        uint32_t key = random_below(KEYS), slot = random_below(SLOTS);
        bool here = false;
        for (uint32_t s = 0; s < SLOTS; s++)
            here |= holds[s] == key;
        if (!here) {
            waste_policy_add(&p, slot, key);
            holds[slot] = key;
        }
        for (uint32_t i = 0; i < 3; i++)
            chosen[i] = random_below(10) * random_below(3) + i;
        if (n % 3 == 0)
            waste_policy_turn(&p, (uint32_t)n / 3 % LAYERS, chosen, 3);
        uint32_t victim = waste_policy_victim(&p), filled = 0, counted = 0;
        for (uint32_t s = 0; s < SLOTS; s++) {
            if (holds[s] == UINT32_MAX)
                continue;
            filled++;
            assert_int_not_equal(victim, WASTE_POLICY_NONE);
            assert_true(waste_policy_value(&p, holds[victim]) <= waste_policy_value(&p, holds[s]));
        }
        for (uint32_t l = 0; l < LAYERS; l++)
            counted += p.count[l];
        assert_int_equal(counted, filled);
        if (n % 5 == 0 && victim != WASTE_POLICY_NONE) {
            waste_policy_remove(&p, victim);
            holds[victim] = UINT32_MAX;
        }
    }
    waste_policy_finish(&p);
}

static void of_equals_the_layer_just_past_goes_first(void **state)
{
    (void)state;
    struct waste_policy p;
    assert_int_equal(waste_policy_init(&p, 4, 4, 8, 1), 0);
    for (uint32_t l = 0; l < 4; l++) {
        waste_policy_recall(&p, l * 8, 0.5f);
        waste_policy_add(&p, l, l * 8);
    }
    waste_policy_turn(&p, 1, (uint32_t[]){0}, 1);
    /* layer 1 is four turns away, and was just chosen: the chance of the others is a quarter */
    for (uint32_t l = 0; l < 4; l++)
        p.habit.expert[l * 8].chance = 0.25f;
    assert_int_equal(waste_policy_victim(&p), 1);
    waste_policy_remove(&p, 1);
    assert_int_equal(waste_policy_victim(&p), 0); /* three away */
    waste_policy_remove(&p, 0);
    assert_int_equal(waste_policy_victim(&p), 3); /* two; layer 2 is next */
    waste_policy_finish(&p);
}

/* ---- habit ---- */

static void feed(struct waste_habit *h, uint32_t turns, const uint32_t (*cycle)[2], uint32_t period)
{
    for (uint32_t n = 0; n < turns; n++)
        waste_habit_turn(h, 0, cycle[n % period], 2);
}

static void what_follows_is_expected(void **state)
{
    (void)state;
    static const uint32_t cycle[3][2] = {{0, 1}, {2, 3}, {4, 5}};
    struct waste_habit h;
    assert_int_equal(waste_habit_init(&h, 1, 32, 2), 0);
    feed(&h, 60, cycle, 3);
    /* {0, 1} comes next, though {4, 5} are the most recent and all equally frequent */
    for (uint32_t e = 2; e < 32; e++) {
        assert_true(waste_habit_chance(&h, 0) > 2 * waste_habit_chance(&h, e));
        assert_true(waste_habit_chance(&h, 1) > 2 * waste_habit_chance(&h, e));
    }
    waste_habit_finish(&h);
}

static void the_often_chosen_and_the_lately_chosen_are_expected(void **state)
{
    (void)state;
    struct waste_habit h;
    uint32_t chosen[2];
    assert_int_equal(waste_habit_init(&h, 2, 64, 2), 0);
    for (uint32_t n = 0; n < 300; n++) {
        chosen[0] = n % 2 ? 7 : 8 + random_below(20);
        chosen[1] = 30 + random_below(30);
        waste_habit_turn(&h, 1, chosen, 2);
    }
    for (uint32_t e = 0; e < 64; e++) /* 0..6 never; 7 every second time */
        if (e != 7)
            assert_true(waste_habit_chance(&h, 64 + 7) > waste_habit_chance(&h, 64 + e));
    for (uint32_t e = 0; e < 7; e++)
        assert_true(waste_habit_chance(&h, 64 + e) < waste_habit_chance(&h, 64 + chosen[1]));
    waste_habit_finish(&h);
}

static void chances_are_as_often_right_as_they_say(void **state)
{
    (void)state;
    /* expert e of 16 with probability about (e + 1) / 136 * 2 each turn */
    struct waste_habit h;
    double expected = 0, happened = 0;
    assert_int_equal(waste_habit_init(&h, 1, 16, 2), 0);
    for (uint32_t n = 0; n < 6000; n++) {
        uint32_t chosen[2];
        for (uint32_t i = 0; i < 2; i++)
            do {
                uint32_t x = random_below(136);
                for (chosen[i] = 0; x >= chosen[i] + 1; chosen[i]++)
                    x -= chosen[i] + 1;
            } while (i == 1 && chosen[1] == chosen[0]);
        for (uint32_t e = 0; n > 1000 && e < 16; e++)
            if (waste_habit_chance(&h, e) > 0.15f) {
                expected += waste_habit_chance(&h, e);
                happened += e == chosen[0] || e == chosen[1];
            }
        waste_habit_turn(&h, 0, chosen, 2);
    }
    assert_true(happened > 1000);
    assert_true(expected > 0.85 * happened && expected < 1.15 * happened);
    waste_habit_finish(&h);
}

/* Any choices, for long: numbers stay numbers; the same choices, the same chances. */
static void chances_stay_chances_and_are_reproducible(void **state)
{
    (void)state;
    struct waste_habit h[2];
    uint64_t first = seed;
    for (uint32_t i = 0; i < 2; i++) {
        seed = first;
        assert_int_equal(waste_habit_init(&h[i], 2, 9, 3), 0);
        for (uint32_t n = 0; n < 5000; n++) {
            uint32_t chosen[3], style = n / 500 % 4, count = 1 + random_below(3);
            for (uint32_t k = 0; k < count; k++)
                chosen[k] = style == 0   ? k
                            : style == 1 ? (n + k) % 9
                            : style == 2 ? random_below(3) + 3 * k
                                         : 8 - k;
            waste_habit_turn(&h[i], n & 1, chosen, count);
        }
        for (uint32_t e = 0; e < 18; e++)
            assert_true(waste_habit_chance(&h[i], e) >= 0 && waste_habit_chance(&h[i], e) <= 1);
        for (uint32_t w = 0; w < WASTE_HABIT_FEATURES; w++)
            assert_true(isfinite(h[i].weight[w]));
    }
    for (uint32_t e = 0; e < 18; e++)
        assert_true(waste_habit_chance(&h[0], e) == waste_habit_chance(&h[1], e));
    waste_habit_finish(&h[0]);
    waste_habit_finish(&h[1]);
}

static void what_is_recalled_is_worth_its_share(void **state)
{
    (void)state;
    struct waste_habit h;
    assert_int_equal(waste_habit_init(&h, 1, 16, 2), 0);
    for (uint32_t e = 0; e < 16; e++)
        waste_habit_recall(&h, 0, e, (float)e / 16);
    for (uint32_t e = 1; e < 16; e++)
        assert_true(waste_habit_chance(&h, e) > waste_habit_chance(&h, e - 1));
    waste_habit_finish(&h);
}

/* ---- demand ---- */

static void the_smallest_cache_serves_any_demand(void **state)
{
    (void)state;
    struct rig r;
    uint32_t expert[64];
    create(&r, 2 * top_k, 8);
    for (uint32_t n = 0; n < 3000; n++) {
        uint32_t layer = 1 + n % 7;
        pick(expert, top_k);
        demand(&r, layer, expert, top_k);
        plan(&r, 64);
        assert_false(waste_cache_wanting(&r.cache));
        finish_reads(&r);
        for (uint32_t i = 0; i < top_k; i++)
            assert_true(ready(&r, layer, expert[i]));
        assert_consistent(&r);
    }
    assert_int_equal(counter(&r, WASTE_C_DEMAND_RECORDS), 3000);
    assert_int_equal(counter(&r, WASTE_C_HITS) + counter(&r, WASTE_C_MISSES), 3000 * top_k);
    assert_true(counter(&r, WASTE_C_EVICTIONS) > 2000 * top_k);
    destroy(&r);
}

static void an_expert_named_twice_is_read_once(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t twice[] = {9, 9, 8, 9};
    create(&r, 2 * top_k, 8);
    demand(&r, 1, twice, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 2);
    demand(&r, 1, twice, 4); /* and while it is being read */
    plan(&r, 64);
    assert_int_equal(r.reading_count, 2);
    finish_reads(&r);
    demand(&r, 1, twice, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 0);
    assert_int_equal(counter(&r, WASTE_C_HITS), 2);
    assert_int_equal(counter(&r, WASTE_C_MISSES), 4);
    assert_consistent(&r);
    destroy(&r);
}

static void impossible_records_are_refused(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t good[] = {0, 1}, bad[] = {0, 64}, wild[] = {UINT32_MAX};
    create(&r, 2 * top_k, 8);
    const struct {
        uint32_t layer, count, max;
        const uint32_t *expert;
        int rc;
    } cases[] = {
        {1, 2, 4, good, 0},   {0, 2, 4, good, -22},
        {8, 2, 4, good, -22}, {UINT32_MAX, 2, 4, good, -22},
        {1, 0, 4, good, -22}, {1, 2, 1, good, -22},
        {1, 2, 4, bad, -22},  {1, 1, 4, wild, -22},
        {7, 2, 4, good, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set_want(&r, 0, cases[i].layer, cases[i].expert, cases[i].count);
        assert_int_equal(waste_cache_check(&r.cache, &r.want, cases[i].max), cases[i].rc);
    }
    set_want(&r, 0, 1, good, 2);
    r.want.count = UINT32_MAX;
    assert_int_equal(waste_cache_check(&r.cache, &r.want, 64), -22);
    destroy(&r);
}

static void a_pinned_expert_stays(void **state)
{
    (void)state;
    struct rig r;
    uint32_t all[] = {0, 1, 2, 3}, next[] = {10, 11, 12, 13}, more[] = {20, 21, 22, 23};
    create(&r, 8, 8);
    demand(&r, 1, all, 4);
    plan(&r, 64);
    finish_reads(&r);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(waste_slot_pin(&r.shm.slot[directory(&r, 1, i)], waste_slot_key(1, i)));
    demand(&r, 2, next, 4);
    plan(&r, 64);
    finish_reads(&r);
    demand(&r, 3, more, 4); /* only layer 2's slots can go */
    plan(&r, 64);
    assert_int_equal(r.reading_count, 4);
    finish_reads(&r);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(ready(&r, 1, i));
        assert_int_equal(directory(&r, 2, next[i]), WASTE_SLOT_NONE);
        assert_true(ready(&r, 3, more[i]));
    }
    assert_consistent(&r);
    /* all pinned: demand waits, and goes on as soon as one is not */
    for (uint32_t i = 0; i < 4; i++)
        assert_true(
            waste_slot_pin(&r.shm.slot[directory(&r, 3, more[i])], waste_slot_key(3, more[i])));
    demand(&r, 4, all, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 0);
    assert_true(waste_cache_wanting(&r.cache));
    assert_consistent(&r);
    uint32_t freed = directory(&r, 1, 2);
    waste_slot_unpin(&r.shm.slot[freed]);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 1);
    assert_int_equal(r.reading[0].slot, freed);
    finish_reads(&r);
    assert_true(ready(&r, 4, 0));
    destroy(&r);
}

static void failed_is_seen_until_the_next_record_and_then_tried_again(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t a[] = {5}, b[] = {6};
    create(&r, 8, 8);
    demand(&r, 1, a, 1);
    plan(&r, 64);
    uint32_t slot = take_reading(&r, 0).slot;
    waste_cache_failed(&r.cache, slot, WASTE_SLOT_EIO, 5);
    assert_int_equal(directory(&r, 1, 5), slot);
    assert_int_equal(waste_slot_state(word(&r, slot)), WASTE_SLOT_FAILED);
    assert_int_equal(atomic_load(&r.shm.slot[slot].error), WASTE_SLOT_EIO);
    assert_int_equal(atomic_load(&r.shm.slot[slot].detail), 5);
    assert_consistent(&r);
    demand(&r, 1, a, 1); /* anew */
    plan(&r, 64);
    assert_int_equal(r.reading_count, 1);
    finish_reads(&r);
    assert_true(ready(&r, 1, 5));
    demand(&r, 2, b, 1);
    plan(&r, 64);
    waste_cache_failed(&r.cache, take_reading(&r, 0).slot, WASTE_SLOT_SHORT, 0);
    demand(&r, 3, b, 1); /* another: the failed one is forgotten */
    assert_int_equal(directory(&r, 2, 6), WASTE_SLOT_NONE);
    plan(&r, 64);
    finish_reads(&r);
    assert_consistent(&r);
    destroy(&r);
}

static void the_often_used_outlive_the_lately_used(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t often[] = {0};
    create(&r, 16, 8);
    for (uint32_t n = 0; n < 400; n++) {
        r.step = n;
        if (n % 8 == 0)
            demand(&r, 1, often, 1);
        else
            demand(&r, 1 + n % 7, (uint32_t[]){1 + n % 63, 1 + (n + 13) % 63}, 2);
        plan(&r, 64);
        if (n > 40 && n % 8 == 0)
            assert_int_equal(r.reading_count, 0);
        finish_reads(&r);
    }
    destroy(&r);
}

static void a_stray_write_is_healed_when_the_expert_is_demanded(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t a[] = {1, 2, 3, 4};
    create(&r, 16, 8);
    demand(&r, 1, a, 4);
    plan(&r, 64);
    finish_reads(&r);
    atomic_store(&r.shm.slot[directory(&r, 1, 1)].word, UINT64_MAX);
    atomic_store(&r.shm.slot[directory(&r, 1, 2)].key, 77);
    uint32_t third = directory(&r, 1, 3);
    atomic_store(&r.shm.directory[experts + 3], UINT32_MAX - 5);
    demand(&r, 1, a, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 2);
    finish_reads(&r);
    for (uint32_t i = 1; i <= 4; i++)
        assert_true(ready(&r, 1, i));
    assert_int_equal(directory(&r, 1, 3), third);
    assert_consistent(&r);
    /* and when its slot is wanted for another */
    demand(&r, 2, a, 4);
    plan(&r, 64);
    finish_reads(&r);
    for (uint32_t s = 0; s < 16; s++)
        if (!is_held(&r.cache, s))
            atomic_store(&r.shm.slot[s].word, UINT64_C(0xdeadbeef00000000) + s);
    for (uint32_t n = 0; n < 8; n++) {
        demand(&r, 3 + n % 5, (uint32_t[]){n, n + 10, n + 20, n + 30}, 4);
        plan(&r, 64);
        assert_int_equal(r.reading_count, 4);
        finish_reads(&r);
    }
    assert_true(r.cache.healed >= 3);
    destroy(&r);
}

/* ---- prefetch ---- */

static void prefetch_reads_what_is_coming_and_drops_what_has_passed(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {0, 1, 2, 3}, guess[] = {20, 21, 20, 0};
    create(&r, 32, 16);
    r.step = 5;
    demand(&r, 3, now, 4);
    prefetch(&r, 5, 3, guess, 4); /* being demanded */
    prefetch(&r, 5, 2, guess, 4);
    prefetch(&r, 4, 6, guess, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 4);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_DROPPED), 12);
    prefetch(&r, 5, 4, guess, 4); /* 20 twice */
    prefetch(&r, 6, 1, guess, 1);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 8);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(r.reading[i].demand);
    for (uint32_t i = 4; i < 8; i++)
        assert_false(r.reading[i].demand);
    assert_int_equal(counter(&r, WASTE_C_PREFETCHED), 4);
    finish_reads(&r);
    assert_consistent(&r);
    demand(&r, 4, guess, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 0);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_USED), 3);
    assert_consistent(&r);
    destroy(&r);
}

static void a_wish_that_compute_overtakes_is_not_read(void **state)
{
    (void)state;
    struct rig r;
    uint32_t guess[16], now[] = {60};
    for (uint32_t i = 0; i < 16; i++)
        guess[i] = i;
    create(&r, 64, 4);
    demand(&r, 1, now, 1);
    prefetch(&r, 0, 2, guess, 16);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 5); /* 1 demanded, 4 predicted at once */
    demand(&r, 2, now, 1);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 6);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_DROPPED), 12);
    finish_reads(&r);
    assert_consistent(&r);
    destroy(&r);
}

static void demand_upgrades_a_prefetch_in_flight(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {0}, guess[] = {9};
    create(&r, 16, 1);
    demand(&r, 1, now, 1);
    prefetch(&r, 0, 2, guess, 1);
    plan(&r, 64);
    assert_int_equal(r.cache.prefetch_reading, 1);
    demand(&r, 2, guess, 1);
    assert_int_equal(r.cache.prefetch_reading, 0); /* another prefetch may go */
    plan(&r, 64);
    assert_int_equal(r.reading_count, 2); /* nothing read twice */
    uint32_t slot = directory(&r, 2, 9);
    for (uint32_t i = 0; i < r.reading_count; i++)
        if (r.reading[i].slot == slot)
            take_reading(&r, i);
    waste_cache_failed(&r.cache, slot, WASTE_SLOT_EIO, 5); /* now somebody waits: it is shown */
    assert_int_equal(waste_slot_state(word(&r, slot)), WASTE_SLOT_FAILED);
    finish_reads(&r);
    assert_consistent(&r);
    destroy(&r);
}

static void a_prefetch_that_fails_leaves_no_trace(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {0}, guess[] = {9};
    create(&r, 16, 8);
    demand(&r, 1, now, 1);
    prefetch(&r, 0, 2, guess, 1);
    plan(&r, 64);
    uint32_t slot = directory(&r, 2, 9);
    for (uint32_t i = 0; i < r.reading_count; i++)
        if (r.reading[i].slot == slot)
            take_reading(&r, i);
    waste_cache_failed(&r.cache, slot, WASTE_SLOT_BAD_CRC, 0);
    assert_int_equal(directory(&r, 2, 9), WASTE_SLOT_NONE);
    finish_reads(&r);
    assert_consistent(&r);
    demand(&r, 2, guess, 1);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 1);
    finish_reads(&r);
    assert_consistent(&r);
    destroy(&r);
}

static void a_prefetch_never_evicts_what_is_demanded_or_predicted(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t old[] = {1, 2, 3, 4}, now[] = {50, 51, 52, 53}, kept[] = {1, 2};
    uint32_t guess[32];
    for (uint32_t i = 0; i < 32; i++)
        guess[i] = i;
    create(&r, 12, 8);
    r.step = 0;
    demand(&r, 7, old, 4);
    plan(&r, 64);
    finish_reads(&r);
    r.step = 1;
    demand(&r, 1, now, 4);
    plan(&r, 64);
    finish_reads(&r);
    prefetch(&r, 1, 7, kept, 2); /* resident: protected */
    for (uint32_t n = 0; n < 20; n++) {
        prefetch(&r, 1, 2 + n % 3, guess, 32);
        plan(&r, 64);
        finish_reads(&r);
        assert_consistent(&r);
        for (uint32_t i = 0; i < 4; i++)
            assert_true(ready(&r, 1, now[i]));
        if (n == 0) {
            assert_true(ready(&r, 7, 1));
            assert_true(ready(&r, 7, 2));
        }
    }
    destroy(&r);
}

static void a_prefetch_with_nothing_but_predicted_slots_left_is_dropped(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t old[] = {1, 2, 3, 4}, now[] = {50, 51, 52, 53}, more[] = {20};
    const uint32_t guess[] = {10, 11, 12, 13};
    create(&r, 12, 8);
    demand(&r, 1, old, 4);
    plan(&r, 64);
    finish_reads(&r);
    demand(&r, 2, now, 4);
    plan(&r, 64);
    prefetch(&r, 0, 4, guess, 4);
    plan(&r, 64);
    finish_reads(&r);
    /* pin all that could go but the predicted ones */
    for (uint32_t s = 0; s < 12; s++)
        if (r.cache.policy.place[s] != WASTE_POLICY_NONE)
            atomic_fetch_add(&r.shm.slot[s].word, WASTE_SLOT_PIN_ONE);
    uint32_t predicted = r.cache.predicted;
    assert_true(predicted > 1);
    uint64_t dropped = counter(&r, WASTE_C_PREFETCH_DROPPED);
    prefetch(&r, 0, 5, more, 1);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 0);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_DROPPED), dropped + 1);
    assert_int_equal(r.cache.predicted, predicted);
    assert_consistent(&r);
    demand(&r, 3, more, 1); /* demand may */
    plan(&r, 64);
    assert_int_equal(r.reading_count, 1);
    finish_reads(&r);
    destroy(&r);
}

static void an_expert_in_use_that_is_predicted_again_is_kept(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {5}, next[] = {6};
    create(&r, 16, 8);
    demand(&r, 1, now, 1);
    plan(&r, 64);
    finish_reads(&r);
    prefetch(&r, 1, 1, now, 1); /* for the next token */
    assert_int_equal(r.cache.predicted, 0);
    demand(&r, 2, next, 1);
    assert_int_equal(r.cache.predicted, 1);
    assert_int_equal(r.cache.first_predicted[1], directory(&r, 1, 5));
    plan(&r, 64);
    finish_reads(&r);
    assert_consistent(&r);
    destroy(&r);
}

static void of_too_many_predictions_the_farthest_are_forgotten(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {5}, guess[] = {6, 7};
    create(&r, 12, 8); /* room for 3 */
    demand(&r, 4, now, 1);
    plan(&r, 64);
    finish_reads(&r);
    prefetch(&r, 1, 3, guess, 2); /* the layer before this one: of the next token */
    plan(&r, 64);
    finish_reads(&r);
    prefetch(&r, 0, 5, guess, 2);
    plan(&r, 64);
    finish_reads(&r);
    assert_int_equal(r.cache.predicted, 3);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(r.cache.slot[directory(&r, 5, guess[i])].predicted);
    assert_consistent(&r);
    /* a slot's time of use is its expert's, not its predecessor's */
    assert_int_equal(atomic_load(&r.shm.slot[directory(&r, 5, 6)].last_used), 0);
    demand(&r, 5, guess, 1);
    uint32_t used = directory(&r, 5, 6);
    assert_int_equal(atomic_load(&r.shm.slot[used].last_used), 2);
    for (uint32_t n = 7; directory(&r, 5, 6) == used; n++) {
        r.step++;
        demand(&r, 1, (uint32_t[]){n, n + 1, n + 2, n + 3}, 4);
        plan(&r, 64);
        finish_reads(&r);
        prefetch(&r, r.step, 2, (uint32_t[]){n, n + 1, n + 2, n + 3}, 4);
        plan(&r, 64);
        finish_reads(&r);
        demand(&r, 5, (uint32_t[]){10 + n % 40, 12 + n % 40}, 2);
        plan(&r, 64);
        finish_reads(&r);
        assert_true(n < 40);
    }
    for (uint32_t s = 0; s < 12; s++)
        if (r.cache.slot[s].prefetched)
            assert_int_equal(atomic_load(&r.shm.slot[s].last_used), 0);
    destroy(&r);
}

static void a_prefetch_that_comes_too_late_is_as_any_other(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {5}, guess[] = {6};
    create(&r, 16, 8);
    demand(&r, 1, now, 1);
    prefetch(&r, 0, 2, guess, 1);
    plan(&r, 64);
    demand(&r, 2, now, 1);
    plan(&r, 64);
    finish_reads(&r);
    assert_int_equal(r.cache.predicted, 0);
    assert_true(ready(&r, 2, 6));
    assert_consistent(&r);
    destroy(&r);
}

static void predictions_end_when_their_layer_has_come(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {0}, guess[] = {9, 10};
    create(&r, 32, 8);
    r.step = 3;
    demand(&r, 1, now, 1);
    prefetch(&r, 3, 2, guess, 2);
    prefetch(&r, 3, 3, guess, 2);
    plan(&r, 64);
    finish_reads(&r);
    assert_int_equal(r.cache.predicted, 4);
    demand(&r, 2, now, 1);
    assert_int_equal(r.cache.predicted, 2);
    r.step = 1; /* another conversation */
    demand(&r, 1, now, 1);
    assert_int_equal(r.cache.predicted, 0);
    plan(&r, 64);
    finish_reads(&r);
    assert_consistent(&r);
    destroy(&r);
}

/*
 * At any time, whatever prefetches are in flight and will never end, and with all experts of the
 * record before pinned, a demand for top_k experts that are not there gets top_k slots at once.
 */
static void prefetch_never_starves_demand(void **state)
{
    (void)state;
    static const uint32_t extra[] = {0, 1, 2, 3, 5, 8, 20, 60};
    for (uint32_t x = 0; x < sizeof(extra) / sizeof(extra[0]); x++) {
        struct rig r;
        uint32_t expert[64], guess[32];
        create(&r, 2 * top_k + extra[x], 1000);
        for (uint32_t n = 0; n < 1500; n++) {
            uint32_t layer = 1 + n % 7, pinned[64], pins = 0;
            r.step = n / 7;
            pick(expert, top_k);
            demand(&r, layer, expert, top_k);
            plan(&r, 1000);
            assert_false(waste_cache_wanting(&r.cache));
            /* all demand ends, of the prefetches some */
            for (uint32_t i = r.reading_count; i-- > 0;)
                if (r.cache.slot[r.reading[i].slot].held || random_below(3) == 0)
                    waste_cache_ready(&r.cache, take_reading(&r, i).slot);
            for (uint32_t i = 0; i < top_k; i++) {
                pinned[pins] = directory(&r, layer, expert[i]);
                assert_true(
                    waste_slot_pin(&r.shm.slot[pinned[pins++]], waste_slot_key(layer, expert[i])));
            }
            pick(guess, 32);
            prefetch(&r, r.step + layer / 7, layer % 7 + 1, guess, 1 + random_below(32));
            plan(&r, 1000);
            assert_consistent(&r);
            /* what compute does: unpins when it has used them, before its next demand or after */
            if (random_below(2) || n % 16 == 0) {
                while (pins)
                    waste_slot_unpin(&r.shm.slot[pinned[--pins]]);
            } else {
                pick(expert, top_k);
                demand(&r, layer % 7 + 1, expert, top_k);
                plan(&r, 1000);
                assert_false(waste_cache_wanting(&r.cache));
                while (pins)
                    waste_slot_unpin(&r.shm.slot[pinned[--pins]]);
                for (uint32_t i = r.reading_count; i-- > 0;)
                    if (r.cache.slot[r.reading[i].slot].held)
                        waste_cache_ready(&r.cache, take_reading(&r, i).slot);
            }
        }
        if (extra[x] > 0)
            assert_true(counter(&r, WASTE_C_PREFETCHED) > 0);
        destroy(&r);
    }
}

static void demand_goes_first_and_in_its_order(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t first[] = {0}, guess[] = {9, 10, 11}, now[] = {33, 7, 21, 2};
    create(&r, 32, 8);
    demand(&r, 1, first, 1);
    plan(&r, 64);
    finish_reads(&r);
    prefetch(&r, 0, 3, guess, 3);
    demand(&r, 2, now, 4);
    plan(&r, 3); /* as deep as the drive goes */
    assert_int_equal(r.reading_count, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(r.reading[i].expert, now[i]);
    plan(&r, 2);
    assert_int_equal(r.reading_count, 5);
    assert_int_equal(r.reading[3].expert, 2);
    assert_int_equal(r.reading[4].expert, 9);
    destroy(&r);
}

/* ---- restart ---- */

static void too_few_slots_are_refused(void **state)
{
    (void)state;
    struct rig r;
    create_shared(&r, 2 * top_k - 1);
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), -22);
    free(r.base);
}

/* Every state of a slot with every key and every directory entry a death can leave, and more. */
static void a_restart_makes_sense_of_every_state_left_behind(void **state)
{
    (void)state;
    static const uint64_t words[] = {
        0,           1,           2,           3,           4,      7,
        2 | 3 << 16, 1 | 1 << 16, 0 | 1 << 16, 3 | 1 << 16, 0x8002, UINT64_C(0xffffffffffffffff)};
    enum { WORDS = sizeof(words) / sizeof(words[0]) };
    const uint64_t keys[] = {waste_slot_key(1, 5),  waste_slot_key(1, 6), waste_slot_key(0, 5),
                             waste_slot_key(1, 64), waste_slot_key(8, 0), UINT64_MAX};
    const uint32_t entries[] = {0, 1, WASTE_SLOT_NONE, 8, UINT32_MAX - 1};
    struct rig r;
    create_shared(&r, 8);
    for (uint32_t a = 0; a < WORDS; a++)
        for (uint32_t b = 0; b < WORDS; b++)
            for (uint32_t k = 0; k < 6; k++)
                for (uint32_t e = 0; e < 5; e++) {
                    memset(r.shm.slot, 0, 8 * sizeof(*r.shm.slot));
                    for (uint32_t i = 0; i < 8 * experts; i++)
                        atomic_store(&r.shm.directory[i], WASTE_SLOT_NONE);
                    atomic_store(&r.shm.slot[0].word, words[a] | UINT64_C(9) << 32);
                    atomic_store(&r.shm.slot[0].key, keys[0]);
                    atomic_store(&r.shm.slot[1].word, words[b] | UINT64_C(7) << 32);
                    atomic_store(&r.shm.slot[1].key, keys[k]);
                    atomic_store(&r.shm.slot[1].last_used, UINT64_MAX - k);
                    atomic_store(&r.shm.directory[experts + 5], entries[e]);
                    atomic_store(&r.shm.directory[experts + 6], entries[4 - e]);
                    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
                    assert_consistent(&r);
                    assert_int_equal(r.cache.clock, 0); /* no nonsense believed */
                    bool one = words[b] == 2 || words[b] == (2 | 3 << 16);
                    bool zero = words[a] == 2 || words[a] == (2 | 3 << 16);
                    assert_int_equal(r.repair.kept, (zero || (one && k == 0)) + (one && k == 1));
                    assert_int_equal(ready(&r, 1, 6), one && k == 1);
                    assert_int_equal(ready(&r, 1, 5), zero || (one && k == 0));
                    /* and it works (pins that are left allow for six slots still) */
                    demand(&r, 3, (uint32_t[]){1, 2, 3, 4}, 4);
                    plan(&r, 64);
                    assert_int_equal(r.reading_count, 4);
                    finish_reads(&r);
                    assert_consistent(&r);
                    waste_cache_finish(&r.cache);
                }
    free(r.base);
}

/* Runs on, forgets its own memory at any point, and takes over from shared memory alone. */
static void a_restart_at_any_point_keeps_every_ready_expert(void **state)
{
    (void)state;
    struct rig r;
    uint32_t expert[64], guess[16];
    create(&r, 24, 8);
    for (uint32_t n = 0; n < 2000; n++) {
        r.step = n / 7;
        pick(expert, top_k);
        pick(guess, 16);
        demand(&r, 1 + n % 7, expert, top_k);
        plan(&r, random_below(6));
        prefetch(&r, r.step + 1, 1 + n % 7, guess, 16);
        plan(&r, random_below(10));
        for (uint32_t i = r.reading_count; i-- > 0;) {
            uint32_t what = random_below(4), slot = r.reading[i].slot;
            if (what == 0)
                continue;
            take_reading(&r, i);
            if (what == 1)
                waste_cache_failed(&r.cache, slot, WASTE_SLOT_EIO, 5);
            else
                waste_cache_ready(&r.cache, slot);
        }
        while (random_below(10) && waste_cache_wanting(&r.cache)) {
            plan(&r, 64);
            finish_reads(&r);
        }
        if (random_below(3) && !waste_cache_wanting(&r.cache))
            continue;
        uint32_t kept = 0, reading = 0;
        for (uint32_t s = 0; s < 24; s++) {
            kept += waste_slot_state(word(&r, s)) == WASTE_SLOT_READY;
            reading += waste_slot_state(word(&r, s)) == WASTE_SLOT_READING;
        }
        uint64_t clock = r.cache.clock;
        waste_cache_finish(&r.cache);
        r.reading_count = 0;
        assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
        assert_int_equal(r.repair.kept, kept);
        assert_int_equal(r.repair.punched, reading);
        assert_true(r.cache.clock <= clock);
        assert_consistent(&r);
    }
    destroy(&r);
}

/* A dead reader's read may still land in it. */
static void a_slot_that_cannot_be_punched_is_not_used(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 12, 8);
    const uint32_t a[] = {0, 1, 2, 3}, b[] = {4, 5, 6, 7}, c[] = {8, 9, 10, 11};
    demand(&r, 1, a, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 4);
    waste_cache_finish(&r.cache);
    r.reading_count = 0;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC); /* nothing can be punched out of it */
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, fd, &r.repair), 0);
    assert_int_equal(r.repair.lost, 4);
    assert_int_equal(r.repair.punched, 0);
    for (uint32_t round = 0; round < 3; round++) {
        const uint32_t *record = round % 2 ? c : b;
        demand(&r, 1, record, 4);
        plan(&r, 64);
        assert_false(waste_cache_wanting(&r.cache));
        finish_reads(&r);
    }
    uint32_t reading = 0;
    for (uint32_t s = 0; s < 12; s++)
        reading += waste_slot_state(word(&r, s)) == WASTE_SLOT_READING;
    assert_int_equal(reading, 4);
    /* one more lost, and two records do not fit any more */
    demand(&r, 1, a, 4);
    plan(&r, 64);
    waste_cache_finish(&r.cache);
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, fd, &r.repair), -EINVAL);
    close(fd);
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
    assert_int_equal(r.repair.lost, 0);
    destroy(&r);
}

static void recency_survives_a_restart(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 8, 8);
    const uint32_t a[] = {0, 1, 2, 3}, b[] = {4, 5, 6, 7}, c[] = {8, 9, 10, 11};
    demand(&r, 1, b, 4); /* b is younger in the end, though its slots come first */
    plan(&r, 64);
    finish_reads(&r);
    demand(&r, 1, a, 4);
    plan(&r, 64);
    finish_reads(&r);
    demand(&r, 1, b, 4);
    waste_cache_finish(&r.cache);
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
    assert_int_equal(r.repair.kept, 8);
    demand(&r, 1, c, 4);
    plan(&r, 64);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(ready(&r, 1, b[i]));
        assert_int_equal(directory(&r, 1, a[i]), WASTE_SLOT_NONE);
    }
    destroy(&r);
}

int main(void)
{
    struct waste_error err;
    const char *given = getenv("WASTE_TEST_SEED");
    seed = given ? strtoull(given, NULL, 0) : 88172645463325252u;
    printf("seed %llu\n", (unsigned long long)seed);
    if (waste_container_open(WASTE_DEMO_MODEL, &model, &err) < 0) {
        printf("%s\n", err.text);
        return 1;
    }
    top_k = model->config.top_k;
    experts = model->config.experts;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_policys_victim_is_worth_least),
        cmocka_unit_test(of_equals_the_layer_just_past_goes_first),
        cmocka_unit_test(what_follows_is_expected),
        cmocka_unit_test(the_often_chosen_and_the_lately_chosen_are_expected),
        cmocka_unit_test(chances_are_as_often_right_as_they_say),
        cmocka_unit_test(chances_stay_chances_and_are_reproducible),
        cmocka_unit_test(what_is_recalled_is_worth_its_share),
        cmocka_unit_test(the_smallest_cache_serves_any_demand),
        cmocka_unit_test(an_expert_named_twice_is_read_once),
        cmocka_unit_test(impossible_records_are_refused),
        cmocka_unit_test(a_pinned_expert_stays),
        cmocka_unit_test(failed_is_seen_until_the_next_record_and_then_tried_again),
        cmocka_unit_test(the_often_used_outlive_the_lately_used),
        cmocka_unit_test(a_stray_write_is_healed_when_the_expert_is_demanded),
        cmocka_unit_test(prefetch_reads_what_is_coming_and_drops_what_has_passed),
        cmocka_unit_test(a_wish_that_compute_overtakes_is_not_read),
        cmocka_unit_test(demand_upgrades_a_prefetch_in_flight),
        cmocka_unit_test(a_prefetch_that_fails_leaves_no_trace),
        cmocka_unit_test(a_prefetch_never_evicts_what_is_demanded_or_predicted),
        cmocka_unit_test(a_prefetch_with_nothing_but_predicted_slots_left_is_dropped),
        cmocka_unit_test(an_expert_in_use_that_is_predicted_again_is_kept),
        cmocka_unit_test(of_too_many_predictions_the_farthest_are_forgotten),
        cmocka_unit_test(a_prefetch_that_comes_too_late_is_as_any_other),
        cmocka_unit_test(predictions_end_when_their_layer_has_come),
        cmocka_unit_test(prefetch_never_starves_demand),
        cmocka_unit_test(demand_goes_first_and_in_its_order),
        cmocka_unit_test(too_few_slots_are_refused),
        cmocka_unit_test(a_restart_makes_sense_of_every_state_left_behind),
        cmocka_unit_test(a_restart_at_any_point_keeps_every_ready_expert),
        cmocka_unit_test(a_slot_that_cannot_be_punched_is_not_used),
        cmocka_unit_test(recency_survives_a_restart),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(model);
    return rc;
}
