/*
 * Prometheus' text format: https://prometheus.io/docs/instrumenting/exposition_formats/. A family
 * is HELP, TYPE and its samples, together; base units, counters end with _total.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cli/engine.h"
#include "cli/text.h"
#include "cli/view.h"

static void family(const char *name, const char *type, const char *help)
{
    printf("# HELP waste_%s %s\n# TYPE waste_%s %s\n", name, help, name, type);
}

/* A label's value: \, " and newline are escaped, what is no UTF-8 is U+FFFD. */
static void put_label(const char *name, const char *value)
{
    struct waste_text clean = {0};

    if (waste_text_add_utf8(&clean, value, strlen(value)) != 0)
        clean.bytes = 0;
    printf("%s=\"", name);
    for (size_t i = 0; i < clean.bytes; i++) {
        switch (clean.data[i]) {
        case '\\':
            fputs("\\\\", stdout);
            break;
        case '"':
            fputs("\\\"", stdout);
            break;
        case '\n':
            fputs("\\n", stdout);
            break;
        default:
            putchar(clean.data[i]);
        }
    }
    putchar('"');
    waste_text_finish(&clean);
}

/* Counts are whole; what is measured in seconds is known to some digits. */
static void put_number(double number)
{
    bool whole = number >= 0 && number < 0x1p53 && number == (double)(uint64_t)number;

    printf(whole ? " %.0f\n" : " %.9g\n", number);
}

static void sample(const char *name, const char *label, const char *value, double number)
{
    printf("waste_%s{", name);
    put_label(label, value);
    putchar('}');
    put_number(number);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

static void put_counters(const struct waste_view *v)
{
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++) {
        const struct waste_counter_info *info = &waste_counter_info[i];
        family(info->metric, ends_with(info->metric, "_total") ? "counter" : "gauge", info->help);
        printf("waste_%s", info->metric);
        put_number((double)v->counter[i] / (strstr(info->metric, "_seconds") != NULL ? 1e9 : 1));
    }
}

/* One sample a stage. */
#define STAGES(v, name, type, help, expression)                                                    \
    do {                                                                                           \
        family(name, type, help);                                                                  \
        for (int i = 0; i < WASTE_STAGE_COUNT; i++) {                                              \
            const struct waste_view_stage *s = &(v)->stage[i];                                     \
            sample(name, "stage", waste_stage_name[i], (double)(expression));                      \
        }                                                                                          \
    } while (0)

/* One sample a process: the stages and waste-run. */
#define PROCESSES(v, name, type, help, expression)                                                 \
    do {                                                                                           \
        const struct waste_view_process *p = &(v)->own;                                            \
        family(name, type, help);                                                                  \
        sample(name, "process", "waste-run", (double)(expression));                                \
        for (int i = 0; i < WASTE_STAGE_COUNT; i++) {                                              \
            p = &(v)->stage[i].process;                                                            \
            sample(name, "process", waste_stage_name[i], (double)(expression));                    \
        }                                                                                          \
    } while (0)

static void put_states(const struct waste_view *v)
{
    family("stage_state", "gauge", "1 for the state a stage is in");
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        for (int state = 0; state < WASTE_STAGE_STATE_COUNT; state++) {
            fputs("waste_stage_state{", stdout);
            put_label("stage", waste_stage_name[i]);
            putchar(',');
            put_label("state", waste_stage_state_name[state]);
            printf("} %d\n", v->stage[i].state == (uint32_t)state);
        }
}

static void put_stages(const struct waste_view *v)
{
    STAGES(v, "stage_up", "gauge", "1 if the stage has a process", s->process.pid > 0);
    put_states(v);
    STAGES(v, "stage_restarts_total", "counter", "processes started after the first", s->restarts);
    STAGES(v, "stage_heartbeat_age_seconds", "gauge", "time since the last sign of life",
           s->heartbeat_age);
    PROCESSES(v, "process_cpu_seconds_total", "counter", "CPU time of the process that runs now",
              p->cpu_seconds);
    PROCESSES(v, "process_resident_bytes", "gauge", "memory mapped and in memory, shared or not",
              p->memory.rss);
    PROCESSES(v, "process_proportional_bytes", "gauge",
              "the same, shared pages divided among those who map them", p->memory.pss);
    family("segment_bytes", "gauge", "bytes of a memory segment that are in memory");
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        sample("segment_bytes", "segment", waste_segment_name[i], (double)v->segment[i]);
}

#define DRIVES(v, metric, type, help, expression)                                                  \
    do {                                                                                           \
        family(metric, type, help);                                                                \
        for (uint32_t i = 0; i < (v)->drives; i++) {                                               \
            const struct waste_view_drive *d = &(v)->drive[i];                                     \
            sample(metric, "drive", d->info.name, (double)(expression));                           \
        }                                                                                          \
    } while (0)

static void put_bucket(const struct waste_view_drive *d, const char *le, uint64_t count)
{
    fputs("waste_read_duration_seconds_bucket{", stdout);
    put_label("drive", d->info.name);
    printf(",le=\"%s\"} %" PRIu64 "\n", le, count);
}

