#include "reader/habit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NO_EXPERT = UINT16_MAX };

#define MOST 1e4f /* no feature or weight is nearly as large */

static const float half_life[WASTE_HABIT_COUNTS] = {2, 16, 256};
/* Ages with a weight of their own: the last turn of each. */
static const uint32_t age_end[WASTE_HABIT_AGES] = {1, 2, 3, 6, 12, 30};

/* A share that is 0 is as much as this part of the base rate: a short past proves little. */
#define DOUBT 0.3f
#define RATE 0.3f
#define RATE_TURNS 30.0f /* from here on steps become shorter */

/* Where learning begins. Zeros do as well on the recorded traces, but after a restart there must be
 * an order before there is a turn. */
static const float start[WASTE_HABIT_FEATURES] = {
    [WASTE_HABIT_COUNT] = 0.2f,
    [WASTE_HABIT_COUNT + 1] = 0.2f,
    [WASTE_HABIT_COUNT + 2] = 0.2f,
    [WASTE_HABIT_FOLLOWS_CLOSELY] = 0.5f,
};

static struct waste_habit_expert *experts_of(struct waste_habit *h, uint32_t layer)
{
    return &h->expert[(size_t)layer * h->experts];
}

static uint16_t *turn_of(struct waste_habit *h, uint32_t layer, uint32_t turn)
{
    size_t row = (size_t)layer * WASTE_HABIT_WINDOW + turn % WASTE_HABIT_WINDOW;
    return &h->history[row * h->top_k];
}

static bool is_share(float x)
{
    return x >= 0 && x <= 1; /* no NaN either */
}

/* Nonsense becomes nothing known: a heap needs an order, and ids are indices. */
static void make_sense(struct waste_habit *h)
{
    size_t keys = (size_t)h->layers * h->experts;
    size_t ids = (size_t)h->layers * WASTE_HABIT_WINDOW * h->top_k;
    for (size_t k = 0; k < keys; k++) {
        struct waste_habit_expert *x = &h->expert[k];
        bool sense = is_share(x->chance);
        for (uint32_t i = 0; i < WASTE_HABIT_COUNTS; i++)
            sense &= is_share(x->count[i]);
        for (uint32_t i = 0; i < WASTE_HABIT_AGE; i++)
            sense &= fabsf(x->x[i]) < MOST;
        if (!sense)
            memset(x, 0, sizeof(*x));
    }
    for (size_t i = 0; i < ids; i++)
        if (h->history[i] >= h->experts)
            h->history[i] = NO_EXPERT;
    for (uint32_t i = 0; i < WASTE_HABIT_FEATURES; i++)
        if (!(fabsf(h->weight[i]) < MOST))
            h->weight[i] = start[i];
}

static void use_notes(struct waste_habit *h, struct waste_habit_notes *notes)
{
    h->weight = notes->weight;
    h->expert = (struct waste_habit_expert *)(notes + 1);
    h->turns = (uint32_t *)(h->expert + (size_t)h->layers * h->experts);
    h->history = (uint16_t *)(h->turns + h->layers);
    if (notes->begun == 1) {
        make_sense(h);
        return;
    }
    memcpy(h->weight, start, sizeof(start));
    h->weight[WASTE_HABIT_BASE] = logf((h->base + 1e-6f) / (1 - h->base + 1e-6f));
    notes->begun = 1;
}

int waste_habit_init(struct waste_habit *h, uint32_t layers, uint32_t experts, uint32_t top_k,
                     void *notes)
{
    memset(h, 0, sizeof(*h));
    h->layers = layers;
    h->experts = experts;
    h->top_k = top_k;
    h->base = (float)top_k / (float)experts;
    if (!notes)
        notes = h->own = calloc(1, waste_habit_notes_bytes(layers, experts, top_k));
    h->follows = malloc(experts * sizeof(*h->follows));
    h->closely = malloc(experts * sizeof(*h->closely));
    h->chosen = malloc(experts);
    if (notes && h->follows && h->closely && h->chosen) {
        use_notes(h, notes);
        return 0;
    }
    waste_habit_finish(h);
    return -ENOMEM;
}

void waste_habit_finish(struct waste_habit *h)
{
    free(h->own);
    free(h->follows);
    free(h->closely);
    free(h->chosen);
    memset(h, 0, sizeof(*h));
}

bool waste_habit_begun(const struct waste_habit *h)
{
    for (uint32_t l = 0; l < h->layers; l++)
        if (h->turns[l] > 0)
            return true;
    return false;
}

static uint32_t age_class(uint32_t age)
{
    for (uint32_t i = 0; i < WASTE_HABIT_AGES; i++)
        if (age <= age_end[i])
            return i;
    return WASTE_HABIT_AGES;
}

