#include "reader/ghost.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE WASTE_POLICY_NONE

int waste_ghost_init(struct waste_ghost *g, const struct waste_policy *policy)
{
    size_t keys = (size_t)policy->layers * policy->experts;
    memset(g, 0, sizeof(*g));
    g->most = policy->slots;
    g->free = malloc(policy->slots * sizeof(*g->free));
    g->key_of = malloc(policy->slots * sizeof(*g->key_of));
    g->slot_of = malloc(keys * sizeof(*g->slot_of));
    if (!g->free || !g->key_of || !g->slot_of || waste_policy_init_beside(&g->policy, policy) < 0) {
        waste_ghost_finish(g);
        return -ENOMEM;
    }
    for (size_t i = 0; i < keys; i++)
        g->slot_of[i] = NONE;
    return 0;
}

void waste_ghost_finish(struct waste_ghost *g)
{
    waste_policy_finish(&g->policy);
    free(g->free);
    free(g->key_of);
    free(g->slot_of);
    memset(g, 0, sizeof(*g));
}

/* A slot without an expert in no heap; NONE: all are in use. */
static uint32_t vacant(struct waste_ghost *g)
{
    if (g->used - g->free_count >= g->most)
        return NONE;
    return g->free_count > 0 ? g->free[--g->free_count] : g->used++;
}

static uint32_t evict(struct waste_ghost *g)
{
    uint32_t slot = waste_policy_victim(&g->policy);
    if (slot == NONE)
        return NONE;
    waste_policy_remove(&g->policy, slot);
    g->slot_of[g->key_of[slot]] = NONE;
    return slot;
}

void waste_ghost_resize(struct waste_ghost *g, uint32_t most)
{
    uint32_t slot;
    g->most = most < g->policy.slots ? most : g->policy.slots;
    while (g->used - g->free_count > g->most && (slot = evict(g)) != NONE)
        g->free[g->free_count++] = slot;
}

static void fill(struct waste_ghost *g, uint32_t slot, uint32_t key)
{
    g->key_of[slot] = key;
    g->slot_of[key] = slot;
}

void waste_ghost_put(struct waste_ghost *g, uint32_t key)
{
    uint32_t slot = g->slot_of[key] == NONE ? vacant(g) : NONE;
    if (slot == NONE)
        return;
    fill(g, slot, key);
    waste_policy_add(&g->policy, slot, key);
}

void waste_ghost_demand(struct waste_ghost *g, uint32_t layer, const uint32_t *expert,
                        uint32_t count)
{
    uint32_t base = layer * g->policy.experts;
    for (uint32_t i = 0; i < count; i++)
        if (g->slot_of[base + expert[i]] != NONE)
            waste_policy_remove(&g->policy, g->slot_of[base + expert[i]]);
    waste_policy_turn(&g->policy, layer, expert, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key = base + expert[i];
        if (g->slot_of[key] != NONE)
            continue;
        g->reads++;
        uint32_t slot = vacant(g);
        if (slot == NONE)
            slot = evict(g);
        if (slot != NONE)
            fill(g, slot, key);
    }
    for (uint32_t i = 0; i < count; i++) /* from here on they may be taken */
        if (g->slot_of[base + expert[i]] != NONE)
            waste_policy_add(&g->policy, g->slot_of[base + expert[i]], base + expert[i]);
}