/* Buckets are cumulative; the count is the last of them, so that they agree whatever moment the
 * words were read at. */
static void put_histogram(const struct waste_view_drive *d)
{
    uint64_t sum = 0;
    char le[32];

    for (int k = 0; k + 1 < WASTE_LATENCY_BUCKETS; k++) {
        sum += d->bucket[k];
        snprintf(le, sizeof(le), "%.9g", (double)((uint64_t)WASTE_LATENCY_FIRST_NS << k) / 1e9);
        put_bucket(d, le, sum);
    }
    sum += d->bucket[WASTE_LATENCY_BUCKETS - 1];
    put_bucket(d, "+Inf", sum);
    sample("read_duration_seconds_sum", "drive", d->info.name, (double)d->ns / 1e9);
    sample("read_duration_seconds_count", "drive", d->info.name, (double)sum);
}

static void put_drives(const struct waste_view *v)
{
    DRIVES(v, "drive_read_bytes_total", "counter", "bytes read from a drive", d->bytes);
    DRIVES(v, "drive_reads_in_flight", "gauge", "reads a drive has not answered yet", d->in_flight);
    DRIVES(v, "drive_depth_limit", "gauge", "reads a drive is given at once", d->info.depth);
    DRIVES(v, "drive_limit_bytes_per_second", "gauge",
           "what a drive gave when the reader measured it; 0: not measured", d->info.bytes_per_s);
    family("read_duration_seconds", "histogram", "reads by the time a drive took for them");
    for (uint32_t i = 0; i < v->drives; i++)
        put_histogram(&v->drive[i]);
}

#define LAYERS(v, name, help, expression)                                                          \
    do {                                                                                           \
        family(name, "counter", help);                                                             \
        for (uint32_t i = 0; i < (v)->layers; i++) {                                               \
            const struct waste_view_layer *l = &(v)->layer[i];                                     \
            char number[16];                                                                       \
            snprintf(number, sizeof(number), "%" PRIu32, i);                                       \
            sample(name, "layer", number, (double)(expression));                                   \
        }                                                                                          \
    } while (0)

static void put_layers(const struct waste_view *v)
{
    LAYERS(v, "layer_tokens_total", "tokens a layer was computed for", l->tokens);
    LAYERS(v, "layer_seconds_total", "time a layer took", (double)l->ns / 1e9);
    LAYERS(v, "layer_wait_seconds_total", "of that, waiting for experts", (double)l->wait_ns / 1e9);
}

static void put_cache(const struct waste_view *v)
{
    const struct waste_control *c = v->of->shm.control;
    const struct {
        const char *kind;
        uint32_t slots;
    } slots[] = {
        {"in_use", atomic_load_explicit(&c->slots_in_use, memory_order_relaxed)},
        {"wanted", atomic_load_explicit(&c->slots_wanted, memory_order_relaxed)},
        {"budget", atomic_load_explicit(&c->slots_budget, memory_order_relaxed)},
        {"room", c->slot_count},
    };

    family("cache_slots", "gauge", "expert slots in use, wanted, paid for, and that there are");
    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++)
        sample("cache_slots", "kind", slots[i].kind, slots[i].slots);
    family("cache_slot_bytes", "gauge", "size of a slot");
    printf("waste_cache_slot_bytes %" PRIu64 "\n", c->slot_bytes);
    family("budget_bytes", "gauge", "bound on the memory of all processes together");
    printf("waste_budget_bytes %" PRIu64 "\n",
           atomic_load_explicit(&c->budget_bytes, memory_order_relaxed));
    family("memory_pressure_shrinks_total", "counter",
           "how often the cache gave way because memory was short");
    printf("waste_memory_pressure_shrinks_total %" PRIu32 "\n",
           atomic_load_explicit(&c->pressure_shrinks, memory_order_relaxed));
    family("memory_limit_bytes_per_second", "gauge",
           "what compute's threads read from memory when they started; 0: not measured");
    printf("waste_memory_limit_bytes_per_second %" PRIu64 "\n", v->memory_bytes_per_s);
    family("token_weight_bytes", "gauge", "weights that a token touches");
    printf("waste_token_weight_bytes %" PRIu64 "\n", v->token_bytes);
}

int waste_view_prometheus(const struct waste_view *v)
{
    char pid[16];

    snprintf(pid, sizeof(pid), "%d", v->own.pid);
    family("info", "gauge", "1; which pipeline this is");
    fputs("waste_info{", stdout);
    put_label("model", v->model_dir);
    putchar(',');
    put_label("pid", pid);
    putchar(',');
    put_label("version", WASTE_VERSION);
    fputs("} 1\n", stdout);
    put_stages(v);
    put_counters(v);
    put_cache(v);
    put_drives(v);
    put_layers(v);
    return fflush(stdout) == 0 ? 0 : waste_fail(1, "cannot write to stdout: %s", strerror(errno));
}
