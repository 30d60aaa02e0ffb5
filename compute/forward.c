#include "compute/bandwidth.h"
#include "compute/chunk.h"
#include "compute/forward_int.h"
#include "shm/inject.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A CPU that has gone idle takes some 25 us to run who is woken on it: where waits are short, their
 * end is spun for. */
enum { WAIT_MS = 50, WAIT_SPIN_NS = 20000, SHORT_WAIT_NS = 200000 };

int64_t waste_forward_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct waste_stage *stage(const struct waste_forward *f)
{
    return &f->env.shm.control->stage[WASTE_STAGE_COMPUTE];
}

void waste_forward_tick(struct waste_forward *f)
{
    waste_stage_mark(stage(f), WASTE_ACT_COMPUTING, -1);
}

static void tick(void *arg)
{
    waste_forward_tick(arg);
}

static void run(struct waste_forward *f, enum waste_phase phase, waste_phase_fn *fn, uint32_t tasks,
                uint32_t most)
{
    int64_t start = waste_forward_now_ns();

    waste_team_run(f->team, fn, f, tasks, most);
    f->phase_ns[phase] += waste_forward_now_ns() - start;
    f->shared_ns += waste_team_shared_ns(f->team);
    f->phases++;
    WASTE_POINT(PHASE);
}

void waste_forward_run(struct waste_forward *f, enum waste_phase phase, waste_phase_fn *fn,
                       uint32_t tasks)
{
    run(f, phase, fn, tasks, WASTE_TASK_RUN);
}

void waste_forward_run_single(struct waste_forward *f, enum waste_phase phase, waste_phase_fn *fn,
                              uint32_t tasks)
{
    run(f, phase, fn, tasks, 1);
}

int waste_forward_check(struct waste_forward *f, enum waste_activity activity)
{
    waste_stage_mark(stage(f), activity, (int)f->layer);
    /* relaxed: both only ask to stop; whoever set them waits for the reply or the exit */
    if (atomic_load_explicit(&stage(f)->stop, memory_order_relaxed))
        return -ESHUTDOWN;
    if (atomic_load_explicit(&f->env.conversation->request.cancel, memory_order_relaxed))
        return -ECANCELED;
    return 0;
}

int waste_forward_bad(struct waste_forward *f, const char *what)
{
    snprintf(f->error, sizeof f->error, "non-finite value in layer %u (%s) at position %u",
             f->layer, what, f->position);
    return -EDOM;
}

int waste_forward_bad_input(struct waste_forward *f)
{
    if (f->layer) {
        f->layer--;
        return waste_forward_bad(f, "ffn");
    }
    snprintf(f->error, sizeof f->error, "non-finite value in the embedding row at position %u",
             f->position);
    return -EDOM;
}

const char *waste_forward_error(const struct waste_forward *f)
{
    return f->error;
}

void waste_forward_want(struct waste_forward *f, uint32_t position, const uint32_t *token,
                        uint32_t count)
{
    struct waste_shm *shm = &f->env.shm;
    bool asked = false;

    for (uint32_t i = 0; i < count && i < WASTE_EMBED_SLOTS - 1; i++) {
        struct waste_embed_slot *slot = &shm->embed[(position + i) % WASTE_EMBED_SLOTS];
        uint64_t tag = waste_embed_tag(position + i, token[i]);
        /* relaxed: we are its only writer, and the tag is all it says */
        if (atomic_load_explicit(&slot->want, memory_order_relaxed) == tag)
            continue;
        atomic_store_explicit(&slot->want, tag, memory_order_relaxed);
        asked = true;
    }
    if (asked) {
        WASTE_POINT(EMBED_WANTED);
        waste_bell_ring_fd(&shm->control->reader_bell, f->env.reader_event);
    }
}

