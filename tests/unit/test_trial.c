/* Whether something pays: found out by steps with it and without it. */
#include "cm.h"
#include "compute/trial.h"

/* One trial in which a step takes with_ns or without_ns. False: kept off after it. */
static bool tried(struct waste_trial *t, int64_t with_ns, int64_t without_ns)
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
    assert_int_equal(steps, WASTE_TRIAL_STEPS);
    assert_int_equal(with, WASTE_TRIAL_STEPS / 2);
    return waste_trial_on(t);
}

static void keep(struct waste_trial *t, bool on)
{
    for (uint32_t i = 0; i < WASTE_TRIAL_KEEP; i++) {
        assert_int_equal(waste_trial_on(t), on);
        /* how long these take decides nothing */
        assert_false(waste_trial_step(t, on ? 1000000 : 1));
    }
}

static void test_the_faster_way_is_kept(void **state)
{
    struct waste_trial t = {0};

    assert_true(tried(&t, 2000, 2600));
    keep(&t, true);
    assert_false(tried(&t, 2600, 2000));
    keep(&t, false);
    assert_true(t.worse); /* for those who tell that it changed */
    assert_true(tried(&t, 2000, 2600));
    keep(&t, true);
}

static void test_without_a_clear_difference_it_stays(void **state)
{
    struct waste_trial t = {0};
    int64_t ns[2];

    assert_true(tried(&t, 2020, 2000));
    waste_trial_medians(&t, ns);
    assert_int_equal(ns[0], 2020);
    assert_int_equal(ns[1], 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_faster_way_is_kept),
        cmocka_unit_test(test_without_a_clear_difference_it_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
