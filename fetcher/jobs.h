/* Numbered jobs for all cores: threads claim them in order, each with a buffer of its own. */
#ifndef WASTE_FETCHER_JOBS_H
#define WASTE_FETCHER_JOBS_H

#include <stddef.h>
#include <stdint.h>

#include "fetcher/progress.h"

enum { WASTE_JOBS_THREADS = 64 };

struct waste_jobs {
    uint64_t count;
    /* 0, or -errno: no further job is begun. `buffer` holds buffer_bytes, aligned to 4096. Called
     * by several threads at once. */
    int (*run)(void *ctx, uint64_t job, uint8_t *buffer);
    void *ctx;
    size_t buffer_bytes;
    uint32_t threads;                /* 0: as many as CPUs this process may use */
    struct waste_progress *progress; /* shown while they run; the jobs add to it */
};

/* Returns when all threads have ended: 0 or the first error. */
int waste_jobs_run(const struct waste_jobs *jobs);

/* CPUs this process may use, at most WASTE_JOBS_THREADS. */
uint32_t waste_jobs_cpus(void);

/* Threads for jobs that mostly read: as many as CPUs, and no fewer than a drive wants reads at
 * once. */
uint32_t waste_jobs_readers(void);

#endif
