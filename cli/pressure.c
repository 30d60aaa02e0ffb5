#include "cli/pressure.h"

#include <string.h>
#include <time.h>

#define CALM_NS INT64_C(10000000000) /* room for this long before the cache grows again */

/* Less than total / RESERVE left is too little; the aim is twice that. Stalls only count while less
 * than total / NEAR is left: what another process does to itself is not our memory's fault. */
enum { RESERVE = 32, NEAR = 4, STALLED_PERCENT = 10, GROW = 16 };

void waste_pressure_init(struct waste_pressure *p, uint64_t slot_bytes, uint32_t floor_slots,
                         uint32_t slots)
{
    *p = (struct waste_pressure){
        .slot_bytes = slot_bytes, .floor_slots = floor_slots, .slots = slots};
}

static bool stalled(struct waste_pressure *p, const struct waste_pressure_reading *now)
{
    int64_t interval_us = (now->now_ns - p->last_ns) / 1000;
    /* of another file, or one that goes backwards, the next look will tell */
    bool known = p->last_ns > 0 && interval_us > 0 && now->stalls.us >= p->stalls.us &&
                 strcmp(now->stalls.path, p->stalls.path) == 0;
    uint64_t stall_us = now->stalls.us - p->stalls.us;

    return known && now->left_bytes < now->total_bytes / NEAR &&
           stall_us > (uint64_t)interval_us / 100 * STALLED_PERCENT;
}

static uint32_t shrunk(const struct waste_pressure *p, uint64_t missing_bytes)
{
    uint64_t by = missing_bytes / p->slot_bytes + 1;

    return p->slots > p->floor_slots + by ? p->slots - (uint32_t)by : p->floor_slots;
}

static uint32_t grown(const struct waste_pressure *p, uint64_t spare_bytes, uint32_t most)
{
    uint64_t by = spare_bytes / 2 / p->slot_bytes, step = most / GROW + 1;

    by = by < step ? by : step;
    return p->slots + by < most ? p->slots + (uint32_t)by : most;
}

uint32_t waste_pressure_judge(struct waste_pressure *p, const struct waste_pressure_reading *now,
                              uint32_t most)
{
    uint64_t reserve = now->total_bytes / RESERVE, aim = 2 * reserve;
    uint64_t short_of_aim = now->left_bytes < aim ? aim - now->left_bytes : 0;
    bool stalls = stalled(p, now);

    p->stalls = now->stalls;
    p->last_ns = now->now_ns;
    if (p->slots > most)
        p->slots = most;
    if (now->left_bytes < reserve || stalls || now->killed) {
        uint64_t step = (uint64_t)p->slots / GROW * p->slot_bytes;
        p->slots = shrunk(p, short_of_aim > step ? short_of_aim : step);
        p->calm_since_ns = 0;
    } else if (short_of_aim > 0) {
        p->calm_since_ns = 0;
    } else if (p->calm_since_ns == 0) {
        p->calm_since_ns = now->now_ns;
    } else if (now->now_ns - p->calm_since_ns >= CALM_NS && p->slots < most) {
        p->slots = grown(p, now->left_bytes - aim, most);
    }
    return p->slots;
}

bool waste_pressure_read(const struct waste_machine_paths *paths,
                         struct waste_pressure_reading *out)
{
    struct waste_machine_memory m;
    struct timespec ts;

    if (waste_machine_memory(paths, &m) != 0)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    *out = (struct waste_pressure_reading){
        .now_ns = ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec,
        .left_bytes = m.allowed_bytes,
        .total_bytes = m.total_bytes < m.limit_bytes ? m.total_bytes : m.limit_bytes,
    };
    waste_machine_stalls(paths, &m, &out->stalls);
    return true;
}
