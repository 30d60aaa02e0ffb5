/*
 * Feed-forward half-layers of a chunk: dense, and mixture of experts.
 *
 *   1  norm, packed; for the next layer's router too           a tile of tokens a task
 *   2  router, shared gate and up, latent down; the next layer's router
 *   3  choices and weights                                     a tile of tokens a task
 *      every token's choices sorted by expert: one list of tokens an expert
 *   4  shared down
 *   5  experts that have arrived, as many as there is room for:
 *      their tokens gathered; gate and up; down; again until none is missing
 *   6  each token's choices summed in selection order          a tile of tokens a task
 *   7  latent models: norm, latent up
 *
 * Each choice of each token has a place of its own (c->pairs), so the sum does not depend on when
 * an expert arrived or with which others it was computed.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "compute/chunk.h"
#include "shm/inject.h"

/* ---- dense ---- */

int waste_chunk_dense(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    struct waste_chunk *c = f->chunk;

    waste_chunk_products_begin(c);
    waste_chunk_product_glu(c, &m[WASTE_T_FFN_GATE], &m[WASTE_T_FFN_UP], c->x);
    int err = waste_chunk_products_run(f);
    if (err)
        return err;
    waste_chunk_products_begin(c);
    waste_chunk_product_rows(c, &m[WASTE_T_FFN_DOWN], c->gate_h, c->out);
    return waste_chunk_products_run(f);
}

/* ---- who goes where ---- */

/* The choice of one token and its weights; false if its scores are no finite numbers. */
static bool choose(struct waste_forward *f, struct waste_chunk_worker *wk, uint32_t t)
{
    const struct waste_config *cfg = f->cfg;
    struct waste_chunk *c = f->chunk;
    const float *logits = c->logits + (size_t)t * cfg->experts;

    for (uint32_t i = 0; i < cfg->experts; i++)
        if (!isfinite(logits[i]))
            return false;
    waste_choose(f, c->id + (size_t)t * cfg->top_k, c->weight + (size_t)t * cfg->top_k, logits,
                 wk->choice);
    return true;
}

static void choose_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_chunk *c = f->chunk;
    uint32_t tile;

    while (waste_team_claim(f->team, worker, &tile)) {
        uint32_t first = tile * WASTE_TILE, n = waste_chunk_tile_tokens(c, tile);
        for (uint32_t t = first; t < first + n; t++)
            if (!choose(f, &c->worker[worker], t))
                waste_chunk_note_bad(c, t);
    }
}

/* What the next layer's router would choose for one token: a vote for each. */
static void vote(struct waste_forward *f, struct waste_chunk_worker *wk, uint32_t t)
{
    const struct waste_config *cfg = f->cfg;
    const float *bias = waste_weights_vector(&f->w[1].m[WASTE_T_ROUTER_BIAS]);

    waste_top_k(wk->ahead_id, wk->ahead_weight, f->chunk->logits + (size_t)t * cfg->experts, bias,
                cfg->experts, cfg->top_k, wk->choice);
    for (uint32_t i = 0; i < cfg->top_k; i++) /* relaxed: sums, read when the phase is over */
        atomic_fetch_add_explicit(&f->chunk->votes[wk->ahead_id[i]], 1, memory_order_relaxed);
}

static void vote_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_chunk *c = f->chunk;
    uint32_t tile;

    while (waste_team_claim(f->team, worker, &tile)) {
        uint32_t first = tile * WASTE_TILE, n = waste_chunk_tile_tokens(c, tile);
        for (uint32_t t = first; t < first + n; t++)
            vote(f, &c->worker[worker], t);
    }
}

/* The tokens of each expert one after the other, experts by id. */
static void sort_choices(struct waste_forward *f)
{
    struct waste_chunk *c = f->chunk;
    uint32_t top_k = f->cfg->top_k, experts = f->cfg->experts, choices = c->count * top_k;
    uint32_t distinct = 0, at = 0;

    memset(c->first, 0, experts * sizeof *c->first);
    for (uint32_t i = 0; i < choices; i++)
        c->first[c->id[i]]++;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t n = c->first[e];
        c->first[e] = at;
        if (n)
            c->stream.expert[distinct++] =
                (struct waste_stream_expert){.id = e, .tokens = n, .first = at};
        at += n;
    }
    for (uint32_t i = 0; i < choices; i++) {
        uint32_t place = c->first[c->id[i]]++;
        c->token[place] = i / top_k;
        c->pair[place] = i;
    }
    waste_stream_begin(&c->stream, (uint64_t)f->position + c->count - 1, f->layer, distinct);
}

