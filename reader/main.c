/*
 * waste-reader MODELDIR [DIR FILE]: the stage that reads. Started by waste-run with its segments as
 * inherited descriptors; what it learns about experts is kept in DIR/FILE. Exit 0: told to stop; 2:
 * the configuration or the container is bad, starting again would not help; anything else: start me
 * again.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "reader/service.h"
#include "reader/trunk.h"
#include "shm/confine.h"
#include "shm/cpus.h"
#include "shm/inject.h"
#include "shm/segment.h"

enum { EXIT_AGAIN = 1, EXIT_CONFIGURATION = 2 };

/* Before there is a log: to stderr, which is waste-run's. */
static int refuse(const char *what, int rc)
{
    fprintf(stderr, "waste-reader: %s: %s\n", what, strerror(-rc));
    return EXIT_CONFIGURATION;
}

static int exit_code(int rc)
{
    return rc == 0 || rc == -ECANCELED                                    ? 0
           : rc == -ENOMEM || rc == -EIO || rc == -ETIME || rc == -EAGAIN ? EXIT_AGAIN
                                                                          : EXIT_CONFIGURATION;
}

/* Our parent's death is ours. It may have died before prctl. */
static bool orphaned(const struct waste_control *control)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return getppid() != control->supervisor_pid;
}

static void set_state(struct waste_service *s, enum waste_stage_state state)
{
    /* release: pairs with the acquire of whoever waits for RUNNING */
    atomic_store_explicit(&s->shm.control->stage[WASTE_STAGE_READER].state, state,
                          memory_order_release);
}

static bool tick(void *ctx)
{
    struct waste_service *s = ctx;
    waste_stage_mark(&s->shm.control->stage[WASTE_STAGE_READER], WASTE_ACT_LOADING, -1);
    return !waste_service_stopping(s);
}

static int start(struct waste_service *s, struct waste_error *err)
{
    set_state(s, WASTE_STAGE_STARTING);
    tick(s);
    int rc = waste_service_init(s, err);
    if (rc < 0)
        return rc;
    WASTE_POINT(START_REPAIRED);
    set_state(s, WASTE_STAGE_LOADING);
    rc = waste_trunk_load(&s->shm, s->dir, WASTE_FD_SEGMENT_BASE + WASTE_SEG_TRUNK, tick, s, err);
    if (rc == 0)
        /* compute and the router may be asleep until the trunk is there */
        waste_bell_ring(&s->shm.control->compute_bell);
    if (rc == 0)
        waste_bell_ring(&s->shm.control->router_bell);
    return rc;
}

static int serve(struct waste_service *s)
{
    struct waste_error err;
    bool reads_in_flight = false;
    int rc = start(s, &err);
    if (rc < 0 && rc != -ECANCELED)
        waste_log_write(&s->shm.control->log[WASTE_STAGE_READER], WASTE_LOG_ERROR, "%s", err.text);
    if (rc == 0) {
        const struct waste_options *o = &s->shm.control->options;
        waste_cpus_leave_first(o->threads, o->cpus); /* loading the trunk took them all */
        waste_cpus_prompt();
        waste_confine(WASTE_STAGE_READER, s->usage_fd, &s->shm.control->log[WASTE_STAGE_READER]);
        WASTE_POINT(START_READY);
        set_state(s, WASTE_STAGE_RUNNING);
        WASTE_POINT(START_RUNNING);
        waste_bell_ring(&s->shm.control->client_bell);
        rc = waste_service_run(s) < 0 ? -EIO : 0;
        reads_in_flight = rc < 0;
    }
    set_state(s, WASTE_STAGE_STOPPING);
    if (!reads_in_flight)
        waste_service_finish(s);
    return exit_code(rc);
}

int main(int argc, char **argv)
{
    struct waste_mapping control, cache;
    struct waste_service s = {.cache_fd = WASTE_FD_SEGMENT_BASE + WASTE_SEG_CACHE,
                              .event_fd = WASTE_FD_READER_EVENT};
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: waste-reader MODELDIR [DIR FILE] (started by waste-run)\n");
        return EXIT_CONFIGURATION;
    }
    s.dir = argv[1];
    if (argc == 4) {
        s.usage_dir = argv[2];
        s.usage_name = argv[3];
    }
    int rc = waste_segment_map(WASTE_FD_SEGMENT_BASE + WASTE_SEG_CONTROL, WASTE_SEG_CONTROL, true,
                               &control);
    if (rc < 0)
        return refuse("control segment", rc);
    rc = waste_control_attach(control.base, control.bytes, &s.shm);
    if (rc < 0)
        return refuse("control segment", rc);
    waste_inject_init(s.shm.control, WASTE_STAGE_READER);
    WASTE_POINT(START_ATTACHED);
    if (orphaned(s.shm.control))
        return EXIT_AGAIN;
    rc = waste_segment_map(s.cache_fd, WASTE_SEG_CACHE, true, &cache);
    if (rc < 0)
        return refuse("cache segment", rc);
    s.cache_base = cache.base;
    s.cache_bytes = cache.bytes;
    return serve(&s);
}
