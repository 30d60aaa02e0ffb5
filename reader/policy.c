#include "reader/policy.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int waste_policy_init(struct waste_policy *p, uint32_t slots, uint32_t keys, double half_life)
{
    memset(p, 0, sizeof(*p));
    p->slots = slots;
    p->keys = keys;
    p->half_life = half_life;
    p->value = malloc(keys * sizeof(*p->value));
    p->heap = malloc(slots * sizeof(*p->heap));
    p->place = malloc(slots * sizeof(*p->place));
    p->key = malloc(slots * sizeof(*p->key));
    if (!p->value || !p->heap || !p->place || !p->key) {
        waste_policy_finish(p);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < keys; i++)
        p->value[i] = -INFINITY;
    for (uint32_t i = 0; i < slots; i++)
        p->place[i] = WASTE_POLICY_NONE;
    return 0;
}

void waste_policy_finish(struct waste_policy *p)
{
    free(p->value);
    free(p->heap);
    free(p->place);
    free(p->key);
    memset(p, 0, sizeof(*p));
}

void waste_policy_used(struct waste_policy *p, uint32_t key, uint64_t tick)
{
    double now = (double)tick / p->half_life;
    double old = p->value[key];
    /* log2(2^old + 2^now), without leaving the range of a double */
    double high = fmax(old, now), low = fmin(old, now);
    p->value[key] = isinf(low) ? high : high + log2(1.0 + exp2(low - high));
}

static bool less(const struct waste_policy *p, uint32_t a, uint32_t b)
{
    return p->value[p->key[a]] < p->value[p->key[b]];
}

static void put(struct waste_policy *p, uint32_t at, uint32_t slot)
{
    p->heap[at] = slot;
    p->place[slot] = at;
}

static void sift_up(struct waste_policy *p, uint32_t at)
{
    uint32_t slot = p->heap[at];
    while (at > 0) {
        uint32_t parent = (at - 1) / 2;
        if (!less(p, slot, p->heap[parent]))
            break;
        put(p, at, p->heap[parent]);
        at = parent;
    }
    put(p, at, slot);
}

static void sift_down(struct waste_policy *p, uint32_t at)
{
    uint32_t slot = p->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= p->count)
            break;
        if (child + 1 < p->count && less(p, p->heap[child + 1], p->heap[child]))
            child++;
        if (!less(p, p->heap[child], slot))
            break;
        put(p, at, p->heap[child]);
        at = child;
    }
    put(p, at, slot);
}

void waste_policy_add(struct waste_policy *p, uint32_t slot, uint32_t key)
{
    waste_policy_remove(p, slot);
    p->key[slot] = key;
    put(p, p->count++, slot);
    sift_up(p, p->count - 1);
}

void waste_policy_remove(struct waste_policy *p, uint32_t slot)
{
    uint32_t at = p->place[slot];
    if (at == WASTE_POLICY_NONE)
        return;
    p->place[slot] = WASTE_POLICY_NONE;
    uint32_t last = p->heap[--p->count];
    if (at == p->count)
        return;
    put(p, at, last);
    sift_up(p, at);
    sift_down(p, p->place[last]);
}

uint32_t waste_policy_victim(const struct waste_policy *p)
{
    return p->count ? p->heap[0] : WASTE_POLICY_NONE;
}
