#include <string.h>

#include "cli/io_view.h"
#include "cli/text.h"
#include "cli/view.h"

/* A number, or null where it is not known. */
static json_t *known(double value)
{
    return value >= 0 ? json_real(value) : json_null();
}

static json_t *memory_json(const struct waste_machine_rss *m)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "rss", (json_int_t)m->rss, "pss",
                     (json_int_t)m->pss, "anon", (json_int_t)m->anon, "file", (json_int_t)m->file,
                     "shared", (json_int_t)m->shmem);
}

static json_t *stage_json(const struct waste_view_stage *s)
{
    return json_pack("{s:i, s:s, s:s, s:f, s:I, s:I, s:I, s:I, s:f, s:o}", "pid",
                     (int)s->process.pid, "state", waste_stage_state_name[s->state], "activity",
                     waste_activity_name[s->activity], "heartbeat_age", s->heartbeat_age,
                     "restarts", (json_int_t)s->restarts, "incarnation", (json_int_t)s->incarnation,
                     "step", (json_int_t)s->step, "layer", (json_int_t)s->layer, "cpu_seconds",
                     s->process.cpu_seconds, "memory", memory_json(&s->process.memory));
}

json_t *waste_view_ps_json(const struct waste_view *v)
{
    json_t *stages = json_object(), *segments = json_object();

    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        json_object_set_new(stages, waste_stage_name[i], stage_json(&v->stage[i]));
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        json_object_set_new(segments, waste_segment_name[i],
                            json_integer((json_int_t)v->segment[i]));
    return json_pack("{s:i, s:s, s:o, s:f, s:o, s:o, s:I}", "pid", (int)v->own.pid, "model",
                     v->model_dir, "waste-run", memory_json(&v->own.memory), "cpu_seconds",
                     v->own.cpu_seconds, "stages", stages, "segments", segments, "pss",
                     (json_int_t)waste_view_pss(v));
}

/* Reads by how long they took: [{le, count}], le in seconds; the last one has none. */
static json_t *latency_json(const struct waste_view_drive *d)
{
    json_t *list = json_array();

    for (int k = 0; k < WASTE_LATENCY_BUCKETS; k++) {
        double le = (double)((uint64_t)WASTE_LATENCY_FIRST_NS << k) / 1e9;
        json_array_append_new(list,
                              json_pack("{s:o, s:I}", "le",
                                        k + 1 < WASTE_LATENCY_BUCKETS ? json_real(le) : json_null(),
                                        "count", (json_int_t)d->bucket[k]));
    }
    return list;
}

static json_t *drives_json(const struct waste_view *v)
{
    json_t *list = waste_io_view_json(v->of->shm.control);

    for (uint32_t i = 0; i < v->drives && i < json_array_size(list); i++) {
        const struct waste_view_drive *d = &v->drive[i];
        json_t *more = json_pack("{s:I, s:I, s:I, s:f, s:o}", "in_flight", (json_int_t)d->in_flight,
                                 "reads", (json_int_t)d->reads, "bytes_read", (json_int_t)d->bytes,
                                 "read_seconds", (double)d->ns / 1e9, "latency", latency_json(d));
        json_object_update(json_array_get(list, i), more);
        json_decref(more);
    }
    return list;
}

static json_t *layers_json(const struct waste_view *v)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < v->layers; i++) {
        const struct waste_view_layer *l = &v->layer[i];
        json_array_append_new(
            list, json_pack("{s:I, s:I, s:f, s:f, s:f, s:f}", "layer", (json_int_t)i, "tokens",
                            (json_int_t)l->tokens, "seconds", (double)l->ns / 1e9, "wait_seconds",
                            (double)l->wait_ns / 1e9, "recent_seconds", (double)l->recent_ns / 1e9,
                            "recent_wait_seconds", (double)l->recent_wait_ns / 1e9));
    }
    return list;
}

static json_t *counters_json(const struct waste_view *v)
{
    json_t *object = json_object();

    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        json_object_set_new(object, waste_counter_info[i].name,
                            json_integer((json_int_t)v->counter[i]));
    return object;
}

