/* The orchestration of a chunk, and its residual stream. */
#include "compute/chunk.h"

#include <errno.h>
#include <string.h>

#include "shm/inject.h"

int waste_chunk_phase(struct waste_forward *f, enum waste_phase phase, waste_phase_fn *fn,
                      uint32_t tasks)
{
    waste_forward_run_single(f, phase, fn, tasks);
    WASTE_POINT(CHUNK_PHASE);
    return waste_forward_check(f, WASTE_ACT_COMPUTING);
}

void waste_chunk_tick(struct waste_forward *f, uint32_t worker)
{
    if (!worker)
        waste_forward_tick(f);
}

/* running += out (or = out), token t. */
static void settle(struct waste_forward *f, uint32_t t)
{
    struct waste_chunk *c = f->chunk;
    size_t at = (size_t)t * f->cfg->hidden;

    if (!c->pending)
        return;
    if (c->assign)
        memcpy(f->running + at, c->out + at, f->cfg->hidden * sizeof *c->out);
    else
        f->k->add(f->running + at, c->out + at, f->cfg->hidden);
}

void waste_chunk_note_bad(struct waste_chunk *c, uint32_t t)
{
    /* relaxed: read when the phase is over */
    uint32_t seen = atomic_load_explicit(&c->bad, memory_order_relaxed);

    while (t < seen && !atomic_compare_exchange_weak_explicit(
                           &c->bad, &seen, t, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* What the next layer's router would read if nothing were added until then. */
static void look_ahead(struct waste_forward *f, uint32_t worker, uint32_t t, float *y)
{
    const struct waste_matrix *m = f->w[1].m;
    const float *x = waste_residual_mix(f, worker, f->running + (size_t)t * f->cfg->hidden,
                                        &m[WASTE_T_MLP_RES_NORM], &m[WASTE_T_MLP_RES_PROJ]);

    waste_rms_norm(f, y, x, &m[WASTE_T_POST_NORM], f->cfg->hidden);
}

static void input_tile(struct waste_forward *f, uint32_t worker, uint32_t tile)
{
    struct waste_chunk *c = f->chunk;
    struct waste_chunk_worker *wk = &c->worker[worker];
    uint32_t n = f->cfg->hidden, tokens = waste_chunk_tile_tokens(c, tile);
    size_t at = (size_t)tile * WASTE_TILE * n;

    for (uint32_t i = 0; i < tokens; i++) {
        uint32_t t = tile * WASTE_TILE + i;
        float *row = wk->rows + (size_t)i * n;
        settle(f, t);
        const float *x = waste_residual_mix(f, worker, f->running + (size_t)t * n,
                                            f->input.res_norm, f->input.res_proj);
        if (!waste_rms_norm(f, row, x, f->input.norm, n))
            waste_chunk_note_bad(c, t);
        if (c->ahead)
            look_ahead(f, worker, t, wk->ahead + (size_t)i * n);
        if (c->z_is_input)
            memcpy(c->z + (size_t)t * n, row, n * sizeof *row);
    }
    f->k->pack(c->x + at, wk->rows, n, NULL, tokens, n);
    if (c->ahead) /* `out` has been added: its place is free */
        f->k->pack(c->out + at, wk->ahead, n, NULL, tokens, n);
}

static void input_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    uint32_t tile;

    while (waste_team_claim(f->team, worker, &tile))
        input_tile(f, worker, tile);
}

/* Into c->x, what f->input makes of the residual stream; -EDOM if that is not finite. */
static int input(struct waste_forward *f)
{
    struct waste_chunk *c = f->chunk;
    int err = waste_chunk_phase(f, WASTE_PHASE_TRUNK, input_phase, c->tiles);

    c->pending = false;
    return err ? err : waste_chunk_bad(f, "attention");
}

int waste_chunk_bad(struct waste_forward *f, const char *what)
{
    /* relaxed: the phase is over */
    uint32_t bad = atomic_load_explicit(&f->chunk->bad, memory_order_relaxed);

    if (bad == UINT32_MAX)
        return 0;
    f->position += bad;
    return waste_forward_bad(f, what);
}

static int attention(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    struct waste_chunk *c = f->chunk;

    c->ahead = c->z_is_input = false;
    f->input = (struct waste_input){&m[WASTE_T_ATT_RES_NORM], &m[WASTE_T_ATT_RES_PROJ],
                                    &m[WASTE_T_INPUT_NORM]};
    int err = input(f);
    if (err == -EDOM)
        return waste_forward_bad_input(f);
    if (err)
        return err;
    waste_residual_advance(f);
    err = f->w->layer->is_kda ? waste_chunk_kda(f) : waste_chunk_mla(f);
    c->pending = true;
    c->assign = f->fresh;
    return err;
}

static int feed_forward(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    struct waste_chunk *c = f->chunk;
    bool moe = f->w->layer->is_moe;

    c->ahead = moe && f->env.shm.control->options.lookahead && f->layer + 1 < f->cfg->layers &&
               f->w[1].layer->is_moe;
    c->z_is_input = moe && !f->cfg->latent;
    f->input = (struct waste_input){&m[WASTE_T_MLP_RES_NORM], &m[WASTE_T_MLP_RES_PROJ],
                                    &m[WASTE_T_POST_NORM]};
    int err = input(f);
    if (!err)
        err = moe ? waste_chunk_moe(f) : waste_chunk_dense(f);
    c->pending = true;
    c->assign = false;
    return err;
}

static int run_layer(struct waste_forward *f, uint32_t layer)
{
    int64_t start = waste_forward_now_ns(), waited = f->expert_wait_ns;
    int err;

    f->layer = layer;
    f->w = &f->weights.layer[layer];
    err = waste_forward_check(f, WASTE_ACT_COMPUTING);
    if (!err)
        err = attention(f);
    if (!err)
        err = feed_forward(f);
    if (!err)
        waste_layer_meter_add(&f->env.shm.layer_meter[layer], f->chunk->count,
                              (uint64_t)(waste_forward_now_ns() - start),
                              (uint64_t)(f->expert_wait_ns - waited));
    WASTE_POINT(CHUNK_LAYER);
    return err;
}

static void pack_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_chunk *c = f->chunk;
    uint32_t tile, cols = c->product[0].w->cols;

    while (waste_team_claim(f->team, worker, &tile))
        waste_batch_pack(f->k, c->tiled, c->att, cols, NULL, c->count, cols, tile, tile + 1);
}

int waste_chunk_attention_out(struct waste_forward *f, const struct waste_matrix *o_proj)
{
    struct waste_chunk *c = f->chunk;

    waste_chunk_products_begin(c);
    waste_chunk_product_rows(c, o_proj, c->tiled, c->out);
    int err = waste_chunk_phase(f, WASTE_PHASE_ATTENTION, pack_phase, c->tiles);
    return err ? err : waste_chunk_products_run(f);
}

/* The logits of the last token, by the way a step computes them. */
static int last_logits(struct waste_forward *f, float *logits)
{
    struct waste_chunk *c = f->chunk;
    uint32_t last = c->count - 1;

    settle(f, last);
    f->running += (size_t)last * f->cfg->hidden;
    f->position += last;
    return waste_forward_head(f, logits);
}

int waste_chunk_finish(struct waste_forward *f)
{
    f->input = waste_forward_head_input(f);
    f->chunk->ahead = f->chunk->z_is_input = false;
    int err = waste_chunk_phase(f, WASTE_PHASE_TRUNK, input_phase, f->chunk->tiles);

    f->chunk->pending = false;
    return err ? err : waste_chunk_bad(f, "ffn");
}

int waste_chunk_logits(struct waste_forward *f, uint32_t first, uint32_t count, float *logits)
{
    struct waste_chunk *c = f->chunk;
    uint32_t all = c->count, tiles = c->tiles;

    c->count = count;
    c->tiles = waste_batch_tiles(count);
    waste_chunk_products_begin(c);
    waste_chunk_product_rows(c, &f->weights.m[WASTE_M_LM_HEAD],
                             c->x + (size_t)first * f->cfg->hidden, logits);
    int err = waste_chunk_products_run(f);
    c->count = all;
    c->tiles = tiles;
    return err;
}

int waste_chunk_run(struct waste_forward *f, const uint32_t *token, uint32_t count, float *logits)
{
    struct waste_chunk *c = f->chunk;
    uint32_t first = f->position;
    int err = 0;

    c->count = count;
    c->tiles = waste_batch_tiles(count);
    c->pending = false;
    atomic_store_explicit(&c->bad, UINT32_MAX, memory_order_relaxed);
    f->running = c->blocks;
    f->block_stride = (size_t)c->most * f->cfg->hidden;
    for (uint32_t t = 0; t < count && !err; t++) {
        waste_forward_want(f, first + t, token + t, count - t);
        f->position = first + t;
        err = waste_forward_embed(f, f->running + (size_t)t * f->cfg->hidden, token[t]);
    }
    f->position = first;
    for (uint32_t layer = 0; layer < f->cfg->layers && !err; layer++)
        err = run_layer(f, layer);
    if (!err && logits)
        err = last_logits(f, logits);
    waste_stream_end(&c->stream);
    return err;
}
