/* waste-compute: the stage that runs the model. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "compute/serve.h"
#include "shm/confine.h"
#include "shm/inject.h"
#include "shm/segment.h"

enum { EXIT_DONE = 0, EXIT_AGAIN = 1, EXIT_CONFIGURATION = 2, WAIT_MS = 100 };

struct compute {
    struct waste_mapping map[WASTE_SEG_COUNT];
    struct waste_forward_env env;
    struct waste_server server;
    struct waste_stage *stage;
    struct waste_log *log;
};

static void set_state(struct compute *c, enum waste_stage_state state)
{
    /* relaxed: shown by ps; nothing is derived from it */
    atomic_store_explicit(&c->stage->state, state, memory_order_relaxed);
}

static int refuse(const struct compute *c, const char *what, int err)
{
    if (c->log) /* waste-run shows it */
        waste_log_write(c->log, WASTE_LOG_ERROR, "compute: %s: %s", what, strerror(-err));
    else
        fprintf(stderr, "waste-compute: %s: %s\n", what, strerror(-err));
    return err == -ENOMEM || err == -EAGAIN ? EXIT_AGAIN : EXIT_CONFIGURATION;
}

/* --mlock was asked for: without it is not what was asked for, and trying again changes nothing. */
static int refuse_lock(const struct compute *c, const char *what, int err)
{
    waste_log_write(c->log, WASTE_LOG_ERROR,
                    "option --mlock: cannot lock the %s: %s (see ulimit -l)", what, strerror(-err));
    return EXIT_CONFIGURATION;
}

static int map(struct compute *c, enum waste_segment_id id, bool writable)
{
    return waste_segment_map(WASTE_FD_SEGMENT_BASE + id, id, writable, &c->map[id]);
}

/* Everything but the trunk's content. 0 or an exit code. */
static int attach(struct compute *c)
{
    const struct waste_model *m = c->env.shm.model;
    const struct waste_control *control = c->env.shm.control;
    int err = map(c, WASTE_SEG_SESSION, true);

    if (!err)
        err = waste_session_attach(c->map[WASTE_SEG_SESSION].base, c->map[WASTE_SEG_SESSION].bytes,
                                   m, &c->env.session, &c->env.conversation);
    if (err)
        return refuse(c, "session segment", err);
    err = map(c, WASTE_SEG_CACHE, false);
    if (!err && c->map[WASTE_SEG_CACHE].bytes / control->slot_bytes < control->slot_count)
        err = -EINVAL;
    if (err)
        return refuse(c, "cache segment", err);
    err = map(c, WASTE_SEG_TRUNK, false);
    if (!err && c->map[WASTE_SEG_TRUNK].bytes < m->trunk_bytes)
        err = -EINVAL;
    if (err)
        return refuse(c, "trunk segment", err);
    c->env.trunk = c->map[WASTE_SEG_TRUNK].base;
    c->env.cache = c->map[WASTE_SEG_CACHE].base;
    c->env.reader_event = WASTE_FD_READER_EVENT;
    const char *level = getenv("WASTE_CPU");
    if (!waste_kernels_init(&c->env.kernels, level)) {
        char what[96];
        snprintf(what, sizeof(what), "WASTE_CPU=%.32s is no level of this processor", level);
        return refuse(c, what, -EINVAL);
    }
    return 0;
}

/* False if the stage is told to stop first. */
static bool wait_for_trunk(struct compute *c)
{
    struct waste_control *control = c->env.shm.control;

    for (;;) {
        uint32_t seen = waste_bell_seq(&control->compute_bell);
        /* acquire: all of the trunk; pairs with the reader's release */
        if (atomic_load_explicit(&control->trunk_ready, memory_order_acquire))
            return true;
        /* relaxed: only asks to stop */
        if (atomic_load_explicit(&c->stage->stop, memory_order_relaxed))
            return false;
        waste_stage_mark(c->stage, WASTE_ACT_WAIT_TRUNK, -1);
        waste_bell_wait(&control->compute_bell, seen, WAIT_MS * INT64_C(1000000), 0);
    }
}

static int run(struct compute *c)
{
    struct waste_shm *shm = &c->env.shm;
    int err;

    set_state(c, WASTE_STAGE_STARTING);
    waste_stage_mark(c->stage, WASTE_ACT_NONE, -1);
    waste_ring_repair(shm->demand, WASTE_RING_PRODUCER);
    waste_ring_repair(shm->hidden, WASTE_RING_PRODUCER);
    WASTE_POINT(START_REPAIRED);
    err = attach(c);
    if (err)
        return err;
    err = waste_forward_create(&c->server.forward, &c->env);
    if (!err)
        err = waste_sampler_init(&c->server.sampler, shm->model->config.vocab);
    if (err)
        return refuse(c, err == -EINVAL ? "threads and cpus" : "cannot set up the forward pass",
                      err);
    if (!wait_for_trunk(c))
        return EXIT_DONE;
    if (shm->control->options.mlock) {
        err = waste_segment_lock(&c->map[WASTE_SEG_TRUNK], false);
        if (err)
            return refuse_lock(c, "trunk", err);
    }
    waste_forward_load(c->server.forward);
    c->server.shm = shm;
    c->server.header = c->env.session;
    c->server.session = c->env.conversation;
    c->server.kernels = &c->env.kernels;
    waste_confine(WASTE_STAGE_COMPUTE, -1, c->log);
    WASTE_POINT(START_READY);
    set_state(c, WASTE_STAGE_RUNNING);
    WASTE_POINT(START_RUNNING);
    waste_bell_ring(&shm->control->client_bell);
    waste_serve(&c->server);
    return EXIT_DONE;
}

/* Without a supervisor nobody would ever stop us. */
static bool orphaned(const struct waste_control *control)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return control->supervisor_pid && getppid() != control->supervisor_pid;
}

int main(void)
{
    struct compute c = {0};
    int status, err = map(&c, WASTE_SEG_CONTROL, true);

    if (!err)
        err = waste_control_attach(c.map[WASTE_SEG_CONTROL].base, c.map[WASTE_SEG_CONTROL].bytes,
                                   &c.env.shm);
    if (err)
        return refuse(&c, "control segment", err);
    c.stage = &c.env.shm.control->stage[WASTE_STAGE_COMPUTE];
    c.log = &c.env.shm.control->log[WASTE_STAGE_COMPUTE];
    waste_inject_init(c.env.shm.control, WASTE_STAGE_COMPUTE);
    WASTE_POINT(START_ATTACHED);
    if (orphaned(c.env.shm.control))
        return EXIT_AGAIN;
    status = run(&c);
    set_state(&c, WASTE_STAGE_STOPPING);
    waste_forward_destroy(c.server.forward);
    waste_sampler_finish(&c.server.sampler);
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        waste_segment_unmap(&c.map[i]);
    return status;
}