static void learn(struct waste_forward *f)
{
    struct waste_chunk *c = f->chunk;
    uint32_t n = c->count < WASTE_CHUNK_LEARN ? c->count : WASTE_CHUNK_LEARN;

    waste_stream_learn(&c->stream, c->id + (size_t)(c->count - n) * f->cfg->top_k, n);
}

static void foresee(struct waste_forward *f)
{
    struct waste_chunk *c = f->chunk;

    for (uint32_t e = 0; e < f->cfg->experts; e++) /* relaxed: the phase is over */
        c->first[e] = atomic_load_explicit(&c->votes[e], memory_order_relaxed);
    waste_stream_foresee(&c->stream, f->layer + 1, c->first);
}

/* This layer's choices, and what they need; then what the next layer is likely to need. */
static int route(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    struct waste_chunk *c = f->chunk;

    waste_chunk_products_begin(c);
    waste_chunk_product_rows(c, &m[WASTE_T_ROUTER], c->x, c->logits);
    if (f->cfg->shared_experts)
        waste_chunk_product_glu(c, &m[WASTE_T_SHARED_GATE], &m[WASTE_T_SHARED_UP], c->x);
    if (f->cfg->latent)
        waste_chunk_product_rows(c, &m[WASTE_T_LATENT_DOWN], c->x, c->z);
    int err = waste_chunk_products_run(f);
    if (!err)
        err = waste_chunk_phase(f, WASTE_PHASE_EXPERTS, choose_phase, c->tiles);
    if (!err)
        err = waste_chunk_bad(f, "router");
    if (err)
        return err;
    sort_choices(f);
    if (!c->ahead)
        return 0;
    waste_chunk_products_begin(c);
    waste_chunk_product_rows(c, &f->w[1].m[WASTE_T_ROUTER], c->out, c->logits);
    err = waste_chunk_products_run(f);
    if (err)
        return err;
    memset(c->votes, 0, f->cfg->experts * sizeof *c->votes);
    err = waste_chunk_phase(f, WASTE_PHASE_EXPERTS, vote_phase, c->tiles);
    if (!err)
        foresee(f);
    return err;
}

/* ---- experts ---- */

static struct waste_vq_matrix matrix(const struct waste_forward *f, uint32_t place,
                                     enum waste_matrix_kind kind)
{
    const struct waste_expert_format *e = &f->env.shm.model->expert;
    const uint8_t *data = waste_stream_data(&f->chunk->stream, place);
    const uint32_t off[WASTE_KIND_COUNT] = {e->gate_off, e->up_off, e->down_off};
    uint32_t inner = f->cfg->expert_inner, width = f->cfg->expert_width;
    bool down = kind == WASTE_KIND_DOWN;

    return (struct waste_vq_matrix){
        .fmt = e->fmt,
        .rows = down ? width : inner,
        .positions = (down ? inner : width) / 8,
        .index = data + off[kind],
        .scales = data + e->scale_off + (size_t)2 * kind * inner,
        .books = waste_weights_books(&f->weights, f->layer, kind),
        .prep = waste_weights_prep(&f->weights, f->layer, kind),
    };
}

/* The expert that tile or task `n` of the batch belongs to. */
static const struct waste_chunk_expert *expert_of_tile(const struct waste_chunk *c, uint32_t tile)
{
    const struct waste_chunk_expert *e = c->batch;

    while (tile >= e->tile0 + waste_batch_tiles(e->tokens))
        e++;
    return e;
}

static const struct waste_chunk_expert *expert_of_task(const struct waste_chunk *c, uint32_t rows,
                                                       uint32_t *task)
{
    const struct waste_chunk_expert *e = c->batch;
    uint32_t tasks;

    while (*task >= (tasks = waste_chunk_tasks(e, rows))) {
        *task -= tasks;
        e++;
    }
    return e;
}