int waste_forward_embed(struct waste_forward *f, float *x, uint32_t token)
{
    struct waste_shm *shm = &f->env.shm;
    struct waste_embed_slot *slot = &shm->embed[f->position % WASTE_EMBED_SLOTS];
    const struct waste_tensor *t =
        waste_model_tensor(shm->model, shm->model->tensor[WASTE_M_EMBED]);
    const uint8_t *row =
        shm->embed_data + f->position % WASTE_EMBED_SLOTS * shm->control->embed_row_bytes;
    uint64_t have, turn, tag = waste_embed_tag(f->position, token);
    int64_t start = waste_forward_now_ns();
    int err = 0;

    for (;;) {
        uint32_t seen = waste_bell_seq(&shm->control->compute_bell);
        have = waste_embed_look(slot, &turn);
        if (have == tag)
            f->k->decode_row[t->fmt](x, row, row + t->row_bytes, t->cols);
        if ((have & ~WASTE_EMBED_FAILED) == tag && waste_embed_still(slot, turn))
            break;
        waste_forward_want(f, f->position, &token, 1);
        err = waste_forward_check(f, WASTE_ACT_WAIT_EMBED);
        if (err)
            return err;
        waste_bell_wait(&shm->control->compute_bell, seen, WAIT_MS * INT64_C(1000000),
                        WAIT_SPIN_NS);
    }
    f->embed_wait_ns += waste_forward_now_ns() - start;
    WASTE_POINT(EMBED_USED);
    if (have & WASTE_EMBED_FAILED) {
        /* relaxed: as in waste_forward_want */
        atomic_store_explicit(&slot->want, 0, memory_order_relaxed);
        waste_bell_ring_fd(&shm->control->reader_bell, f->env.reader_event);
        snprintf(f->error, sizeof f->error,
                 "trunk.bin: the embedding row of token %u could not be read", token);
        return -EIO;
    }
    return 0;
}

static int64_t expert_spin_ns(const struct waste_forward *f)
{
    const struct waste_layer_meter *m = &f->env.shm.layer_meter[f->layer];

    /* relaxed: our own number */
    return waste_team_has_room(f->team) &&
                   atomic_load_explicit(&m->recent_wait_ns, memory_order_relaxed) < SHORT_WAIT_NS
               ? SHORT_WAIT_NS
               : WAIT_SPIN_NS;
}

int waste_forward_wait(struct waste_forward *f,
                       int (*take)(struct waste_forward *f, uint32_t *count), uint32_t *count)
{
    struct waste_control *c = f->env.shm.control;
    const _Atomic uint64_t *read = &c->counter[WASTE_C_BYTES_READ];
    /* relaxed, here and below: a statistic */
    uint64_t before = atomic_load_explicit(read, memory_order_relaxed);
    int64_t start = waste_forward_now_ns();
    int err;

    for (;;) {
        uint32_t seen = waste_bell_seq(&c->compute_bell); /* before the look: no ring is lost */
        err = take(f, count);
        if (err || *count)
            break;
        err = waste_forward_check(f, WASTE_ACT_WAIT_EXPERTS);
        if (err)
            break;
        waste_bell_wait(&c->compute_bell, seen, WAIT_MS * INT64_C(1000000), expert_spin_ns(f));
    }
    f->expert_wait_ns += waste_forward_now_ns() - start;
    waste_count(c, WASTE_C_EXPERT_WAIT_BYTES,
                atomic_load_explicit(read, memory_order_relaxed) - before);
    return err;
}

static int run_layer(struct waste_forward *f, uint32_t layer)
{
    int64_t start = waste_forward_now_ns(), waited = f->expert_wait_ns;
    int err;

    f->layer = layer;
    f->w = &f->weights.layer[layer];
    err = waste_forward_check(f, WASTE_ACT_COMPUTING);
    if (err)
        return err;
    f->input = (struct waste_input){&f->w->m[WASTE_T_ATT_RES_NORM], &f->w->m[WASTE_T_ATT_RES_PROJ],
                                    &f->w->m[WASTE_T_INPUT_NORM]};
    waste_hint_offer(f, true);
    waste_timeline_note(f->env.shm.control, WASTE_MOMENT_ATTENTION, f->position, layer, 0);
    err = f->w->layer->is_kda ? waste_kda(f) : waste_mla(f);
    if (!err)
        err = f->w->layer->is_moe ? waste_moe(f) : waste_dense(f);
    waste_timeline_note(f->env.shm.control, WASTE_MOMENT_DONE, f->position, layer, 0);
    if (!err)
        waste_layer_meter_add(&f->env.shm.layer_meter[layer], 1,
                              (uint64_t)(waste_forward_now_ns() - start),
                              (uint64_t)(f->expert_wait_ns - waited));
    return err;
}

