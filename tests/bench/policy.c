/*
 * What the reader's policy costs: CPU time of a layer's turn, and of a victim, at the sizes of a
 * model.
 *
 *     policy-bench [layers [experts [top_k [slots]]]]      default: Kimi K3's, 90 896 16 16384
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "reader/policy.h"

enum { TOKENS = 40 };

static double cpu_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
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

int main(int argc, char **argv)
{
    uint32_t layers = number(argc, argv, 1, 90), experts = number(argc, argv, 2, 896);
    uint32_t top_k = number(argc, argv, 3, 16), slots = number(argc, argv, 4, 16384);
    uint32_t keys = layers * experts, used = slots < keys ? slots : keys;
    uint32_t *chosen = malloc(top_k * sizeof(*chosen));
    struct waste_policy p;
    double turns = 0, victims = 0;

    if (!chosen || top_k >= experts || waste_policy_init(&p, slots, layers, experts, top_k, NULL))
        return 1;
    for (uint32_t s = 0; s < used; s++)
        waste_policy_add(&p, s, (uint32_t)((uint64_t)s * keys / used));
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t l = 0; l < layers; l++) {
            choose(chosen, top_k, experts);
            double start = cpu_s();
            waste_policy_turn(&p, l, chosen, top_k);
            turns += cpu_s() - start;
            start = cpu_s();
            for (uint32_t i = 0; i < top_k; i++) {
                uint32_t victim = waste_policy_victim(&p);
                waste_policy_remove(&p, victim);
                waste_policy_add(&p, victim, p.key[victim]);
            }
            victims += cpu_s() - start;
        }
    printf("%u layers, %u experts, %u chosen, %u slots: a turn %.1f us, a victim %.2f us\n", layers,
           experts, top_k, slots, turns / TOKENS / layers * 1e6,
           victims / TOKENS / layers / top_k * 1e6);
    waste_policy_finish(&p);
    free(chosen);
    return 0;
}
