#include "cli/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "cli/background.h"
#include "cli/hang.h"
#include "cli/supervisor_int.h"
#include "shm/inject.h"

/* Heartbeats, deadlines and new requests are looked at this often; what starts, more so. */
enum { LOOK_MS = 100, LOOK_AT_START_MS = 10 };
#define STOP_NS (3 * WASTE_SECOND_NS)    /* at the end, from asking to killing */
#define POLITE_NS (60 * WASTE_SECOND_NS) /* restart: a step of a large model takes its time */
#define PAUSE_NS (2 * WASTE_SECOND_NS)   /* we did not run for that long ourselves */

int64_t waste_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * WASTE_SECOND_NS + ts.tv_nsec;
}

static bool is_required(int stage)
{
    return stage != WASTE_STAGE_ROUTER; /* without it only the prefetching stops */
}

void waste_supervisor_publish_failure(struct waste_supervisor *s)
{
    pthread_mutex_lock(&s->lock);
    s->failure = 0;
    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        const struct waste_child *c = &s->child[i];
        if (!is_required(i) || (c->life != WASTE_LIFE_BROKEN && c->life != WASTE_LIFE_TIRED))
            continue;
        s->failure = c->life == WASTE_LIFE_BROKEN ? 2 : 1;
        snprintf(s->failure_text.text, sizeof(s->failure_text.text), "%s", c->reason);
        break;
    }
    pthread_mutex_unlock(&s->lock);
}

/* No memory, no process or descriptor left: it may be over in a moment. */
static void cannot_start(struct waste_supervisor *s, int i, int rc, const struct waste_error *err)
{
    struct waste_child *c = &s->child[i];
    bool again = !waste_supervisor_fails_again(s, i, 0, rc == -ENOMEM);

    waste_log_write(waste_supervisor_log(s), again ? WASTE_LOG_WARNING : WASTE_LOG_ERROR, "%s",
                    err->text);
    c->not_before_ns = waste_now_ns() + WASTE_GIVE_WAY_NS;
    if (again)
        return;
    c->life = WASTE_LIFE_TIRED;
    snprintf(c->reason, sizeof(c->reason), "%.*s", (int)sizeof(c->reason) - 1, err->text);
    waste_supervisor_publish_failure(s);
}

static void start_child(struct waste_supervisor *s, int i)
{
    struct waste_child *c = &s->child[i];
    struct waste_stage *record = &s->p->shm.control->stage[i];

    c->incarnation++;
    c->heartbeat = atomic_load_explicit(&record->heartbeat_ns, memory_order_relaxed);
    c->born_ns = c->heartbeat_ns = waste_now_ns();
    c->log_start = atomic_load_explicit(&s->p->shm.control->log[i].next, memory_order_relaxed);
    atomic_store_explicit(&record->stop, 0, memory_order_relaxed);
    /* release: who sees the new incarnation sees what was repaired */
    atomic_store_explicit(&record->incarnation, c->incarnation, memory_order_release);
    /* relaxed: counted before there is a process whose reply could be looked at with it */
    atomic_fetch_add_explicit(&record->restarts, c->started, memory_order_relaxed);
    struct waste_error err;
    int rc = waste_spawn(s->p, i, s->programs->path[i], &c->pid, &c->pidfd, &err);
    if (rc != 0) {
        atomic_fetch_sub_explicit(&record->restarts, c->started, memory_order_relaxed);
        cannot_start(s, i, rc, &err);
        return;
    }
    WASTE_POINT(RUN_STARTED);
    c->life = WASTE_LIFE_ALIVE;
    c->started = true;
    atomic_store_explicit(&record->pid, c->pid, memory_order_relaxed);
    waste_pipeline_ring_all(s->p);
}

static void kill_child(struct waste_child *c)
{
    if (c->life == WASTE_LIFE_ALIVE && !c->killed) {
        kill(c->pid, SIGKILL); /* not reaped yet, so the number is still its own */
        c->killed = true;
    }
}

