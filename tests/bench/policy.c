/*
 * What the reader's policy costs: the time of a layer's turn, and of a victim, at the sizes of a
 * model. Medians, for a shared machine interrupts.
 *
 *     policy-bench [layers [experts [top_k [slots]]]]      default: Kimi K3's, 90 896 16 16384
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "reader/policy.h"

enum { WARM = 270, TOKENS = 30 }; /* first more than a habit's window */

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static uint64_t state = 88172645463325252u;

/* The small ones are likelier: a habit. */
static uint32_t random_expert(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    uint32_t most = (uint32_t)((state >> 20) % n) + 1;
    return (uint32_t)(state >> 40) % most;
}

static uint32_t number(int argc, char **argv, int at, uint32_t otherwise)
{
    return argc > at ? (uint32_t)strtoul(argv[at], NULL, 10) : otherwise;
}

static void choose(uint32_t *chosen, uint32_t top_k, uint32_t experts)
{
    for (uint32_t i = 0; i < top_k; i++) {
    again:
        chosen[i] = random_expert(experts);
        for (uint32_t k = 0; k < i; k++)
            if (chosen[k] == chosen[i])
                goto again;
    }
}

static void take_victims(struct waste_policy *p, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t victim = waste_policy_victim(p), key = p->key[victim];
        waste_policy_remove(p, victim);
        waste_policy_add(p, victim, key);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median_us(uint64_t *ns, size_t count)
{
    qsort(ns, count, sizeof(*ns), by_value);
    return (double)ns[count / 2] / 1e3;
}

int main(int argc, char **argv)
{
    uint32_t layers = number(argc, argv, 1, 90), experts = number(argc, argv, 2, 896);
    uint32_t top_k = number(argc, argv, 3, 16), slots = number(argc, argv, 4, 16384);
    uint32_t keys = layers * experts, used = slots < keys ? slots : keys;
    uint32_t *chosen = malloc(top_k * sizeof(*chosen));
    size_t turns = 0, most = (size_t)TOKENS * layers;
    uint64_t *turn = malloc(most * sizeof(*turn)), *victim = malloc(most * sizeof(*victim));
    struct waste_policy p;

    if (!chosen || !turn || !victim || top_k >= experts ||
        waste_policy_init(&p, slots, layers, experts, top_k, NULL))
        return 1;
    for (uint32_t s = 0; s < used; s++)
        waste_policy_add(&p, s, (uint32_t)((uint64_t)s * keys / used));
    for (uint32_t t = 0; t < WARM + TOKENS; t++)
        for (uint32_t l = 0; l < layers; l++) {
            choose(chosen, top_k, experts);
            uint64_t start = now_ns();
            waste_policy_turn(&p, l, chosen, top_k);
            uint64_t middle = now_ns();
            take_victims(&p, top_k);
            uint64_t end = now_ns();
            if (t < WARM)
                continue;
            turn[turns] = middle - start;
            victim[turns++] = (end - middle) / top_k;
        }
    printf("%u layers, %u experts, %u chosen, %u slots: a turn %.1f us, a victim %.2f us\n", layers,
           experts, top_k, slots, median_us(turn, turns), median_us(victim, turns));
    waste_policy_finish(&p);
    free(chosen);
    free(turn);
    free(victim);
    return 0;
}
