#include "reader/likeness.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FADE 2.0f          /* likeness falls to 1/e in 1 / FADE of a token */
#define LEAST_ALIKE 0.2f   /* of the most alike: less is no likeness */
#define LATER 0.6f         /* what comes a turn later counts so much */
#define LITTLE 0.01f       /* weights that are not looked at */
#define NOT_NOTHING 1e-20f /* keeps what fades from denormal numbers, which cost a hundredfold */

static uint16_t *row_of(const struct waste_likeness *l, uint32_t layer, uint32_t turn)
{
    size_t row = (size_t)layer * WASTE_HABIT_WINDOW + turn % WASTE_HABIT_WINDOW;
    return &l->history[row * l->top_k];
}

/* Turns back from `turn` that the window has. */
static uint32_t lags(uint32_t turn)
{
    return turn < WASTE_HABIT_WINDOW - 1 ? turn : WASTE_HABIT_WINDOW - 1;
}

static uint64_t *when_of(struct waste_likeness *l, uint32_t layer, uint32_t expert)
{
    return l->when[(size_t)layer * l->experts + expert];
}

static void mark_row(struct waste_likeness *l, uint32_t layer, uint32_t turn, bool there)
{
    const uint16_t *expert = row_of(l, layer, turn);
    uint32_t row = turn % WASTE_HABIT_WINDOW;
    for (uint32_t i = 0; i < l->top_k && expert[i] < l->experts; i++) {
        uint64_t *word = &when_of(l, layer, expert[i])[row / 64], bit = UINT64_C(1) << row % 64;
        *word = there ? *word | bit : *word & ~bit;
    }
}

int waste_likeness_init(struct waste_likeness *l, uint32_t layers, uint32_t experts, uint32_t top_k,
                        uint32_t *turns, uint16_t *history, float *alike)
{
    *l = (struct waste_likeness){.layers = layers,
                                 .experts = experts,
                                 .top_k = top_k,
                                 .turns = turns,
                                 .history = history,
                                 .alike = alike,
                                 .fade = expf(-FADE / (float)layers)};
    l->when = calloc((size_t)layers * experts, sizeof(*l->when));
    if (!l->when)
        return -ENOMEM;
    for (uint32_t layer = 0; layer < layers; layer++)
        for (uint32_t lag = lags(turns[layer]); lag >= 1; lag--)
            mark_row(l, layer, turns[layer] - lag, true);
    return 0;
}

void waste_likeness_finish(struct waste_likeness *l)
{
    free(l->when);
    memset(l, 0, sizeof(*l));
}

void waste_likeness_make_sense(uint32_t layers, uint32_t experts, uint32_t top_k, uint16_t *history,
                               float *alike)
{
    size_t ids = (size_t)layers * WASTE_HABIT_WINDOW * top_k;
    for (size_t i = 0; i < ids; i++)
        if (history[i] > experts)
            history[i] = (uint16_t)experts;
    for (uint32_t lag = 0; lag < WASTE_HABIT_WINDOW; lag++)
        if (!(alike[lag] >= 0 && alike[lag] <= ((float)layers + 1) * (float)top_k))
            alike[lag] = 0;
}

static void find_shared(struct waste_likeness *l, uint32_t layer, uint32_t turn,
                        const uint32_t *expert, uint32_t count)
{
    memset(l->shared, 0, sizeof(l->shared));
    for (uint32_t i = 0; i < count; i++)
        __builtin_prefetch(when_of(l, layer, expert[i]), 1);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t w = 0; w < WASTE_HABIT_WINDOW / 64; w++)
            for (uint64_t rows = when_of(l, layer, expert[i])[w]; rows; rows &= rows - 1) {
                uint32_t row = w * 64 + (uint32_t)__builtin_ctzll(rows);
                l->shared[(turn - row) % WASTE_HABIT_WINDOW] += 1;
            }
}

void waste_likeness_turn(struct waste_likeness *l, uint32_t layer, const uint32_t *expert,
                         uint32_t count)
{
    uint32_t turn = l->turns[layer];
    uint16_t *row = row_of(l, layer, turn);
    if (turn >= WASTE_HABIT_WINDOW)
        mark_row(l, layer, turn, false);
    find_shared(l, layer, turn, expert, count);
    for (uint32_t i = 0; i < l->top_k; i++)
        row[i] = (uint16_t)(i < count ? expert[i] : l->experts);
    mark_row(l, layer, turn, true);
    for (uint32_t lag = 0; lag < WASTE_HABIT_WINDOW; lag++)
        l->alike[lag] = l->alike[lag] * l->fade + l->shared[lag] + NOT_NOTHING;
}

