/* A cache that becomes smaller and larger while experts are demanded. */
#include "cm.h"

#include <stdlib.h>
#include <string.h>

#include "reader/cache.h"
#include "reader/container.h"

enum { SLOTS = 60, OUT = 8 };

static struct waste_model *model;
static uint32_t top_k, experts, layers;

struct rig {
    void *base;
    struct waste_shm shm;
    struct waste_cache cache;
    struct waste_cache_repair repair;
    uint64_t step;
    union {
        struct waste_want want;
        uint32_t room[256];
    };
};

static void create(struct rig *r, uint32_t wanted)
{
    const struct waste_options options = {.threads = 1, .ctx = 64};
    uint64_t bytes = waste_control_bytes(model, SLOTS);
    memset(r, 0, sizeof(*r));
    r->base = aligned_alloc(64, bytes);
    memset(r->base, 0, bytes);
    waste_control_init(r->base, bytes, model, SLOTS, &options, 1, &r->shm);
    r->shm.control->slots_wanted = wanted;
    assert_int_equal(waste_cache_init(&r->cache, &r->shm, 8, -1, &r->repair), 0);
}

static void destroy(struct rig *r)
{
    waste_cache_finish(&r->cache);
    free(r->base);
}

static uint32_t in_state(struct rig *r, enum waste_slot_state state)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < SLOTS; s++)
        n += waste_slot_state(atomic_load(&r->shm.slot[s].word)) == state;
    return n;
}

static uint32_t slot_of(struct rig *r, uint32_t layer, uint32_t expert)
{
    return atomic_load(&r->shm.directory[layer * experts + expert]);
}

/* No directory entry leads to a slot that does not hold it, none is retired, and no more are filled
 * than may be used. */
static void assert_sound(struct rig *r)
{
    struct waste_cache *c = &r->cache;
    bool retired[SLOTS] = {false};
    uint32_t n = 0;
    for (uint32_t s = c->retired; s != WASTE_SLOT_NONE; s = c->slot[s].next, n++) {
        assert_false(retired[s]);
        retired[s] = true;
        assert_int_equal(waste_slot_state(atomic_load(&r->shm.slot[s].word)), WASTE_SLOT_EMPTY);
    }
    assert_int_equal(n, c->retired_count);
    for (uint32_t s = c->free; s != WASTE_SLOT_NONE; s = c->slot[s].next)
        assert_false(retired[s]);
    for (uint32_t l = 0; l < layers; l++)
        for (uint32_t e = 0; e < experts; e++) {
            uint32_t s = slot_of(r, l, e);
            if (s == WASTE_SLOT_NONE)
                continue;
            assert_false(retired[s]);
            assert_int_equal(atomic_load(&r->shm.slot[s].key), waste_slot_key(l, e));
        }
    assert_true(SLOTS - in_state(r, WASTE_SLOT_EMPTY) <= waste_cache_in_use(c));
}

/* All of the record is wanted, read and there; `hold` records before it still count. */
static void demand_holding(struct rig *r, uint32_t layer, uint32_t first, uint32_t hold)
{
    struct waste_cache_read read[64];
    r->want = (struct waste_want){.step = r->step++,
                                  .layer = layer,
                                  .count = top_k,
                                  .kind = hold ? WASTE_WANT_CHUNK : WASTE_WANT_STEP,
                                  .hold = hold};
    for (uint32_t i = 0; i < top_k; i++)
        r->want.expert[i] = (first + i * 5) % experts;
    waste_cache_demand(&r->cache, &r->want);
    uint32_t n = waste_cache_plan(&r->cache, read, 64);
    assert_false(waste_cache_wanting(&r->cache));
    for (uint32_t i = 0; i < n; i++)
        waste_cache_ready(&r->cache, read[i].slot);
    for (uint32_t i = 0; i < top_k; i++)
        assert_int_not_equal(slot_of(r, layer, (first + i * 5) % experts), WASTE_SLOT_NONE);
    assert_sound(r);
}

static void demand(struct rig *r, uint32_t layer, uint32_t first)
{
    demand_holding(r, layer, first, 0);
}

