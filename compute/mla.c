/*
 * Multi-head latent attention without positional encoding, one token, absorbed: the cache holds one
 * row a position, the normed latent and the shared rope part, and every head reads those. Five
 * phases.
 *
 *   1  norm; rows of q (or q_a), kv_a and the output gate
 *   2  a head a task: q_b, and the query carried through kv_b's key rows; this position's cache row
 *   3  a segment of positions and a group of heads a task: scores, partial softmax, mix of latents
 *   4  a head a task: segments joined in order, kv_b's value rows, output gate
 *   5  o_proj and the residual sum
 */
#include <math.h>
#include <string.h>

#include "compute/forward_int.h"

enum {
    TASKS_EACH = 2,         /* scores tasks a worker, where heads can be divided */
    SAMPLE_ROWS = 8,        /* for the size of all */
    FETCH_BYTES = 16 << 10, /* what a product does not fetch early itself: its beginning */
};

/* Floats of a row of the cache, and of an absorbed query. */
static uint32_t row_floats(const struct waste_config *c)
{
    return c->kv_lora + c->rope_dim;
}

float *waste_mla_rows(const struct waste_forward *f)
{
    return (float *)((char *)f->env.session + f->env.conversation->latent_off +
                     f->w->layer->state_index * f->env.session->mla_layer_bytes);
}

/* Units of positions that a step meets. */
static uint32_t units(const struct waste_forward *f)
{
    return f->position / WASTE_MLA_UNIT + 1;
}

/* Where block `block` of a segment begins: as even a division of its units as there is. */
static uint32_t block_start(uint32_t units, uint32_t blocks, uint32_t block)
{
    return units * block / blocks;
}

static uint32_t blocks_of(uint32_t units)
{
    return (units + WASTE_MLA_BLOCK - 1) / WASTE_MLA_BLOCK;
}

uint32_t waste_mla_segments(uint32_t positions)
{
    uint32_t blocks = blocks_of((positions + WASTE_MLA_UNIT - 1) / WASTE_MLA_UNIT);

    return blocks < WASTE_MLA_SEGMENTS ? blocks : WASTE_MLA_SEGMENTS;
}

static uint32_t segments(const struct waste_forward *f)
{
    return waste_mla_segments(f->position + 1);
}

/* The unit a segment begins with: of x of all segments, those before, at 7/4 x - 3/4 x^2 of all
 * units, so that they get shorter and nobody waits long for the last one. None is empty. */
static uint32_t segment_start(const struct waste_forward *f, uint32_t segment)
{
    uint64_t i = segment, n = segments(f);

    return (uint32_t)(units(f) * (7 * n * i - 3 * i * i) / (4 * n * n));
}

static uint32_t groups_of(const struct waste_forward *f, uint32_t heads)
{
    return (f->cfg->mla_heads + heads - 1) / heads;
}

/* Heads of a scores task: as many as share a walk best, or half of them where workers would wait
 * long for the last task. A head's bits do not depend on it. */
static uint32_t group_heads(const struct waste_forward *f)
{
    uint32_t tasks = segments(f) * groups_of(f, WASTE_MLA_HEADS);

    return tasks < TASKS_EACH * waste_team_threads(f->team) ? WASTE_TILE : WASTE_MLA_HEADS;
}

static void write_cache_row(struct waste_forward *f)
{
    const struct waste_config *c = f->cfg;
    float *row = waste_mla_rows(f) + (size_t)f->position * row_floats(c);

    waste_rms_norm(f, row, f->kv_a, &f->w->m[WASTE_T_MLA_KV_A_NORM], c->kv_lora);
    memcpy(row + c->kv_lora, f->kv_a + c->kv_lora, c->rope_dim * sizeof *row);
}

/* absorbed[head] = (sum over i of q_nope[i] kv_b's i-th key row of this head, q_rope) */
static void absorb(struct waste_forward *f, uint32_t head)
{
    const struct waste_config *c = f->cfg;
    const struct waste_matrix *kv_b = &f->w->m[WASTE_T_MLA_KV_B];
    const float *q = f->q + (size_t)head * (c->nope_dim + c->rope_dim);
    float *out = f->absorbed + (size_t)head * row_floats(c);

    memset(out, 0, c->kv_lora * sizeof *out);
    f->k->axpy_rows[kv_b->fmt](out, kv_b, q, head * (c->nope_dim + c->v_dim), c->nope_dim);
    memcpy(out + c->kv_lora, q + c->nope_dim, c->rope_dim * sizeof *out);
}