/* null: no prompt is being consumed. */
static json_t *prefill_json(const struct waste_view *v)
{
    const struct waste_prefill *p = &v->prefill;

    if (!v->prefilling)
        return json_null();
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:o}", "begin", (json_int_t)p->begin, "position",
                     (json_int_t)p->position, "end", (json_int_t)p->end, "seconds", p->seconds,
                     "tok_per_s", p->tok_per_s, "seconds_left",
                     p->tok_per_s > 0 ? json_real(p->seconds_left) : json_null());
}

static void append_text(void *list, const char *line)
{
    struct waste_text text = {0}; /* a path may be no UTF-8 */

    if (waste_text_add_utf8(&text, line, strlen(line)) == 0)
        json_array_append_new(list, json_string(text.data));
    waste_text_finish(&text);
}

static json_t *losses_json(const struct waste_view *v)
{
    json_t *list = json_array();

    waste_view_losses(v, append_text, list);
    return list;
}

json_t *waste_view_stats_json(const struct waste_view *v)
{
    const struct waste_control *c = v->of->shm.control;
    json_t *object = waste_view_ps_json(v);
    struct waste_rates r;

    if (object == NULL)
        return NULL;
    waste_view_rates(NULL, v, &r);
    json_object_set_new(object, "counters", counters_json(v));
    json_object_set_new(object, "hit_rate", json_real(r.hit_share >= 0 ? r.hit_share : 0));
    json_object_set_new(object, "tok_per_s", json_real(r.tok_per_s));
    json_object_set_new(object, "prompt_tok_per_s", json_real(r.prompt_tok_per_s));
    json_object_set_new(object, "prefill", prefill_json(v));
    json_object_set_new(object, "warnings", losses_json(v));
    json_object_set_new(object, "io", json_string(waste_io_view_mode(c)));
    json_object_set_new(object, "drives", drives_json(v));
    json_object_set_new(object, "layers", layers_json(v));
    json_object_set_new(object, "cache", waste_io_view_cache_json(c));
    json_object_set_new(object, "router_precision", waste_io_view_router_json(c));
    json_object_set_new(object, "slots",
                        json_integer(atomic_load_explicit(&c->slots_wanted, memory_order_relaxed)));
    json_object_set_new(object, "slot_bytes", json_integer((json_int_t)c->slot_bytes));
    json_object_set_new(object, "threads", json_integer((json_int_t)c->options.threads));
    json_object_set_new(object, "bytes_per_token", json_integer((json_int_t)v->token_bytes));
    json_object_set_new(object, "memory_bytes_per_s",
                        known(v->memory_bytes_per_s > 0 ? (double)v->memory_bytes_per_s : -1));
    json_object_set_new(object, "disk_share", known(r.disk_share));
    json_object_set_new(object, "memory_share", known(r.memory_share));
    return object;
}

json_t *waste_view_rates_json(const struct waste_rates *r)
{
    json_t *cpu = json_object(), *phases = json_object();
    int phase = 0;

    json_object_set_new(cpu, "waste-run", json_real(r->own_cpu_share));
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        json_object_set_new(cpu, waste_stage_name[i], json_real(r->cpu_share[i]));
#define WASTE_X(name, id) json_object_set_new(phases, name, json_real(r->phase[phase++]));
    WASTE_RATES_PHASES(WASTE_X)
#undef WASTE_X
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "seconds",
                     r->seconds, "tok_per_s", r->tok_per_s, "prompt_tok_per_s", r->prompt_tok_per_s,
                     "step_seconds", r->step_seconds, "bytes_per_s", r->bytes_per_s, "hit_share",
                     known(r->hit_share), "prefetch_used_share", known(r->used_share),
                     "prefetch_wasted_share", known(r->wasted_share), "disk_share",
                     known(r->disk_share), "memory_share", known(r->memory_share), "cpu_share", cpu,
                     "phase_share", phases);
}