static uint32_t resize(struct rig *r, uint32_t wanted)
{
    uint32_t out[OUT], n, all = 0;
    r->shm.control->slots_wanted = wanted;
    while ((n = waste_cache_resize(&r->cache, out, OUT)) > 0) {
        assert_true(n <= OUT);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(waste_slot_state(atomic_load(&r->shm.slot[out[i]].word)),
                             WASTE_SLOT_EMPTY);
        all += n;
        assert_sound(r);
    }
    return all;
}

static void a_full_cache_shrinks_and_grows(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 0);
    assert_int_equal(waste_cache_in_use(&r.cache), SLOTS);
    for (uint32_t i = 0; i < 40; i++)
        demand(&r, 1 + i % 7, i * 7);
    assert_int_equal(in_state(&r, WASTE_SLOT_EMPTY), 0);
    assert_int_equal(resize(&r, 20), SLOTS - 20);
    assert_int_equal(waste_cache_in_use(&r.cache), 20);
    for (uint32_t i = 0; i < 40; i++)
        demand(&r, 1 + i % 7, i * 3);
    assert_int_equal(in_state(&r, WASTE_SLOT_EMPTY), SLOTS - 20);
    assert_int_equal(resize(&r, 50), 0);
    for (uint32_t i = 0; i < 40; i++)
        demand(&r, 1 + i % 7, i * 7);
    assert_int_equal(in_state(&r, WASTE_SLOT_EMPTY), SLOTS - 50);
    destroy(&r);
}

static void the_floor_stays(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 0);
    for (uint32_t i = 0; i < 30; i++)
        demand(&r, 1 + i % 7, i * 7);
    resize(&r, 1);
    assert_int_equal(waste_cache_in_use(&r.cache), 2 * top_k);
    assert_int_equal(r.cache.prefetch_limit, 0);
    for (uint32_t i = 0; i < 30; i++)
        demand(&r, 1 + i % 7, i * 7);
    resize(&r, 1000);
    assert_int_equal(waste_cache_in_use(&r.cache), SLOTS);
    assert_int_equal(r.cache.prefetch_limit, 8);
    destroy(&r);
}

static void what_is_held_or_pinned_stays_until_later(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 0);
    for (uint32_t i = 0; i < 30; i++)
        demand(&r, 1 + i % 7, i * 7);
    uint32_t pinned[SLOTS], count = 0;
    for (uint32_t s = 0; s < SLOTS; s++)
        if (waste_slot_pin(&r.shm.slot[s], atomic_load(&r.shm.slot[s].key)))
            pinned[count++] = s;
    resize(&r, 2 * top_k);
    assert_int_equal(waste_cache_in_use(&r.cache), SLOTS); /* nothing could be had */
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(waste_slot_state(atomic_load(&r.shm.slot[pinned[i]].word)),
                         WASTE_SLOT_READY);
        waste_slot_unpin(&r.shm.slot[pinned[i]]);
    }
    resize(&r, 2 * top_k);
    assert_int_equal(waste_cache_in_use(&r.cache), 2 * top_k);
    /* the newest record's experts are among what is left */
    for (uint32_t i = 0; i < top_k; i++)
        assert_int_not_equal(slot_of(&r, r.cache.layer, r.want.expert[i]), WASTE_SLOT_NONE);
    destroy(&r);
}

static void what_a_request_that_is_over_held_goes(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 0);
    for (uint32_t i = 0; i < 10; i++) /* of a chunk: all of them count */
        demand_holding(&r, 1 + i % 7, i * 7, i);
    resize(&r, 2 * top_k);
    assert_true(waste_cache_in_use(&r.cache) > 2 * top_k);
    waste_cache_rest(&r.cache);
    resize(&r, 2 * top_k);
    assert_int_equal(waste_cache_in_use(&r.cache), 2 * top_k);
    assert_sound(&r);
    demand(&r, 3, 11);
    assert_sound(&r);
    destroy(&r);
}