/* Task 0 writes the cache row, task 1 + head absorbs. */
static void queries(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_worker *wk = &f->worker[worker];
    const struct waste_matrix *q_b = &f->w->m[WASTE_T_MLA_Q_B];
    uint32_t task, width = f->cfg->nope_dim + f->cfg->rope_dim;

    if (!waste_team_claim(f->team, worker, &task))
        return;
    if (f->cfg->q_lora) {
        waste_rms_norm(f, wk->norm, f->q_a, &f->w->m[WASTE_T_MLA_Q_A_NORM], f->cfg->q_lora);
        f->k->prepare(wk->xp, wk->norm, f->cfg->q_lora);
    }
    do {
        if (!task) {
            write_cache_row(f);
            continue;
        }
        if (f->cfg->q_lora)
            f->k->matvec[q_b->fmt](f->q, q_b, wk->norm, wk->xp, (task - 1) * width, task * width);
        absorb(f, task - 1);
    } while (waste_team_claim(f->team, worker, &task));
}

static uint32_t head_groups(const struct waste_forward *f)
{
    return groups_of(f, group_heads(f));
}

float waste_mla_row_squares(const struct waste_forward *f, const float *rows, uint32_t dim,
                            uint32_t stride, uint32_t n)
{
    uint32_t count = n < SAMPLE_ROWS ? n : SAMPLE_ROWS;
    float sum = 0;

    for (uint32_t t = 0; t < count; t++)
        sum += f->k->sum_squares(rows + (size_t)t * stride, dim);
    return sum / (float)count;
}

void waste_mla_softmax(const struct waste_forward *f, float *score, uint32_t n, float *max,
                       float *sum, float *o, uint32_t width, bool first)
{
    float top, part = f->k->softmax_part(score, n, &top), w;

    if (first) {
        *max = top;
        *sum = part;
    } else if (top <= *max) {
        w = expf(top - *max);
        f->k->scale(score, w, n);
        *sum += part * w;
    } else {
        w = expf(*max - top);
        f->k->scale(o, w, width);
        *sum = *sum * w + part;
        *max = top;
    }
}

/* Positions [t0, t0 + n) of a segment for `count` heads from h0 on: at is their place among the
 * parts. */
static void attend_block(struct waste_forward *f, struct waste_worker *wk, uint32_t t0, uint32_t n,
                         uint32_t h0, uint32_t count, size_t at, bool first)
{
    const struct waste_config *c = f->cfg;
    uint32_t width = row_floats(c);
    const float *rows = waste_mla_rows(f) + (size_t)t0 * width;
    float *mixed = f->part + at * c->kv_lora;

    f->k->mla_scores(wk->score, WASTE_MLA_CHUNK,
                     wk->queries + h0 / WASTE_TILE * waste_mla_query_floats(width), count, rows,
                     width, width, n);
    for (uint32_t h = 0; h < count; h++) {
        /* what mixing begins with was last touched a token ago: it comes meanwhile */
        for (uint32_t d = 0; first && d < c->kv_lora; d += WASTE_LINE_FLOATS)
            __builtin_prefetch(mixed + (size_t)h * c->kv_lora + d, 1, 2);
        waste_mla_softmax(f, wk->score + h * WASTE_MLA_CHUNK, n, &f->part_max[at + h],
                          &f->part_sum[at + h], mixed + (size_t)h * c->kv_lora, c->kv_lora, first);
    }
    if (first)
        memset(mixed, 0, (size_t)count * c->kv_lora * sizeof *mixed);
    f->k->mla_mix(mixed, c->kv_lora, wk->score, WASTE_MLA_CHUNK, count, rows, c->kv_lora, width, n);
}

/* One segment of positions for one group of heads: scores, and the latents mixed by them, not yet
 * divided by the sum: part[segment][head][kv_lora], with the segment's own maximum and sum. */
static void attend(struct waste_forward *f, struct waste_worker *wk, uint32_t segment,
                   uint32_t group)
{
    const struct waste_config *c = f->cfg;
    uint32_t each = group_heads(f), h0 = group * each;
    uint32_t count = c->mla_heads - h0 < each ? c->mla_heads - h0 : each;
    uint32_t u0 = segment_start(f, segment), length = segment_start(f, segment + 1) - u0;
    uint32_t blocks = blocks_of(length);
    size_t at = (size_t)segment * c->mla_heads + h0;

    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t t0 = (u0 + block_start(length, blocks, b)) * WASTE_MLA_UNIT;
        uint32_t t1 = (u0 + block_start(length, blocks, b + 1)) * WASTE_MLA_UNIT;
        t1 = t1 < f->position + 1 ? t1 : f->position + 1;
        attend_block(f, wk, t0, t1 - t0, h0, count, at, b == 0);
    }
}

