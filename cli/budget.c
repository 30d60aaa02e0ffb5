/* The cache's size while the pipeline runs: what the user asks for, and what the machine can bear.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "cli/machine.h"
#include "cli/prefix.h"
#include "cli/supervisor_int.h"
#include "options/units.h"

void waste_supervisor_budget_init(struct waste_supervisor *s)
{
    const struct waste_plan *plan = &s->p->plan;

    s->budget_slots = plan->slots;
    s->budget_bytes = plan->total_bytes;
    s->oom_kills = s->oom_kills_now = waste_machine_oom_kills();
    waste_pressure_init(&s->pressure, s->p->model->expert.record_bytes, plan->floor_slots,
                        plan->slots);
}

void waste_supervisor_keeps(struct waste_supervisor *s, struct waste_prefix *prefix)
{
    pthread_mutex_lock(&s->lock);
    s->prefix = prefix;
    pthread_mutex_unlock(&s->lock);
}

/* True: the cache has become smaller. */
static bool follow(struct waste_supervisor *s, bool killed)
{
    struct waste_pressure_reading reading;
    uint32_t before = s->pressure.slots, after;
    char left[24], total[24];

    if (!waste_pressure_read(&waste_machine_proc, &reading))
        return false;
    if (strcmp(reading.stalls.path, s->pressure.stalls.path) != 0)
        waste_log_write(waste_supervisor_log(s), WASTE_LOG_INFO,
                        "stalls for memory are watched in %s",
                        reading.stalls.path[0] ? reading.stalls.path : "no file: none can be read");
    reading.killed = killed;
    after = waste_pressure_judge(&s->pressure, &reading, s->budget_slots);
    if (after == before)
        return false;
    if (after < before) {
        /* relaxed: for people */
        atomic_fetch_add_explicit(&s->p->shm.control->pressure_shrinks, 1, memory_order_relaxed);
        waste_log_write(waste_supervisor_log(s), WASTE_LOG_WARNING,
                        "memory is short (%s of %s left): the cache shrinks from %u to %u slots",
                        waste_units_format_size(reading.left_bytes, left, sizeof(left)),
                        waste_units_format_size(reading.total_bytes, total, sizeof(total)), before,
                        after);
    }
    waste_pipeline_set_slots(s->p, after, s->budget_slots, s->budget_bytes);
    return after < before;
}

void waste_supervisor_look_at_memory(struct waste_supervisor *s)
{
    int64_t now = waste_now_ns();

    if (now - s->pressure_ns < WASTE_SECOND_NS)
        return;
    s->pressure_ns = now;
    /* one look behind: who was killed just before this one may not have been reaped yet */
    s->oom_kills = s->oom_kills_now;
    s->oom_kills_now = waste_machine_oom_kills();
    follow(s, false);
}

bool waste_supervisor_give_way(struct waste_supervisor *s)
{
    return follow(s, true);
}

/* As for a start: 7/8 of what is free, and of what the segments take now. */
static uint64_t all_there_is(void)
{
    uint64_t resident[WASTE_SEG_COUNT], bytes = 0;
    struct waste_machine_memory m = {0};

    if (waste_machine_memory(&waste_machine_proc, &m) != 0)
        return 0;
    waste_machine_segments(getpid(), resident);
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        bytes += resident[i];
    return (bytes + m.allowed_bytes) / 8 * 7;
}

int waste_supervisor_budget(struct waste_supervisor *s, uint64_t bytes, uint32_t *slots,
                            uint64_t *total_bytes, struct waste_error *err)
{
    struct waste_plan plan = s->p->plan;
    if (bytes == WASTE_BUDGET_MAX)
        bytes = all_there_is();
    int rc = waste_plan_change(&plan, s->p->model, bytes, err);

    if (rc != 0)
        return rc;
    pthread_mutex_lock(&s->lock);
    if (s->prefix != NULL)
        waste_prefix_limit(s->prefix, plan.prefix_bytes);
    pthread_mutex_unlock(&s->lock);
    s->budget_slots = *slots = plan.slots;
    s->budget_bytes = *total_bytes = plan.total_bytes;
    /* asked for: at once; if the machine cannot bear it, it will say so */
    s->pressure.slots = *slots;
    waste_pipeline_set_slots(s->p, *slots, s->budget_slots, s->budget_bytes);
    waste_log_write(waste_supervisor_log(s), WASTE_LOG_INFO, "budget: %u slots, %" PRIu64 " bytes",
                    *slots, *total_bytes);
    return 0;
}
