/* waste-run bench: prefill and decode, measured apart. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/ids_text.h"
#include "cli/io_view.h"
#include "cli/output.h"
#include "cli/probe.h"
#include "cli/prompt.h"
#include "cli/timeline.h"
#include "options/units.h"

/* Prefill or decode. */
struct part {
    double seconds;
    uint32_t tokens;
    uint64_t counter[WASTE_COUNTER_COUNT];
};

struct measured {
    struct part prefill, decode;
    uint32_t layers;
    uint32_t restarts[WASTE_STAGE_COUNT];
    /* the machine's, in this run */
    double memory_bytes_per_s, disk_bytes_per_s, multiply_adds_per_s;
    uint64_t bytes_per_token, prefill_multiply_adds;
    json_t *steps; /* of --step: what each took; NULL: nobody asks */
    enum waste_reply_status status;
};

/* Where a step's time goes: X(name, counter). The rest is "other". */
#define PHASES(X)                                                                                  \
    X("experts", EXPERTS_NS)                                                                       \
    X("trunk", TRUNK_NS)                                                                           \
    X("attention", ATTENTION_NS)                                                                   \
    X("wait_experts", EXPERT_WAIT_NS)                                                              \
    X("wait_embedding", EMBED_WAIT_NS)

static int read_ids_file(const char *path, struct waste_ids *out)
{
    struct waste_text text = {0};
    struct waste_error err;
    int rc = waste_prompt_read(path, &text);

    if (rc == 0) {
        int bad = waste_ids_parse(text.data, text.bytes, out, &err);
        if (bad == -ENOMEM)
            rc = waste_fail(1, "%s", err.text);
        else if (bad != 0)
            rc = waste_fail(2, "%s: %s", path, err.text);
        else if (out->count == 0)
            rc = waste_fail(2, "%s holds no token ids", path);
    }
    waste_text_finish(&text);
    return rc;
}

/* Without a file: ids spread over the vocabulary, the same every time. */
static int default_ids(const struct waste_engine *e, struct waste_ids *out)
{
    for (uint32_t i = 0; i < e->args->prompt_tokens; i++)
        if (waste_ids_add(out, (uint32_t)((i * UINT64_C(2654435761)) % e->model->config.vocab)) !=
            0)
            return waste_fail(1, "out of memory");
    return 0;
}

/* The context has room for all that is asked for: nothing less is measured. */
static int fit(const struct waste_engine *e, const struct waste_ids *ids, uint32_t *ctx)
{
    uint32_t generate = e->args->step ? 0 : e->args->tokens + 1;
    int rc = waste_engine_fit(e, ids->id, ids->count, generate, ctx);

    if (rc == 0 && ids->count + generate > *ctx)
        rc = waste_fail(2,
                        "a prompt of %zu tokens and %u more need a context of %zu, not %u (--ctx)",
                        ids->count, e->args->tokens, ids->count + generate, *ctx);
    return rc;
}

static void add(struct measured *m, struct part *part, const struct waste_outcome *o)
{
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        part->counter[i] += o->counter[i];
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        m->restarts[i] += o->restarts[i];
}

static int request(struct waste_engine *e, const uint32_t *ids, size_t count, uint32_t generate,
                   struct waste_outcome *o)
{
    struct waste_sampling sampling = {.top_p = 1, .ignore_eos = true};
    struct waste_request_spec spec = {
        .ids = ids,
        .count = (uint32_t)count,
        .max_tokens = generate,
        .want_logits = generate == 0, /* a step of --step does what one that generates does */
        .sampling = &sampling,
    };
    struct waste_error err;

    int rc = waste_client_request(&e->client, &spec, o, &err);
    return rc != 0 ? waste_fail(rc, "%s", err.text) : 0;
}

