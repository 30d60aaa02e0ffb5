/* How likely experts are: against the same sums done simply, and against what must be so. */
#include "cache_rig.h"

#include <math.h>
#include <string.h>

/* ---- the same, simply ---- */

/*
 * The whole past is kept, every expert and every place is looked at each time, in double. What is
 * meant by habit.h and likeness.h is written down here a second time.
 */
enum { LAYERS = 3, EXPERTS = 41, TOP_K = 4, TURNS = 700, WINDOW = 256, FEATURES = 8 };

struct simple {
    uint32_t turns[LAYERS];
    bool chose[LAYERS][TURNS][EXPERTS];
    double alike[WINDOW], weight[FEATURES], bias;
    double x[LAYERS][EXPERTS][FEATURES], chance[LAYERS][EXPERTS];
};

/* Straight between powers of two. */
static double straight_log(double x)
{
    int exponent;
    double mantissa = frexp(x, &exponent);
    return log(2) * (exponent - 1 + (2 * mantissa - 1));
}

/* e^-x is straight there too, and shifted so that it is too small as often as too large. */
static double straight_sigmoid(double x)
{
    double power = fmin(fmax(-x, -20), 20) / log(2) + (1064866805.0 / 8388608.0 - 127);
    return 1 / (1 + exp2(floor(power)) * (1 + power - floor(power)));
}

static double count_of(const struct simple *s, uint32_t layer, uint32_t expert, double half_life)
{
    double sum = 0, keep = exp2(-1 / half_life), share = 1 - keep;
    for (uint32_t t = s->turns[layer]; t-- > 0; share *= keep)
        sum += s->chose[layer][t][expert] ? share : 0;
    return sum;
}

static uint32_t shared_of(const struct simple *s, uint32_t layer, uint32_t a, uint32_t b)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < EXPERTS; e++)
        n += s->chose[layer][a][e] && s->chose[layer][b][e];
    return n;
}

static void simple_weights(struct simple *s, uint32_t layer, uint32_t last, double (*weight)[4])
{
    uint32_t turn = s->turns[layer] - 1;
    double shared[WINDOW] = {0}, mean = 0, most = 0, most_shared = 0, like[WINDOW + 9] = {0};
    for (uint32_t lag = 1; lag < WINDOW; lag++) {
        shared[lag] = lag <= last ? shared_of(s, layer, turn, turn - lag) : 0;
        s->alike[lag] = s->alike[lag] * exp(-2.0 / LAYERS) + shared[lag];
        mean += s->alike[lag] / (last + 1);
        most = fmax(most, s->alike[lag]);
        most_shared = fmax(most_shared, shared[lag]);
    }
    for (uint32_t lag = 1; lag <= last && most > 0; lag++) {
        like[lag] = (s->alike[lag] - mean) / (most - mean);
        like[lag] = like[lag] < 0.2 ? 0 : like[lag];
    }
    for (uint32_t lag = 1; lag <= last; lag++) {
        double *w = weight[lag];
        w[0] = most_shared > 0 ? pow(shared[lag] / most_shared, 4) : 0;
        w[1] = pow(like[lag], 4);
        w[2] = pow(like[lag], 12);
        w[3] = 0;
        for (uint32_t i = 0; i < 8; i++)
            w[3] += lag + 1 + i <= WINDOW ? pow(0.6, i) * pow(like[lag + 1 + i], 8) : 0;
        if (w[0] + w[1] + w[3] < 0.01)
            memset(w, 0, sizeof(weight[lag]));
    }
}

static void simple_features(struct simple *s, uint32_t layer, double (*x)[FEATURES])
{
    static const double half_life[4] = {0.7, 3, 16, 256};
    uint32_t turn = s->turns[layer] - 1, last = turn < WINDOW - 1 ? turn : WINDOW - 1;
    double weight[WINDOW][4] = {0}, all[4] = {0}, base = (double)TOP_K / EXPERTS;
    simple_weights(s, layer, last, weight);
    for (uint32_t lag = 1; lag <= last; lag++)
        for (uint32_t i = 0; i < 4; i++)
            all[i] += weight[lag][i];
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t i = 0; i < 4; i++) {
            double follows = 0;
            for (uint32_t lag = 1; lag <= last; lag++)
                follows += s->chose[layer][turn - lag + 1][e] ? weight[lag][i] : 0;
            double share = all[i] > 0 ? follows / all[i] : base;
            x[e][i] = straight_log(count_of(s, layer, e, half_life[i]) / base + 0.3);
            x[e][4 + i] = straight_log(share / base + 0.3);
            x[e][i] -= straight_log(1.3);
            x[e][4 + i] -= straight_log(1.3);
        }
}

static double simple_chance(const struct simple *s, const double *x)
{
    double sum = s->bias;
    for (uint32_t i = 0; i < FEATURES; i++)
        sum += s->weight[i] * x[i];
    return straight_sigmoid(sum);
}

/* From the part of the experts whose turn it was to be learned from. */
static void simple_learn(struct simple *s, uint32_t layer)
{
    uint32_t turn = s->turns[layer] - 1, size = (EXPERTS + 7) / 8, part = (turn - 1) % 8;
    double rate = 0.8 / sqrt(1 + turn / 30.0) / EXPERTS, slope[FEATURES] = {0}, slope_bias = 0;
    for (uint32_t e = part * size; e < (part + 1) * size && e < EXPERTS; e++) {
        double error = 0.6 * s->chose[layer][turn][e] + 0.4 * s->chance[layer][e] -
                       simple_chance(s, s->x[layer][e]);
        for (uint32_t i = 0; i < FEATURES; i++)
            slope[i] += error * s->x[layer][e][i];
        slope_bias += error;
    }
    for (uint32_t i = 0; i < FEATURES; i++)
        s->weight[i] += rate * slope[i];
    s->bias += rate * slope_bias;
}

