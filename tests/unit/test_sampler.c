/* Sampling against probabilities worked out by hand. */
#include <math.h>
#include <stdlib.h>
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

/* The rule of sampler.h done simply: everything sorted. */
enum { MANY = 3001 };

static float many_share[MANY];

static int by_rank(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    if (many_share[x] != many_share[y])
        return many_share[x] > many_share[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static uint32_t simple_draw(const float *x, const struct waste_sampling *how, uint32_t index)
{
    static uint32_t order[MANY];
    uint32_t best = 0, limit = how->top_k && how->top_k < MANY ? how->top_k : MANY, n = 0;
    double sum = 0, reached = 0, passed = 0;
    float max;

    for (uint32_t i = 0; i < MANY; i++) {
        order[i] = i;
        best = x[i] > x[best] ? i : best;
    }
    for (uint32_t i = 0; i < MANY; i++)
        many_share[i] = fmaxf((x[i] - x[best]) / how->temperature, -200);
    sum = kernels.softmax_part(many_share, MANY, &max);
    qsort(order, MANY, sizeof *order, by_rank);
    if (limit < MANY) {
        sum = 0;
        for (uint32_t i = 0; i < limit; i++)
            sum += many_share[order[i]];
    }
    for (; n < limit && (how->top_p >= 1 || reached < how->top_p * sum); n++)
        reached += many_share[order[n]];
    sum = 0;
    for (uint32_t i = n; i-- > 0;)
        sum += many_share[order[i]];
    while (n-- > 1) {
        passed += many_share[order[n]];
        if (many_share[order[n]] > 0 && passed > waste_sampler_random(how->seed, index) * sum)
            return order[n];
    }
    return order[0];
}

static void compare_with_simple(const float *x, const struct waste_sampling *how)
{
    struct waste_sampler s;

    assert_int_equal(waste_sampler_init(&s, MANY), 0);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(waste_sampler_draw(&s, &kernels, x, how, i), simple_draw(x, how, i));
    waste_sampler_finish(&s);
}

static void test_many_tokens_are_cut_as_if_all_were_sorted(void **state)
{
    /* spread: how far most tokens are below the likeliest; few, some or all of them matter */
    const float spread[] = {0.01f, 2, 30, 1000}, top_p[] = {1e-6f, 0.5f, 0.95f, 0.9999999f, 1};
    const uint32_t top_k[] = {0, 1, 40, 2999, MANY};
    float x[MANY];

    for (size_t a = 0; a < sizeof spread / sizeof *spread; a++) {
        for (uint32_t i = 0; i < MANY; i++) /* and some are equal */
            x[i] = spread[a] * (float)floor(500 * waste_sampler_random(3, i)) / 500;
        for (size_t p = 0; p < sizeof top_p / sizeof *top_p; p++)
            for (size_t k = 0; k < sizeof top_k / sizeof *top_k; k++)
                if (top_k[k] || top_p[p] < 1)
                    compare_with_simple(
                        x, &(struct waste_sampling){
                               .temperature = 1, .top_p = top_p[p], .top_k = top_k[k], .seed = 11});
    }
}

static void test_greedy_of_many_tokens_takes_the_first_of_the_largest(void **state)
{
    const struct waste_sampling how = {.top_p = 1};
    struct waste_sampler s;
    float x[MANY];

    assert_int_equal(waste_sampler_init(&s, MANY), 0);
    for (uint32_t at = 0; at < MANY; at += 119) {
        for (uint32_t i = 0; i < MANY; i++)
            x[i] = -1 - (float)waste_sampler_random(4, i);
        x[at] = -0.5f;
        x[MANY - 1] = -0.5f;
        assert_int_equal(waste_sampler_draw(&s, &kernels, x, &how, 0), at);
        x[at] = -0.0f; /* equal to 0 */
        x[MANY - 1] = 0.0f;
        assert_int_equal(waste_sampler_draw(&s, &kernels, x, &how, 0), at);
        x[at / 2] = 7;
        assert_int_equal(waste_sampler_draw(&s, &kernels, x, &how, 0), at / 2);
    }
    waste_sampler_finish(&s);
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

    float many[MANY] = {0};
    for (uint32_t at = 0; at < MANY; at += 119) {
        many[at] = at % 2 ? INFINITY : -NAN;
        many[MANY - 1] = NAN;
        assert_int_equal(waste_sampler_first_bad(many, MANY), at);
        many[at] = 3e38f;
        assert_int_equal(waste_sampler_first_bad(many, MANY), MANY - 1);
        many[MANY - 1] = -1;
        assert_int_equal(waste_sampler_first_bad(many, MANY), MANY);
    }
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
        cmocka_unit_test(test_many_tokens_are_cut_as_if_all_were_sorted),
        cmocka_unit_test(test_greedy_of_many_tokens_takes_the_first_of_the_largest),
        cmocka_unit_test(test_random_numbers_fill_the_unit_interval),
        cmocka_unit_test(test_bad_logits_are_found),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
