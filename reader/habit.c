#include "reader/habit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST 1e4f /* no weight is nearly as large */
#define MOST_UNITS (MOST / WASTE_F4_LOG_UNIT)

static const float half_life[WASTE_HABIT_COUNTS] = {0.7f, 3, 16, 256};

/* A share that is 0 is as much as this part of the base rate: a short past proves little. */
#define DOUBT 0.3f
#define LOOK 0.4f /* how much the turns after the next one count */
#define RATE 0.8f
#define RATE_TURNS 30.0f   /* from here on steps become shorter */
#define NOT_NOTHING 1e-20f /* keeps what fades from denormal numbers: they cost a hundredfold */

/* Where learning begins. Zeros do as well on the recorded traces, but after a restart there must be
 * an order before there is a turn. */
static const float start[WASTE_HABIT_FEATURES] = {
    0.2f, 0,    0.2f, 0.2f, /* counts */
    0.3f, 0.2f, 0,    0.3f, /* follows */
};

static bool is_share(float x)
{
    return x >= 0 && x <= 1; /* no NaN either */
}

/* Nonsense becomes nothing known: a heap needs an order, and ids are indices. */
static void make_sense(struct waste_habit *h, uint16_t *history)
{
    size_t keys = (size_t)h->layers * h->experts;
    size_t samples = (size_t)h->layers * waste_habit_sample_size(h->experts);
    for (size_t k = 0; k < keys; k++) {
        bool sense = is_share(h->chance[k]);
        for (uint32_t i = 0; i < WASTE_HABIT_COUNTS; i++)
            sense &= is_share(h->count[k][i]);
        if (!sense) {
            h->chance[k] = 0;
            h->count[k] = waste_f4_all(0);
        }
    }
    for (size_t k = 0; k < samples; k++)
        for (uint32_t i = 0; i < WASTE_HABIT_FEATURES; i++)
            if (!(fabsf(h->sample[k].x[i]) < MOST_UNITS))
                h->sample[k].x[i] = 0;
    for (uint32_t i = 0; i < WASTE_HABIT_FEATURES; i++)
        if (!(fabsf(h->notes->weight[i]) < MOST))
            h->notes->weight[i] = start[i];
    if (!(fabsf(h->notes->bias) < MOST))
        h->notes->bias = 0;
    waste_likeness_make_sense(h->layers, h->experts, h->top_k, history, h->notes->alike);
}

static int use_notes(struct waste_habit *h)
{
    size_t keys = (size_t)h->layers * h->experts;
    h->count = (waste_f4 *)(h->notes + 1);
    h->sample = (struct waste_habit_sample *)(h->count + keys);
    h->chance = (float *)(h->sample + (size_t)h->layers * waste_habit_sample_size(h->experts));
    h->last = (uint32_t *)(h->chance + keys);
    h->turns = h->last + keys;
    uint16_t *history = (uint16_t *)(h->turns + h->layers);
    if (h->notes->begun == 1) {
        make_sense(h, history);
    } else {
        memcpy(h->notes->weight, start, sizeof(start));
        h->notes->bias = logf((h->base + 1e-6f) / (1 - h->base + 1e-6f));
        h->notes->begun = 1;
    }
    return waste_likeness_init(&h->likeness, h->layers, h->experts, h->top_k, h->turns, history,
                               h->notes->alike);
}

/* Zero, and up to a multiple of four of them. */
static waste_f4 *fours(uint32_t count)
{
    size_t bytes = (count + 3) / 4 * 4 * sizeof(waste_f4);
    waste_f4 *x = aligned_alloc(sizeof(*x), bytes);
    return x ? memset(x, 0, bytes) : NULL;
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
    h->notes = notes;
    h->follows = fours(experts + 1);
    h->weighed = fours(experts);
    h->judged = (float *)fours((experts + 3) / 4);
    h->chosen = calloc(experts, 1);
    if (h->notes && h->follows && h->weighed && h->judged && h->chosen && use_notes(h) == 0)
        return 0;
    waste_habit_finish(h);
    return -ENOMEM;
}

