/* Sampling against probabilities worked out by hand. */
#include <math.h>
#include <string.h>

#include "cm.h"
#include "compute/sampler.h"

enum { VOCAB = 6, DRAWS = 60000 };

static struct waste_kernels kernels;
static struct waste_sampler sampler;

/* Probabilities 0.1 0.2 0.3 0.4 and two that are next to nothing, at temperature 1. */
static const float share[4] = {0.1f, 0.2f, 0.3f, 0.4f};
static float logits[VOCAB];

static int set_up(void **state)
{
    waste_kernels_init(&kernels, "c");
    for (int i = 0; i < 4; i++)
        logits[i] = logf(share[i]) + 7;
    logits[4] = logits[5] = -300;
    return waste_sampler_init(&sampler, VOCAB);
}

static int tear_down(void **state)
{
    waste_sampler_finish(&sampler);
    return 0;
}

static void count(const struct waste_sampling *how, double frequency[VOCAB])
{
    uint32_t n[VOCAB] = {0};

    for (uint32_t i = 0; i < DRAWS; i++) {
        uint32_t token = waste_sampler_draw(&sampler, &kernels, logits, how, i);
        assert_true(token < VOCAB);
        n[token]++;
    }
    for (int i = 0; i < VOCAB; i++)
        frequency[i] = (double)n[i] / DRAWS;
}

static void expect(const struct waste_sampling *how, const double expected[VOCAB])
{
    double frequency[VOCAB];

    count(how, frequency);
    for (int i = 0; i < VOCAB; i++) {
        if (expected[i] == 0)
            assert_true(frequency[i] == 0);
        /* five standard deviations */
        assert_true(fabs(frequency[i] - expected[i]) <= 5 * sqrt(0.25 / DRAWS));
    }
}

static void test_greedy_takes_the_largest_and_of_equals_the_first(void **state)
{
    const struct waste_sampling how = {.top_p = 1};
    float x[VOCAB] = {-1, 3, 2, 3, 3, 0};

    assert_int_equal(waste_sampler_draw(&sampler, &kernels, x, &how, 0), 1);
    x[1] = -5;
    assert_int_equal(waste_sampler_draw(&sampler, &kernels, x, &how, 1), 3);
}

static void test_temperature_one_draws_the_softmax(void **state)
{
    expect(&(struct waste_sampling){.temperature = 1, .top_p = 1, .seed = 5},
           (double[VOCAB]){.1, .2, .3, .4, 0, 0});
}

static void test_temperature_sharpens(void **state)
{
    /* at 1/2 the shares are squared: 1, 4, 9, 16 of 30 */
    expect(&(struct waste_sampling){.temperature = 0.5f, .top_p = 1, .seed = 6},
           (double[VOCAB]){1 / 30., 4 / 30., 9 / 30., 16 / 30., 0, 0});
}

static void test_a_tiny_temperature_is_greedy(void **state)
{
    expect(&(struct waste_sampling){.temperature = 1e-42f, .top_p = 1},
           (double[VOCAB]){0, 0, 0, 1, 0, 0});
}

static void test_top_k(void **state)
{
    expect(&(struct waste_sampling){.temperature = 1, .top_p = 1, .top_k = 2, .seed = 7},
           (double[VOCAB]){0, 0, 3 / 7., 4 / 7., 0, 0});
    expect(&(struct waste_sampling){.temperature = 1, .top_p = 1, .top_k = 1, .seed = 7},
           (double[VOCAB]){0, 0, 0, 1, 0, 0});
    expect(&(struct waste_sampling){.temperature = 1, .top_p = 1, .top_k = 1000, .seed = 8},
           (double[VOCAB]){.1, .2, .3, .4, 0, 0});
}

static void test_top_p(void **state)
{
    /* 0.4 + 0.3 reach 0.65, 0.4 alone does not */
    expect(&(struct waste_sampling){.temperature = 1, .top_p = 0.65f, .seed = 9},
           (double[VOCAB]){0, 0, 3 / 7., 4 / 7., 0, 0});
    /* always at least one */
    expect(&(struct waste_sampling){.temperature = 1, .top_p = 1e-6f, .seed = 9},
           (double[VOCAB]){0, 0, 0, 1, 0, 0});
}

static void test_top_p_counts_from_what_top_k_leaves(void **state)
{
    /* of the best three (0.9 together) two reach 0.75 x 0.9; of all four three would be needed */
    expect(&(struct waste_sampling){.temperature = 1, .top_p = 0.75f, .top_k = 3, .seed = 10},
           (double[VOCAB]){0, 0, 3 / 7., 4 / 7., 0, 0});
    expect(&(struct waste_sampling){.temperature = 1, .top_p = 0.75f, .seed = 10},
           (double[VOCAB]){0, 2 / 9., 3 / 9., 4 / 9., 0, 0});
}

static void test_equal_shares_rank_by_id(void **state)
{
    const struct waste_sampling how = {.temperature = 1, .top_p = 1, .top_k = 2};
    const float x[VOCAB] = {1, 1, 1, 1, 1, 1};

    for (uint32_t i = 0; i < 200; i++)
        assert_true(waste_sampler_draw(&sampler, &kernels, x, &how, i) < 2);
}

static void test_a_draw_depends_on_seed_and_index_alone(void **state)
{
    struct waste_sampling how = {.temperature = 1, .top_p = 0.9f, .seed = 1};
    uint32_t same = 0, first[100];

    for (uint32_t i = 0; i < 100; i++)
        first[i] = waste_sampler_draw(&sampler, &kernels, logits, &how, i);
    for (uint32_t i = 100; i-- > 0;)
        assert_int_equal(waste_sampler_draw(&sampler, &kernels, logits, &how, i), first[i]);
    how.seed = 2;
    for (uint32_t i = 0; i < 100; i++)
        same += waste_sampler_draw(&sampler, &kernels, logits, &how, i) == first[i];
    assert_true(same < 80);
}

static void test_random_numbers_fill_the_unit_interval(void **state)
{
    uint32_t bin[16] = {0};

    for (uint32_t i = 0; i < DRAWS; i++) {
        double u = waste_sampler_random(i % 7, i);
        assert_true(u >= 0 && u < 1);
        bin[(int)(u * 16)]++;
    }
    for (int i = 0; i < 16; i++)
        assert_true(fabs(bin[i] - DRAWS / 16.) < 5 * sqrt(DRAWS / 16.));
}

static void test_bad_logits_are_found(void **state)
{
    float x[VOCAB] = {0};

    assert_int_equal(waste_sampler_first_bad(x, VOCAB), VOCAB);
    x[5] = NAN;
    assert_int_equal(waste_sampler_first_bad(x, VOCAB), 5);
    x[2] = -INFINITY;
    assert_int_equal(waste_sampler_first_bad(x, VOCAB), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_takes_the_largest_and_of_equals_the_first),
        cmocka_unit_test(test_temperature_one_draws_the_softmax),
        cmocka_unit_test(test_temperature_sharpens),
        cmocka_unit_test(test_a_tiny_temperature_is_greedy),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_top_p_counts_from_what_top_k_leaves),
        cmocka_unit_test(test_equal_shares_rank_by_id),
        cmocka_unit_test(test_a_draw_depends_on_seed_and_index_alone),
        cmocka_unit_test(test_random_numbers_fill_the_unit_interval),
        cmocka_unit_test(test_bad_logits_are_found),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
