/* The demand of chunks: records that say how long their experts stay, what is foreseen, turns. */
#include "cache_rig.h"

#include <string.h>

static void post(struct rig *r, enum waste_want_kind kind, uint32_t hold, uint32_t layer,
                 const uint32_t *expert, uint32_t count)
{
    set_want(r, r->step, layer, expert, count);
    r->want.kind = kind;
    r->want.hold = hold;
    assert_int_equal(waste_cache_check_demand(&r->cache, &r->want, 64), 0);
    waste_cache_demand(&r->cache, &r->want);
    plan(r, 64);
    if (waste_cache_wanting(&r->cache)) { /* slots are taken by reads nobody waits for any more */
        finish_reads(r);
        plan(r, 64);
    }
    assert_false(waste_cache_wanting(&r->cache));
}

/* top_k experts from `first` on. */
static uint32_t *row(uint32_t first)
{
    static uint32_t expert[64];
    for (uint32_t i = 0; i < top_k; i++)
        expert[i] = first + i;
    return expert;
}

static void assert_all_ready(struct rig *r, uint32_t layer, uint32_t first)
{
    for (uint32_t i = 0; i < top_k; i++)
        assert_true(ready(r, layer, first + i));
}

static void experts_stay_as_long_as_a_record_says(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 4 * top_k, 8);
    for (uint32_t n = 0; n < 4; n++) { /* the whole cache */
        post(&r, WASTE_WANT_CHUNK, n, 1, row(n * top_k), top_k);
        finish_reads(&r);
        assert_consistent(&r);
    }
    /* the first two are over: what comes takes their slots, and no others */
    post(&r, WASTE_WANT_CHUNK, 2, 1, row(4 * top_k), top_k);
    post(&r, WASTE_WANT_CHUNK, 3, 1, row(5 * top_k), top_k);
    finish_reads(&r);
    for (uint32_t n = 2; n < 6; n++)
        assert_all_ready(&r, 1, n * top_k);
    assert_int_equal(counter(&r, WASTE_C_MISSES), 6 * top_k);
    assert_consistent(&r);
    /* a step holds nothing but its own */
    demand(&r, 2, row(0), top_k);
    assert_int_equal(r.cache.held_count, 0); /* not yet: all are to be read */
    plan(&r, 64);
    assert_int_equal(r.cache.held_count, top_k);
    finish_reads(&r);
    assert_consistent(&r);
    destroy(&r);
}

static void what_is_foreseen_counts_when_it_is_demanded(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 4 * top_k, 8);
    post(&r, WASTE_WANT_CHUNK, 0, 1, row(0), top_k);
    post(&r, WASTE_WANT_AHEAD, 1, 2, row(0), top_k);
    post(&r, WASTE_WANT_AHEAD, 2, 2, row(top_k), top_k);
    for (uint32_t i = 0; i < r.reading_count; i++)
        assert_int_equal(r.reading[i].demand, r.reading[i].layer == 1);
    assert_int_equal(r.cache.layer, 1); /* compute is still there */
    assert_int_equal(counter(&r, WASTE_C_MISSES), top_k);
    assert_int_equal(counter(&r, WASTE_C_PREFETCHED), 2 * top_k);
    finish_reads(&r);
    assert_all_ready(&r, 2, 0);
    assert_all_ready(&r, 2, top_k);
    /* the layer comes, and wants the first of the two */
    post(&r, WASTE_WANT_CHUNK, 2, 2, row(0), top_k);
    assert_int_equal(r.reading_count, 0);
    assert_int_equal(counter(&r, WASTE_C_HITS), top_k);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_USED), top_k);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_WASTED), 0);
    /* what is there already and only foreseen counts for nothing */
    post(&r, WASTE_WANT_AHEAD, 3, 1, row(0), top_k);
    assert_int_equal(counter(&r, WASTE_C_HITS), top_k);
    assert_int_equal(counter(&r, WASTE_C_PREFETCHED), 2 * top_k);
    /* and lets the other go */
    post(&r, WASTE_WANT_CHUNK, 1, 2, row(2 * top_k), top_k);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_WASTED), top_k);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_USED), top_k);
    finish_reads(&r);
    assert_all_ready(&r, 2, 0);
    assert_consistent(&r);
    destroy(&r);
}

/* Demanded while it is still being read for a prediction: no longer behind demand, and a miss. */
static void what_is_foreseen_may_be_late(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 4 * top_k, 8);
    post(&r, WASTE_WANT_CHUNK, 0, 1, row(0), 1);
    post(&r, WASTE_WANT_AHEAD, 1, 2, row(0), 1);
    uint32_t slot = directory(&r, 2, 0);
    assert_int_equal(waste_cache_prefetch_state(&r.cache, slot), WASTE_CACHE_PREFETCH_AHEAD);
    post(&r, WASTE_WANT_CHUNK, 1, 2, row(0), 1);
    assert_int_equal(waste_cache_prefetch_state(&r.cache, slot), WASTE_CACHE_PREFETCH_DEMANDED);
    assert_int_equal(counter(&r, WASTE_C_MISSES), 2);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_USED), 1);
    finish_reads(&r);
    assert_consistent(&r);
    destroy(&r);
}

