/*
 * Kimi Delta Attention, one token: three phases.
 *
 *   1  norm; rows of f_a, g_a, b, q, k and v (and g), with the convolution of those that have one;
 *      rows of f_b and g_b, once f_a and g_a are complete, and the decay
 *   2  a head a task: the state's step, o_norm, gate
 *   3  o_proj and the residual sum
 *
 * The state of a layer in bank b: S [heads][dim keys][dim values], then the convolutions' history
 * of q, k and v, each [width - 1][heads * dim] oldest first. Read from bank b, written to 1 - b.
 */
#include <math.h>
#include <sched.h>
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

/* Channels [r0, r1) of q, k or v: SiLU(conv(x)) in place; the new history goes to the other bank.
 */
static void convolve(struct waste_forward *f, float *x, uint32_t which,
                     const struct waste_matrix *weight, uint32_t r0, uint32_t r1)
{
    uint32_t width = f->cfg->conv_width, n = r1 - r0, stride = f->position ? weight->rows : 0;
    const float *old = f->position ? waste_kda_history(f, f->bank, which) + r0 : f->zero;
    float *new = waste_kda_history(f, 1 - f->bank, which) + r0;

    for (uint32_t t = 0; t + 2 < width; t++)
        memcpy(new + (size_t)t * weight->rows, old + (size_t)(t + 1) * stride, n * sizeof *new);
    if (width > 1)
        memcpy(new + (size_t)(width - 2) * weight->rows, x + r0, n * sizeof *new);
    f->k->conv_silu(x + r0, x + r0, old, waste_weights_vector(weight) + (size_t)r0 * width, n,
                    stride, width);
}

void waste_kda_normalise(const struct waste_forward *f, float *x, uint32_t n, float scale)
{
    float length = sqrtf(f->k->sum_squares(x, n));

    scale /= length > 1e-12f ? length : 1e-12f;
    for (uint32_t i = 0; i < n; i++)
        x[i] *= scale;
}

/* Channels [r0, r1) of what f_b gives become their heads' decay. */
static void decay_rows(struct waste_forward *f, uint32_t r0, uint32_t r1)
{
    const struct waste_config *c = f->cfg;
    const struct waste_matrix *m = f->w->m;

    for (uint32_t r = r0, end; r < r1; r = end) {
        uint32_t head = r / c->kda_dim;
        float rate = expf(waste_weights_vector(&m[WASTE_T_KDA_A_LOG])[head]);
        end = (head + 1) * c->kda_dim < r1 ? (head + 1) * c->kda_dim : r1;
        f->k->kda_decay(f->decay + r, f->decay + r,
                        waste_weights_vector(&m[WASTE_T_KDA_DT_BIAS]) + r, rate,
                        c->has_gate_lower_bound, c->gate_lower_bound, end - r);
    }
}

/* Until f_a and g_a are complete. Their tasks come first, so somebody is at them, and waits for
 * nobody. */
static void wait_for_low_rank(struct waste_forward *f, uint32_t worker)
{
    /* acquire: their rows; pairs with the release in project() */
    while (atomic_load_explicit(&f->low_rank_left, memory_order_acquire)) {
        if (!worker)
            waste_forward_tick(f);
        sched_yield();
    }
}

/* Rows of f_b or g_b; *prepared: what the worker's xp2 is of. */
static void project_low_rank(struct waste_forward *f, uint32_t worker,
                             const struct waste_product *p, uint32_t r0, uint32_t r1,
                             const float **prepared)
{
    struct waste_worker *wk = &f->worker[worker];
    const float *x = p->y == f->decay ? f->f_a : f->g_a;

    wait_for_low_rank(f, worker);
    if (*prepared != x)
        f->k->prepare(wk->xp2, x, f->cfg->kda_dim);
    *prepared = x;
    waste_products_rows(f, p, x, wk->xp2, r0, r1);
    if (p->y == f->decay)
        decay_rows(f, r0, r1);
}

