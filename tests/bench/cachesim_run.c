#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reader/policy.h"
#include "tests/bench/cachesim.h"

#define NONE UINT32_MAX
#define HALF_LIFE 8.0 /* tokens; of DECAYED */

const char *const policy_name[POLICIES] = {"lru",     "lfu",   "lfu-forgetful",
                                           "decayed", "waste", "optimum"};

struct sim {
    const struct trace *t;
    enum policy policy;
    uint32_t slots, used;
    uint32_t *slot_of; /* [keys] */
    uint32_t *key_of;  /* [slots] */
    uint8_t *held;     /* [slots] of the turn at work */
    double *value;     /* [keys] what the policies but ours keep; least goes first */
    uint32_t *next;    /* OPTIMUM: [turns][top_k] the turn that chooses it again */
    struct waste_policy waste;
};

static void sim_free(struct sim *s)
{
    if (s->waste.slots)
        waste_policy_finish(&s->waste);
    free(s->slot_of);
    free(s->key_of);
    free(s->held);
    free(s->value);
    free(s->next);
}

/* When each choice comes again, from the end backwards. */
static int look_ahead(struct sim *s)
{
    const struct trace *t = s->t;
    size_t turns = (size_t)t->tokens * t->layers, keys = (size_t)t->layers * t->experts;
    uint32_t *coming = malloc(keys * sizeof(*coming));
    s->next = malloc(turns * t->top_k * sizeof(*s->next));
    for (size_t i = 0; coming && i < keys; i++)
        coming[i] = NONE;
    for (size_t turn = turns; coming && s->next && turn-- > 0;)
        for (uint32_t i = 0; i < t->count[turn]; i++) {
            size_t key = turn % t->layers * t->experts + t->expert[turn * t->top_k + i];
            s->next[turn * t->top_k + i] = coming[key];
            coming[key] = (uint32_t)turn;
        }
    free(coming);
    return coming && s->next ? 0 : -1;
}

static int sim_init(struct sim *s, const struct trace *t, enum policy policy, uint32_t slots)
{
    size_t keys = (size_t)t->layers * t->experts;
    *s = (struct sim){.t = t, .policy = policy, .slots = slots};
    s->slot_of = malloc(keys * sizeof(*s->slot_of));
    s->key_of = malloc(slots * sizeof(*s->key_of));
    s->held = calloc(slots, 1);
    s->value = calloc(keys, sizeof(*s->value));
    if (!s->slot_of || !s->key_of || !s->held || !s->value)
        return -1;
    for (size_t i = 0; i < keys; i++)
        s->slot_of[i] = NONE;
    if (policy == WASTE)
        return waste_policy_init(&s->waste, slots, t->layers, t->experts, t->top_k, NULL);
    return policy == OPTIMUM ? look_ahead(s) : 0;
}

/* The turn's choices change what experts are worth. */
static void learn(struct sim *s, uint32_t token, uint32_t layer)
{
    uint32_t count;
    const uint32_t *expert = trace_turn(s->t, token, layer, &count);
    size_t turn = (size_t)token * s->t->layers + layer;
    if (s->policy == WASTE)
        waste_policy_turn(&s->waste, layer, expert, count);
    for (uint32_t i = 0; i < count; i++) {
        double *value = &s->value[layer * s->t->experts + expert[i]];
        if (s->policy == LRU)
            *value = (double)turn;
        else if (s->policy == LFU || s->policy == FORGETFUL)
            *value += 1;
        else if (s->policy == DECAYED) /* scaled by the time instead of fading: the same order */
            *value += exp2(token / HALF_LIFE);
        else if (s->policy == OPTIMUM)
            *value = -(double)s->next[turn * s->t->top_k + i];
    }
}

static uint32_t victim(const struct sim *s)
{
    uint32_t least = NONE;
    if (s->policy == WASTE)
        return waste_policy_victim(&s->waste);
    for (uint32_t slot = 0; slot < s->slots; slot++)
        if (!s->held[slot] &&
            (least == NONE || s->value[s->key_of[slot]] < s->value[s->key_of[least]]))
            least = slot;
    return least;
}

static void set_held(struct sim *s, uint32_t slot, bool held)
{
    s->held[slot] = held;
    if (s->policy != WASTE)
        return;
    if (held)
        waste_policy_remove(&s->waste, slot);
    else
        waste_policy_add(&s->waste, slot, s->key_of[slot]);
}

static uint32_t take_slot(struct sim *s)
{
    if (s->used < s->slots)
        return s->used++;
    uint32_t slot = victim(s), key = s->key_of[slot];
    s->slot_of[key] = NONE;
    if (s->policy == FORGETFUL)
        s->value[key] = 0;
    return slot;
}

/* As the reader does it: hits are held, then the others find slots, all at once in memory. */
static void turn(struct sim *s, uint32_t token, uint32_t layer, struct result *r)
{
    uint32_t count, half = token >= s->t->tokens / 2;
    const uint32_t *expert = trace_turn(s->t, token, layer, &count);
    uint32_t *slot_of = &s->slot_of[layer * s->t->experts];
    for (uint32_t i = 0; i < count; i++)
        if (slot_of[expert[i]] != NONE) {
            set_held(s, slot_of[expert[i]], true);
            r->hits[half]++;
        }
    r->demands[half] += count;
    learn(s, token, layer);
    for (uint32_t i = 0; i < count; i++) {
        if (slot_of[expert[i]] != NONE)
            continue;
        uint32_t slot = take_slot(s);
        slot_of[expert[i]] = slot;
        s->key_of[slot] = layer * s->t->experts + expert[i];
        set_held(s, slot, true);
    }
    for (uint32_t i = 0; i < count; i++)
        set_held(s, slot_of[expert[i]], false);
}

int simulate(const struct trace *t, enum policy policy, uint32_t slots, struct result *result)
{
    struct sim s;
    int rc = sim_init(&s, t, policy, slots);
    memset(result, 0, sizeof(*result));
    for (uint32_t token = 0; rc == 0 && token < t->tokens; token++)
        for (uint32_t layer = 0; layer < t->layers; layer++)
            turn(&s, token, layer, result);
    sim_free(&s);
    return rc;
}