static void gather_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_chunk *c = f->chunk;
    uint32_t task, width = f->cfg->expert_width;

    while (waste_team_claim(f->team, worker, &task)) {
        const struct waste_chunk_expert *e = expert_of_tile(c, task);
        uint32_t tile = task - e->tile0;
        waste_batch_pack(f->k, c->in + (size_t)e->tile0 * WASTE_TILE * width, c->z, width, e->token,
                         e->tokens, width, tile, tile + 1);
    }
}

static void up_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_chunk *c = f->chunk;
    uint32_t task, width = f->cfg->expert_width, inner = f->cfg->expert_inner;
    float *scratch = c->worker[worker].scratch;

    while (waste_team_claim(f->team, worker, &task)) {
        const struct waste_chunk_expert *e = expert_of_task(c, inner, &task);
        struct waste_vq_matrix g = matrix(f, e->place, WASTE_KIND_GATE);
        struct waste_vq_matrix u = matrix(f, e->place, WASTE_KIND_UP);
        uint32_t r0 = task * e->rows, r1 = r0 + e->rows < inner ? r0 + e->rows : inner;
        size_t tile0 = (size_t)e->tile0 * WASTE_TILE;
        const float *x = c->in + tile0 * width;
        float *gate = c->gate_e + tile0 * inner, *up = c->up_e + tile0 * inner;
        waste_batch_expert(f->k, gate, &g, x, e->tokens, r0, r1, scratch);
        waste_batch_expert(f->k, up, &u, x, e->tokens, r0, r1, scratch);
        for (uint32_t i = 0; i < waste_batch_tiles(e->tokens); i++) {
            size_t at = ((size_t)i * inner + r0) * WASTE_TILE;
            f->k->glu(gate + at, gate + at, up + at, (r1 - r0) * WASTE_TILE, &f->act);
        }
    }
}

static void down_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_chunk *c = f->chunk;
    uint32_t task, width = f->cfg->expert_width, inner = f->cfg->expert_inner;

    while (waste_team_claim(f->team, worker, &task)) {
        const struct waste_chunk_expert *e = expert_of_task(c, width, &task);
        struct waste_vq_matrix m = matrix(f, e->place, WASTE_KIND_DOWN);
        uint32_t r0 = task * e->rows, r1 = r0 + e->rows < width ? r0 + e->rows : width;
        size_t tile0 = (size_t)e->tile0 * WASTE_TILE;
        float *y = c->down_e + tile0 * width;
        waste_batch_expert(f->k, y, &m, c->gate_e + tile0 * inner, e->tokens, r0, r1,
                           c->worker[worker].scratch);
        waste_batch_unpack(f->k, c->pairs, width, e->pair, NULL, y, e->tokens, width, r0, r1);
    }
}

/* The experts in c->place become the batch. */
static void set_batch(struct waste_forward *f, uint32_t count)
{
    struct waste_chunk *c = f->chunk;
    uint32_t lookups = f->k->lookup_tokens[f->env.shm.model->expert.fmt];
    uint32_t inner = f->cfg->expert_inner, width = f->cfg->expert_width;

    c->batch_count = count;
    c->batch_tiles = c->up_tasks = c->down_tasks = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct waste_stream_expert *s = &c->stream.expert[c->place[i]];
        struct waste_chunk_expert *e = &c->batch[i];
        *e = (struct waste_chunk_expert){
            .place = c->place[i],
            .tokens = s->tokens,
            .tile0 = c->batch_tiles,
            /* tables are built once a call */
            .rows = s->tokens > lookups ? WASTE_CHUNK_ROWS : UINT32_MAX,
            .token = c->token + s->first,
            .pair = c->pair + s->first,
        };
        c->batch_tiles += waste_batch_tiles(s->tokens);
        c->up_tasks += waste_chunk_tasks(e, inner);
        c->down_tasks += waste_chunk_tasks(e, width);
    }
}

static int run_batch(struct waste_forward *f)
{
    struct waste_chunk *c = f->chunk;
    int err = waste_chunk_phase(f, WASTE_PHASE_EXPERTS, gather_phase, c->batch_tiles);

    if (!err)
        err = waste_chunk_phase(f, WASTE_PHASE_EXPERTS, up_phase, c->up_tasks);
    if (!err)
        err = waste_chunk_phase(f, WASTE_PHASE_EXPERTS, down_phase, c->down_tasks);
    if (err)
        return err;
    for (uint32_t i = 0; i < c->batch_count; i++)
        waste_stream_done(&c->stream, c->batch[i].place);
    return 0;
}

