/* A stage has died: reap, repair, decide. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/machine.h"
#include "cli/repair.h"
#include "cli/supervisor_int.h"
#include "shm/inject.h"

bool waste_deaths_add(struct waste_deaths *d, int64_t now_ns, int64_t busy_ns, uint64_t request,
                      uint64_t commit)
{
    d->busy_ns += busy_ns;
    now_ns -= d->busy_ns;
    if (d->count == WASTE_DEATHS_MAX) {
        memmove(&d->at[0], &d->at[1], sizeof(d->at[0]) * (WASTE_DEATHS_MAX - 1));
        d->count--;
    }
    d->at[d->count].when_ns = now_ns;
    d->at[d->count].request = request;
    d->at[d->count].commit = commit;
    d->count++;
    if (d->count < WASTE_DEATHS_MAX || now_ns - d->at[0].when_ns > WASTE_DEATHS_NS)
        return false;
    for (uint32_t i = 0; i < WASTE_DEATHS_MAX; i++) {
        if (d->at[i].request != request || d->at[i].commit != commit)
            return false;
    }
    return true;
}

/* The newest error line this process of the stage left in its log. */
static bool last_error(struct waste_supervisor *s, enum waste_stage_id stage, char *out,
                       size_t room)
{
    const struct waste_log *log = &s->p->shm.control->log[stage];
    /* acquire: pairs with the writer's release of `next`; lines are checked one by one anyway */
    uint64_t next = atomic_load_explicit(&log->next, memory_order_acquire);
    uint64_t start = s->child[stage].log_start;

    for (uint64_t back = 0; back < WASTE_LOG_LINES && next > start + back; back++) {
        struct waste_log_line line;
        if (waste_log_read(log, next - 1 - back, &line) == 1 && line.level == WASTE_LOG_ERROR) {
            line.text[WASTE_LOG_TEXT - 1] = '\0';
            snprintf(out, room, "%s", line.text);
            return true;
        }
    }
    return false;
}

/* The kernel does not say whom it killed for want of memory, only how often it did. */
static bool was_out_of_memory(const struct waste_supervisor *s, const siginfo_t *info,
                              const struct waste_child *c)
{
    return info->si_code != CLD_EXITED && info->si_status == SIGKILL && !c->killed &&
           waste_machine_oom_kills() > s->oom_kills;
}

static void describe(const struct waste_supervisor *s, const siginfo_t *info,
                     const struct waste_child *c, char *out, size_t room)
{
    if (info->si_code == CLD_EXITED)
        snprintf(out, room, "exit code %d", info->si_status);
    else
        snprintf(out, room, "signal %d (%s%s)", info->si_status, strsignal(info->si_status),
                 was_out_of_memory(s, info, c) ? ", when the kernel was out of memory" : "");
}

/* Exit code 2: configuration or container. Starting again would only say it again. */
static void break_down(struct waste_supervisor *s, enum waste_stage_id stage, const char *how)
{
    struct waste_child *c = &s->child[stage];
    /* relaxed: whoever wrote it is dead */
    uint32_t why =
        atomic_load_explicit(&s->p->shm.control->stage[stage].exec_error, memory_order_relaxed);

    c->life = WASTE_LIFE_BROKEN;
    if (why != 0)
        snprintf(c->reason, sizeof(c->reason), "cannot run %s: %s", s->programs->path[stage],
                 strerror((int)why));
    else if (!last_error(s, stage, c->reason, sizeof(c->reason)))
        snprintf(c->reason, sizeof(c->reason), "%s ended with %s", s->programs->path[stage], how);
}

static void tire(struct waste_supervisor *s, enum waste_stage_id stage, const char *how,
                 uint32_t position)
{
    struct waste_child *c = &s->child[stage];
    char why[WASTE_LOG_TEXT];
    bool said = last_error(s, stage, why, sizeof(why));

    c->life = WASTE_LIFE_TIRED;
    snprintf(c->reason, sizeof(c->reason),
             "%s died %d times at token position %u, last of %s%s%.300s", waste_stage_name[stage],
             WASTE_DEATHS_MAX, position, how, said ? ": " : "", said ? why : "");
}

