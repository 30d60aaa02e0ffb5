/* waste-run ps, stats, top: looking at running pipelines. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/attach.h"
#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/io_view.h"
#include "cli/machine.h"
#include "cli/output.h"
#include "cli/supervisor_int.h"
#include "options/units.h"

/* A stage record as a reader of shared memory may take it: bounded, one moment each field. */
struct stage_view {
    int32_t pid;
    uint32_t incarnation, restarts, state, activity, layer;
    uint64_t step;
    double heartbeat_age;
    struct waste_machine_rss memory;
};

static struct stage_view view_stage(const struct waste_stage *s)
{
    /* relaxed throughout: a look, from which nothing else is concluded */
    struct stage_view v = {
        .pid = atomic_load_explicit(&s->pid, memory_order_relaxed),
        .incarnation = atomic_load_explicit(&s->incarnation, memory_order_relaxed),
        .restarts = atomic_load_explicit(&s->restarts, memory_order_relaxed),
        .state = atomic_load_explicit(&s->state, memory_order_relaxed),
        .activity = atomic_load_explicit(&s->activity, memory_order_relaxed),
        .layer = atomic_load_explicit(&s->layer, memory_order_relaxed),
        .step = atomic_load_explicit(&s->step, memory_order_relaxed),
    };
    uint64_t beat = atomic_load_explicit(&s->heartbeat_ns, memory_order_relaxed);

    if (v.pid > 0) {
        v.heartbeat_age = ((double)waste_now_ns() - (double)beat) / 1e9;
        waste_machine_rss(v.pid, &v.memory);
    }
    if (v.state >= WASTE_STAGE_STATE_COUNT)
        v.state = WASTE_STAGE_OFF;
    if (v.activity >= WASTE_ACT_COUNT)
        v.activity = WASTE_ACT_NONE;
    return v;
}

static uint64_t counter(const struct waste_attached *a, enum waste_counter id)
{
    return atomic_load_explicit(&a->shm.control->counter[id], memory_order_relaxed);
}

static json_t *memory_json(const struct waste_machine_rss *m)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "rss", (json_int_t)m->rss, "pss",
                     (json_int_t)m->pss, "anon", (json_int_t)m->anon, "file", (json_int_t)m->file,
                     "shared", (json_int_t)m->shmem);
}

/* The stages and waste-run itself; *sum_pss is what all of them take, shared pages counted once. */
static json_t *stages_json(const struct waste_attached *a, uint64_t *sum_pss)
{
    json_t *stages = json_object();

    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        struct stage_view v = view_stage(&a->shm.control->stage[i]);
        *sum_pss += v.memory.pss;
        json_object_set_new(
            stages, waste_stage_name[i],
            json_pack("{s:i, s:s, s:s, s:f, s:I, s:I, s:I, s:I, s:o}", "pid", (int)v.pid, "state",
                      waste_stage_state_name[v.state], "activity", waste_activity_name[v.activity],
                      "heartbeat_age", v.heartbeat_age, "restarts", (json_int_t)v.restarts,
                      "incarnation", (json_int_t)v.incarnation, "step", (json_int_t)v.step, "layer",
                      (json_int_t)v.layer, "memory", memory_json(&v.memory)));
    }
    return stages;
}

static json_t *pipeline_json(const struct waste_attached *a, bool counters)
{
    struct waste_machine_rss own;
    uint64_t sum_pss = 0, resident[WASTE_SEG_COUNT];
    json_t *stages = stages_json(a, &sum_pss);
    json_t *segments = json_object();

    waste_machine_rss(a->pid, &own);
    sum_pss += own.pss;
    waste_machine_segments(a->pid, resident);
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        json_object_set_new(segments, waste_segment_name[i], json_integer((json_int_t)resident[i]));
    json_t *object = json_pack("{s:i, s:s, s:o, s:o, s:o, s:I}", "pid", (int)a->pid, "model",
                               a->model_dir, "waste-run", memory_json(&own), "stages", stages,
                               "segments", segments, "pss", (json_int_t)sum_pss);
    if (object == NULL || !counters)
        return object;
    uint64_t hits = counter(a, WASTE_C_HITS), misses = counter(a, WASTE_C_MISSES);
    uint64_t tokens = counter(a, WASTE_C_TOKENS), step_ns = counter(a, WASTE_C_STEP_NS);
    json_t *values = json_object();
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        json_object_set_new(values, waste_counter_info[i].name,
                            json_integer((json_int_t)counter(a, (enum waste_counter)i)));
    json_object_set_new(object, "counters", values);
    json_object_set_new(object, "hit_rate",
                        json_real(hits + misses > 0 ? (double)hits / (double)(hits + misses) : 0));
    json_object_set_new(object, "tok_per_s",
                        json_real(step_ns > 0 ? (double)tokens * 1e9 / (double)step_ns : 0));
    json_object_set_new(object, "io", json_string(waste_io_view_mode(a->shm.control)));
    json_object_set_new(object, "drives", waste_io_view_json(a->shm.control));
    json_object_set_new(object, "cache", waste_io_view_cache_json(a->shm.control));
    json_object_set_new(object, "router_precision", waste_io_view_router_json(a->shm.control));
    /* relaxed: a look */
    json_object_set_new(
        object, "slots",
        json_integer(atomic_load_explicit(&a->shm.control->slots_wanted, memory_order_relaxed)));
    json_object_set_new(object, "slot_bytes", json_integer((json_int_t)a->shm.control->slot_bytes));
    return object;
}

