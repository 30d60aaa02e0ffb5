/* What experts are worth: the policy's heaps, and the chances they go by. */
#include "cache_rig.h"

#include <math.h>

/* ---- policy ---- */

/* The heaps against a look at every slot. */
static void the_policys_victim_is_worth_least(void **state)
{
    (void)state;
    enum { SLOTS = 100, LAYERS = 5, EXPERTS = 30, KEYS = LAYERS * EXPERTS };
    struct waste_policy p;
    uint32_t holds[SLOTS], chosen[3];
    assert_int_equal(waste_policy_init(&p, SLOTS, LAYERS, EXPERTS, 3, NULL), 0);
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
    assert_int_equal(waste_policy_init(&p, 4, 4, 8, 1, NULL), 0);
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
    assert_int_equal(waste_habit_init(&h, 1, 32, 2, NULL), 0);
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
    assert_int_equal(waste_habit_init(&h, 2, 64, 2, NULL), 0);
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
    assert_int_equal(waste_habit_init(&h, 1, 16, 2, NULL), 0);
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
        assert_int_equal(waste_habit_init(&h[i], 2, 9, 3, NULL), 0);
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
    assert_int_equal(waste_habit_init(&h, 1, 16, 2, NULL), 0);
    for (uint32_t e = 0; e < 16; e++)
        waste_habit_recall(&h, 0, e, (float)e / 16);
    for (uint32_t e = 1; e < 16; e++)
        assert_true(waste_habit_chance(&h, e) > waste_habit_chance(&h, e - 1));
    waste_habit_finish(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_policys_victim_is_worth_least),
        cmocka_unit_test(of_equals_the_layer_just_past_goes_first),
        cmocka_unit_test(what_follows_is_expected),
        cmocka_unit_test(the_often_chosen_and_the_lately_chosen_are_expected),
        cmocka_unit_test(chances_are_as_often_right_as_they_say),
        cmocka_unit_test(chances_stay_chances_and_are_reproducible),
        cmocka_unit_test(what_is_recalled_is_worth_its_share),
    };
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down);
}