/* Lags beyond the window's have nothing alike and nothing shared, as lag 0. */
static float sum_of(const float *x)
{
    waste_f4 sum = {0};
    for (uint32_t lag = 0; lag < WASTE_HABIT_WINDOW; lag += 4)
        sum += *(const waste_f4 *)&x[lag];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static float most_of(const float *x)
{
    waste_f4 most = {0};
    for (uint32_t lag = 0; lag < WASTE_HABIT_WINDOW; lag += 4)
        most = waste_f4_max(most, *(const waste_f4 *)&x[lag]);
    float a = most[0] > most[1] ? most[0] : most[1], b = most[2] > most[3] ? most[2] : most[3];
    return a > b ? a : b;
}

/* later[lag]: the sum of x[lag + 1 + i] LATER^i for the next eight. Adds up twos, fours, eights. */
static void smear(const float *x, float *later)
{
    float two[WASTE_HABIT_WINDOW + 6], four[WASTE_HABIT_WINDOW + 4];
    for (uint32_t lag = 0; lag < WASTE_HABIT_WINDOW + 6; lag++)
        two[lag] = x[lag + 1] + LATER * x[lag + 2];
    for (uint32_t lag = 0; lag < WASTE_HABIT_WINDOW + 4; lag++)
        four[lag] = two[lag] + LATER * LATER * two[lag + 2];
    for (uint32_t lag = 0; lag < WASTE_HABIT_WINDOW; lag++)
        later[lag] = four[lag] + LATER * LATER * LATER * LATER * four[lag + 4];
}

/* How alike the places are, to the fourth: from 0, as on average or hardly more, to 1, the most. */
static void compare(const float *alike, uint32_t last, float *fourth)
{
    float mean = sum_of(alike) / (float)(last + 1), most = most_of(alike);
    float unit = most > mean ? 1 / (most - mean) : 0;
    for (uint32_t lag = 0; lag < WASTE_HABIT_WINDOW; lag += 4) {
        waste_f4 x = (*(const waste_f4 *)&alike[lag] - mean) * unit;
        waste_f4 enough = waste_f4_choose(x < LEAST_ALIKE, waste_f4_all(0), x);
        *(waste_f4 *)&fourth[lag] = enough * enough * enough * enough;
    }
}

/* What was chosen after a place counts so much. */
struct place {
    waste_f4 weight; /* by enum waste_follow */
    uint32_t lag;
};

/* place[last]: those that count. How many. */
static uint32_t find_places(const struct waste_likeness *l, uint32_t last, struct place *place)
{
    _Alignas(16) float fourth[WASTE_HABIT_WINDOW], eighth[WASTE_HABIT_WINDOW + 8] = {0};
    float later[WASTE_HABIT_WINDOW];
    float most = most_of(l->shared), unit = most > 0 ? 1 / most : 0;
    uint32_t places = 0;
    compare(l->alike, last, fourth);
    for (uint32_t lag = 1; lag < WASTE_HABIT_WINDOW; lag++)
        eighth[lag] = fourth[lag] * fourth[lag];
    smear(eighth, later);
    for (uint32_t lag = 1; lag <= last; lag++) {
        float shared = l->shared[lag] * unit, layer = shared * shared * shared * shared;
        place[places] = (struct place){
            {layer, fourth[lag], eighth[lag] * fourth[lag], later[lag]},
            lag,
        };
        places += layer + fourth[lag] + later[lag] >= LITTLE;
    }
    return places;
}

static void follow(const struct waste_likeness *l, const uint16_t *next, waste_f4 weight,
                   waste_f4 *follows)
{
    for (uint32_t i = 0, n = l->top_k; i < n; i++)
        follows[next[i]] += weight;
}

waste_f4 waste_likeness_follow(const struct waste_likeness *l, uint32_t layer, waste_f4 *follows)
{
    struct place place[WASTE_HABIT_WINDOW];
    uint32_t turn = l->turns[layer], places = find_places(l, lags(turn), place);
    waste_f4 all = {0};
    memset(follows, 0, (l->experts + 1) * sizeof(*follows));
    for (uint32_t i = 0; i < places; i++) {
        all += place[i].weight;
        follow(l, row_of(l, layer, turn - place[i].lag + 1), place[i].weight, follows);
    }
    return all;
}
