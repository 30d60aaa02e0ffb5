/*
 * Kimi Delta Attention, one token: three phases.
 *
 *   1  norm; rows of q, k, v, f_a, b and the gate             hidden -> heads * dim
 *   2  a head a task: convolution, decay, the state's step, o_norm, gate
 *   3  o_proj and the residual sum
 *
 * The state of a layer in bank b: S [heads][dim keys][dim values], then the convolutions' history
 * of q, k and v, each [width - 1][heads * dim] oldest first. Read from bank b, written to 1 - b.
 */
#include <math.h>
#include <string.h>

#include "compute/forward_int.h"

enum { Q, K, V };

float *waste_kda_state(const struct waste_forward *f, uint32_t bank)
{
    const struct waste_session_header *h = f->env.session;
    return (float *)((char *)h + f->env.conversation->bank_off[bank] +
                     f->w->layer->state_index * h->kda_layer_bytes);
}

float *waste_kda_history(const struct waste_forward *f, uint32_t bank, uint32_t which)
{
    const struct waste_config *c = f->cfg;
    size_t floats = (size_t)(c->conv_width - 1) * c->kda_heads * c->kda_dim;

    return waste_kda_state(f, bank) + f->env.session->kda_conv_off / sizeof(float) + which * floats;
}

/* y[dim] = SiLU(conv(x)) of one head's channels; the new history goes to the other bank. */
static void convolve(struct waste_forward *f, float *y, const float *x, uint32_t head,
                     uint32_t which, const struct waste_matrix *weight)
{
    uint32_t dim = f->cfg->kda_dim, stride = f->cfg->kda_heads * dim, width = f->cfg->conv_width;
    size_t at = (size_t)head * dim;
    const float *old = f->position ? waste_kda_history(f, f->bank, which) : f->zero;
    float *new = waste_kda_history(f, 1 - f->bank, which) + at;

    old += f->position ? at : 0;
    if (!f->position)
        stride = dim; /* f->zero is one head's */
    f->k->conv_silu(y, x + at, old, waste_weights_vector(weight) + at * width, dim, stride, width);
    for (uint32_t t = 0; t + 2 < width; t++)
        memcpy(new + (size_t)t * f->cfg->kda_heads *dim, old + (size_t)(t + 1) * stride,
               dim * sizeof *new);
    if (width > 1)
        memcpy(new + (size_t)(width - 2) * f->cfg->kda_heads *dim, x + at, dim * sizeof *new);
}

void waste_kda_normalise(const struct waste_forward *f, float *x, uint32_t n, float scale)
{
    float length = sqrtf(f->k->sum_squares(x, n));

    scale /= length > 1e-12f ? length : 1e-12f;
    for (uint32_t i = 0; i < n; i++)
        x[i] *= scale;
}

static void head_step(struct waste_forward *f, struct waste_worker *wk, uint32_t head)
{
    const struct waste_config *c = f->cfg;
    const struct waste_matrix *m = f->w->m;
    uint32_t dim = c->kda_dim, r0 = head * dim;
    float *q = wk->head, *k = q + dim, *v = k + dim, *o = f->att + r0, *decay = f->decay + r0;
    size_t state = (size_t)head * dim * dim;
    float rate = expf(waste_weights_vector(&m[WASTE_T_KDA_A_LOG])[head]);
    float beta = 1.0f / (1.0f + expf(-f->b[head]));

    convolve(f, q, f->q, head, Q, &m[WASTE_T_KDA_Q_CONV]);
    convolve(f, k, f->kk, head, K, &m[WASTE_T_KDA_K_CONV]);
    convolve(f, v, f->v, head, V, &m[WASTE_T_KDA_V_CONV]);
    waste_kda_normalise(f, q, dim, 1.0f / sqrtf((float)dim));
    waste_kda_normalise(f, k, dim, 1.0f);

    f->k->matvec[m[WASTE_T_KDA_F_B].fmt](f->decay, &m[WASTE_T_KDA_F_B], f->f_a, wk->xp, r0,
                                         r0 + dim);
    f->k->kda_decay(decay, decay, waste_weights_vector(&m[WASTE_T_KDA_DT_BIAS]) + r0, rate,
                    c->has_gate_lower_bound, c->gate_lower_bound, dim);
    f->k->kda_step(o, waste_kda_state(f, 1 - f->bank) + state,
                   f->position ? waste_kda_state(f, f->bank) + state : f->zero, q, k, v, decay,
                   beta, dim);

    waste_rms_norm(f, o, o, &m[WASTE_T_KDA_O_NORM], dim);
    if (!c->kda_full_gate)
        f->k->matvec[m[WASTE_T_KDA_G_B].fmt](f->gate, &m[WASTE_T_KDA_G_B], f->g_a, wk->xp2, r0,
                                             r0 + dim);
    f->k->sigmoid_mul(o, f->gate + r0, dim);
}

static void heads(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_worker *wk = &f->worker[worker];
    uint32_t head;

    if (!waste_team_claim(f->team, worker, &head))
        return;
    f->k->prepare(wk->xp, f->f_a, f->w->m[WASTE_T_KDA_F_B].cols);
    if (!f->cfg->kda_full_gate)
        f->k->prepare(wk->xp2, f->g_a, f->w->m[WASTE_T_KDA_G_B].cols);
    do
        head_step(f, wk, head);
    while (waste_team_claim(f->team, worker, &head));
}

int waste_kda(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;

    waste_products_begin(f);
    waste_products_add(f, &m[WASTE_T_KDA_Q], f->q);
    waste_products_add(f, &m[WASTE_T_KDA_K], f->kk);
    waste_products_add(f, &m[WASTE_T_KDA_V], f->v);
    if (f->cfg->kda_full_gate)
        waste_products_add(f, &m[WASTE_T_KDA_G], f->gate);
    else
        waste_products_add(f, &m[WASTE_T_KDA_G_A], f->g_a);
    waste_products_add(f, &m[WASTE_T_KDA_F_A], f->f_a);
    waste_products_add(f, &m[WASTE_T_KDA_B], f->b);
    waste_forward_run(f, WASTE_PHASE_TRUNK, waste_products_input_phase, f->product_tasks);
    if (f->bad)
        return waste_forward_bad_input(f);
    waste_residual_advance(f);
    waste_forward_run(f, WASTE_PHASE_ATTENTION, heads, f->cfg->kda_heads);
    waste_attention_out(f, &m[WASTE_T_KDA_O]);
    return 0;
}
