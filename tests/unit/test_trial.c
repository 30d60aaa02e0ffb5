/* Whether something pays: found out by steps with it and without it. */
#include "cm.h"
#include "compute/trial.h"

/* One trial in which a step takes with_ns or without_ns. False: kept off after it. */
static bool tried(struct waste_trial *t, int64_t with_ns, int64_t without_ns, uint32_t pairs)
{
    uint32_t steps = 0, with = 0;
    bool over;

    do {
        bool on = waste_trial_on(t);
        with += on;
        steps++;
        /* every fifth step something else is in the way for long */
        over = waste_trial_step(t, (on ? with_ns : without_ns) * (steps % 5 ? 1 : 40));
    } while (!over);
    assert_int_equal(steps, 2 * pairs * WASTE_TRIAL_BLOCK);
    assert_int_equal(with, steps / 2);
    return waste_trial_on(t);
}

static void keep(struct waste_trial *t, bool on, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++) {
        assert_false(t->trying);
        assert_int_equal(waste_trial_on(t), on);
        /* how long these take decides nothing */
        assert_false(waste_trial_step(t, on ? 1000000 : 1));
    }
    assert_true(t->trying);
}

/* Past the first steps, whatever they took. */
static struct waste_trial begun(void)
{
    struct waste_trial t = {0};

    keep(&t, true, WASTE_TRIAL_FIRST);
    return t;
}

static void test_the_faster_way_is_kept(void **state)
{
    struct waste_trial t = begun();

    assert_true(tried(&t, 2000, 2600, 2));
    keep(&t, true, WASTE_TRIAL_KEEP);
    assert_false(tried(&t, 2600, 2000, 2));
    assert_true(t.worse); /* for those who tell that it changed */
    keep(&t, false, WASTE_TRIAL_KEEP);
    assert_true(tried(&t, 2000, 2600, 2));
    keep(&t, true, WASTE_TRIAL_KEEP);
}

static void test_what_shows_again_is_kept_longer(void **state)
{
    static const uint32_t steps[] = {400, 800, 1600, 3200, 3200};
    struct waste_trial t = begun();

    for (int i = 0; i < 5; i++) {
        assert_false(tried(&t, 2600, 2000, 2));
        keep(&t, false, steps[i]);
    }
    assert_true(tried(&t, 2000, 2600, 2));
    keep(&t, true, 400);
}

static void test_a_small_difference_takes_longer_to_see(void **state)
{
    struct waste_trial t = begun();

    assert_false(tried(&t, 2000 * 1.09, 2000, 3)); /* more than 24 / 3 % */
    t = begun();
    assert_false(tried(&t, 2000 * 1.065, 2000, 4)); /* 24 / 4 */
    t = begun();
    assert_true(tried(&t, 2000, 2000 * 1.065, 4));
}

static void test_in_the_end_a_little_is_enough(void **state)
{
    struct waste_trial t = begun();

    assert_true(tried(&t, 2000, 2010, WASTE_TRIAL_PAIRS));
    t = begun();
    assert_false(tried(&t, 2020, 2000, WASTE_TRIAL_PAIRS));
    assert_int_equal(t.median[0], 2020);
    assert_int_equal(t.median[1], 2000);
    t = begun();
    assert_true(tried(&t, 2000, 2000, WASTE_TRIAL_PAIRS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_faster_way_is_kept),
        cmocka_unit_test(test_what_shows_again_is_kept_longer),
        cmocka_unit_test(test_a_small_difference_takes_longer_to_see),
        cmocka_unit_test(test_in_the_end_a_little_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