struct waste_input waste_forward_head_input(const struct waste_forward *f)
{
    const struct waste_matrix *m = f->weights.m;

    return (struct waste_input){&m[WASTE_M_OUT_RES_NORM], &m[WASTE_M_OUT_RES_PROJ],
                                &m[WASTE_M_FINAL_NORM]};
}

int waste_forward_head(struct waste_forward *f, float *logits)
{
    const struct waste_matrix *m = f->weights.m;

    f->input = waste_forward_head_input(f);
    waste_products_begin(f);
    waste_products_add(f, &m[WASTE_M_LM_HEAD], logits);
    waste_forward_run(f, WASTE_PHASE_TRUNK, waste_products_input_phase, f->product_tasks);
    return f->bad ? waste_forward_bad(f, "ffn") : 0;
}

/* Before a step or a chunk. */
static void begin(struct waste_forward *f, uint32_t position, uint32_t bank, uint32_t count)
{
    f->begin_ns = waste_forward_now_ns();
    f->position = position;
    f->bank = bank;
    f->layer = 0;
    f->bad = false;
    f->block_count = 0;
    memset(f->phase_ns, 0, sizeof f->phase_ns);
    f->expert_wait_ns = f->embed_wait_ns = f->shared_ns = 0;
    f->phases = 0;
    waste_forward_pages(f, position + count);
    /* relaxed, both: shown by ps and stats */
    atomic_store_explicit(&stage(f)->step, position, memory_order_relaxed);
    atomic_store_explicit(&stage(f)->tokens, count, memory_order_relaxed);
}

/* After a step or a chunk. Hits are counted by the reader as it takes the demands, so let it have
 * the last ones. */
static void end(struct waste_forward *f, uint32_t count)
{
    waste_hint_step(f, count, waste_forward_now_ns() - f->begin_ns);
    waste_team_share(f->team, waste_hint_reads(f));
    if (waste_ring_used(f->env.shm.demand))
        waste_bell_ring_fd(&f->env.shm.control->reader_bell, f->env.reader_event);
}

int waste_forward_step(struct waste_forward *f, uint32_t position, uint32_t bank, uint32_t token,
                       float *logits)
{
    int err;

    begin(f, position, bank, 1);
    f->running = f->blocks;
    f->block_stride = f->cfg->hidden;
    err = waste_forward_embed(f, f->running, token);
    for (uint32_t layer = 0; layer < f->cfg->layers && !err; layer++)
        err = run_layer(f, layer);
    if (!err && logits)
        err = waste_forward_head(f, logits);
    end(f, 1);
    return err;
}

uint32_t waste_forward_chunk_most(const struct waste_options *options)
{
    uint32_t most = options->chunk < options->ctx ? options->chunk : options->ctx;

    return most ? most : 1;
}

int waste_forward_chunk(struct waste_forward *f, uint32_t position, uint32_t bank,
                        const uint32_t *token, uint32_t count, float *logits)
{
    int err;

    begin(f, position, bank, count);
    err = waste_chunk_run(f, token, count, logits);
    end(f, count);
    return err;
}

int waste_forward_finish(struct waste_forward *f)
{
    return waste_chunk_finish(f);
}

int waste_forward_logits(struct waste_forward *f, uint32_t first, uint32_t count, float *logits)
{
    return waste_chunk_logits(f, first, count, logits);
}

int waste_forward_pause(struct waste_forward *f)
{
    return waste_forward_check(f, WASTE_ACT_WAIT_CLIENT);
}

void waste_forward_count(struct waste_forward *f)
{
    static const enum waste_counter counter[WASTE_PHASES] = {
        [WASTE_PHASE_TRUNK] = WASTE_C_TRUNK_NS,
        [WASTE_PHASE_ATTENTION] = WASTE_C_ATTENTION_NS,
        [WASTE_PHASE_EXPERTS] = WASTE_C_EXPERTS_NS,
    };
    struct waste_control *c = f->env.shm.control;

    for (uint32_t i = 0; i < WASTE_PHASES; i++)
        waste_count(c, counter[i], (uint64_t)f->phase_ns[i]);
    waste_count(c, WASTE_C_EXPERT_WAIT_NS, (uint64_t)f->expert_wait_ns);
    waste_count(c, WASTE_C_EMBED_WAIT_NS, (uint64_t)f->embed_wait_ns);
    waste_count(c, WASTE_C_SHARED_NS, (uint64_t)f->shared_ns);
    waste_count(c, WASTE_C_PHASES, f->phases);
}