/* An end that was asked for (Ctrl-C) before there is anything to show. */
static int ended(void)
{
    return waste_fail(1, "ended before a token was decoded");
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* Of the work in steps, waiting not counted: what no second worker shared. */
static double serial_share(const uint64_t counter[WASTE_COUNTER_COUNT])
{
    double work = (double)counter[WASTE_C_STEP_NS] - (double)counter[WASTE_C_EXPERT_WAIT_NS] -
                  (double)counter[WASTE_C_EMBED_WAIT_NS];

    return ratio(work - (double)counter[WASTE_C_SHARED_NS], work);
}

/* The prompt at once and a first token, then as many as wanted of what the model says. */
static int measure(struct waste_engine *e, const struct waste_ids *ids, struct measured *m)
{
    struct waste_outcome o;

    int rc = request(e, ids->id, ids->count, 1, &o);
    if (rc != 0)
        return rc;
    if (o.status == WASTE_REPLY_CANCELLED)
        return ended();
    add(m, &m->prefill, &o);
    m->prefill.tokens = o.prompt_tokens;
    m->prefill.seconds = o.prefill_seconds;
    rc = request(e, NULL, 0, e->args->tokens, &o);
    if (rc != 0)
        return rc;
    add(m, &m->decode, &o);
    m->decode.tokens = o.tokens;
    m->decode.seconds = o.prefill_seconds + o.decode_seconds;
    m->status = o.status;
    return o.tokens == 0 ? ended() : 0;
}

static json_t *step_json(const struct waste_outcome *o)
{
    return json_pack("{s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:I}", "seconds", o->prefill_seconds,
                     "wait_seconds", (double)o->counter[WASTE_C_EXPERT_WAIT_NS] * 1e-9,
                     "bytes_read", (json_int_t)o->counter[WASTE_C_BYTES_READ], "wait_bytes_read",
                     (json_int_t)o->counter[WASTE_C_EXPERT_WAIT_BYTES], "hits",
                     (json_int_t)o->counter[WASTE_C_HITS], "misses",
                     (json_int_t)o->counter[WASTE_C_MISSES], "serial_share",
                     serial_share(o->counter), "phases", (json_int_t)o->counter[WASTE_C_PHASES]);
}

/* Given ids, one request each. */
static int measure_steps(struct waste_engine *e, const struct waste_ids *ids, struct measured *m)
{
    for (size_t i = 0; i < ids->count; i++) {
        struct waste_outcome o;
        int rc = request(e, ids->id + i, 1, 0, &o);
        if (rc != 0)
            return rc;
        m->status = o.status;
        if (o.status == WASTE_REPLY_CANCELLED)
            return i == 0 ? ended() : 0;
        add(m, &m->decode, &o);
        m->decode.tokens++;
        m->decode.seconds += o.prefill_seconds;
        if (m->steps != NULL)
            json_array_append_new(m->steps, step_json(&o));
    }
    return 0;
}

static double seconds(const struct part *p, enum waste_counter id)
{
    return (double)p->counter[id] / 1e9;
}

static double other_seconds(const struct part *p)
{
    double rest = p->seconds;

#define X(name, id) rest -= seconds(p, WASTE_C_##id);
    PHASES(X)
#undef X
    return rest > 0 ? rest : 0;
}

/* lm_head's phase is the one that belongs to no layer. */
static double phases_per_layer(const struct measured *m)
{
    const struct part *d = &m->decode;

    return ratio((double)d->counter[WASTE_C_PHASES] - (double)d->tokens,
                 (double)d->counter[WASTE_C_TOKENS] * m->layers);
}

/* Weights streamed a second, of what memory gives. */
static double memory_share(const struct measured *m)
{
    return ratio((double)m->bytes_per_token * ratio(m->decode.tokens, m->decode.seconds),
                 m->memory_bytes_per_s);
}

/* Bytes read a second, of what the drive gives. */
static double disk_share(const struct measured *m, const struct part *p)
{
    return ratio(ratio((double)p->counter[WASTE_C_BYTES_READ], p->seconds), m->disk_bytes_per_s);
}

/* Multiply-adds of the prompt a second, of what the processor gives. */
static double mac_share(const struct measured *m)
{
    return ratio(ratio((double)m->prefill_multiply_adds, m->prefill.seconds),
                 m->multiply_adds_per_s);
}

static json_t *phases_json(const struct part *p)
{
    json_t *phases = json_object();

#define X(name, id) json_object_set_new(phases, name, json_real(seconds(p, WASTE_C_##id)));
    PHASES(X)
#undef X
    json_object_set_new(phases, "other", json_real(other_seconds(p)));
    return phases;
}

static json_t *make_json(const struct measured *m)
{
    const struct part *p = &m->prefill, *d = &m->decode;
    struct waste_outcome o = {.prompt_tokens = p->tokens,
                              .tokens = d->tokens,
                              .prefill_seconds = p->seconds,
                              .decode_seconds = d->seconds};

    memcpy(o.counter, d->counter, sizeof(o.counter));
    memcpy(o.restarts, m->restarts, sizeof(o.restarts));
    json_t *object = waste_output_json(&o);
    json_t *more = json_pack(
        "{s:s, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "status",
        waste_output_why(m->status), "tok_per_s", ratio(d->tokens, d->seconds), "decode_tok_per_s",
        ratio(d->tokens, d->seconds), "prefill_tok_per_s", ratio(p->tokens, p->seconds),
        "bytes_per_token", (json_int_t)m->bytes_per_token, "read_bytes_per_s",
        m->memory_bytes_per_s, "disk_bytes_per_s", m->disk_bytes_per_s, "memory_share",
        memory_share(m), "disk_share", disk_share(m, d), "serial_share", serial_share(d->counter),
        "phases_per_layer", phases_per_layer(m), "phases", phases_json(d));
    json_t *prefill =
        json_pack("{s:I, s:f, s:f, s:I, s:f, s:o}", "prefill_macs_per_token",
                  (json_int_t)(p->tokens > 0 ? m->prefill_multiply_adds / p->tokens : 0),
                  "macs_per_s", m->multiply_adds_per_s, "prefill_mac_share", mac_share(m),
                  "prefill_bytes_read", (json_int_t)p->counter[WASTE_C_BYTES_READ],
                  "prefill_disk_share", disk_share(m, p), "prefill_phases", phases_json(p));
    if (object != NULL && more != NULL)
        json_object_update(object, more);
    if (object != NULL && prefill != NULL && p->tokens > 0)
        json_object_update(object, prefill);
    json_decref(more);
    json_decref(prefill);
    return object;
}

static void print_phases(const struct part *p)
{
#define X(name, id)                                                                                \
    printf("  %-15s %8.4f s  %5.1f %%\n", name, seconds(p, WASTE_C_##id),                          \
           100 * ratio(seconds(p, WASTE_C_##id), p->seconds));
    PHASES(X)
#undef X
    printf("  %-15s %8.4f s  %5.1f %%\n", "other", other_seconds(p),
           100 * ratio(other_seconds(p), p->seconds));
}

static void print_disk(const struct measured *m, const struct part *p)
{
    char a[24], b[24];

    printf("disk     %8.1f %% of the limit: %s read, the drive reads %s/s\n",
           100 * disk_share(m, p),
           waste_units_format_size(p->counter[WASTE_C_BYTES_READ], a, sizeof(a)),
           waste_units_format_size((uint64_t)m->disk_bytes_per_s, b, sizeof(b)));
}

static void print_prefill(const struct measured *m)
{
    const struct part *p = &m->prefill;

    printf("prefill  %8.2f tokens/s  (%u tokens, %.3f s)\n", ratio(p->tokens, p->seconds),
           p->tokens, p->seconds);
    print_phases(p);
    printf("macs     %8.1f %% of the limit: %.2f G a token, the machine does %.1f G/s\n",
           100 * mac_share(m), (double)m->prefill_multiply_adds / p->tokens / 1e9,
           m->multiply_adds_per_s / 1e9);
    print_disk(m, p);
}

static void print_text(const struct measured *m)
{
    const struct part *d = &m->decode;
    uint64_t hits = d->counter[WASTE_C_HITS], misses = d->counter[WASTE_C_MISSES];
    char a[24], b[24];

    if (m->prefill.tokens > 0)
        print_prefill(m);
    printf("decode   %8.2f tokens/s  (%u tokens, %.3f s)\n", ratio(d->tokens, d->seconds),
           d->tokens, d->seconds);
    print_phases(d);
    printf("serial   %8.1f %% of the work is one worker's alone; %.1f phases a layer\n",
           100 * serial_share(d->counter), phases_per_layer(m));
    printf("memory   %8.1f %% of the limit: %s a token, the machine reads %s/s\n",
           100 * memory_share(m), waste_units_format_size(m->bytes_per_token, a, sizeof(a)),
           waste_units_format_size((uint64_t)m->memory_bytes_per_s, b, sizeof(b)));
    print_disk(m, d);
    printf("experts  %8.1f %% in memory when asked for\n",
           100 * ratio((double)hits, (double)(hits + misses)));
}

static int measure_all(struct waste_engine *e, const struct waste_ids *ids, struct measured *m)
{
    /* the machine first, while the pipeline is idle */
    m->memory_bytes_per_s = waste_probe_memory(e->pipeline.options.threads);
    m->disk_bytes_per_s = waste_probe_disk(e->dir, e->model);
    m->multiply_adds_per_s = waste_probe_multiply_adds(e->pipeline.options.threads);
    m->layers = e->model->config.layers;
    m->bytes_per_token = waste_probe_token_bytes(e->model);
    m->prefill_multiply_adds = waste_probe_prefill_multiply_adds(e->model, ids->count);
    return e->args->step ? measure_steps(e, ids, m) : measure(e, ids, m);
}

int waste_cmd_bench(const struct waste_args *args)
{
    struct waste_engine e;
    struct waste_ids ids = {0};
    struct measured m = {0};
    uint32_t ctx;

    int rc = waste_engine_load(&e, args, true);
    if (rc == 0)
        rc = args->ids_file != NULL ? read_ids_file(args->ids_file, &ids) : default_ids(&e, &ids);
    if (rc == 0)
        rc = fit(&e, &ids, &ctx);
    if (rc == 0)
        rc = waste_engine_start(&e, ctx);
    m.steps = args->step && args->json ? json_array() : NULL;
    if (rc == 0)
        rc = measure_all(&e, &ids, &m);
    if (rc == 0 && args->json) {
        json_t *object = make_json(&m);
        if (object != NULL)
            json_object_set_new(object, "router_precision",
                                waste_io_view_router_json(e.pipeline.shm.control));
        if (object != NULL && m.steps != NULL)
            json_object_set(object, "steps", m.steps);
        if (object != NULL && args->timeline)
            json_object_set_new(object, "timeline", waste_timeline_json(e.pipeline.shm.control));
        rc = waste_output_print_json(object);
    } else if (rc == 0) {
        print_text(&m);
        waste_io_view_router_print(e.pipeline.shm.control);
        if (args->timeline && waste_timeline_print(e.pipeline.shm.control) < 0)
            rc = waste_fail(1, "the timeline holds no whole layer");
    }
    json_decref(m.steps);
    waste_ids_finish(&ids);
    waste_engine_finish(&e);
    return rc;
}