void waste_habit_finish(struct waste_habit *h)
{
    waste_likeness_finish(&h->likeness);
    free(h->own);
    free(h->follows);
    free(h->weighed);
    free(h->judged);
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

/* One turn's way from counts and what followed to chances. */
struct judge {
    waste_f4 count_weight, follow_weight;
    waste_f4 count_scale, follow_scale, follow_offset; /* of shares, for the logarithm */
    float bias;
};

/* Logarithms of shares, in WASTE_F4_LOG_UNIT: 0 at the base rate. */
struct features {
    waste_f4 count, follow;
};

static struct judge judge_of(const struct waste_habit *h, waste_f4 all)
{
    const float *w = h->notes->weight;
    struct judge j = {.count_weight = {w[0], w[1], w[2], w[3]},
                      .follow_weight = {w[4], w[5], w[6], w[7]},
                      .count_scale = waste_f4_all(1 / h->base),
                      .bias = h->notes->bias};
    j.count_weight *= WASTE_F4_LOG_UNIT;
    j.follow_weight *= WASTE_F4_LOG_UNIT;
    for (uint32_t i = 0; i < WASTE_HABIT_FOLLOWS; i++) {
        j.follow_scale[i] = all[i] > 0 ? 1 / (all[i] * h->base) : 0;
        j.follow_offset[i] = all[i] > 0 ? DOUBT : 1 + DOUBT; /* nothing was alike: as the base */
    }
    return j;
}

static inline struct features look(const struct judge *j, waste_f4 count, waste_f4 follows)
{
    waste_i4 base = waste_f4_bits(1 + DOUBT);
    return (struct features){
        waste_f4_log(count * j->count_scale + DOUBT, base),
        waste_f4_log(follows * j->follow_scale + j->follow_offset, base),
    };
}

/* Its sum is the logit without the bias. */
static inline waste_f4 weigh(const struct judge *j, struct features x)
{
    return x.count * j->count_weight + x.follow * j->follow_weight;
}

/* [(count + 3) / 4 * 4] of each. */
static void to_chances(const struct judge *j, const waste_f4 *weighed, uint32_t count,
                       float *chance)
{
    for (uint32_t e = 0; e < count; e += 4) {
        waste_f4 sums = waste_f4_sums(weighed[e], weighed[e + 1], weighed[e + 2], weighed[e + 3]);
        *(waste_f4 *)&chance[e] = waste_f4_sigmoid(sums + j->bias);
    }
}

/* The experts that the turn after this one learns from: [*first, end). */
static uint32_t part_of(const struct waste_habit *h, uint32_t turn, uint32_t *first)
{
    uint32_t size = waste_habit_sample_size(h->experts), at = turn % WASTE_HABIT_PARTS * size;
    *first = at < h->experts ? at : h->experts;
    return h->experts - *first < size ? h->experts : *first + size;
}

static struct waste_habit_sample *samples_of(const struct waste_habit *h, uint32_t layer)
{
    return &h->sample[(size_t)layer * waste_habit_sample_size(h->experts)];
}

static struct features sample_features(const struct waste_habit_sample *s)
{
    struct features x;
    memcpy(&x.count, &s->x[0], sizeof(x.count));
    memcpy(&x.follow, &s->x[WASTE_HABIT_COUNTS], sizeof(x.follow));
    return x;
}

/*
 * Moves the weights towards what would have told this turn's choice better, and what is expected
 * now: by the experts of whom the turn before has left samples.
 */
static void learn(struct waste_habit *h, uint32_t layer, const struct judge *j)
{
    uint32_t first, end = part_of(h, h->turns[layer] - 1, &first);
    const float *now = waste_habit_chances(h, layer);
    const struct waste_habit_sample *sample = samples_of(h, layer);
    waste_f4 count = {0}, follow = {0};
    float bias = 0;
    for (uint32_t e = first; e < end; e++)
        h->weighed[e - first] = weigh(j, sample_features(&sample[e - first]));
    to_chances(j, h->weighed, end - first, h->judged);
    for (uint32_t e = first; e < end; e++) {
        struct features x = sample_features(&sample[e - first]);
        float came = (1 - LOOK) * (float)h->chosen[e] + LOOK * now[e];
        float error = came - h->judged[e - first];
        count += x.count * error;
        follow += x.follow * error;
        bias += error;
    }
    float rate = RATE / sqrtf(1 + (float)h->turns[layer] / RATE_TURNS) / (float)h->experts;
    for (uint32_t i = 0; i < WASTE_HABIT_COUNTS; i++)
        h->notes->weight[i] += rate * WASTE_F4_LOG_UNIT * count[i];
    for (uint32_t i = 0; i < WASTE_HABIT_FOLLOWS; i++)
        h->notes->weight[WASTE_HABIT_COUNTS + i] += rate * WASTE_F4_LOG_UNIT * follow[i];
    h->notes->bias += rate * bias;
}

/* Counts fade, and those of the chosen grow; chances are made of them. */
static void judge_layer(struct waste_habit *h, uint32_t layer, const struct judge *j,
                        const uint32_t *chosen, uint32_t top_k)
{
    waste_f4 *count = &h->count[(size_t)layer * h->experts], *weighed = h->weighed, keep;
    const waste_f4 *follows = h->follows;
    struct judge judge = *j; /* nothing that is written here can be part of it */
    for (uint32_t i = 0; i < WASTE_HABIT_COUNTS; i++)
        keep[i] = exp2f(-1 / half_life[i]);
    for (uint32_t e = 0, n = h->experts; e < n; e++) {
        count[e] = count[e] * keep + NOT_NOTHING;
        weighed[e] = weigh(&judge, look(&judge, count[e], follows[e]));
    }
    for (uint32_t i = 0; i < top_k; i++) {
        uint32_t e = chosen[i];
        count[e] = waste_f4_min(count[e] + (1 - keep), waste_f4_all(1));
        weighed[e] = weigh(&judge, look(&judge, count[e], follows[e]));
    }
    to_chances(&judge, weighed, h->experts, h->judged);
    memcpy(&h->chance[(size_t)layer * h->experts], h->judged, h->experts * sizeof(*h->judged));
}

static void keep_samples(struct waste_habit *h, uint32_t layer, const struct judge *j)
{
    uint32_t first, end = part_of(h, h->turns[layer], &first);
    const waste_f4 *count = &h->count[(size_t)layer * h->experts];
    struct waste_habit_sample *sample = samples_of(h, layer);
    for (uint32_t e = first; e < end; e++) {
        struct features x = look(j, count[e], h->follows[e]);
        memcpy(&sample[e - first].x[0], &x.count, sizeof(x.count));
        memcpy(&sample[e - first].x[WASTE_HABIT_COUNTS], &x.follow, sizeof(x.follow));
    }
}

void waste_habit_turn(struct waste_habit *h, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    waste_likeness_turn(&h->likeness, layer, expert, count);
    struct judge j = judge_of(h, waste_likeness_follow(&h->likeness, layer, h->follows));
    for (uint32_t i = 0; i < count; i++)
        h->chosen[expert[i]] = 1;
    judge_layer(h, layer, &j, expert, count);
    if (h->turns[layer] > 0)
        learn(h, layer, &j);
    keep_samples(h, layer, &j);
    h->turns[layer]++;
    for (uint32_t i = 0; i < count; i++) {
        h->chosen[expert[i]] = 0;
        h->last[(size_t)layer * h->experts + expert[i]] = h->turns[layer];
    }
}

void waste_habit_recall(struct waste_habit *h, uint32_t layer, uint32_t expert, float share)
{
    size_t key = (size_t)layer * h->experts + expert;
    struct judge j = judge_of(h, waste_f4_all(0));
    h->count[key] = waste_f4_all(share);
    h->weighed[0] = weigh(&j, look(&j, h->count[key], waste_f4_all(0)));
    to_chances(&j, h->weighed, 1, h->judged);
    h->chance[key] = h->judged[0];
}

float waste_habit_memory(void)
{
    return 1 / (1 - exp2f(-1 / half_life[WASTE_HABIT_COUNTS - 1]));
}

float waste_habit_uses(const struct waste_habit *h, uint32_t key)
{
    return h->count[key][WASTE_HABIT_COUNTS - 1] * waste_habit_memory();
}

uint32_t waste_habit_age(const struct waste_habit *h, uint32_t key)
{
    uint32_t turns = h->turns[key / h->experts], last = h->last[key];
    return last > 0 && last <= turns ? turns - last + 1 : 0;
}
