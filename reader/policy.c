#include "reader/policy.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Value falls with the layers until the turn to this power. On the recorded traces 0.3 to 1 differ
 * by less than a percent of the hits. */
#define NEARNESS 0.7f

static int init_heaps(struct waste_policy *p, uint32_t slots, uint32_t layers, uint32_t experts)
{
    memset(p, 0, sizeof(*p));
    p->slots = slots;
    p->layers = layers;
    p->experts = experts;
    p->nearness = malloc((layers + 1) * sizeof(*p->nearness));
    p->count = calloc(layers, sizeof(*p->count));
    p->heap = malloc((size_t)layers * experts * sizeof(*p->heap));
    p->place = malloc(slots * sizeof(*p->place));
    p->key = malloc(slots * sizeof(*p->key));
    if (!p->nearness || !p->count || !p->heap || !p->place || !p->key) {
        waste_policy_finish(p);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i <= layers; i++)
        p->nearness[i] = powf((float)i, -NEARNESS);
    for (uint32_t i = 0; i < slots; i++)
        p->place[i] = WASTE_POLICY_NONE;
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
    free(p->heap);
    free(p->place);
    free(p->key);
    memset(p, 0, sizeof(*p));
}

/* ---- a layer's heap ---- */

struct heap {
    struct waste_policy *p;
    uint32_t *slot;
    uint32_t *count;
};

static struct heap heap_of(struct waste_policy *p, uint32_t layer)
{
    return (struct heap){p, &p->heap[(size_t)layer * p->experts], &p->count[layer]};
}

static float chance(const struct waste_policy *p, uint32_t key)
{
    return waste_habit_chance(p->chances ? p->chances : &p->habit, key);
}

static bool less(const struct waste_policy *p, uint32_t a, uint32_t b)
{
    return chance(p, p->key[a]) < chance(p, p->key[b]);
}

static void put(struct heap h, uint32_t at, uint32_t slot)
{
    h.slot[at] = slot;
    h.p->place[slot] = at;
}

static void sift_up(struct heap h, uint32_t at)
{
    uint32_t slot = h.slot[at];
    while (at > 0) {
        uint32_t parent = (at - 1) / 2;
        if (!less(h.p, slot, h.slot[parent]))
            break;
        put(h, at, h.slot[parent]);
        at = parent;
    }
    put(h, at, slot);
}

static void sift_down(struct heap h, uint32_t at)
{
    uint32_t slot = h.slot[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= *h.count)
            break;
        if (child + 1 < *h.count && less(h.p, h.slot[child + 1], h.slot[child]))
            child++;
        if (!less(h.p, h.slot[child], slot))
            break;
        put(h, at, h.slot[child]);
        at = child;
    }
    put(h, at, slot);
}

/* ---- slots ---- */

void waste_policy_add(struct waste_policy *p, uint32_t slot, uint32_t key)
{
    waste_policy_remove(p, slot);
    struct heap h = heap_of(p, key / p->experts);
    p->key[slot] = key;
    put(h, (*h.count)++, slot);
    sift_up(h, *h.count - 1);
}

void waste_policy_remove(struct waste_policy *p, uint32_t slot)
{
    uint32_t at = p->place[slot];
    if (at == WASTE_POLICY_NONE)
        return;
    struct heap h = heap_of(p, p->key[slot] / p->experts);
    p->place[slot] = WASTE_POLICY_NONE;
    uint32_t last = h.slot[--*h.count];
    if (at == *h.count)
        return;
    put(h, at, last);
    sift_up(h, at);
    sift_down(h, p->place[last]);
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
    uint32_t away = (key / p->experts + p->layers - p->now - 1) % p->layers + 1;
    return chance(p, key) * p->nearness[away];
}

uint32_t waste_policy_victim(const struct waste_policy *p)
{
    uint32_t victim = WASTE_POLICY_NONE;
    float least = INFINITY;
    for (uint32_t layer = 0; layer < p->layers; layer++) {
        if (p->count[layer] == 0)
            continue;
        uint32_t slot = p->heap[(size_t)layer * p->experts];
        float value = waste_policy_value(p, p->key[slot]);
        if (value < least) {
            victim = slot;
            least = value;
        }
    }
    return victim;
}