/* The taps of q's, k's or v's convolution; NULL for what is not convolved. */
static const struct waste_matrix *taps_of(const struct waste_forward *f,
                                          const struct waste_product *p, uint32_t *which)
{
    const float *convolved[] = {[Q] = f->q, [K] = f->kk, [V] = f->v};
    static const uint32_t role[] = {
        [Q] = WASTE_T_KDA_Q_CONV, [K] = WASTE_T_KDA_K_CONV, [V] = WASTE_T_KDA_V_CONV};

    for (*which = Q; *which <= V; ++*which)
        if (p->y == convolved[*which])
            return &f->w->m[role[*which]];
    return NULL;
}

static void project(struct waste_forward *f, uint32_t worker, uint32_t task, const float **prepared)
{
    struct waste_worker *wk = &f->worker[worker];
    uint32_t r0, r1, which;
    const struct waste_product *p = waste_products_find(f, task, &r0, &r1);
    const struct waste_matrix *taps = taps_of(f, p, &which);

    if (p->y == f->decay || (p->y == f->gate && !f->cfg->kda_full_gate)) {
        project_low_rank(f, worker, p, r0, r1, prepared);
        return;
    }
    waste_products_rows(f, p, wk->norm, wk->xp, r0, r1);
    if (taps)
        convolve(f, p->y, which, taps, r0, r1);
    else if (p->y == f->f_a || p->y == f->g_a)
        atomic_fetch_sub_explicit(&f->low_rank_left, 1, memory_order_release);
}

static void projections(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    const float *prepared = NULL;
    uint32_t task;
    bool claimed = waste_team_claim(f->team, worker, &task);

    if (!claimed && worker)
        return;
    waste_residual_input(f, worker);
    waste_hint(f, worker);
    for (; claimed; claimed = waste_team_claim(f->team, worker, &task))
        project(f, worker, task, &prepared);
    waste_hint_close(f, worker);
}

static void heads(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    uint32_t head, dim = f->cfg->kda_dim;
    const float *old = f->position ? waste_kda_state(f, f->bank) : NULL;
    float *new = waste_kda_state(f, 1 - f->bank);

    while (waste_team_claim(f->team, worker, &head)) {
        uint32_t r0 = head * dim;
        size_t state = (size_t)r0 * dim;
        float *q = f->q + r0, *k = f->kk + r0, *o = f->att + r0;
        float beta = 1.0f / (1.0f + expf(-f->b[head]));
        waste_kda_normalise(f, q, dim, 1.0f / sqrtf((float)dim));
        waste_kda_normalise(f, k, dim, 1.0f);
        f->k->kda_step(o, new + state, old ? old + state : f->zero, q, k, f->v + r0, f->decay + r0,
                       beta, dim);
        waste_rms_norm(f, o, o, &f->w->m[WASTE_T_KDA_O_NORM], dim);
        f->k->sigmoid_mul(o, f->gate + r0, dim);
    }
}

/* What f_b and g_b read comes first, they come last. */
static void list_products(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    bool low_rank_gate = !f->cfg->kda_full_gate;

    waste_products_begin(f);
    waste_products_add(f, &m[WASTE_T_KDA_F_A], f->f_a);
    if (low_rank_gate)
        waste_products_add(f, &m[WASTE_T_KDA_G_A], f->g_a);
    /* relaxed: the opening of the phase publishes it with the rest */
    atomic_store_explicit(&f->low_rank_left, f->product_tasks, memory_order_relaxed);
    waste_products_add(f, &m[WASTE_T_KDA_B], f->b);
    waste_products_add(f, &m[WASTE_T_KDA_Q], f->q);
    waste_products_add(f, &m[WASTE_T_KDA_K], f->kk);
    waste_products_add(f, &m[WASTE_T_KDA_V], f->v);
    waste_products_add(f, &m[low_rank_gate ? WASTE_T_KDA_G_B : WASTE_T_KDA_G], f->gate);
    waste_products_add(f, &m[WASTE_T_KDA_F_B], f->decay);
}

int waste_kda(struct waste_forward *f)
{
    list_products(f);
    waste_forward_run(f, WASTE_PHASE_TRUNK, projections, f->product_tasks);
    if (f->bad)
        return waste_forward_bad_input(f);
    waste_residual_advance(f);
    waste_forward_run(f, WASTE_PHASE_ATTENTION, heads, f->cfg->kda_heads);
    waste_attention_out(f, &f->w->m[WASTE_T_KDA_O]);
    return 0;
}