static void simple_turn(struct simple *s, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    double x[EXPERTS][FEATURES];
    for (uint32_t i = 0; i < count; i++)
        s->chose[layer][s->turns[layer]][expert[i]] = true;
    s->turns[layer]++;
    simple_features(s, layer, x);
    for (uint32_t e = 0; e < EXPERTS; e++)
        s->chance[layer][e] = simple_chance(s, x[e]);
    if (s->turns[layer] > 1)
        simple_learn(s, layer);
    memcpy(s->x[layer], x, sizeof(x));
}

/* Topics that come back: each turn repeats one of a topic's turns, but for an expert or two. */
static uint32_t some_experts(uint32_t turn, uint32_t layer, uint32_t *expert)
{
    uint32_t topic = turn / 23 % 3, count = random_below(8) == 0 ? 1 + random_below(TOP_K) : TOP_K;
    for (uint32_t i = 0; i < count; i++) {
        expert[i] = (topic * 11 + turn % 5 * (3 + layer) + i * 7) % EXPERTS;
        if (random_below(4) == 0)
            expert[i] = random_below(EXPERTS);
        for (uint32_t k = 0; k < i; k++)
            if (expert[k] == expert[i]) {
                expert[i] = (expert[i] + 1) % EXPERTS;
                k = UINT32_MAX; /* from the start */
            }
    }
    return count;
}

/* Rounding may put a place on the other side of a limit, seldom. */
static void chances_are_those_of_the_same_done_simply(void **state)
{
    (void)state;
    static struct simple s;
    uint32_t expert[TOP_K], far = 0, turns = 0;
    struct waste_habit h;
    s = (struct simple){.weight = {0.2, 0, 0.2, 0.2, 0.3, 0.2, 0, 0.3},
                        .bias = log((double)TOP_K / EXPERTS / (1 - (double)TOP_K / EXPERTS))};
    assert_int_equal(waste_habit_init(&h, LAYERS, EXPERTS, TOP_K, NULL), 0);
    for (uint32_t turn = 0; turn < TURNS; turn++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint32_t count = some_experts(turn, layer, expert);
            waste_habit_turn(&h, layer, expert, count);
            simple_turn(&s, layer, expert, count);
            turns++;
            double most = 0;
            for (uint32_t e = 0; e < EXPERTS; e++)
                most = fmax(most, fabs(waste_habit_chances(&h, layer)[e] - s.chance[layer][e]));
            far += most > 1e-3;
        }
    assert_true(far < turns / 100);
    waste_habit_finish(&h);
}

/* ---- what must be so ---- */

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
        assert_true(waste_habit_chances(&h, 0)[0] > 2 * waste_habit_chances(&h, 0)[e]);
        assert_true(waste_habit_chances(&h, 0)[1] > 2 * waste_habit_chances(&h, 0)[e]);
    }
    waste_habit_finish(&h);
}

static void the_often_chosen_and_the_lately_chosen_are_expected(void **state)
{
    (void)state;
    struct waste_habit h;
    uint32_t chosen[2];
    double sum[64] = {0}; /* chance may favour any of them now, but not all the time */
    assert_int_equal(waste_habit_init(&h, 2, 64, 2, NULL), 0);
    for (uint32_t n = 0; n < 300; n++) {
        for (uint32_t e = 0; n > 100 && e < 64; e++)
            sum[e] += waste_habit_chances(&h, 1)[e];
        chosen[0] = n % 2 ? 7 : 8 + random_below(20);
        chosen[1] = 30 + random_below(30);
        waste_habit_turn(&h, 1, chosen, 2);
    }
    for (uint32_t e = 0; e < 64; e++) /* 0..6 never; 7 every second time */
        if (e != 7)
            assert_true(sum[7] > sum[e]);
    for (uint32_t e = 0; e < 7; e++)
        assert_true(waste_habit_chances(&h, 1)[e] < waste_habit_chances(&h, 1)[chosen[1]]);
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
            if (waste_habit_chances(&h, 0)[e] > 0.15f) {
                expected += waste_habit_chances(&h, 0)[e];
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
            assert_true(waste_habit_chances(&h[i], 0)[e] >= 0 &&
                        waste_habit_chances(&h[i], 0)[e] <= 1);
        for (uint32_t w = 0; w < WASTE_HABIT_FEATURES; w++)
            assert_true(isfinite(h[i].notes->weight[w]));
    }
    for (uint32_t e = 0; e < 18; e++)
        assert_true(waste_habit_chances(&h[0], 0)[e] == waste_habit_chances(&h[1], 0)[e]);
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
        assert_true(waste_habit_chances(&h, 0)[e] > waste_habit_chances(&h, 0)[e - 1]);
    waste_habit_finish(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chances_are_those_of_the_same_done_simply),
        cmocka_unit_test(what_follows_is_expected),
        cmocka_unit_test(the_often_chosen_and_the_lately_chosen_are_expected),
        cmocka_unit_test(chances_are_as_often_right_as_they_say),
        cmocka_unit_test(chances_stay_chances_and_are_reproducible),
        cmocka_unit_test(what_is_recalled_is_worth_its_share),
    };
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down);
}