/* Moves the weights towards what would have told this turn's choice better. */
static void learn(struct waste_habit *h, uint32_t layer)
{
    const struct waste_habit_expert *list = experts_of(h, layer);
    float slope[WASTE_HABIT_FEATURES + 1] = {0}; /* the last one: old, never */
    for (uint32_t e = 0; e < h->experts; e++) {
        float error = (float)h->chosen[e] - list[e].chance;
        for (uint32_t i = 0; i < WASTE_HABIT_AGE; i++)
            slope[i] += error * list[e].x[i];
        slope[WASTE_HABIT_AGE + (list[e].age ? age_class(list[e].age) : WASTE_HABIT_AGES)] += error;
    }
    float rate = RATE / sqrtf(1 + (float)h->turns[layer] / RATE_TURNS) / (float)h->experts;
    for (uint32_t i = 0; i < WASTE_HABIT_FEATURES; i++)
        h->weight[i] += rate * slope[i];
}

static void count(struct waste_habit *h, uint32_t layer)
{
    struct waste_habit_expert *list = experts_of(h, layer);
    for (uint32_t i = 0; i < WASTE_HABIT_COUNTS; i++) {
        float keep = exp2f(-1 / half_life[i]);
        for (uint32_t e = 0; e < h->experts; e++)
            list[e].count[i] = list[e].count[i] * keep + (float)h->chosen[e] * (1 - keep);
    }
    for (uint32_t e = 0; e < h->experts; e++)
        list[e].age = h->chosen[e]                              ? 1
                      : list[e].age && list[e].age < UINT32_MAX ? list[e].age + 1
                                                                : list[e].age;
}

static uint32_t shared_experts(const struct waste_habit *h, const uint16_t *turn)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < h->top_k && turn[i] != NO_EXPERT; i++)
        n += h->chosen[turn[i]];
    return n;
}

/* What came after the turns of the window that look like the newest one, in shares. */
static void follow(struct waste_habit *h, uint32_t layer)
{
    uint32_t newest = h->turns[layer];
    uint32_t first = newest < WASTE_HABIT_WINDOW ? 0 : newest - WASTE_HABIT_WINDOW + 1;
    float all = 1e-9f, all_closely = 1e-9f;
    memset(h->follows, 0, h->experts * sizeof(*h->follows));
    memset(h->closely, 0, h->experts * sizeof(*h->closely));
    for (uint32_t turn = first; turn < newest; turn++) {
        float n = (float)shared_experts(h, turn_of(h, layer, turn));
        float n4 = n * n * n * n;
        const uint16_t *next = turn_of(h, layer, turn + 1);
        if (n == 0)
            continue;
        all += n;
        all_closely += n4;
        for (uint32_t i = 0; i < h->top_k && next[i] != NO_EXPERT; i++) {
            h->follows[next[i]] += n;
            h->closely[next[i]] += n4;
        }
    }
    for (uint32_t e = 0; e < h->experts; e++) {
        h->follows[e] /= all;
        h->closely[e] /= all_closely;
    }
}

/* A share as a feature: 0 at the base rate. */
static float feature(const struct waste_habit *h, float share)
{
    return logf((share / h->base + DOUBT) / (1 + DOUBT));
}

static void judge(struct waste_habit *h, struct waste_habit_expert *x, float follows, float closely)
{
    x->x[WASTE_HABIT_BASE] = 1;
    for (uint32_t i = 0; i < WASTE_HABIT_COUNTS; i++)
        x->x[WASTE_HABIT_COUNT + i] = feature(h, x->count[i]);
    x->x[WASTE_HABIT_FOLLOWS] = feature(h, follows);
    x->x[WASTE_HABIT_FOLLOWS_CLOSELY] = feature(h, closely);
    float sum = 0;
    for (uint32_t i = 0; i < WASTE_HABIT_AGE; i++)
        sum += h->weight[i] * x->x[i];
    uint32_t age = x->age ? age_class(x->age) : WASTE_HABIT_AGES;
    if (age < WASTE_HABIT_AGES)
        sum += h->weight[WASTE_HABIT_AGE + age];
    x->chance = 1 / (1 + expf(-sum));
}

void waste_habit_turn(struct waste_habit *h, uint32_t layer, const uint32_t *expert,
                      uint32_t count_)
{
    struct waste_habit_expert *list = experts_of(h, layer);
    memset(h->chosen, 0, h->experts);
    for (uint32_t i = 0; i < count_; i++)
        h->chosen[expert[i]] = 1;
    if (h->turns[layer] > 0)
        learn(h, layer);
    count(h, layer);
    uint16_t *now = turn_of(h, layer, h->turns[layer]);
    for (uint32_t i = 0; i < h->top_k; i++)
        now[i] = i < count_ ? (uint16_t)expert[i] : NO_EXPERT;
    follow(h, layer);
    for (uint32_t e = 0; e < h->experts; e++)
        judge(h, &list[e], h->follows[e], h->closely[e]);
    h->turns[layer]++;
}

void waste_habit_recall(struct waste_habit *h, uint32_t layer, uint32_t expert, float share)
{
    struct waste_habit_expert *x = &experts_of(h, layer)[expert];
    for (uint32_t i = 0; i < WASTE_HABIT_COUNTS; i++)
        x->count[i] = share;
    judge(h, x, h->base, h->base);
}

float waste_habit_memory(void)
{
    return 1 / (1 - exp2f(-1 / half_life[WASTE_HABIT_COUNTS - 1]));
}

float waste_habit_uses(const struct waste_habit *h, uint32_t key)
{
    return h->expert[key].count[WASTE_HABIT_COUNTS - 1] * waste_habit_memory();
}
