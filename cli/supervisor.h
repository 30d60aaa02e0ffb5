/*
 * Starts the stages, notices when one dies or hangs, repairs what it left behind and starts it
 * again.
 *
 * One thread forks, reaps and decides; it lives as long as the pipeline, because the stages are set
 * to die with the thread that forked them. It takes no lock in shared memory and believes nothing
 * it reads there. What happens to a stage is one state machine (supervisor.c); what a death leaves
 * to be repaired is in repair.c.
 *
 *     IDLE -> ALIVE -> (dead, repaired) -> ALIVE ...
 *                                       -> BROKEN: exit 2; never again
 *                                       -> TIRED:  5 deaths in 10 s at one step; until the next
 *                                                  request
 *
 * The functions below may be called from any one other thread.
 */
#ifndef WASTE_CLI_SUPERVISOR_H
#define WASTE_CLI_SUPERVISOR_H

#include "cli/pipeline.h"
#include "cli/spawn.h"

struct waste_prefix;
struct waste_supervisor;

struct waste_supervisor_options {
    uint32_t hang_seconds;
    uint32_t hang_loading_seconds; /* while a stage starts or loads */
    bool no_router;
    void (*warn)(const char *text); /* what a user should know at the start; may be NULL */
    /* Another process asked for an end ("waste-run stop"). From the supervisor's thread. */
    void (*on_stop)(void *arg);
    void *on_stop_arg;
};

/* Starts the thread and through it the stages. 0 or -errno with err. `p` must outlive it. */
int waste_supervisor_start(struct waste_pipeline *p, const struct waste_programs *programs,
                           const struct waste_supervisor_options *options,
                           struct waste_supervisor **out, struct waste_error *err);

/* Ends the stages (politely, then not), joins the thread, frees. NULL is fine. */
void waste_supervisor_stop(struct waste_supervisor *s);

/* After a request was posted, so that a stage that had been given up gets another chance. */
void waste_supervisor_wake(struct waste_supervisor *s);

/* A line for waste-run's own log, which the supervisor's thread writes; what comes when 16 wait for
 * it is dropped. Any thread. */
void waste_supervisor_note(struct waste_supervisor *s, enum waste_log_level level,
                           const char *text);

/* States that are kept within the budget: their limit follows it. NULL: no more. */
void waste_supervisor_keeps(struct waste_supervisor *s, struct waste_prefix *prefix);

/*
 * Why the pipeline cannot serve: 0 it can (or may soon), 1 failed, 2 bad configuration or
 * container; text then says why.
 */
int waste_supervisor_failure(struct waste_supervisor *s, struct waste_error *text);

#endif
