/* Which expert is worth least: the policy's heaps. */
#include "cache_rig.h"

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
        p.habit.chance[l * 8] = 0.25f;
    assert_int_equal(waste_policy_victim(&p), 1);
    waste_policy_remove(&p, 1);
    assert_int_equal(waste_policy_victim(&p), 0); /* three away */
    waste_policy_remove(&p, 0);
    assert_int_equal(waste_policy_victim(&p), 3); /* two; layer 2 is next */
    waste_policy_finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_policys_victim_is_worth_least),
        cmocka_unit_test(of_equals_the_layer_just_past_goes_first),
    };
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down);
}