static void ask_child(struct waste_supervisor *s, int i, int64_t until_ns)
{
    struct waste_child *c = &s->child[i];

    c->polite = true;
    c->polite_until_ns = until_ns;
    atomic_store_explicit(&s->p->shm.control->stage[i].stop, 1, memory_order_release);
    waste_pipeline_ring(s->p, (enum waste_stage_id)i);
}

static bool runs(const struct waste_supervisor *s, int i)
{
    /* relaxed: shown, and the limit of a hang depends on it */
    return s->child[i].life == WASTE_LIFE_ALIVE &&
           atomic_load_explicit(&s->p->shm.control->stage[i].state, memory_order_relaxed) ==
               WASTE_STAGE_RUNNING;
}

static void note_return(struct waste_supervisor *s, int i, int64_t now)
{
    struct waste_child *c = &s->child[i];

    if (c->gone_ns == 0 || !runs(s, i))
        return;
    waste_log_write(waste_supervisor_log(s), WASTE_LOG_INFO, "%s (pid %d) runs again after %.2f s",
                    waste_stage_name[i], c->pid, (double)(now - c->gone_ns) / 1e9);
    c->gone_ns = 0;
}

/* A stage that does not beat is killed; its death is then treated like any other. */
static void look_after(struct waste_supervisor *s, int i, int64_t now, bool paused)
{
    struct waste_child *c = &s->child[i];
    const struct waste_stage *record = &s->p->shm.control->stage[i];

    if (c->life != WASTE_LIFE_ALIVE || c->killed)
        return;
    uint64_t beat = atomic_load_explicit(&record->heartbeat_ns, memory_order_relaxed);
    if (beat != c->heartbeat || paused) {
        c->heartbeat = beat;
        c->heartbeat_ns = now;
    }
    note_return(s, i, now);
    uint32_t limit = runs(s, i) ? s->options.hang_seconds : s->options.hang_loading_seconds;
    if (now - c->heartbeat_ns > limit * WASTE_SECOND_NS) {
        char where[320];
        waste_hang_describe(record, c->pid, where, sizeof(where));
        waste_log_write(waste_supervisor_log(s), WASTE_LOG_WARNING,
                        "%s (pid %d) gave no sign of life for %u s, killed: %s",
                        waste_stage_name[i], c->pid, limit, where);
        c->gone_ns = c->heartbeat_ns;
        kill_child(c);
    } else if (c->polite && now > c->polite_until_ns) {
        kill_child(c);
    }
}

static void begin_stop(struct waste_supervisor *s)
{
    s->stopping = true;
    s->stop_until_ns = waste_now_ns() + STOP_NS;
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        if (s->child[i].life == WASTE_LIFE_ALIVE)
            ask_child(s, i, s->stop_until_ns);
}

static void write_reply(struct waste_supervisor *s, uint64_t seq, const char *text)
{
    struct waste_reply *reply = &s->p->session->reply;

    reply->status = WASTE_REPLY_ERROR;
    snprintf(reply->error, sizeof(reply->error), "%s", text);
    /* release: pairs with the client's acquire; compute, the other writer, is dead */
    atomic_store_explicit(&reply->seq, seq, memory_order_release);
    waste_bell_ring(&s->p->shm.control->client_bell);
}

/*
 * The request at hand: a new one gives tired stages another chance, one that cannot be served is
 * answered here. The reply is compute's to write while it lives, so it is ended first.
 */
static void look_at_request(struct waste_supervisor *s)
{
    const struct waste_session *session = s->p->session;
    uint64_t seq = atomic_load_explicit(&session->request.seq, memory_order_acquire);
    struct waste_child *compute = &s->child[WASTE_STAGE_COMPUTE];
    const char *reason = NULL;

    if (seq == atomic_load_explicit(&session->reply.seq, memory_order_acquire))
        return;
    if (seq != s->seen_seq) {
        s->seen_seq = seq;
        for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
            if (s->child[i].life == WASTE_LIFE_TIRED) {
                s->child[i].life = WASTE_LIFE_IDLE;
                s->child[i].deaths.count = 0;
            }
        }
        waste_supervisor_publish_failure(s);
    }
    for (int i = 0; i < WASTE_STAGE_COUNT && reason == NULL; i++)
        if (is_required(i) &&
            (s->child[i].life == WASTE_LIFE_BROKEN || s->child[i].life == WASTE_LIFE_TIRED))
            reason = s->child[i].reason;
    if (reason == NULL)
        return;
    if (compute->life == WASTE_LIFE_ALIVE) {
        compute->expected = true;
        kill_child(compute);
    } else {
        write_reply(s, seq, reason);
    }
}

