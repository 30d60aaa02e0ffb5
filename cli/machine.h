/*
 * What this machine lets us have: memory (free memory and cgroup limits, v1 and v2, all ancestors)
 * and CPUs.
 */
#ifndef WASTE_CLI_MACHINE_H
#define WASTE_CLI_MACHINE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/segment.h"

/* Where to look; tests point these at trees of their own. */
struct waste_machine_paths {
    const char *meminfo, *cgroup, *mountinfo, *pressure;
};
extern const struct waste_machine_paths waste_machine_proc; /* /proc/... */

struct waste_machine_memory {
    uint64_t total_bytes;      /* MemTotal */
    uint64_t available_bytes;  /* MemAvailable: what can be had without swapping */
    uint64_t limit_bytes;      /* the tightest cgroup limit, UINT64_MAX = none */
    uint64_t limit_used;       /* of that limit, taken by what cannot be dropped */
    uint64_t allowed_bytes;    /* the smaller of available and any limit's rest */
    char limit_path[PATH_MAX]; /* cgroup directory the limit is set in, "" = none */
    /* Where allowed_bytes comes from: the v2 cgroup directory of that limit, "" = the machine or a
     * v1 cgroup. */
    char scarce_path[PATH_MAX];
};

/* 0 or -errno (no meminfo). A cgroup that cannot be read counts as unlimited. */
int waste_machine_memory(const struct waste_machine_paths *paths, struct waste_machine_memory *out);

/*
 * How long processes have been stalled for memory, ever: of those that share what is scarcest for
 * us, by PSI (Documentation/accounting/psi.rst of the kernel). That is memory.pressure beside the
 * limit that decides about allowed_bytes, if there is one and it can be read, else the machine's.
 */
struct waste_machine_stalls {
    uint64_t us;         /* in which some process was stalled; 0 if unknown */
    char path[PATH_MAX]; /* the file that says so; "" = none can be read */
};
void waste_machine_stalls(const struct waste_machine_paths *paths,
                          const struct waste_machine_memory *memory,
                          struct waste_machine_stalls *out);

/* Resident memory of a process, bytes, from smaps_rollup and status. Fields that cannot be read are
 * zero. `pss` shares every page among those who map it. */
struct waste_machine_rss {
    uint64_t rss, pss, anon, file, shmem;
};
void waste_machine_rss(int32_t pid, struct waste_machine_rss *out);

/* CPU time of all its threads so far; 0 if it cannot be seen. */
double waste_machine_cpu_seconds(int32_t pid);

/* Memory that a waste-run's segments really take, by enum waste_segment_id; zero if it cannot be
 * seen. */
void waste_machine_segments(int32_t pid, uint64_t resident[WASTE_SEG_COUNT]);

/* How many processes of the machine the kernel has killed for want of memory; 0 if it does not say.
 */
uint64_t waste_machine_oom_kills(void);

/* CPUs' worth of time this process may use, rounded up: the tightest of its cgroups' quotas. */
struct waste_machine_quota {
    uint32_t cpus;       /* at least 1; UINT32_MAX: none is set */
    char path[PATH_MAX]; /* cgroup directory it is set in */
};
void waste_machine_quota(const struct waste_machine_paths *paths, struct waste_machine_quota *out);

/* The lowest CPU in the mask that this process may not run on; UINT32_MAX: it may on all. */
uint32_t waste_machine_foreign_cpu(const uint64_t *mask, size_t words);

#endif