static void print_process(const char *name, int32_t pid, const struct waste_machine_rss *m)
{
    char rss[24], pss[24];

    printf("  %-10s %8d  %10s rss %10s pss", name, pid,
           waste_units_format_size(m->rss, rss, sizeof(rss)),
           waste_units_format_size(m->pss, pss, sizeof(pss)));
}

static void print_pipeline(const struct waste_attached *a)
{
    struct waste_machine_rss own;

    uint64_t resident[WASTE_SEG_COUNT];
    char size[24];

    printf("%s\n", a->model_dir);
    waste_machine_segments(a->pid, resident);
    printf("  segments  ");
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        printf(" %s %s%s", waste_segment_name[i],
               waste_units_format_size(resident[i], size, sizeof(size)),
               i + 1 < WASTE_SEG_COUNT ? "," : " in memory\n");
    waste_machine_rss(a->pid, &own);
    print_process("waste-run", a->pid, &own);
    printf("\n");
    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        struct stage_view v = view_stage(&a->shm.control->stage[i]);
        if (v.pid == 0) {
            printf("  %-10s %8s\n", waste_stage_name[i], waste_stage_state_name[v.state]);
            continue;
        }
        print_process(waste_stage_name[i], v.pid, &v.memory);
        printf("  %s, %s, seen %.1f s ago, %u restart%s\n", waste_stage_state_name[v.state],
               waste_activity_name[v.activity], v.heartbeat_age, v.restarts,
               v.restarts == 1 ? "" : "s");
    }
}

int waste_cmd_ps(const struct waste_args *args)
{
    struct waste_error err;
    json_t *list = json_array();
    int32_t *pids;
    size_t count;

    if (list == NULL || waste_attach_list(&pids, &count) != 0) {
        json_decref(list);
        return waste_fail(1, "out of memory");
    }
    for (size_t i = 0; i < count; i++) {
        struct waste_attached a;
        if (args->pid != 0 && args->pid != (uint32_t)pids[i])
            continue;
        if (waste_attach_open((uint32_t)pids[i], &a, &err) != 0) {
            waste_fail(1, "%s", err.text); /* it has ended meanwhile, or is stopped */
            continue;
        }
        if (args->json)
            json_array_append_new(list, pipeline_json(&a, false));
        else
            print_pipeline(&a);
        waste_attach_close(&a);
    }
    free(pids);
    if (args->json)
        return waste_output_print_json(json_pack("{s:o}", "pipelines", list));
    if (count == 0)
        puts("no pipeline is running");
    json_decref(list);
    return 0;
}

static void print_counters(const struct waste_attached *a)
{
    uint64_t hits = counter(a, WASTE_C_HITS), misses = counter(a, WASTE_C_MISSES);
    uint64_t tokens = counter(a, WASTE_C_TOKENS), step_ns = counter(a, WASTE_C_STEP_NS);

    waste_io_view_print(a->shm.control);
    waste_io_view_cache_print(a->shm.control);
    waste_io_view_router_print(a->shm.control);
    printf("  %.2f tokens/s, %.1f %% hits\n\n",
           step_ns > 0 ? (double)tokens * 1e9 / (double)step_ns : 0,
           hits + misses > 0 ? 100.0 * (double)hits / (double)(hits + misses) : 0);
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        printf("  %-20s %16" PRIu64 "  %s\n", waste_counter_info[i].name,
               counter(a, (enum waste_counter)i), waste_counter_info[i].help);
}

int waste_cmd_stats(const struct waste_args *args)
{
    struct waste_attached a;
    struct waste_error err;

    int rc = waste_attach_open(args->pid, &a, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    if (args->json) {
        rc = waste_output_print_json(pipeline_json(&a, true));
    } else {
        print_pipeline(&a);
        print_counters(&a);
    }
    waste_attach_close(&a);
    return rc;
}

/* What the counters grew by in `seconds`. */
static void print_rates(const struct waste_attached *a, uint64_t last[WASTE_COUNTER_COUNT],
                        double seconds)
{
    double rate[WASTE_COUNTER_COUNT];
    char size[24];

    for (int i = 0; i < WASTE_COUNTER_COUNT; i++) {
        uint64_t now = counter(a, (enum waste_counter)i);
        rate[i] = (double)(now - last[i]) / seconds;
        last[i] = now;
    }
    double asked = rate[WASTE_C_HITS] + rate[WASTE_C_MISSES];
    printf("  %.2f tokens/s, %.1f %% hits, %s/s read, %.1f %% of the time waiting for experts\n",
           rate[WASTE_C_TOKENS], asked > 0 ? 100 * rate[WASTE_C_HITS] / asked : 0,
           waste_units_format_size((uint64_t)rate[WASTE_C_BYTES_READ], size, sizeof(size)),
           rate[WASTE_C_EXPERT_WAIT_NS] / 1e7);
}

int waste_cmd_top(const struct waste_args *args)
{
    uint64_t last[WASTE_COUNTER_COUNT] = {0};
    struct waste_attached a;
    struct waste_error err;

    int rc = waste_attach_open(args->pid, &a, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        last[i] = counter(&a, (enum waste_counter)i);
    int64_t before = waste_now_ns();
    struct pollfd end = {.fd = a.fd, .events = POLLIN}; /* the pipeline's end closes the socket */
    while (poll(&end, 1, 1000) == 0) {
        int64_t now = waste_now_ns();
        fputs("\033[H\033[2J", stdout);
        print_pipeline(&a);
        print_rates(&a, last, (double)(now - before) / 1e9);
        fflush(stdout);
        before = now;
    }
    waste_attach_close(&a);
    return 0;
}
