#include "cache_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reader/container.h"

struct waste_model *model;
uint32_t top_k, experts;
uint64_t seed;

uint32_t random_below(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)((seed >> 11) % n);
}

void create_shared(struct rig *r, uint32_t slots)
{
    const struct waste_options options = {.threads = 1, .ctx = 64};
    uint64_t bytes = waste_control_bytes(model, slots);
    memset(r, 0, sizeof(*r));
    r->base = aligned_alloc(64, bytes);
    memset(r->base, 0, bytes);
    waste_control_init(r->base, bytes, model, slots, &options, 1, &r->shm);
}

void create(struct rig *r, uint32_t slots, uint32_t prefetch_limit)
{
    create_shared(r, slots);
    assert_int_equal(waste_cache_init(&r->cache, &r->shm, prefetch_limit, -1, &r->repair), 0);
    /* all predictions are worth a read: test_foresight.c */
    r->cache.ghost.reads = 1000000000;
    waste_foresight_count(&r->cache.foresight, 0, r->cache.ghost.reads);
    for (uint32_t rank = 0; rank < WASTE_FORESIGHT_RANKS; rank++)
        for (int o = 0; o < WASTE_OUTLOOK_COUNT; o++)
            r->cache.foresight.rate[o][rank] = (struct waste_foresight_rate){1e6f, 1e6f};
}

void destroy(struct rig *r)
{
    waste_cache_finish(&r->cache);
    free(r->base);
}

uint64_t word(struct rig *r, uint32_t slot)
{
    return atomic_load(&r->shm.slot[slot].word);
}

uint32_t directory(struct rig *r, uint32_t layer, uint32_t expert)
{
    return atomic_load(&r->shm.directory[layer * experts + expert]);
}

bool ready(struct rig *r, uint32_t layer, uint32_t expert)
{
    uint32_t slot = directory(r, layer, expert);
    return slot != WASTE_SLOT_NONE && waste_slot_state(word(r, slot)) == WASTE_SLOT_READY &&
           atomic_load(&r->shm.slot[slot].key) == waste_slot_key(layer, expert);
}

bool is_held(const struct waste_cache *c, uint32_t slot)
{
    for (uint32_t i = 0; i < c->held_count; i++)
        if (c->held[i] == slot)
            return true;
    return false;
}

/* Every slot is in exactly the one place its state and flags say, and both sides agree. */
void assert_consistent(struct rig *r)
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
            uint32_t key = l * experts + c->policy.heap[l * experts + i];
            uint32_t s = c->policy.slot[key];
            assert_int_equal(c->policy.place[key], i);
            assert_int_equal(c->policy.key[s], key);
            assert_int_equal(c->slot[s].state, WASTE_SLOT_READY);
            assert_int_equal(c->slot[s].layer, l);
            assert_int_equal(c->policy.key[s], l * experts + c->slot[s].expert);
            places[s]++;
        }
    for (uint32_t s = 0; s < c->slots; s++) {
        assert_int_equal(waste_slot_state(word(r, s)), c->slot[s].state);
        assert_int_equal(c->slot[s].held != 0, is_held(c, s));
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

void plan(struct rig *r, uint32_t room)
{
    r->reading_count += waste_cache_plan(&r->cache, r->reading + r->reading_count, room);
    assert_true(r->reading_count < 2048);
}

struct waste_cache_read take_reading(struct rig *r, uint32_t i)
{
    struct waste_cache_read read = r->reading[i];
    r->reading[i] = r->reading[--r->reading_count];
    return read;
}

void finish_reads(struct rig *r)
{
    while (r->reading_count)
        waste_cache_ready(&r->cache, take_reading(r, random_below(r->reading_count)).slot);
}

void set_want(struct rig *r, uint64_t step, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    r->want = (struct waste_want){.step = step, .layer = layer, .count = count};
    memcpy(r->want.expert, expert, count * sizeof(*expert));
}

void demand(struct rig *r, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    set_want(r, r->step, layer, expert, count);
    assert_int_equal(waste_cache_check_demand(&r->cache, &r->want, 64), 0);
    waste_cache_demand(&r->cache, &r->want);
}

void prefetch(struct rig *r, uint64_t step, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    set_want(r, step, layer, expert, count);
    assert_int_equal(waste_cache_check_prefetch(&r->cache, &r->want, 64), 0);
    waste_cache_prefetch(&r->cache, &r->want);
}

void pick(uint32_t *expert, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
    again:
        expert[i] = random_below(experts);
        for (uint32_t j = 0; j < i; j++)
            if (expert[j] == expert[i])
                goto again;
    }
}

uint64_t counter(struct rig *r, enum waste_counter id)
{
    return atomic_load(&r->shm.control->counter[id]);
}

int rig_set_up(void **state)
{
    (void)state;
    struct waste_error err;
    const char *given = getenv("WASTE_TEST_SEED");
    seed = given ? strtoull(given, NULL, 0) : 88172645463325252u;
    printf("seed: WASTE_TEST_SEED=%llu\n", (unsigned long long)seed);
    if (waste_container_open(WASTE_DEMO_MODEL, &model, &err) < 0) {
        printf("%s\n", err.text);
        return -1;
    }
    top_k = model->config.top_k;
    experts = model->config.experts;
    return 0;
}

int rig_tear_down(void **state)
{
    (void)state;
    free(model);
    return 0;
}
