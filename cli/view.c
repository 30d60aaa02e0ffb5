#include "cli/view.h"

#include <stdlib.h>
#include <string.h>

#include "cli/losses.h"
#include "cli/probe.h"
#include "cli/supervisor_int.h"
#include "cli/text.h"

struct waste_view *waste_view_create(const struct waste_attached *a)
{
    struct waste_view *v = calloc(1, sizeof(*v));
    struct waste_text dir = {0};

    if (v == NULL || waste_text_add_utf8(&dir, a->model_dir, strlen(a->model_dir)) != 0) {
        free(v);
        return NULL;
    }
    v->of = a;
    v->model_dir = dir.data;
    v->token_bytes = waste_probe_token_bytes(a->shm.model);
    v->layers = a->shm.model->config.layers < WASTE_MAX_LAYERS ? a->shm.model->config.layers
                                                               : WASTE_MAX_LAYERS;
    return v;
}

void waste_view_destroy(struct waste_view *v)
{
    if (v != NULL)
        free((char *)v->model_dir);
    free(v);
}

/* relaxed in all of these: a look, from which nothing else is concluded */
#define LOAD(word) atomic_load_explicit(&(word), memory_order_relaxed)

static void look_at_process(struct waste_view_process *p, int32_t pid, bool memory)
{
    if (pid != p->pid)
        memset(&p->memory, 0, sizeof(p->memory));
    p->pid = pid;
    p->cpu_seconds = pid > 0 ? waste_machine_cpu_seconds(pid) : 0;
    if (pid > 0 && (memory || p->memory.rss == 0))
        waste_machine_rss(pid, &p->memory);
}

static void look_at_stage(const struct waste_stage *s, struct waste_view_stage *v, bool memory)
{
    uint64_t beat = LOAD(s->heartbeat_ns);

    look_at_process(&v->process, LOAD(s->pid), memory);
    v->incarnation = LOAD(s->incarnation);
    v->restarts = LOAD(s->restarts);
    v->state = LOAD(s->state);
    v->activity = LOAD(s->activity);
    v->layer = LOAD(s->layer);
    v->step = LOAD(s->step);
    v->heartbeat_age = v->process.pid > 0 ? ((double)waste_now_ns() - (double)beat) / 1e9 : 0;
    if (v->state >= WASTE_STAGE_STATE_COUNT)
        v->state = WASTE_STAGE_OFF;
    if (v->activity >= WASTE_ACT_COUNT || v->process.pid == 0)
        v->activity = WASTE_ACT_NONE;
}

static void look_at_drives(const struct waste_control *c, struct waste_view *v)
{
    /* acquire: pairs with the reader's release, after the records */
    uint32_t count = atomic_load_explicit(&c->drive_count, memory_order_acquire);

    v->drives = count <= WASTE_DRIVE_RECORDS ? count : 0;
    for (uint32_t i = 0; i < v->drives; i++) {
        const struct waste_drive_meter *m = &c->drive_meter[i];
        struct waste_view_drive *d = &v->drive[i];
        d->info = c->drive[i];
        d->info.name[sizeof(d->info.name) - 1] = '\0';
        d->in_flight = LOAD(m->in_flight);
        d->reads = LOAD(m->reads);
        d->bytes = LOAD(m->bytes);
        d->ns = LOAD(m->ns);
        for (int k = 0; k < WASTE_LATENCY_BUCKETS; k++)
            d->bucket[k] = LOAD(m->bucket[k]);
    }
}

static void look_at_layers(const struct waste_layer_meter *m, struct waste_view *v)
{
    for (uint32_t i = 0; i < v->layers; i++)
        v->layer[i] = (struct waste_view_layer){
            .tokens = LOAD(m[i].tokens),
            .ns = LOAD(m[i].ns),
            .wait_ns = LOAD(m[i].wait_ns),
            .recent_ns = LOAD(m[i].recent_ns),
            .recent_wait_ns = LOAD(m[i].recent_wait_ns),
        };
}

