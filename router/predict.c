#include "router/predict.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct waste_tensor *tensor_of(const struct waste_model *model, uint32_t layer,
                                            enum waste_layer_tensor role)
{
    return waste_model_tensor(model, waste_model_layer(model, layer)->tensor[role]);
}

static bool is_vector(const struct waste_model *model, uint32_t layer, enum waste_layer_tensor role,
                      uint32_t elements)
{
    const struct waste_tensor *t = tensor_of(model, layer, role);

    return waste_model_layer(model, layer)->tensor[role] != 0 && t->fmt == WASTE_FMT_F32 &&
           t->data != 0 && (uint64_t)t->rows * t->cols == elements;
}

/* Everything waste_predict touches in MoE layer `layer`. */
static bool layer_ok(const struct waste_predictor *p, uint32_t layer)
{
    const struct waste_layer *l = waste_model_layer(p->model, layer);
    const struct waste_tensor *router = tensor_of(p->model, layer, WASTE_T_ROUTER);

    return is_vector(p->model, layer, WASTE_T_POST_NORM, p->hidden) &&
           (l->tensor[WASTE_T_ROUTER_BIAS] == 0 ||
            is_vector(p->model, layer, WASTE_T_ROUTER_BIAS, p->experts)) &&
           l->tensor[WASTE_T_ROUTER] != 0 && router->data != 0 && router->rows == p->experts &&
           router->cols == p->hidden && router->fmt < WASTE_FMT_COUNT &&
           p->kernels.matvec[router->fmt] != NULL;
}

static float *floats(uint32_t n)
{
    size_t bytes = ((size_t)n * sizeof(float) + 63) / 64 * 64;
    float *f = aligned_alloc(64, bytes);

    if (f != NULL)
        memset(f, 0, bytes);
    return f;
}

int waste_predictor_init(struct waste_predictor *p, const struct waste_model *model,
                         const uint8_t *trunk, uint32_t lookahead, uint32_t most)
{
    memset(p, 0, sizeof(*p));
    p->model = model;
    p->trunk = trunk;
    p->hidden = model->config.hidden;
    p->experts = model->config.experts;
    p->count = lookahead < most ? lookahead : most;
    if (p->count > p->experts)
        p->count = p->experts;
    if (p->count == 0 || p->hidden == 0 || !waste_kernels_init(&p->kernels, getenv("WASTE_CPU")))
        return -EINVAL;
    for (uint32_t layer = 0; layer < model->config.layers; layer++)
        if (waste_model_layer(model, layer)->is_moe && !layer_ok(p, layer))
            return -EINVAL;
    p->normed = floats(p->hidden);
    p->prepared = floats(waste_act_floats(p->hidden));
    p->logits = floats(p->experts);
    p->scratch = floats(p->experts);
    p->no_bias = floats(p->experts);
    p->scores = floats(p->experts);
    if (!p->normed || !p->prepared || !p->logits || !p->scratch || !p->no_bias || !p->scores) {
        waste_predictor_finish(p);
        return -ENOMEM;
    }
    return 0;
}

void waste_predictor_finish(struct waste_predictor *p)
{
    free(p->normed);
    free(p->prepared);
    free(p->logits);
    free(p->scratch);
    free(p->no_bias);
    free(p->scores);
    memset(p, 0, sizeof(*p));
}

bool waste_predictor_is_moe(const struct waste_predictor *p, uint32_t layer)
{
    return layer < p->model->config.layers && waste_model_layer(p->model, layer)->is_moe;
}

uint32_t waste_predictor_next(const struct waste_predictor *p, uint32_t layer)
{
    for (uint64_t next = (uint64_t)layer + 1; next < p->model->config.layers; next++)
        if (waste_predictor_is_moe(p, (uint32_t)next))
            return (uint32_t)next;
    return UINT32_MAX;
}

bool waste_predict(struct waste_predictor *p, uint32_t layer, const float *x, uint32_t *ids)
{
    const struct waste_tensor *norm = tensor_of(p->model, layer, WASTE_T_POST_NORM);
    const struct waste_tensor *bias = tensor_of(p->model, layer, WASTE_T_ROUTER_BIAS);
    const struct waste_tensor *t = tensor_of(p->model, layer, WASTE_T_ROUTER);
    const struct waste_matrix router = {
        .data = p->trunk + t->data,
        .scales = t->groups > 0 ? (const uint16_t *)(p->trunk + t->scales) : NULL,
        .row_bytes = t->row_bytes,
        .rows = t->rows,
        .cols = t->cols,
        .groups = t->groups,
        .fmt = t->fmt,
    };
    bool biased = waste_model_layer(p->model, layer)->tensor[WASTE_T_ROUTER_BIAS] != 0;
    float squares = p->kernels.sum_squares(x, p->hidden);

    if (!isfinite(squares))
        return false;
    p->kernels.scale_mul(p->normed, x,
                         1.0f / sqrtf(squares / (float)p->hidden + p->model->config.rms_eps),
                         (const float *)(p->trunk + norm->data), p->hidden);
    p->kernels.prepare(p->prepared, p->normed, p->hidden);
    p->kernels.matvec[router.fmt](p->logits, &router, p->normed, p->prepared, 0, router.rows);
    waste_top_k(ids, p->scores, p->logits,
                biased ? (const float *)(p->trunk + bias->data) : p->no_bias, p->experts, p->count,
                p->scratch);
    return true;
}