static void a_failed_record_is_seen_as_long_as_it_counts(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 4 * top_k, 8);
    post(&r, WASTE_WANT_CHUNK, 0, 1, row(0), 1);
    waste_cache_failed(&r.cache, take_reading(&r, 0).slot, WASTE_SLOT_BAD_CRC, 0);
    post(&r, WASTE_WANT_CHUNK, 1, 1, row(top_k), 1);
    assert_int_equal(waste_slot_state(word(&r, directory(&r, 1, 0))), WASTE_SLOT_FAILED);
    finish_reads(&r);
    post(&r, WASTE_WANT_CHUNK, 0, 1, row(0), 1); /* asked anew, read again */
    assert_int_equal(r.reading_count, 1);
    finish_reads(&r);
    assert_true(ready(&r, 1, 0));
    assert_consistent(&r);
    destroy(&r);
}

static void turns_teach_and_read_nothing(void **state)
{
    (void)state;
    struct rig r;
    uint32_t often[64];
    create(&r, 4 * top_k, 8);
    post(&r, WASTE_WANT_CHUNK, 0, 1, row(0), 1);
    finish_reads(&r);
    memcpy(often, row(8), top_k * sizeof(often[0]));
    memcpy(often + top_k, row(8), top_k * sizeof(often[0]));
    for (uint32_t n = 0; n < 20; n++)
        post(&r, WASTE_WANT_TURNS, 0, 1, often, 2 * top_k);
    assert_int_equal(r.reading_count, 0);
    assert_int_equal(counter(&r, WASTE_C_HITS) + counter(&r, WASTE_C_MISSES), 1);
    assert_true(r.cache.slot[directory(&r, 1, 0)].held); /* they count for no hold */
    assert_true(waste_policy_value(&r.cache.policy, experts + 8) >
                10 * waste_policy_value(&r.cache.policy, experts + 40));
    destroy(&r);
}

static void records_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 4 * top_k, 8);
    const struct {
        uint32_t kind, count;
        int rc;
    } cases[] = {
        {WASTE_WANT_CHUNK, top_k, 0},
        {WASTE_WANT_CHUNK, top_k + 1, -22},
        {WASTE_WANT_AHEAD, top_k + 1, -22},
        {WASTE_WANT_TURNS, 3 * top_k, 0},
        {WASTE_WANT_TURNS, top_k + 1, -22},
        {WASTE_WANT_TURNS, 0, -22},
        {WASTE_WANT_TURNS, 17 * top_k, -22},
        {WASTE_WANT_KINDS, 1, -22},
        {UINT32_MAX, 1, -22},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t expert[80] = {0};
        set_want(&r, 0, 1, expert, cases[i].count);
        r.want.kind = cases[i].kind;
        assert_int_equal(waste_cache_check_demand(&r.cache, &r.want, 64), cases[i].rc);
    }
    destroy(&r);
}

/* As compute does it: never more that counts than there are slots, so a slot can always be had. */
static void a_window_moves_over_layer_after_layer(void **state)
{
    (void)state;
    struct rig r;
    uint32_t first = 0, next = 0, layer = 1, list[512][64], layers[512];
    create(&r, 5 * top_k, 8);
    for (uint32_t n = 0; n < 4000; n++) {
        if (next - first == 5 || (next > first && random_below(3) == 0))
            first += 1 + random_below(next - first);
        layer = random_below(6) == 0 ? layer % 7 + 1 : layer;
        pick(list[next % 512], top_k);
        layers[next % 512] = layer;
        post(&r, random_below(4) ? WASTE_WANT_CHUNK : WASTE_WANT_AHEAD, next - first, layer,
             list[next % 512], top_k);
        next++;
        while (r.reading_count > random_below(2 * top_k))
            waste_cache_ready(&r.cache, take_reading(&r, random_below(r.reading_count)).slot);
        for (uint32_t k = first; k < next; k++)
            for (uint32_t i = 0; i < top_k; i++) {
                uint32_t slot = directory(&r, layers[k % 512], list[k % 512][i]);
                assert_int_not_equal(slot, WASTE_SLOT_NONE);
                assert_true(r.cache.slot[slot].held);
            }
        if (r.cache.predicted == 0)
            assert_consistent(&r);
    }
    destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_stay_as_long_as_a_record_says),
        cmocka_unit_test(what_is_foreseen_counts_when_it_is_demanded),
        cmocka_unit_test(what_is_foreseen_may_be_late),
        cmocka_unit_test(a_failed_record_is_seen_as_long_as_it_counts),
        cmocka_unit_test(turns_teach_and_read_nothing),
        cmocka_unit_test(records_that_cannot_be_are_refused),
        cmocka_unit_test(a_window_moves_over_layer_after_layer),
    };
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down);
}
