/* Where every buffer of the forward pass lies: one function that both sizes and places them. */
#include <stdlib.h>

#include "compute/chunk.h"

/* Each half of an expert product is cut into about this many slices of positions. */
enum { SLICES = 9, MIN_SLICE_BLOCKS = 4 };

void *waste_arena_carve(struct waste_arena *a, size_t count, size_t size)
{
    size_t at = a->bytes;

    a->bytes += (count * size + 63) / 64 * 64;
    return a->base ? a->base + at : NULL;
}

float *waste_arena_floats(struct waste_arena *a, size_t count)
{
    return waste_arena_carve(a, count, sizeof(float));
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* A slice is a whole number of table blocks; small matrices are one slice. */
static struct waste_slices slices(uint32_t rows, uint32_t cols)
{
    uint32_t positions = cols / 8;
    uint32_t blocks = (positions + WASTE_VQ_BLOCK - 1) / WASTE_VQ_BLOCK;
    uint32_t each = max_u32((blocks + SLICES - 1) / SLICES, MIN_SLICE_BLOCKS);

    return (struct waste_slices){
        .positions = positions,
        .each = each * WASTE_VQ_BLOCK,
        .count = (blocks + each - 1) / each,
        .rows = rows,
        .padded = (rows + 63) / 64 * 64,
    };
}

/* The widest input of any product, as prepared activations. */
static uint32_t widest(const struct waste_config *c)
{
    uint32_t n = max_u32(c->hidden, max_u32(c->dense_inner, c->shared_experts * c->expert_inner));

    n = max_u32(n, max_u32(c->q_lora, c->kv_lora));
    n = max_u32(n, max_u32(c->kda_heads * c->kda_dim, c->mla_heads * c->v_dim));
    return max_u32(n, c->expert_width);
}

static void layout_residual(struct waste_forward *f, struct waste_arena *a)
{
    const struct waste_config *c = f->cfg;
    uint32_t blocks = c->res_block ? (c->layers + c->res_block - 1) / c->res_block : 0;

    f->blocks = waste_arena_floats(a, (size_t)(blocks + 1) * c->hidden);
}

static void layout_attention(struct waste_forward *f, struct waste_arena *a, uint32_t ctx)
{
    const struct waste_config *c = f->cfg;
    size_t kda = (size_t)c->kda_heads * c->kda_dim, row = c->kv_lora + c->rope_dim;
    size_t mla_q = (size_t)c->mla_heads * (c->nope_dim + c->rope_dim);
    size_t mla_v = (size_t)c->mla_heads * c->v_dim;
    size_t parts = (size_t)waste_mla_segments(ctx) * c->mla_heads;

    f->q = waste_arena_floats(a, kda > mla_q ? kda : mla_q);
    f->kk = waste_arena_floats(a, kda);
    f->v = waste_arena_floats(a, kda);
    f->f_a = waste_arena_floats(a, c->kda_dim);
    f->g_a = waste_arena_floats(a, c->kda_dim);
    f->b = waste_arena_floats(a, c->kda_heads);
    f->decay = waste_arena_floats(a, kda);
    f->gate = waste_arena_floats(a, kda > mla_v ? kda : mla_v);
    f->zero = waste_arena_floats(a, (size_t)max_u32(c->kda_dim, c->kda_heads) * c->kda_dim);
    f->att = waste_arena_floats(a, kda > mla_v ? kda : mla_v);
    f->att_out = waste_arena_floats(a, c->hidden);
    if (!c->mla_layers)
        return;
    f->q_a = waste_arena_floats(a, c->q_lora);
    f->kv_a = waste_arena_floats(a, row);
    f->absorbed = waste_arena_floats(a, c->mla_heads * row);
    f->part = waste_arena_floats(a, parts * c->kv_lora);
    f->part_max = waste_arena_floats(a, parts);
    f->part_sum = waste_arena_floats(a, parts);
    f->kv_b = waste_arena_floats(a, (size_t)c->mla_heads * (c->nope_dim + c->v_dim));
}

static void layout_ffn(struct waste_forward *f, struct waste_arena *a)
{
    const struct waste_config *c = f->cfg;
    uint32_t inner = max_u32(c->dense_inner, c->shared_experts * c->expert_inner);

    f->ffn_gate = waste_arena_floats(a, inner);
    f->ffn_up = waste_arena_floats(a, inner);
    f->ffn_h = waste_arena_floats(a, inner);
    f->ffn_out = waste_arena_floats(a, c->hidden);
    if (c->dense_layers >= c->layers)
        return;
    f->up_slices = slices(c->expert_inner, c->expert_width);
    f->down_slices = slices(c->expert_width, c->expert_inner);
    f->router = waste_arena_floats(a, c->experts);
    f->router_scratch = waste_arena_floats(a, c->experts);
    f->ffn_x = waste_arena_floats(a, c->hidden);
    f->z = c->latent ? waste_arena_floats(a, c->expert_width) : f->ffn_x;
    f->up_acc =
        waste_arena_floats(a, (size_t)c->top_k * 2 * f->up_slices.count * f->up_slices.padded);
    f->down_acc =
        waste_arena_floats(a, (size_t)c->top_k * f->down_slices.count * f->down_slices.padded);
    f->routed = waste_arena_floats(a, c->expert_width);
    f->latent_out = waste_arena_floats(a, c->latent ? c->hidden : 0);
    f->batch = waste_arena_carve(a, c->top_k, sizeof *f->batch);
    f->experts.id = waste_arena_carve(a, c->top_k, sizeof *f->experts.id);
    f->experts.weight = waste_arena_carve(a, c->top_k, sizeof *f->experts.weight);
    f->experts.slot = waste_arena_carve(a, c->top_k, sizeof *f->experts.slot);
    f->experts.record = waste_arena_carve(a, c->top_k, sizeof *f->experts.record);
}

static void layout_worker(const struct waste_forward *f, struct waste_arena *a,
                          struct waste_worker *wk)
{
    const struct waste_config *c = f->cfg;
    uint32_t xp = waste_act_floats(widest(c)), blocks = c->res_block ? c->layers / c->res_block : 0;

    wk->mixed = waste_arena_floats(a, c->hidden);
    wk->norm = waste_arena_floats(a, max_u32(c->hidden, max_u32(c->q_lora, c->expert_width)));
    wk->key = waste_arena_floats(a, c->res_block ? c->hidden : 0);
    wk->xp = waste_arena_floats(a, xp);
    wk->xp2 = waste_arena_floats(a, waste_act_floats(c->kda_dim));
    wk->head = waste_arena_floats(a, max_u32(3 * c->kda_dim, c->kv_lora));
    wk->score = waste_arena_floats(a, max_u32(WASTE_MLA_HEADS * WASTE_MLA_CHUNK, blocks + 2));
    if (c->mla_layers)
        wk->queries = waste_arena_floats(a, (c->mla_heads + WASTE_TILE - 1) / WASTE_TILE *
                                                waste_mla_query_floats(c->kv_lora + c->rope_dim));
    if (c->dense_layers >= c->layers)
        return;
    wk->slice = waste_arena_floats(a, (size_t)4 * 8 * f->down_slices.each);
    wk->tables =
        waste_arena_carve(a, f->k->vq_table_bytes(f->env.shm.model->expert.fmt, WASTE_VQ_BLOCK), 1);
}

size_t waste_forward_layout(struct waste_forward *f, char *base, uint32_t threads, uint32_t ctx)
{
    struct waste_arena a = {.base = base};

    layout_residual(f, &a);
    layout_attention(f, &a, ctx);
    layout_ffn(f, &a);
    for (uint32_t i = 0; i < threads; i++)
        layout_worker(f, &a, base ? &f->worker[i] : &(struct waste_worker){0});
    return a.bytes;
}

/* The program, the C library and their data, touched pages of a fresh process; measured. */
enum { PROGRAM_BYTES = 9 << 18, STACK_BYTES = 96 << 10 };

uint64_t waste_compute_private_bytes(const struct waste_model *model,
                                     const struct waste_options *options)
{
    struct waste_forward f = {.cfg = &model->config, .k = &f.env.kernels};

    f.env.shm.model = model;
    if (!waste_kernels_init(&f.env.kernels, getenv("WASTE_CPU")))
        waste_kernels_init(&f.env.kernels, NULL);
    uint32_t chunk = waste_forward_chunk_most(options);
    uint64_t chunks = chunk > 1 ? waste_chunk_layout(&f, NULL, options->threads, chunk) +
                                      options->threads * sizeof(struct waste_chunk_worker)
                                : 0;
    return waste_forward_layout(&f, NULL, options->threads, options->ctx) + chunks +
           waste_weights_bytes(model, f.k) + (uint64_t)model->config.vocab * 8 +
           (uint64_t)options->threads * (sizeof(struct waste_worker) + STACK_BYTES) + PROGRAM_BYTES;
}