/* How long the dead one was at work, or hung. */
static int64_t busy_ns(const struct waste_supervisor *s, enum waste_stage_id stage, int64_t now)
{
    const struct waste_child *c = &s->child[stage];
    const struct waste_session *session = s->p->session;
    /* relaxed, all: the stage is dead, and a reply that comes right now makes no difference */
    bool started = atomic_load_explicit(&s->p->shm.control->stage[stage].state,
                                        memory_order_relaxed) == WASTE_STAGE_RUNNING;
    bool idle = atomic_load_explicit(&session->request.seq, memory_order_relaxed) ==
                atomic_load_explicit(&session->reply.seq, memory_order_relaxed);

    if (!started || !idle)
        return now - c->born_ns;
    return c->killed ? now - c->heartbeat_ns : 0;
}

/* Acquire: the step's outcome is whole or not there; nothing else is read through it. */
static uint64_t commit_word(const struct waste_supervisor *s)
{
    return atomic_load_explicit(&s->p->session->commit, memory_order_acquire);
}

bool waste_supervisor_fails_again(struct waste_supervisor *s, enum waste_stage_id stage,
                                  int64_t busy_ns, bool starved)
{
    struct waste_child *c = &s->child[stage];
    int64_t now = waste_now_ns();
    uint64_t request =
        atomic_load_explicit(&s->p->session->request.seq, memory_order_relaxed); /* only compared */

    if (starved) {
        c->not_before_ns = now + WASTE_GIVE_WAY_NS;
        if (waste_supervisor_give_way(s))
            return false; /* the next one has more room: not the same death again */
    }
    return waste_deaths_add(&c->deaths, now, busy_ns, request, commit_word(s));
}

static void judge(struct waste_supervisor *s, enum waste_stage_id stage, const siginfo_t *info)
{
    struct waste_child *c = &s->child[stage];
    struct waste_log *log = waste_supervisor_log(s);
    uint32_t position = waste_commit_position(commit_word(s));
    bool exited = info->si_code == CLD_EXITED;
    int64_t now = waste_now_ns();
    char how[96];

    describe(s, info, c, how, sizeof(how));
    c->life = WASTE_LIFE_IDLE;
    if (s->stopping || c->expected)
        return;
    if (c->polite) {
        c->gone_ns = now;
        waste_log_write(log, WASTE_LOG_INFO, "%s exited as asked (%s)", waste_stage_name[stage],
                        how);
        return;
    }
    if (c->gone_ns == 0)
        c->gone_ns = now;
    if (exited && (info->si_status == 2 || info->si_status == 127))
        break_down(s, stage, how);
    else if (waste_supervisor_fails_again(s, stage, busy_ns(s, stage, now),
                                          was_out_of_memory(s, info, c)))
        tire(s, stage, how, position);
    if (c->life == WASTE_LIFE_IDLE) {
        waste_log_write(log, WASTE_LOG_WARNING, "%s (pid %d) died of %s at token position %u",
                        waste_stage_name[stage], c->pid, how, position);
    } else {
        c->gone_ns = 0;
        waste_log_write(log, WASTE_LOG_ERROR, "%s", c->reason);
    }
}

void waste_supervisor_mourn(struct waste_supervisor *s, enum waste_stage_id stage)
{
    struct waste_child *c = &s->child[stage];
    struct waste_stage *record = &s->p->shm.control->stage[stage];
    siginfo_t info = {0};

    if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
        return; /* readable for nothing */
    WASTE_POINT(RUN_REAPED);
    waste_repair(s->p, stage);
    WASTE_POINT(RUN_REPAIRED);
    judge(s, stage, &info);
    close(c->pidfd);
    c->pidfd = -1;
    c->pid = 0;
    c->polite = c->killed = c->expected = false;
    /* release: an observer that sees OFF sees the repair too */
    atomic_store_explicit(&record->pid, 0, memory_order_relaxed);
    atomic_store_explicit(&record->state, WASTE_STAGE_OFF, memory_order_release);
    waste_supervisor_publish_failure(s);
    /* what the dead one may have published without ringing */
    waste_pipeline_ring_all(s->p);
}
