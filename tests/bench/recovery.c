/*
 * recovery PID STAGE KILLS: kills a stage of a running pipeline again and again, at random moments
 * of its steps, and prints as one JSON object how long each part of the way to the next token took.
 * The pipeline must be generating. tests/bench/recovery.py starts one and shows medians.
 *
 * Everything is read from the control segment, as any observer would.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/attach.h"

enum { LOOK_NS = 100000, STEPS = 5 };
#define GIVE_UP_NS INT64_C(30000000000)

static int64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

static void pause_ns(int64_t ns)
{
    struct timespec ts = {ns / 1000000000, ns % 1000000000};

    nanosleep(&ts, NULL);
}

static uint64_t tokens(const struct waste_control *c)
{
    return atomic_load_explicit(&c->counter[WASTE_C_TOKENS], memory_order_relaxed);
}

/* The moment the next token is there, 0: none came. */
static int64_t next_token(const struct waste_control *c)
{
    uint64_t before = tokens(c);
    int64_t end = now_ns() + GIVE_UP_NS;

    while (tokens(c) == before) {
        if (now_ns() > end)
            return 0;
        pause_ns(LOOK_NS);
    }
    return now_ns();
}

/* Nanoseconds since the kill at which each was seen first. */
struct way {
    int64_t reaped, started, attached, running, token;
};

static void note(int64_t *when, bool is, int64_t begin)
{
    if (is && *when == 0)
        *when = now_ns() - begin;
}

/* One kill. False: the pipeline has ended, or nothing came any more. */
static bool kill_once(const struct waste_control *c, const struct waste_stage *stage,
                      struct way *out)
{
    int32_t pid = atomic_load_explicit(&stage->pid, memory_order_relaxed);
    uint32_t incarnation = atomic_load_explicit(&stage->incarnation, memory_order_relaxed);
    uint64_t before = tokens(c);
    int64_t begin = now_ns();

    *out = (struct way){0};
    if (pid <= 0 || kill(pid, SIGKILL) != 0)
        return false;
    while (out->token == 0 || out->running == 0) {
        /* acquire: a pid is stored behind the incarnation it belongs to */
        int32_t now = atomic_load_explicit(&stage->pid, memory_order_acquire);
        uint32_t state = atomic_load_explicit(&stage->state, memory_order_acquire);
        note(&out->reaped,
             atomic_load_explicit(&stage->incarnation, memory_order_relaxed) != incarnation, begin);
        note(&out->started, out->reaped && now != pid && now > 0, begin);
        note(&out->attached, out->reaped && state != WASTE_STAGE_OFF, begin);
        note(&out->running, out->started && state == WASTE_STAGE_RUNNING, begin);
        note(&out->token, tokens(c) != before, begin);
        if (now_ns() - begin > GIVE_UP_NS)
            return false;
        pause_ns(LOOK_NS);
    }
    return true;
}

static bool find_stage(const char *name, int *out)
{
    for (*out = 0; *out < WASTE_STAGE_COUNT; (*out)++)
        if (strcmp(name, waste_stage_name[*out]) == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    struct waste_attached a;
    struct waste_error err;
    int stage;

    if (argc != 4 || !find_stage(argv[2], &stage)) {
        fprintf(stderr, "usage: recovery PID reader|compute|router KILLS\n");
        return 2;
    }
    if (waste_attach_open((uint32_t)strtoul(argv[1], NULL, 10), &a, &err) != 0) {
        fprintf(stderr, "recovery: %s\n", err.text);
        return 1;
    }
    srand((unsigned)now_ns());
    printf("{\"kills\": [");
    for (int i = 0, kills = atoi(argv[3]); i < kills; i++) {
        struct way w;
        next_token(a.shm.control);
        int64_t before = next_token(a.shm.control);
        for (int k = 1; k < STEPS; k++)
            next_token(a.shm.control);
        int64_t last = next_token(a.shm.control), step = (last - before) / STEPS;
        pause_ns(step * (rand() % 100) / 100);
        int64_t into = now_ns() - last;
        if (!kill_once(a.shm.control, &a.shm.control->stage[stage], &w)) {
            fprintf(stderr, "recovery: the pipeline has ended\n");
            return 1;
        }
        printf("%s{\"step\": %" PRId64 ", \"into\": %" PRId64 ", \"reaped\": %" PRId64
               ", \"started\": %" PRId64 ", \"attached\": %" PRId64 ", \"running\": %" PRId64
               ", \"token\": %" PRId64 "}",
               i > 0 ? ", " : "", step, into, w.reaped, w.started, w.attached, w.running, w.token);
    }
    printf("]}\n");
    waste_attach_close(&a);
    return 0;
}
