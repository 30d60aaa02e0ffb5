/* Starting a stage's process. */
#ifndef WASTE_CLI_SPAWN_H
#define WASTE_CLI_SPAWN_H

#include <limits.h>
#include <sys/types.h>

#include "cli/pipeline.h"

struct waste_programs {
    char path[WASTE_STAGE_COUNT][PATH_MAX];
};

/*
 * Finds waste-reader and the others: beside waste-run, in ../<folder> of the build tree, in
 * ../libexec/waste, or where `ninja install` put them. 0 or -ENOENT with err.
 */
int waste_spawn_find(struct waste_programs *out, struct waste_error *err);

/*
 * Forks and executes `program MODEL_DIR` with the segments at the descriptors of shm/segment.h, in
 * a process group of its own (a terminal's Ctrl-C is waste-run's to handle). The child is killed
 * when the calling thread ends, so that thread must live as long as the stages. 0 or -errno with
 * err. A program that cannot be run ends with exit code 127, and the stage's record says why.
 */
int waste_spawn(const struct waste_pipeline *p, enum waste_stage_id stage, const char *program,
                pid_t *out_pid, int *out_pidfd, struct waste_error *err);

#endif
