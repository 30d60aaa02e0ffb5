/*
 * The worker team: a fixed set of threads that run one phase at a time together.
 *
 * A phase is a function and a number of tasks. waste_team_run() opens the phase; the caller (worker
 * 0) and every worker that is awake run the function, which claims task numbers until none is left.
 * A worker that wakes too late to claim anything is not waited for, so an overloaded machine costs
 * time slices, not a rendezvous of all threads a phase. What a task computes must depend on its
 * number only, never on who runs it: that is what makes results independent of the thread count.
 * A task may wait for tasks with lower numbers: they are claimed before it, and a worker runs its
 * claims in order.
 *
 * Workers spin briefly for the next phase and then sleep on a futex. Nothing is allocated after
 * waste_team_create().
 */
#ifndef WASTE_COMPUTE_TEAM_H
#define WASTE_COMPUTE_TEAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct waste_team;

typedef void waste_phase_fn(void *arg, uint32_t worker);

enum { WASTE_TEAM_MAX = 4096, WASTE_TEAM_STACK_BYTES = 512 << 10 };

/*
 * Starts threads - 1 workers; the calling thread is worker 0 from now on. cpus[16] is a bit mask of
 * the CPUs to use, all zero = those the caller may run on. When there are exactly as many CPUs as
 * threads each is pinned to one. 0, -EINVAL (threads out of range, no CPU of the mask usable),
 * -ENOMEM, -EAGAIN.
 */
int waste_team_create(struct waste_team **out, uint32_t threads, const uint64_t cpus[16]);
void waste_team_destroy(struct waste_team *team);

/* Called by worker 0 at every claim, for heartbeats. */
void waste_team_set_tick(struct waste_team *team, void (*tick)(void *), void *arg);

/*
 * Runs fn on the team, with tasks numbered [0, tasks). A claim takes a run of tasks, fewer towards
 * the end and never more than `run`: long runs stream neighbouring weights, short ones share out
 * big tasks evenly. What the caller wrote before is visible to all workers, what the workers wrote
 * is visible to the caller afterwards.
 */
void waste_team_run(struct waste_team *team, waste_phase_fn *fn, void *arg, uint32_t tasks,
                    uint32_t run);

/* Inside a phase: the next task, or false when all are taken. A phase function goes on until then:
 * a claim may have set several tasks aside for this worker. */
bool waste_team_claim(struct waste_team *team, uint32_t worker, uint32_t *task);

/* Of the last waste_team_run(): nanoseconds in which two workers or more were at it. Worker 0. */
int64_t waste_team_shared_ns(const struct waste_team *team);

/*
 * Other processes need the team's CPUs again and again, for moments: who spins lets them, if there
 * are any, between two looks. They would wait until it sleeps, else. Alone, that costs a phase
 * 0.3 us. Worker 0; at first they do not.
 */
void waste_team_share(struct waste_team *team, bool shared);

uint32_t waste_team_threads(const struct waste_team *team);

/* Every worker has a CPU, and there is more than one: who spins keeps no other process from
 * working. */
bool waste_team_has_room(const struct waste_team *team);

#endif