static void a_new_reader_begins_with_what_is_wanted(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 24);
    assert_int_equal(waste_cache_in_use(&r.cache), 24);
    assert_sound(&r);
    for (uint32_t i = 0; i < 30; i++)
        demand(&r, 1 + i % 7, i * 7);
    assert_int_equal(in_state(&r, WASTE_SLOT_READY), 24);
    /* it dies; the budget changes; the next one takes over */
    waste_cache_finish(&r.cache);
    r.shm.control->slots_wanted = 30;
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
    assert_int_equal(r.repair.kept, 24);
    assert_int_equal(waste_cache_in_use(&r.cache), 30);
    assert_sound(&r);
    waste_cache_finish(&r.cache);
    r.shm.control->slots_wanted = 10;
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
    assert_int_equal(waste_cache_in_use(&r.cache), 24); /* full ones go one by one */
    resize(&r, 10);
    assert_int_equal(waste_cache_in_use(&r.cache), 10);
    destroy(&r);
}

static void the_least_valuable_go_first(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 0);
    for (uint32_t i = 0; i < 60; i++)
        demand(&r, 1, i % 2 ? 3 : i * 11); /* every other record is the same */
    resize(&r, 3 * top_k);
    for (uint32_t i = 0; i < top_k; i++)
        assert_int_not_equal(slot_of(&r, 1, (3 + i * 5) % experts), WASTE_SLOT_NONE);
    destroy(&r);
}

static void a_prefetch_that_was_passed_or_taken_back(void **state)
{
    (void)state;
    struct rig r;
    struct waste_cache_read read[64];
    create(&r, 0);
    demand(&r, 1, 0);
    r.cache.foresight.needed = 1000000000; /* every prediction is worth a read */
    for (uint32_t rank = 0; rank < 2; rank++)
        r.cache.foresight.rate[WASTE_OUTLOOK_BEFORE][rank] =
            (struct waste_foresight_rate){1e6f, 1e6f};
    r.want = (struct waste_want){.step = r.step, .layer = 2, .count = 2};
    r.want.expert[0] = 40;
    r.want.expert[1] = 41;
    waste_cache_prefetch(&r.cache, &r.want);
    assert_int_equal(waste_cache_plan(&r.cache, read, 64), 2);
    assert_int_equal(waste_cache_prefetch_state(&r.cache, read[0].slot),
                     WASTE_CACHE_PREFETCH_AHEAD);
    r.want = (struct waste_want){.step = r.step, .layer = 2, .count = 1};
    r.want.expert[0] = 41;
    waste_cache_demand(&r.cache, &r.want);
    assert_int_equal(waste_cache_prefetch_state(&r.cache, read[0].slot),
                     WASTE_CACHE_PREFETCH_PASSED);
    assert_int_equal(waste_cache_prefetch_state(&r.cache, read[1].slot),
                     WASTE_CACHE_PREFETCH_DEMANDED);
    uint32_t reading = r.cache.prefetch_reading;
    waste_cache_cancelled(&r.cache, read[0].slot);
    assert_int_equal(r.cache.prefetch_reading, reading - 1);
    assert_int_equal(slot_of(&r, 2, 40), WASTE_SLOT_NONE);
    assert_int_equal(waste_cache_prefetch_state(&r.cache, read[0].slot), WASTE_CACHE_PREFETCH_OVER);
    waste_cache_ready(&r.cache, read[1].slot);
    assert_int_equal(waste_cache_prefetch_state(&r.cache, read[1].slot), WASTE_CACHE_PREFETCH_OVER);
    assert_sound(&r);
    destroy(&r);
}

static int set_up(void **state)
{
    (void)state;
    struct waste_error err;
    if (waste_container_open(WASTE_DEMO_MODEL, &model, &err) < 0)
        return -1;
    top_k = model->config.top_k;
    experts = model->config.experts;
    layers = model->config.layers;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_cache_shrinks_and_grows),
        cmocka_unit_test(the_floor_stays),
        cmocka_unit_test(what_is_held_or_pinned_stays_until_later),
        cmocka_unit_test(what_a_request_that_is_over_held_goes),
        cmocka_unit_test(a_new_reader_begins_with_what_is_wanted),
        cmocka_unit_test(the_least_valuable_go_first),
        cmocka_unit_test(a_prefetch_that_was_passed_or_taken_back),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
