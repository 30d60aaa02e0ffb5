/*
 * When the machine wants memory back: how many slots the cache should use, looked at once a second
 * and whenever the kernel has killed a stage for want of memory.
 *
 * A cache that pages is 8 to 20 times slower than a smaller one, so it gives way first. Three signs
 * count: little is left of the machine's memory or of a cgroup's limit, processes that share it
 * stall for memory (PSI) while not much is left, or one of ours was killed for it, whatever seems
 * to be left. It shrinks at once and by what is missing, never under the floor, and grows back
 * slowly when there has been room for a while.
 */
#ifndef WASTE_CLI_PRESSURE_H
#define WASTE_CLI_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/machine.h"

struct waste_pressure_reading {
    int64_t now_ns;
    uint64_t left_bytes;  /* that can be had without swapping or hitting a limit */
    uint64_t total_bytes; /* the machine's, or the tightest limit */
    struct waste_machine_stalls stalls;
    bool killed; /* the kernel has just killed a stage for want of memory */
};

struct waste_pressure {
    uint64_t slot_bytes;
    uint32_t floor_slots;
    uint32_t slots;                     /* what the cache may use as far as we are concerned */
    struct waste_machine_stalls stalls; /* as last seen */
    int64_t last_ns, calm_since_ns;     /* 0: not yet */
};

void waste_pressure_init(struct waste_pressure *p, uint64_t slot_bytes, uint32_t floor_slots,
                         uint32_t slots);

/* `most`: what the budget allows. Returns the slots to use: floor <= slots <= most. */
uint32_t waste_pressure_judge(struct waste_pressure *p, const struct waste_pressure_reading *now,
                              uint32_t most);

/* Of the machine. False: it cannot be seen. */
bool waste_pressure_read(const struct waste_machine_paths *paths,
                         struct waste_pressure_reading *out);

#endif
