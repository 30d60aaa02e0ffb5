/*
 * Kimi Delta Attention of a chunk.
 *
 *   1  norm, packed                                            a tile of tokens a task
 *   2  q, k, v, f_a, b and the gate                            rows of all tokens
 *   3  f_b and g_b
 *   4  a head a task, token after token: convolution, decay, the state's step, o_norm, gate
 *   5  o_proj
 *
 * Phase 4 does for each token what a step does, with the same kernels: a head's state stays in the
 * core's cache for the whole chunk, so the numbers of decode cost little (README).
 */
#include <math.h>
#include <string.h>

#include "compute/chunk.h"

enum { Q, K, V };

static size_t width_of(const struct waste_config *c)
{
    return (size_t)c->kda_heads * c->kda_dim;
}

/* The w - 1 inputs before token t of one head's channels, oldest first. */
static const float *inputs_before(struct waste_forward *f, struct waste_chunk_worker *wk,
                                  const float *rows, uint32_t which, uint32_t head, uint32_t t,
                                  size_t *stride)
{
    uint32_t dim = f->cfg->kda_dim, n = f->cfg->conv_width - 1;
    size_t width = width_of(f->cfg), at = (size_t)head * dim;
    const float *old = waste_kda_history(f, f->bank, which);

    if (t >= n) {
        *stride = width;
        return rows + (t - n) * width + at;
    }
    *stride = dim;
    for (uint32_t i = 0; i < n; i++) {
        float *to = wk->history + (size_t)i * dim;
        if (i + t >= n)
            memcpy(to, rows + (i + t - n) * width + at, dim * sizeof *to);
        else if (f->position)
            memcpy(to, old + (i + t) * width + at, dim * sizeof *to);
        else
            memset(to, 0, dim * sizeof *to);
    }
    return wk->history;
}

static void convolve(struct waste_forward *f, struct waste_chunk_worker *wk, float *y,
                     const float *rows, uint32_t which, uint32_t head, uint32_t t,
                     const struct waste_matrix *weight)
{
    uint32_t dim = f->cfg->kda_dim, width = f->cfg->conv_width;
    size_t at = (size_t)head * dim, stride;
    const float *before = inputs_before(f, wk, rows, which, head, t, &stride);

    f->k->conv_silu(y, rows + t * width_of(f->cfg) + at, before,
                    waste_weights_vector(weight) + at * width, dim, (uint32_t)stride, width);
}

/* The chunk's last inputs become the history in the other bank. */
static void keep_history(struct waste_forward *f, struct waste_chunk_worker *wk, const float *rows,
                         uint32_t which, uint32_t head)
{
    uint32_t dim = f->cfg->kda_dim;
    size_t width = width_of(f->cfg), stride;
    const float *last = inputs_before(f, wk, rows, which, head, f->chunk->count, &stride);
    float *new = waste_kda_history(f, 1 - f->bank, which) + (size_t)head *dim;

    for (uint32_t i = 0; i + 1 < f->cfg->conv_width; i++)
        memcpy(new + i *width, last + i * stride, dim * sizeof *new);
}

static void head_token(struct waste_forward *f, uint32_t worker, uint32_t head, uint32_t t,
                       const float *from, float *to)
{
    const struct waste_config *cfg = f->cfg;
    const struct waste_matrix *m = f->w->m;
    struct waste_chunk *c = f->chunk;
    struct waste_chunk_worker *wk = &c->worker[worker];
    uint32_t dim = cfg->kda_dim;
    size_t at = t * width_of(cfg) + (size_t)head * dim;
    float *q = f->worker[worker].head, *k = q + dim, *v = k + dim, *o = c->att + at;
    float *decay = c->decay + at;
    float rate = expf(waste_weights_vector(&m[WASTE_T_KDA_A_LOG])[head]);
    float beta = 1.0f / (1.0f + expf(-c->b[(size_t)t * cfg->kda_heads + head]));

    convolve(f, wk, q, c->q, Q, head, t, &m[WASTE_T_KDA_Q_CONV]);
    convolve(f, wk, k, c->k, K, head, t, &m[WASTE_T_KDA_K_CONV]);
    convolve(f, wk, v, c->v, V, head, t, &m[WASTE_T_KDA_V_CONV]);
    waste_kda_normalise(f, q, dim, 1.0f / sqrtf((float)dim));
    waste_kda_normalise(f, k, dim, 1.0f);
    f->k->kda_decay(decay, decay,
                    waste_weights_vector(&m[WASTE_T_KDA_DT_BIAS]) + (size_t)head * dim, rate,
                    cfg->has_gate_lower_bound, cfg->gate_lower_bound, dim);
    f->k->kda_step(o, to, from, q, k, v, decay, beta, dim);
    waste_rms_norm(f, o, o, &m[WASTE_T_KDA_O_NORM], dim);
    f->k->sigmoid_mul(o, c->gate + at, dim);
}

static void heads_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_chunk *c = f->chunk;
    uint32_t head, dim = f->cfg->kda_dim;

    while (waste_team_claim(f->team, worker, &head)) {
        size_t at = (size_t)head * dim * dim;
        float *to = (float *)waste_kda_state(f, 1 - f->bank) + at;
        const float *from = (const float *)waste_kda_state(f, f->bank) + at;
        for (uint32_t t = 0; t < c->count; t++) {
            head_token(f, worker, head, t, t ? to : f->position ? from : f->zero, to);
            if (t % 256 == 0)
                waste_chunk_tick(f, worker);
        }
        keep_history(f, &c->worker[worker], c->q, Q, head);
        keep_history(f, &c->worker[worker], c->k, K, head);
        keep_history(f, &c->worker[worker], c->v, V, head);
    }
}

static int projections(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    struct waste_chunk *c = f->chunk;

    waste_chunk_products_begin(c);
    waste_chunk_product_rows(c, &m[WASTE_T_KDA_Q], c->x, c->q);
    waste_chunk_product_rows(c, &m[WASTE_T_KDA_K], c->x, c->k);
    waste_chunk_product_rows(c, &m[WASTE_T_KDA_V], c->x, c->v);
    if (f->cfg->kda_full_gate)
        waste_chunk_product_rows(c, &m[WASTE_T_KDA_G], c->x, c->gate);
    else
        waste_chunk_product_tiled(c, &m[WASTE_T_KDA_G_A], c->x, c->g_a);
    waste_chunk_product_tiled(c, &m[WASTE_T_KDA_F_A], c->x, c->f_a);
    waste_chunk_product_rows(c, &m[WASTE_T_KDA_B], c->x, c->b);
    int err = waste_chunk_products_run(f);
    if (err)
        return err;
    waste_chunk_products_begin(c);
    waste_chunk_product_rows(c, &m[WASTE_T_KDA_F_B], c->f_a, c->decay);
    if (!f->cfg->kda_full_gate)
        waste_chunk_product_rows(c, &m[WASTE_T_KDA_G_B], c->g_a, c->gate);
    return waste_chunk_products_run(f);
}

int waste_chunk_kda(struct waste_forward *f)
{
    int err = projections(f);

    if (!err)
        err = waste_chunk_phase(f, WASTE_PHASE_ATTENTION, heads_phase, f->cfg->kda_heads);
    return err ? err : waste_chunk_attention_out(f, &f->w->m[WASTE_T_KDA_O]);
}