static int take_experts(struct waste_forward *f, uint32_t *count)
{
    struct waste_chunk *c = f->chunk;

    return waste_stream_take(&c->stream, c->room, c->place, count, f->error, sizeof f->error);
}

static int run_experts(struct waste_forward *f)
{
    struct waste_chunk *c = f->chunk;
    uint32_t count;
    int err = 0;

    while (!err && c->stream.left) {
        err = waste_forward_wait(f, take_experts, &count);
        if (err)
            break;
        set_batch(f, count);
        err = run_batch(f);
    }
    return err;
}

/* ---- sums ---- */

/* y[expert_width] = the token's choices, in selection order. */
static void sum_choices(const struct waste_forward *f, float *y, uint32_t t)
{
    const struct waste_chunk *c = f->chunk;
    uint32_t width = f->cfg->expert_width, top_k = f->cfg->top_k;
    size_t first = (size_t)t * top_k;

    memset(y, 0, width * sizeof *y);
    for (uint32_t i = 0; i < top_k; i++)
        f->k->axpy(y, c->weight[first + i], c->pairs + (first + i) * width, width);
}

/* With a latent: normed and packed for latent up. Else into `out`, with the shared experts'. */
static void sum_tile(struct waste_forward *f, uint32_t worker, uint32_t tile)
{
    struct waste_chunk *c = f->chunk;
    float *rows = c->worker[worker].rows;
    uint32_t width = f->cfg->expert_width, n = waste_chunk_tile_tokens(c, tile);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t t = tile * WASTE_TILE + i;
        float *y = rows + (size_t)i * width, *out = c->out + (size_t)t * width;
        sum_choices(f, y, t);
        if (f->cfg->latent) {
            if (f->cfg->latent_norm)
                waste_rms_norm(f, y, y, &f->w->m[WASTE_T_LATENT_NORM], width);
        } else if (f->cfg->shared_experts) {
            f->k->add(out, y, width);
        } else {
            memcpy(out, y, width * sizeof *y);
        }
    }
    if (f->cfg->latent)
        f->k->pack(c->routed + (size_t)tile * WASTE_TILE * width, rows, width, NULL, n, width);
}

static void sum_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    uint32_t tile;

    while (waste_team_claim(f->team, worker, &tile))
        sum_tile(f, worker, tile);
}

/* out += latent up's rows. */
static void add_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_chunk *c = f->chunk;
    uint32_t tile, n = f->cfg->hidden;

    while (waste_team_claim(f->team, worker, &tile)) {
        size_t at = (size_t)tile * WASTE_TILE * n;
        f->k->add(c->out + at, c->latent_out + at, waste_chunk_tile_tokens(c, tile) * n);
    }
}

static int latent_up(struct waste_forward *f)
{
    struct waste_chunk *c = f->chunk;
    bool shared = f->cfg->shared_experts > 0;

    waste_chunk_products_begin(c);
    waste_chunk_product_rows(c, &f->w->m[WASTE_T_LATENT_UP], c->routed,
                             shared ? c->latent_out : c->out);
    int err = waste_chunk_products_run(f);
    if (!err && shared)
        err = waste_chunk_phase(f, WASTE_PHASE_EXPERTS, add_phase, c->tiles);
    return err;
}

int waste_chunk_moe(struct waste_forward *f)
{
    struct waste_chunk *c = f->chunk;
    int err = route(f);

    if (!err && f->cfg->shared_experts) {
        waste_chunk_products_begin(c);
        waste_chunk_product_rows(c, &f->w->m[WASTE_T_SHARED_DOWN], c->gate_h, c->out);
        err = waste_chunk_products_run(f);
    }
    if (!err)
        err = run_experts(f);
    if (err)
        return err;
    learn(f);
    err = waste_chunk_phase(f, WASTE_PHASE_EXPERTS, sum_phase, c->tiles);
    return !err && f->cfg->latent ? latent_up(f) : err;
}
