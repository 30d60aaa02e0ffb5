/*
 * Writes the large files of a synthetic container with all threads, at disk speed.
 *
 * The work is a list of jobs (jobs.h): rows of a trunk tensor, or records of a bank. A job knows
 * its file and its place in it, so jobs share nothing but the progress count.
 */
#ifndef WASTE_FETCHER_WEIGHTS_H
#define WASTE_FETCHER_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fetcher/plan.h"
#include "fetcher/progress.h"
#include "fetcher/shape.h"

struct waste_weights_job;
struct waste_weights {
    /* the caller's */
    const struct waste_shape *shape;
    const struct waste_plan *plan;
    const char *path; /* of the container, for messages */
    int dir;          /* the same, open */
    uint64_t seed;
    uint32_t threads; /* 0: as many as CPUs */
    bool quiet;
    /* weights.c's, zero before */
    struct waste_weights_job *jobs;
    uint32_t job_count, job_room;
    size_t buffer_bytes;
    double seconds; /* that it took */
    struct waste_progress progress;
};

/* trunk.bin and the banks. 0, or -1 with the reason printed. */
int waste_weights_write(struct waste_weights *w);

int waste_weights_write_codebooks(struct waste_weights *w);

#endif
