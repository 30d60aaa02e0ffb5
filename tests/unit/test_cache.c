/* The cache's decisions about demand. */
#include "cache_rig.h"

#include <errno.h>
#include <string.h>

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
        assert_int_equal(waste_cache_check_prefetch(&r.cache, &r.want, cases[i].max),
                         cases[i].rc);
    }
    set_want(&r, 0, 1, good, 2);
    r.want.count = UINT32_MAX;
    assert_int_equal(waste_cache_check_prefetch(&r.cache, &r.want, 64), -22);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smallest_cache_serves_any_demand),
        cmocka_unit_test(an_expert_named_twice_is_read_once),
        cmocka_unit_test(impossible_records_are_refused),
        cmocka_unit_test(a_pinned_expert_stays),
        cmocka_unit_test(failed_is_seen_until_the_next_record_and_then_tried_again),
        cmocka_unit_test(the_often_used_outlive_the_lately_used),
        cmocka_unit_test(a_stray_write_is_healed_when_the_expert_is_demanded),
    };
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down);
}