static bool any_alive(const struct waste_supervisor *s)
{
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        if (s->child[i].life == WASTE_LIFE_ALIVE)
            return true;
    return false;
}

static void start_idle(struct waste_supervisor *s)
{
    int64_t now = waste_now_ns();

    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        if (s->child[i].life == WASTE_LIFE_IDLE && now >= s->child[i].not_before_ns &&
            !(i == WASTE_STAGE_ROUTER && s->options.no_router))
            start_child(s, i);
}

static void look(struct waste_supervisor *s)
{
    int64_t now = waste_now_ns();
    bool paused = now - s->last_look_ns > PAUSE_NS; /* stopped or starved: nobody could be seen */

    s->last_look_ns = now;
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        look_after(s, i, now, paused);
}

static int look_ms(const struct waste_supervisor *s)
{
    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        const struct waste_child *c = &s->child[i];
        if ((c->life == WASTE_LIFE_ALIVE && !runs(s, i)) ||
            (c->life == WASTE_LIFE_IDLE && c->not_before_ns > s->last_look_ns))
            return LOOK_AT_START_MS;
    }
    return LOOK_MS;
}

/* Sleeps until a stage dies, somebody calls, or it is time to look. */
static void wait_and_reap(struct waste_supervisor *s)
{
    struct pollfd fds[1 + WASTE_STAGE_COUNT + WASTE_SOCKET_FDS];
    unsigned sockets;

    fds[0] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        fds[1 + i] = (struct pollfd){
            .fd = s->child[i].life == WASTE_LIFE_ALIVE ? s->child[i].pidfd : -1,
            .events = POLLIN,
        };
    sockets = waste_control_socket_poll(s->socket, fds + 1 + WASTE_STAGE_COUNT);
    if (poll(fds, 1 + WASTE_STAGE_COUNT + sockets, look_ms(s)) < 0)
        return;
    uint64_t count;
    if (fds[0].revents != 0 && read(s->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        waste_log_write(waste_supervisor_log(s), WASTE_LOG_ERROR, "the wake-up descriptor: %s",
                        strerror(errno));
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        if (fds[1 + i].revents != 0)
            waste_supervisor_mourn(s, (enum waste_stage_id)i);
    waste_control_socket_work(s->socket, fds + 1 + WASTE_STAGE_COUNT, sockets);
}

static void log_notes(struct waste_supervisor *s)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->notes; i++)
        waste_log_write(waste_supervisor_log(s), s->note[i].level, "%s", s->note[i].line.text);
    s->notes = 0;
    pthread_mutex_unlock(&s->lock);
}

static void *run(void *arg)
{
    struct waste_supervisor *s = arg;

    waste_supervisor_budget_init(s);
    s->last_look_ns = waste_now_ns();
    waste_inject_init(s->p->shm.control, WASTE_STAGE_COUNT);
    for (;;) {
        /* acquire: pairs with waste_supervisor_stop */
        if (atomic_load_explicit(&s->quit, memory_order_acquire) != 0 && !s->stopping)
            begin_stop(s);
        if (s->stopping && !any_alive(s))
            return NULL;
        if (!s->stopping) {
            look_at_request(s);
            start_idle(s);
        }
        wait_and_reap(s);
        log_notes(s);
        look(s);
        waste_supervisor_look_at_memory(s);
    }
}

