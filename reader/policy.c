#include "reader/policy.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Value falls with the layers until the turn to this power. On the recorded traces 0.6 to 0.8
 * differ by less than a tenth of a percent of the hits. */
#define NEARNESS 0.7f

static int init_heaps(struct waste_policy *p, uint32_t slots, uint32_t layers, uint32_t experts)
{
    size_t keys = (size_t)layers * experts;
    memset(p, 0, sizeof(*p));
    p->slots = slots;
    p->layers = layers;
    p->experts = experts;
    p->nearness = malloc((layers + 1) * sizeof(*p->nearness));
    p->count = calloc(layers, sizeof(*p->count));
    p->least = malloc(layers * sizeof(*p->least));
    p->heap = malloc(keys * sizeof(*p->heap));
    p->place = malloc(keys * sizeof(*p->place));
    p->slot = malloc(keys * sizeof(*p->slot));
    p->key = malloc(slots * sizeof(*p->key));
    if (!p->nearness || !p->count || !p->least || !p->heap || !p->place || !p->slot || !p->key) {
        waste_policy_finish(p);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i <= layers; i++)
        p->nearness[i] = powf((float)i, -NEARNESS);
    for (uint32_t i = 0; i < layers; i++)
        p->least[i] = INFINITY;
    for (uint32_t i = 0; i < slots; i++)
        p->key[i] = WASTE_POLICY_NONE;
    return 0;
}

int waste_policy_init(struct waste_policy *p, uint32_t slots, uint32_t layers, uint32_t experts,
                      uint32_t top_k, void *notes)
{
    int rc = init_heaps(p, slots, layers, experts);
    if (rc == 0)
        rc = waste_habit_init(&p->habit, layers, experts, top_k, notes);
    if (rc < 0)
        waste_policy_finish(p);
    return rc;
}

int waste_policy_init_beside(struct waste_policy *p, const struct waste_policy *of)
{
    int rc = init_heaps(p, of->slots, of->layers, of->experts);
    p->chances = rc == 0 ? &of->habit : NULL;
    return rc;
}

void waste_policy_finish(struct waste_policy *p)
{
    waste_habit_finish(&p->habit);
    free(p->nearness);
    free(p->count);
    free(p->least);
    free(p->heap);
    free(p->place);
    free(p->slot);
    free(p->key);
    memset(p, 0, sizeof(*p));
}

static const float *chances_of(const struct waste_policy *p, uint32_t layer)
{
    return waste_habit_chances(p->chances ? p->chances : &p->habit, layer);
}

/* ---- a layer's heap ---- */

struct heap {
    const float *chance; /* of an expert */
    uint16_t *expert;
    uint16_t *place; /* of an expert */
    uint32_t *count;
    float *least;
};

static struct heap heap_of(struct waste_policy *p, uint32_t layer)
{
    size_t first = (size_t)layer * p->experts;
    return (struct heap){chances_of(p, layer), &p->heap[first], &p->place[first], &p->count[layer],
                         &p->least[layer]};
}

static void put(struct heap h, uint32_t at, uint16_t expert)
{
    h.expert[at] = expert;
    h.place[expert] = (uint16_t)at;
}

static void sift_up(struct heap h, uint32_t at)
{
    uint16_t expert = h.expert[at];
    while (at > 0) {
        uint32_t parent = (at - 1) / 2;
        if (!(h.chance[expert] < h.chance[h.expert[parent]]))
            break;
        put(h, at, h.expert[parent]);
        at = parent;
    }
    put(h, at, expert);
}

static void sift_down(struct heap h, uint32_t at)
{
    uint16_t expert = h.expert[at];
    float mine = h.chance[expert];
    uint32_t count = *h.count;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count)
            child += h.chance[h.expert[child + 1]] < h.chance[h.expert[child]];
        if (!(h.chance[h.expert[child]] < mine))
            break;
        put(h, at, h.expert[child]);
        at = child;
    }
    put(h, at, expert);
}

static void note_least(struct heap h)
{
    *h.least = *h.count ? h.chance[h.expert[0]] : INFINITY;
}

/* ---- slots ---- */

void waste_policy_add(struct waste_policy *p, uint32_t slot, uint32_t key)
{
    waste_policy_remove(p, slot);
    struct heap h = heap_of(p, key / p->experts);
    p->key[slot] = key;
    p->slot[key] = slot;
    put(h, (*h.count)++, (uint16_t)(key % p->experts));
    sift_up(h, *h.count - 1);
    note_least(h);
}

void waste_policy_remove(struct waste_policy *p, uint32_t slot)
{
    uint32_t key = p->key[slot];
    if (key == WASTE_POLICY_NONE)
        return;
    struct heap h = heap_of(p, key / p->experts);
    uint32_t at = p->place[key];
    p->key[slot] = WASTE_POLICY_NONE;
    uint16_t last = h.expert[--*h.count];
    if (at != *h.count) {
        put(h, at, last);
        sift_up(h, at);
        sift_down(h, h.place[last]);
    }
    note_least(h);
}

void waste_policy_turn(struct waste_policy *p, uint32_t layer, const uint32_t *expert,
                       uint32_t count)
{
    struct heap h = heap_of(p, layer);
    if (!p->chances)
        waste_habit_turn(&p->habit, layer, expert, count);
    p->now = layer;
    for (uint32_t at = *h.count / 2; at-- > 0;)
        sift_down(h, at);
    note_least(h);
}

void waste_policy_pass(struct waste_policy *p, uint32_t layer)
{
    p->now = layer;
}

void waste_policy_recall(struct waste_policy *p, uint32_t key, float share)
{
    waste_habit_recall(&p->habit, key / p->experts, key % p->experts, share);
}

float waste_policy_value(const struct waste_policy *p, uint32_t key)
{
    uint32_t layer = key / p->experts, away = (layer + p->layers - p->now - 1) % p->layers + 1;
    return chances_of(p, layer)[key % p->experts] * p->nearness[away];
}

uint32_t waste_policy_victim(const struct waste_policy *p)
{
    uint32_t victim = WASTE_POLICY_NONE;
    float least = INFINITY;
    for (uint32_t away = p->layers; away > 0; away--) {
        uint32_t layer = p->now + away < p->layers ? p->now + away : p->now + away - p->layers;
        float value = p->least[layer] * p->nearness[away];
        if (value < least) {
            victim = layer;
            least = value;
        }
    }
    if (victim == WASTE_POLICY_NONE)
        return victim;
    size_t first = (size_t)victim * p->experts;
    return p->slot[first + p->heap[first]];
}
