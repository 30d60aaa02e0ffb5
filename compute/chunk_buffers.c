/* Where every buffer of a chunk lies: both sizes and places, as buffers.c does for a step. */
#include "compute/chunk.h"

enum { SPARE_TILES = 16 }; /* of a batch of experts, beyond one that has all tokens */

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void layout_attention(const struct waste_config *cfg, struct waste_chunk *c,
                             struct waste_arena *a)
{
    uint32_t kda = cfg->kda_heads * cfg->kda_dim,
             q = cfg->mla_heads * (cfg->nope_dim + cfg->rope_dim);
    uint32_t v = cfg->mla_heads * cfg->v_dim, att = max_u32(kda, v);
    size_t most = c->most;

    c->q = waste_arena_floats(a, most * max_u32(kda, q));
    c->k = waste_arena_floats(a, most * kda);
    c->v = waste_arena_floats(a, most * kda);
    c->decay = waste_arena_floats(a, most * kda);
    c->gate = waste_arena_floats(a, most * max_u32(kda, cfg->mla_out_gate ? v : 0));
    c->f_a = waste_arena_floats(a, waste_batch_floats(cfg->kda_dim, c->most));
    c->g_a = waste_arena_floats(a, waste_batch_floats(cfg->kda_dim, c->most));
    c->b = waste_arena_floats(a, most * cfg->kda_heads);
    c->q_a = waste_arena_floats(a, most * cfg->q_lora);
    c->kv_a = waste_arena_floats(a, most * (cfg->kv_lora + cfg->rope_dim));
    c->att = waste_arena_floats(a, most * att);
    c->tiled = waste_arena_floats(a, waste_batch_floats(max_u32(att, cfg->q_lora), c->most));
}

static void layout_ffn(const struct waste_config *cfg, struct waste_chunk *c, struct waste_arena *a)
{
    uint32_t inner = max_u32(cfg->dense_inner, cfg->shared_experts * cfg->expert_inner);
    uint32_t width = cfg->expert_width;
    size_t most = c->most, choices = most * cfg->top_k;

    c->gate_h = waste_arena_floats(a, waste_batch_floats(inner, c->most));
    c->up_h = waste_arena_floats(a, waste_batch_floats(inner, c->most));
    if (cfg->dense_layers >= cfg->layers)
        return;
    c->logits = waste_arena_floats(a, most * cfg->experts);
    c->id = waste_arena_carve(a, choices, sizeof *c->id);
    c->weight = waste_arena_floats(a, choices);
    c->token = waste_arena_carve(a, choices, sizeof *c->token);
    c->pair = waste_arena_carve(a, choices, sizeof *c->pair);
    c->z = waste_arena_floats(a, most * width);
    c->pairs = waste_arena_floats(a, most * max_u32(cfg->top_k * width, cfg->hidden));
    c->latent_out = c->pairs;
    c->routed = waste_arena_floats(a, cfg->latent ? waste_batch_floats(width, c->most) : 0);
    c->room = waste_batch_tiles(c->most) + SPARE_TILES;
    c->in = waste_arena_floats(a, (size_t)c->room * WASTE_TILE * width);
    c->gate_e = waste_arena_floats(a, (size_t)c->room * WASTE_TILE * cfg->expert_inner);
    c->up_e = waste_arena_floats(a, (size_t)c->room * WASTE_TILE * cfg->expert_inner);
    c->down_e = waste_arena_floats(a, (size_t)c->room * WASTE_TILE * width);
}

/* Lists that live from layer to layer. */
static void layout_experts(const struct waste_config *cfg, struct waste_chunk *c,
                           struct waste_arena *a)
{
    if (cfg->dense_layers >= cfg->layers)
        return;
    c->votes = waste_arena_carve(a, cfg->experts, sizeof *c->votes);
    c->first = waste_arena_carve(a, cfg->experts, sizeof *c->first);
    c->place = waste_arena_carve(a, cfg->experts, sizeof *c->place);
    c->batch = waste_arena_carve(a, cfg->experts, sizeof *c->batch);
    c->stream_memory = waste_arena_carve(a, waste_stream_bytes(cfg->experts), 1);
}

static void layout_worker(const struct waste_forward *f, uint32_t most, struct waste_arena *a,
                          struct waste_chunk_worker *wk)
{
    const struct waste_config *c = f->cfg;
    uint32_t rows = max_u32(c->expert_inner, c->expert_width);
    uint32_t absorb = min_u32(most, WASTE_CHUNK_ABSORB), row = c->kv_lora + c->rope_dim;

    wk->scratch = waste_arena_floats(a, waste_batch_scratch_floats(f->k, most, rows));
    wk->rows = waste_arena_floats(a, (size_t)WASTE_TILE * max_u32(c->hidden, c->expert_width));
    wk->ahead = waste_arena_floats(a, (size_t)WASTE_TILE * c->hidden);
    wk->history = waste_arena_floats(a, (size_t)c->conv_width * c->kda_dim);
    wk->ahead_id = waste_arena_carve(a, c->top_k, sizeof *wk->ahead_id);
    wk->ahead_weight = waste_arena_floats(a, c->top_k);
    wk->choice = waste_arena_floats(a, c->experts);
    if (!c->mla_layers)
        return;
    wk->keys = waste_arena_floats(a, (size_t)WASTE_CHUNK_KEYS * (c->nope_dim + c->rope_dim));
    wk->values = waste_arena_floats(a, (size_t)WASTE_CHUNK_KEYS * c->v_dim);
    wk->latents =
        waste_arena_floats(a, waste_batch_floats(c->kv_lora, max_u32(WASTE_CHUNK_KEYS, absorb)));
    wk->scores = waste_arena_floats(a, WASTE_TILE * WASTE_CHUNK_KEYS);
    wk->tile =
        waste_arena_floats(a, waste_mla_query_floats(max_u32(row, c->nope_dim + c->rope_dim)));
    wk->queries = waste_arena_floats(a, (size_t)absorb * row);
    wk->mixes = waste_arena_floats(a, (size_t)absorb * c->kv_lora);
    wk->max = waste_arena_floats(a, most);
    wk->sum = waste_arena_floats(a, most);
}

size_t waste_chunk_layout(struct waste_forward *f, char *base, uint32_t threads, uint32_t most)
{
    const struct waste_config *cfg = f->cfg;
    uint32_t blocks = cfg->res_block ? (cfg->layers + cfg->res_block - 1) / cfg->res_block : 0;
    struct waste_chunk measured, *c = base ? f->chunk : &measured;
    struct waste_arena a = {.base = base}, attention;

    c->most = most;
    c->blocks = waste_arena_floats(&a, (size_t)(blocks + 1) * most * cfg->hidden);
    c->x = waste_arena_floats(&a, waste_batch_floats(cfg->hidden, most));
    c->out = waste_arena_floats(&a, waste_batch_floats(cfg->hidden, most));
    layout_experts(cfg, c, &a);
    for (uint32_t i = 0; i < threads; i++)
        layout_worker(f, most, &a, base ? &c->worker[i] : &(struct waste_chunk_worker){0});
    attention = a; /* the halves of a layer share their memory */
    layout_attention(cfg, c, &attention);
    layout_ffn(cfg, c, &a);
    return a.bytes > attention.bytes ? a.bytes : attention.bytes;
}