void waste_supervisor_note(struct waste_supervisor *s, enum waste_log_level level, const char *text)
{
    pthread_mutex_lock(&s->lock);
    if (s->notes < WASTE_SUPERVISOR_NOTES) {
        s->note[s->notes].level = level;
        waste_error_set(&s->note[s->notes++].line, 0, "%s", text);
    }
    pthread_mutex_unlock(&s->lock);
    waste_supervisor_wake(s);
}

int waste_supervisor_ask_restart(struct waste_supervisor *s, uint32_t mask, struct waste_error *err)
{
    if (s->stopping)
        return waste_error_set(err, -ESHUTDOWN, "the pipeline is ending");
    if ((mask >> WASTE_STAGE_ROUTER & 1) && s->options.no_router)
        return waste_error_set(err, -ENOENT, "router does not run here (--lookahead 0)");
    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        struct waste_child *c = &s->child[i];
        if (!(mask >> i & 1))
            continue;
        if (c->life == WASTE_LIFE_ALIVE)
            ask_child(s, i, waste_now_ns() + POLITE_NS);
        else
            c->life = WASTE_LIFE_IDLE;
        c->deaths.count = 0;
    }
    waste_supervisor_publish_failure(s);
    return 0;
}

int waste_supervisor_restarted(struct waste_supervisor *s, enum waste_stage_id stage,
                               uint32_t incarnation, struct waste_error *err)
{
    const struct waste_child *c = &s->child[stage];
    const struct waste_stage *record = &s->p->shm.control->stage[stage];

    if (s->stopping)
        return waste_error_set(err, -1, "the pipeline is ending");
    if (c->life == WASTE_LIFE_BROKEN || c->life == WASTE_LIFE_TIRED)
        return waste_error_set(err, -1, "%s", c->reason);
    return c->life == WASTE_LIFE_ALIVE && c->incarnation > incarnation &&
           atomic_load_explicit(&record->state, memory_order_relaxed) == WASTE_STAGE_RUNNING;
}

static void destroy(struct waste_supervisor *s)
{
    waste_control_socket_close(s->socket);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int start_thread(struct waste_supervisor *s, struct waste_error *err)
{
    int rc = waste_background_start(&s->thread, run, s);

    return rc == 0 ? 0 : waste_error_set(err, rc, "cannot start a thread: %s", strerror(-rc));
}

int waste_supervisor_start(struct waste_pipeline *p, const struct waste_programs *programs,
                           const struct waste_supervisor_options *options,
                           struct waste_supervisor **out, struct waste_error *err)
{
    struct waste_supervisor *s = calloc(1, sizeof(*s));
    struct waste_error socket_err;

    if (s == NULL)
        return waste_error_set(err, -ENOMEM, "out of memory");
    s->p = p;
    s->programs = programs;
    s->options = *options;
    pthread_mutex_init(&s->lock, NULL);
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        s->child[i].pidfd = -1;
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = s->wake_fd >= 0 ? 0 : waste_error_set(err, -errno, "cannot make an eventfd");
    /* without a socket nobody can look in, but everything else works */
    if (rc == 0 && waste_control_socket_open(s, &s->socket, &socket_err) != 0 &&
        options->warn != NULL)
        options->warn(socket_err.text);
    if (rc == 0)
        rc = start_thread(s, err);
    if (rc != 0)
        destroy(s);
    else
        *out = s;
    return rc;
}

void waste_supervisor_wake(struct waste_supervisor *s)
{
    uint64_t one = 1;

    while (write(s->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

void waste_supervisor_stop(struct waste_supervisor *s)
{
    if (s == NULL)
        return;
    /* release: pairs with the load in run() */
    atomic_store_explicit(&s->quit, 1, memory_order_release);
    waste_supervisor_wake(s);
    pthread_join(s->thread, NULL);
    destroy(s);
}

int waste_supervisor_failure(struct waste_supervisor *s, struct waste_error *text)
{
    pthread_mutex_lock(&s->lock);
    int failure = s->failure;
    if (failure != 0)
        *text = s->failure_text;
    pthread_mutex_unlock(&s->lock);
    return failure;
}