static void set_up(struct waste_forward *f, const struct waste_forward_env *env)
{
    const struct waste_config *c = &env->shm.model->config;

    f->env = *env;
    f->cfg = c;
    f->k = &f->env.kernels;
    f->act = (struct waste_act){
        .kind = c->situ ? WASTE_ACTIVATION_SITU : WASTE_ACTIVATION_SILU,
        .beta = c->situ_beta,
        .linear_beta = c->situ_linear_beta,
    };
    f->experts.shm = &f->env.shm;
    f->experts.cache = env->cache;
    f->experts.reader_event = env->reader_event;
    waste_hint_begin(f);
}

/* Its memory is not touched before a chunk needs it. */
static int make_chunk(struct waste_forward *f, uint32_t threads, uint32_t most)
{
    struct waste_chunk *c;

    if (most < 2)
        return 0;
    f->chunk = c = calloc(1, sizeof *c + threads * sizeof c->worker[0]);
    if (!c)
        return -ENOMEM;
    c->arena = aligned_alloc(64, waste_chunk_layout(f, NULL, threads, most));
    if (!c->arena)
        return -ENOMEM;
    waste_chunk_layout(f, c->arena, threads, most);
    if (c->stream_memory)
        waste_stream_init(&c->stream, &f->env.shm, f->env.cache, f->env.reader_event,
                          c->stream_memory);
    return 0;
}

int waste_forward_create(struct waste_forward **out, const struct waste_forward_env *env)
{
    const struct waste_options *o = &env->shm.control->options;
    uint32_t threads = o->threads;
    size_t bytes;
    int err = -ENOMEM;
    struct waste_forward *f;

    if (!threads || threads > WASTE_TEAM_MAX)
        return -EINVAL;
    f = calloc(1, sizeof *f + threads * sizeof f->worker[0]);
    if (!f)
        return -ENOMEM;
    set_up(f, env);
    bytes = waste_forward_layout(f, NULL, threads, env->session->ctx);
    f->arena = aligned_alloc(64, bytes);
    if (!f->arena)
        goto out;
    memset(f->arena, 0, bytes);
    waste_forward_layout(f, f->arena, threads, env->session->ctx);
    err = make_chunk(f, threads, waste_forward_chunk_most(o));
    if (err)
        goto out;
    err = waste_weights_init(&f->weights, env->shm.model, env->trunk, f->k);
    if (!err)
        err = waste_team_create(&f->team, threads, o->cpus);
    if (err)
        goto out;
    waste_team_set_tick(f->team, tick, f);
    *out = f;
    return 0;
out:
    waste_forward_destroy(f);
    return err;
}

void waste_forward_destroy(struct waste_forward *f)
{
    if (!f)
        return;
    waste_team_destroy(f->team);
    waste_weights_finish(&f->weights);
    free(f->arena);
    if (f->chunk)
        free(f->chunk->arena);
    free(f->chunk);
    free(f);
}

static void prepare_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    uint32_t triple;

    while (waste_team_claim(f->team, worker, &triple))
        waste_weights_prepare(&f->weights, f->k, triple);
}

/* Once a pipeline: a successor's first token comes before that. */
static void measure_memory(struct waste_forward *f)
{
    _Atomic uint64_t *word = &f->env.shm.control->memory_bytes_per_s;

    /* relaxed: for people, and of our predecessor */
    if (atomic_load_explicit(word, memory_order_relaxed) == 0)
        atomic_store_explicit(
            word, waste_bandwidth_measure(f->team, f->env.trunk, f->env.shm.model->trunk_bytes),
            memory_order_relaxed);
}

void waste_forward_load(struct waste_forward *f)
{
    waste_team_run(f->team, prepare_phase, f, waste_weights_prep_count(f->env.shm.model), 1);
    measure_memory(f);
}
