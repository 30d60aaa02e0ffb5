/* waste-run restart, stop: of a running pipeline. */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/attach.h"
#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "cli/supervisor_int.h"

enum { STOP_SECONDS = 120 }; /* a step of a large model, and what is written at the end */

static double seconds_since(int64_t start_ns)
{
    return (double)(waste_now_ns() - start_ns) / 1e9;
}

/* ---- restart ---- */

struct processes {
    int32_t pid[WASTE_STAGE_COUNT];
    uint32_t incarnation[WASTE_STAGE_COUNT];
};

static struct processes look(const struct waste_attached *a)
{
    struct processes p;

    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        /* relaxed: the supervisor's answer came over a socket, behind both */
        const struct waste_stage *s = &a->shm.control->stage[i];
        p.pid[i] = atomic_load_explicit(&s->pid, memory_order_relaxed);
        p.incarnation[i] = atomic_load_explicit(&s->incarnation, memory_order_relaxed);
    }
    return p;
}

/* "restarted reader (4711 -> 4720), compute (4712 -> 4721) in 0.03 s" */
static void say_restarted(const struct processes *before, const struct processes *after,
                          double seconds)
{
    const char *between = "restarted ";

    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        if (after->incarnation[i] == before->incarnation[i])
            continue;
        printf("%s%s (%d -> %d)", between, waste_stage_name[i], before->pid[i], after->pid[i]);
        between = ", ";
    }
    printf(" in %.2f s\n", seconds);
}

static json_t *restarted_json(const struct processes *before, const struct processes *after,
                              double seconds)
{
    json_t *stages = json_object();

    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        if (after->incarnation[i] != before->incarnation[i])
            json_object_set_new(
                stages, waste_stage_name[i],
                json_pack("{s:i, s:i}", "from", (int)before->pid[i], "to", (int)after->pid[i]));
    return json_pack("{s:o, s:f}", "restarted", stages, "seconds", seconds);
}

static int restart(struct waste_attached *a, const struct waste_args *args, const char *stage)
{
    struct processes before = look(a), after;
    int64_t start = waste_now_ns();
    struct waste_error err;
    char command[64];

    snprintf(command, sizeof(command), "restart %s", stage);
    int rc = waste_attach_command(a, command, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    after = look(a);
    if (args->json)
        return waste_output_print_json(restarted_json(&before, &after, seconds_since(start)));
    if (!args->quiet)
        say_restarted(&before, &after, seconds_since(start));
    return 0;
}

int waste_cmd_restart(const struct waste_args *args)
{
    const char *names[WASTE_STAGE_COUNT + 1];
    const char *stage = args->line.positional[0];
    struct waste_attached a;
    struct waste_error err;
    bool known = false;

    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        names[i] = waste_stage_name[i];
    names[WASTE_STAGE_COUNT] = "all";
    for (int i = 0; i <= WASTE_STAGE_COUNT; i++)
        known = known || strcmp(stage, names[i]) == 0;
    if (!known) {
        const char *near = waste_line_nearest(stage, names, WASTE_STAGE_COUNT + 1);
        return waste_fail(2, "there is no stage '%.80s'%s%s%s", stage,
                          near != NULL ? ", did you mean '" : " (reader, compute, router, all)",
                          near != NULL ? near : "", near != NULL ? "'?" : "");
    }
    int rc = waste_attach_open(args->pid, &a, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    rc = restart(&a, args, stage);
    waste_attach_close(&a);
    return rc;
}

/* ---- stop ---- */

/* True once the process is gone. */
static bool wait_for_end(int pidfd)
{
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    int64_t until = waste_now_ns() + STOP_SECONDS * WASTE_SECOND_NS, left;

    while ((left = until - waste_now_ns()) > 0) {
        int n = poll(&end, 1, (int)(left / 1000000) + 1);
        if (n != 0 && !(n < 0 && errno == EINTR))
            return n > 0;
    }
    return false;
}

static int stop(struct waste_attached *a, const struct waste_args *args, int pidfd)
{
    int64_t start = waste_now_ns();
    struct waste_error err;

    int rc = waste_attach_command(a, "stop", &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    if (!wait_for_end(pidfd))
        return waste_fail(1, "waste-run %d was asked to end and has not within %d s", a->pid,
                          STOP_SECONDS);
    if (args->json)
        return waste_output_print_json(
            json_pack("{s:i, s:f}", "stopped", (int)a->pid, "seconds", seconds_since(start)));
    if (!args->quiet)
        printf("waste-run %d has ended after %.2f s\n", a->pid, seconds_since(start));
    return 0;
}

int waste_cmd_stop(const struct waste_args *args)
{
    struct waste_attached a;
    struct waste_error err;

    int rc = waste_attach_open(args->pid, &a, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    /* it has just answered, so the number is its own */
    int pidfd = (int)syscall(SYS_pidfd_open, a.pid, 0);
    if (pidfd < 0)
        rc = waste_fail(1, "cannot watch waste-run %d: %s", a.pid, strerror(errno));
    else
        rc = stop(&a, args, pidfd);
    if (pidfd >= 0)
        close(pidfd);
    waste_attach_close(&a);
    return rc;
}