void waste_view_take(struct waste_view *v, bool memory)
{
    const struct waste_control *c = v->of->shm.control;

    v->when_ns = waste_now_ns();
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        v->counter[i] = LOAD(c->counter[i]);
    look_at_drives(c, v);
    look_at_layers(v->of->shm.layer_meter, v);
    v->memory_bytes_per_s = LOAD(c->memory_bytes_per_s);
    look_at_process(&v->own, v->of->pid, memory);
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        look_at_stage(&c->stage[i], &v->stage[i], memory);
    v->prefilling = waste_prefill_look(&v->of->shm, &v->prefill);
    if (memory)
        waste_machine_segments(v->of->pid, v->segment);
}

void waste_view_losses(const struct waste_view *v, void (*tell)(void *arg, const char *text),
                       void *arg)
{
    uint64_t from_the_start[WASTE_STAGE_COUNT + 1] = {0};

    waste_losses_each(v->of->shm.control->log, WASTE_STAGE_COUNT + 1, from_the_start, tell, arg);
}

uint64_t waste_view_pss(const struct waste_view *v)
{
    uint64_t sum = v->own.memory.pss;

    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        sum += v->stage[i].process.memory.pss;
    return sum;
}

static double per(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : -1;
}

/* Bytes a second that all drives gave together; 0 if one of them was not measured. */
static double disk_limit(const struct waste_view *v)
{
    double sum = 0;

    for (uint32_t i = 0; i < v->drives; i++) {
        if (v->drive[i].info.bytes_per_s == 0)
            return 0;
        sum += (double)v->drive[i].info.bytes_per_s;
    }
    return sum;
}

static double cpu_share(const struct waste_view_process *before,
                        const struct waste_view_process *now, double seconds)
{
    if (before->pid != now->pid || now->cpu_seconds < before->cpu_seconds)
        return 0;
    return per(now->cpu_seconds - before->cpu_seconds, seconds);
}

void waste_view_rates(const struct waste_view *before, const struct waste_view *now,
                      struct waste_rates *r)
{
    static const enum waste_counter phases[] = {
#define WASTE_X(name, id) WASTE_C_##id,
        WASTE_RATES_PHASES(WASTE_X)
#undef WASTE_X
    };
    uint64_t grown[WASTE_COUNTER_COUNT];

    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        grown[i] = now->counter[i] - (before != NULL ? before->counter[i] : 0);
#define GROWN(id) ((double)grown[WASTE_C_##id])
    *r = (struct waste_rates){
        .seconds =
            before != NULL ? (double)(now->when_ns - before->when_ns) / 1e9 : GROWN(STEP_NS) / 1e9,
        .hit_share = share(grown[WASTE_C_HITS], grown[WASTE_C_HITS] + grown[WASTE_C_MISSES]),
        .used_share = share(grown[WASTE_C_PREFETCH_USED], grown[WASTE_C_PREFETCHED]),
        .wasted_share = share(grown[WASTE_C_PREFETCH_WASTED], grown[WASTE_C_PREFETCHED]),
        .step_seconds = per(GROWN(DECODE_NS) / 1e9, GROWN(GENERATED)),
    };
    double decode = before != NULL ? r->seconds : GROWN(DECODE_NS) / 1e9;
    double prompt = before != NULL ? r->seconds : (GROWN(STEP_NS) - GROWN(DECODE_NS)) / 1e9;
    r->tok_per_s = per(GROWN(GENERATED), decode);
    r->prompt_tok_per_s = per(GROWN(TOKENS) - GROWN(GENERATED), prompt);
    r->bytes_per_s = per(GROWN(BYTES_READ), r->seconds);
    double disk = disk_limit(now), memory = (double)now->memory_bytes_per_s;
    r->disk_share = disk > 0 ? r->bytes_per_s / disk : -1;
    r->memory_share = memory > 0 ? r->tok_per_s * (double)now->token_bytes / memory : -1;
    for (int i = 0; i < 5; i++)
        r->phase[i] = per((double)grown[phases[i]], GROWN(STEP_NS));
    for (int i = 0; i < WASTE_STAGE_COUNT && before != NULL; i++)
        r->cpu_share[i] = cpu_share(&before->stage[i].process, &now->stage[i].process, r->seconds);
    if (before != NULL)
        r->own_cpu_share = cpu_share(&before->own, &now->own, r->seconds);
#undef GROWN
}
