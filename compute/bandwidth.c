#include "compute/bandwidth.h"

#include <stdatomic.h>
#include <time.h>

enum { TASK_BYTES = 1 << 20, PASSES = 2, LANES = 8 };

struct pass {
    struct waste_team *team;
    const uint8_t *bytes;
    _Atomic uint64_t sum; /* else the compiler would read nothing */
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void read_phase(void *arg, uint32_t worker)
{
    struct pass *p = arg;
    uint64_t lane[LANES] = {0}, sum = 0;
    uint32_t task;

    while (waste_team_claim(p->team, worker, &task)) {
        const uint64_t *from = (const uint64_t *)(p->bytes + (uint64_t)task * TASK_BYTES);
        for (uint32_t i = 0; i < TASK_BYTES / sizeof(*from); i += LANES)
            for (uint32_t k = 0; k < LANES; k++)
                lane[k] += from[i + k];
    }
    for (uint32_t k = 0; k < LANES; k++)
        sum += lane[k];
    /* relaxed: nobody reads it */
    atomic_fetch_add_explicit(&p->sum, sum, memory_order_relaxed);
}

uint64_t waste_bandwidth_measure(struct waste_team *team, const uint8_t *bytes, uint64_t count)
{
    struct pass p = {.team = team, .bytes = bytes};
    int64_t best = INT64_MAX;

    if (count < WASTE_BANDWIDTH_BYTES)
        return 0;
    for (int i = 0; i < PASSES; i++) {
        int64_t start = now_ns();
        waste_team_run(team, read_phase, &p, WASTE_BANDWIDTH_BYTES / TASK_BYTES, 1);
        int64_t took = now_ns() - start;
        if (took > 0 && took < best)
            best = took;
    }
    return (uint64_t)((double)WASTE_BANDWIDTH_BYTES * 1e9 / (double)best);
}
