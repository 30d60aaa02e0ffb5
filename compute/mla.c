/*
 * Multi-head latent attention without positional encoding, one token, absorbed: the cache holds one
 * row a position, the normed latent and the shared rope part, and every head reads those. Five
 * phases.
 *
 *   1  norm; rows of q (or q_a), kv_a and the output gate
 *   2  a head a task: q_b, and the query carried through kv_b's key rows; this position's cache row
 *   3  a chunk of positions and a group of heads a task: scores, partial softmax, mix of latents
 *   4  a head a task: chunks joined in order, kv_b's value rows, output gate
 *   5  o_proj and the residual sum
 */
#include <math.h>
#include <string.h>

#include "compute/forward_int.h"

enum { TASKS_EACH = 4 /* scores tasks a worker, where heads can be split */ };

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

static uint32_t chunks(const struct waste_forward *f)
{
    return f->position / WASTE_MLA_CHUNK + 1;
}

/* Heads of a scores task: as many as share a walk best, fewer where workers would wait long for
 * the last task. A head's bits do not depend on it. */
static uint32_t group_heads(const struct waste_forward *f)
{
    uint32_t count = WASTE_MLA_HEADS, threads = waste_team_threads(f->team);
    uint64_t work = (uint64_t)(f->position + 1) * f->cfg->mla_heads;

    while (count > WASTE_MLA_HEADS_MIN &&
           (uint64_t)count * WASTE_MLA_CHUNK * threads * TASKS_EACH > work)
        count /= 2;
    return count;
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
    uint32_t each = group_heads(f);
    return (f->cfg->mla_heads + each - 1) / each;
}

/* Scores of one chunk for one group of heads, and the latents mixed by them, not yet divided by the
 * sum: part[chunk][head][kv_lora], with the chunk's own maximum and sum. */
static void attend(struct waste_forward *f, struct waste_worker *wk, uint32_t chunk, uint32_t group)
{
    const struct waste_config *c = f->cfg;
    uint32_t t0 = chunk * WASTE_MLA_CHUNK, each = group_heads(f), h0 = group * each;
    uint32_t left = f->position + 1 - t0, n = left < WASTE_MLA_CHUNK ? left : WASTE_MLA_CHUNK;
    uint32_t count = c->mla_heads - h0 < each ? c->mla_heads - h0 : each;
    uint32_t width = row_floats(c);
    size_t at = (size_t)chunk * c->mla_heads + h0;
    const float *rows = waste_mla_rows(f) + (size_t)t0 * width;
    float *mixed = f->part + at * c->kv_lora;

    f->k->mla_scores(wk->score, WASTE_MLA_CHUNK, f->absorbed + (size_t)h0 * width, width, count,
                     rows, width, width, n, 1.0f / sqrtf((float)(c->nope_dim + c->rope_dim)));
    for (uint32_t h = 0; h < count; h++)
        f->part_sum[at + h] =
            f->k->softmax_part(wk->score + h * WASTE_MLA_CHUNK, n, &f->part_max[at + h]);
    memset(mixed, 0, (size_t)count * c->kv_lora * sizeof *mixed);
    f->k->mla_mix(mixed, c->kv_lora, wk->score, WASTE_MLA_CHUNK, count, rows, c->kv_lora, width, n);
}

static void scores(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    uint32_t task, groups = head_groups(f);

    while (waste_team_claim(f->team, worker, &task))
        attend(f, &f->worker[worker], task / groups, task % groups);
}

/* latent[kv_lora] = the chunks' parts of one head joined: each weighs exp(its max - the max). */
static void join_chunks(const struct waste_forward *f, float *latent, uint32_t head)
{
    const struct waste_config *c = f->cfg;
    uint32_t count = chunks(f);
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
        join_chunks(f, wk->head, head);
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
    waste_forward_run(f, WASTE_PHASE_ATTENTION, queries, 1 + heads);
    waste_forward_run(f, WASTE_PHASE_ATTENTION, scores, chunks(f) * head_groups(f));
    waste_forward_run(f, WASTE_PHASE_ATTENTION, values, heads);
    waste_attention_out(f, &m[WASTE_T_MLA_O]);
    return 0;
}
