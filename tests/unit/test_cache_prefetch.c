/* The cache's decisions about predictions. */
#include "cache_rig.h"

#include <stdlib.h>
#include <string.h>

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

static void a_later_prediction_replaces_an_earlier_one(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {60}, early[] = {1, 2, 3, 4}, late[] = {2, 9, 5};
    create(&r, 64, 2);
    demand(&r, 1, now, 1);
    prefetch(&r, 0, 2, early, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 3); /* 60, 1 and 2 */
    set_want(&r, 0, 2, late, 3);
    r.want.outlook = WASTE_OUTLOOK_AFTER;
    waste_cache_prefetch(&r.cache, &r.want);
    finish_reads(&r);
    plan(&r, 64);
    finish_reads(&r);
    plan(&r, 64);
    finish_reads(&r);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(ready(&r, 2, late[i]));
    assert_true(ready(&r, 2, 1)); /* was begun */
    assert_int_equal(directory(&r, 2, 3), WASTE_SLOT_NONE);
    assert_int_equal(directory(&r, 2, 4), WASTE_SLOT_NONE);
    assert_int_equal(counter(&r, WASTE_C_PREFETCHED), 4);
    assert_int_equal(counter(&r, WASTE_C_PREFETCH_DROPPED), 3); /* 3, 4, and 2 as it was there */
    assert_consistent(&r);
    destroy(&r);
}

static void no_more_is_read_ahead_than_fits_until_the_demand(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {60}, guess[] = {1, 2, 3, 4};
    create(&r, 64, 8);
    demand(&r, 1, now, 1);
    waste_foresight_read_took(&r.cache.foresight, 1000);
    prefetch(&r, 0, 2, guess, 4);
    waste_foresight_window(&r.cache.foresight, 2, 0, 1700);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 3);
    finish_reads(&r);
    plan(&r, 64); /* no more, though there is room */
    assert_int_equal(r.reading_count, 0);
    demand(&r, 2, now, 1); /* a new layer, a new window; nothing is known of layer 3's */
    prefetch(&r, 0, 3, guess, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 5);
    finish_reads(&r);
    assert_consistent(&r);
    destroy(&r);
}

static void the_nearest_layer_is_read_first(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t now[] = {60}, guess[] = {1, 2};
    create(&r, 64, 2);
    demand(&r, 3, now, 1);
    plan(&r, 64);
    finish_reads(&r);
    prefetch(&r, 1, 2, guess, 2); /* the next token */
    prefetch(&r, 0, 4, guess, 2);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 2);
    finish_reads(&r);
    assert_true(ready(&r, 4, 1) && ready(&r, 4, 2));
    plan(&r, 64);
    finish_reads(&r);
    assert_true(ready(&r, 2, 1) && ready(&r, 2, 2));
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
        if (r.cache.policy.key[s] != WASTE_POLICY_NONE)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefetch_reads_what_is_coming_and_drops_what_has_passed),
        cmocka_unit_test(a_wish_that_compute_overtakes_is_not_read),
        cmocka_unit_test(a_later_prediction_replaces_an_earlier_one),
        cmocka_unit_test(no_more_is_read_ahead_than_fits_until_the_demand),
        cmocka_unit_test(the_nearest_layer_is_read_first),
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
    };
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down);
}
