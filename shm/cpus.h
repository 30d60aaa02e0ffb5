/* Which CPU is whose: compute's worker 0 runs the serial parts, so nobody else should sit on its
 * CPU. */
#ifndef WASTE_SHM_CPUS_H
#define WASTE_SHM_CPUS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* The CPUs of the bit mask cpus[16] that are in `home`; all of home if the mask is empty. How many
 * there are. */
int waste_cpus_usable(const uint64_t cpus[16], const cpu_set_t *home, cpu_set_t *out);

/* The n-th CPU of a set, alone. */
void waste_cpus_only(const cpu_set_t *set, uint32_t n, cpu_set_t *out);

/* Has each of compute's threads a CPU of its own? Worker n then has the n-th. */
static inline bool waste_cpus_pinned(uint32_t threads, int usable)
{
    return usable > 0 && threads == (uint32_t)usable;
}

/*
 * Another stage: the calling thread, and those it starts, leave worker 0's CPU alone if it is
 * pinned there and there is another one. A thread that wakes there would have to wait until we
 * sleep, for it cannot go elsewhere, and we can.
 */
void waste_cpus_leave_first(uint32_t threads, const uint64_t cpus[16]);

/*
 * The calling thread, and those it starts later, ask for short slices. Who wakes goes at once
 * before one with longer slices; else a worker that spins for its next phase may keep it waiting
 * until it sleeps, 60 us that no drive gets a request. The share of a CPU stays what it is. A
 * kernel that has no such slices (before 6.12) changes nothing.
 */
void waste_cpus_prompt(void);

#endif
