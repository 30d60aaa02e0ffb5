/*
 * The residual stream between half-layers: plain, or Kimi K3's attention residuals, where a
 * half-layer reads a softmax-weighted mix of the stored block sums and the running sum.
 *
 * Every worker computes the mix and the norm for itself: that is cheaper than a rendezvous.
 */
#include <math.h>
#include <string.h>

#include "compute/forward_int.h"

static float rms_scale(const struct waste_forward *f, float sum_squares, uint32_t n)
{
    return 1.0f / sqrtf(sum_squares / (float)n + f->cfg->rms_eps);
}

bool waste_rms_norm(const struct waste_forward *f, float *y, const float *x,
                    const struct waste_matrix *w, uint32_t n)
{
    float sum = f->k->sum_squares(x, n);

    f->k->scale_mul(y, x, rms_scale(f, sum, n), waste_weights_vector(w), n);
    return isfinite(sum);
}

/* score of each source v = sum(v / rms(v) * norm * proj); mixed = sum of softmax(score) v. */
const float *waste_residual_mix(struct waste_forward *f, uint32_t worker, const float *running,
                                const struct waste_matrix *res_norm,
                                const struct waste_matrix *res_proj)
{
    struct waste_worker *wk = &f->worker[worker];
    uint32_t n = f->cfg->hidden, sources = f->block_count + 1;
    const float *first = running - f->block_count * f->block_stride;
    float max, sum, *score = wk->score;

    if (!f->block_count)
        return running;
    f->k->scale_mul(wk->key, waste_weights_vector(res_norm), 1.0f, waste_weights_vector(res_proj),
                    n);
    for (uint32_t i = 0; i < sources; i++) {
        const float *v = first + i * f->block_stride;
        score[i] = f->k->dot(v, wk->key, n) * rms_scale(f, f->k->sum_squares(v, n), n);
    }
    sum = f->k->softmax_part(score, sources, &max);
    memset(wk->mixed, 0, n * sizeof *wk->mixed);
    for (uint32_t i = 0; i < sources; i++)
        f->k->axpy(wk->mixed, score[i] / sum, first + i * f->block_stride, n);
    return wk->mixed;
}

const float *waste_residual_input(struct waste_forward *f, uint32_t worker)
{
    struct waste_worker *wk = &f->worker[worker];
    const float *x =
        waste_residual_mix(f, worker, f->running, f->input.res_norm, f->input.res_proj);
    bool finite = waste_rms_norm(f, wk->norm, x, f->input.norm, f->cfg->hidden);

    if (!worker)
        f->bad = !finite;
    f->k->prepare(wk->xp, wk->norm, f->cfg->hidden);
    return x;
}

const float *waste_residual_preview(struct waste_forward *f, uint32_t worker, uint32_t layer)
{
    const struct waste_matrix *m = f->weights.layer[layer].m;

    return waste_residual_mix(f, worker, f->running, &m[WASTE_T_MLP_RES_NORM],
                              &m[WASTE_T_MLP_RES_PROJ]);
}

void waste_residual_advance(struct waste_forward *f)
{
    f->fresh = f->cfg->res_block && f->layer % f->cfg->res_block == 0;
    if (f->fresh) {
        f->block_count++; /* the running sum stays where it is, as the newest block */
        f->running += f->block_stride;
    }
}

/* o_proj, and the sum: each task adds the rows it has computed. */
static void attention_out(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_worker *wk = &f->worker[worker];
    uint32_t task, r0, r1;

    if (!waste_team_claim(f->team, worker, &task))
        return;
    f->k->prepare(wk->xp, f->att, f->product[0].w->cols);
    do {
        waste_products_task(f, f->att, wk->xp, task, &r0, &r1);
        if (f->fresh)
            memcpy(f->running + r0, f->att_out + r0, (r1 - r0) * sizeof *f->running);
        else
            f->k->add(f->running + r0, f->att_out + r0, r1 - r0);
    } while (waste_team_claim(f->team, worker, &task));
}

void waste_attention_out(struct waste_forward *f, const struct waste_matrix *o_proj)
{
    waste_products_begin(f);
    waste_products_add(f, o_proj, f->att_out);
    waste_forward_run(f, WASTE_PHASE_TRUNK, attention_out, f->product_tasks);
}