/* The newest rows tell the size of all. */
static void pack_queries(struct waste_forward *f, struct waste_worker *wk)
{
    const struct waste_config *c = f->cfg;
    uint32_t width = row_floats(c), n = f->position + 1;
    uint32_t first = n > SAMPLE_ROWS ? n - SAMPLE_ROWS : 0;
    float squares = waste_mla_row_squares(f, waste_mla_rows(f) + (size_t)first * width, width,
                                          width, n - first);

    f->k->mla_queries(wk->queries, f->absorbed, width, c->mla_heads, width,
                      1.0f / sqrtf((float)(c->nope_dim + c->rope_dim)), squares);
}

static void scores(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    uint32_t task, groups = head_groups(f);

    if (!waste_team_claim(f->team, worker, &task))
        return;
    pack_queries(f, &f->worker[worker]);
    do
        attend(f, &f->worker[worker], task / groups, task % groups);
    while (waste_team_claim(f->team, worker, &task));
}

/* latent[kv_lora] = the segments' parts of one head joined: each weighs exp(its max - the max). */
static void join_segments(const struct waste_forward *f, float *latent, uint32_t head)
{
    const struct waste_config *c = f->cfg;
    uint32_t count = segments(f);
    float max = f->part_max[head], sum = 0;

    for (uint32_t i = 1; i < count; i++)
        max = fmaxf(max, f->part_max[(size_t)i * c->mla_heads + head]);
    for (uint32_t i = 0; i < count; i++) {
        size_t at = (size_t)i * c->mla_heads + head;
        sum += f->part_sum[at] * expf(f->part_max[at] - max);
    }
    memset(latent, 0, c->kv_lora * sizeof *latent);
    for (uint32_t i = 0; i < count; i++) {
        size_t at = (size_t)i * c->mla_heads + head;
        const float *next = f->part + (at + c->mla_heads) * c->kv_lora;
        for (uint32_t d = 0; i + 1 < count && d < c->kv_lora; d += WASTE_LINE_FLOATS)
            __builtin_prefetch(next + d, 0, 2);
        f->k->axpy(latent, expf(f->part_max[at] - max) / sum, f->part + at * c->kv_lora,
                   c->kv_lora);
    }
}

static void values(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    const struct waste_config *c = f->cfg;
    const struct waste_matrix *kv_b = &f->w->m[WASTE_T_MLA_KV_B];
    struct waste_worker *wk = &f->worker[worker];
    uint32_t head;

    while (waste_team_claim(f->team, worker, &head)) {
        uint32_t r0 = head * (c->nope_dim + c->v_dim) + c->nope_dim;
        float *out = f->att + (size_t)head * c->v_dim;
        for (uint64_t b = 0; b < FETCH_BYTES && b < c->v_dim * kv_b->row_bytes; b += 64)
            __builtin_prefetch(kv_b->data + r0 * kv_b->row_bytes + b, 0, 2);
        join_segments(f, wk->head, head);
        f->k->prepare(wk->xp, wk->head, c->kv_lora);
        f->k->matvec[kv_b->fmt](f->kv_b, kv_b, wk->head, wk->xp, r0, r0 + c->v_dim);
        memcpy(out, f->kv_b + r0, c->v_dim * sizeof *out);
        if (c->mla_out_gate)
            f->k->sigmoid_mul(out, f->gate + (size_t)head * c->v_dim, c->v_dim);
    }
}

int waste_mla(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    uint32_t heads = f->cfg->mla_heads;

    waste_products_begin(f);
    if (f->cfg->q_lora)
        waste_products_add(f, &m[WASTE_T_MLA_Q_A], f->q_a);
    else
        waste_products_add(f, &m[WASTE_T_MLA_Q], f->q);
    waste_products_add(f, &m[WASTE_T_MLA_KV_A], f->kv_a);
    if (f->cfg->mla_out_gate)
        waste_products_add(f, &m[WASTE_T_MLA_G], f->gate);
    waste_forward_run(f, WASTE_PHASE_TRUNK, waste_products_input_phase, f->product_tasks);
    if (f->bad)
        return waste_forward_bad_input(f);
    waste_residual_advance(f);
    waste_forward_run(f, WASTE_PHASE_TRUNK, queries, 1 + heads);
    waste_forward_run_single(f, WASTE_PHASE_ATTENTION, scores, segments(f) * head_groups(f));
    waste_forward_run(f, WASTE_PHASE_TRUNK, values, heads);
    waste_attention_out(f, &m[WASTE_T_MLA_O]);
    return 0;
}
