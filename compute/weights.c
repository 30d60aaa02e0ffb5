#include "compute/weights.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void resolve(struct waste_matrix *out, const struct waste_weights *w, uint32_t id)
{
    const struct waste_tensor *t = waste_model_tensor(w->model, id);

    *out = (struct waste_matrix){
        .data = w->trunk + t->data,
        .scales = t->groups ? (const uint16_t *)(w->trunk + t->scales) : NULL,
        .row_bytes = t->row_bytes,
        .rows = t->rows,
        .cols = t->cols,
        .groups = t->groups,
        .fmt = t->fmt,
    };
}

static size_t one_prep_bytes(const struct waste_model *model, const struct waste_kernels *k)
{
    return (k->vq_prep_bytes(model->expert.fmt) + 63) / 64 * 64;
}

uint32_t waste_weights_prep_count(const struct waste_model *model)
{
    return WASTE_KIND_COUNT * (model->config.layers - model->config.dense_layers);
}

int waste_weights_init(struct waste_weights *w, const struct waste_model *model,
                       const uint8_t *trunk, const struct waste_kernels *k)
{
    uint32_t preps = waste_weights_prep_count(model);

    memset(w, 0, sizeof *w);
    w->model = model;
    w->trunk = trunk;
    w->prep_bytes = preps ? one_prep_bytes(model, k) : 0;
    w->layer = calloc(model->config.layers, sizeof *w->layer);
    w->prep = preps ? aligned_alloc(64, preps * w->prep_bytes) : NULL;
    if (!w->layer || (preps && !w->prep)) {
        waste_weights_finish(w);
        return -ENOMEM;
    }
    for (uint32_t role = 0; role < WASTE_MODEL_TENSOR_COUNT; role++)
        if (model->tensor[role] && role != WASTE_M_EMBED)
            resolve(&w->m[role], w, model->tensor[role]);
    for (uint32_t n = 0; n < model->config.layers; n++) {
        struct waste_layer_weights *l = &w->layer[n];
        l->layer = waste_model_layer(model, n);
        for (uint32_t role = 0; role < WASTE_LAYER_TENSOR_COUNT; role++)
            if (l->layer->tensor[role])
                resolve(&l->m[role], w, l->layer->tensor[role]);
    }
    return 0;
}

void waste_weights_finish(struct waste_weights *w)
{
    free(w->layer);
    free(w->prep);
    memset(w, 0, sizeof *w);
}

const float *waste_weights_books(const struct waste_weights *w, uint32_t layer,
                                 enum waste_matrix_kind kind)
{
    const struct waste_expert_format *e = &w->model->expert;
    uint32_t first = waste_model_layer(w->model, layer)->bank.codebook_base + kind * e->stages;

    return (const float *)(w->trunk + e->codebook_data) + (size_t)first * e->entries * 8;
}

void waste_weights_prepare(struct waste_weights *w, const struct waste_kernels *k, uint32_t n)
{
    uint32_t layer = w->model->config.dense_layers + n / WASTE_KIND_COUNT;
    enum waste_matrix_kind kind = n % WASTE_KIND_COUNT;

    k->vq_prep[w->model->expert.fmt](waste_weights_prep(w, layer, kind),
                                     waste_weights_books(w, layer, kind));
}

uint64_t waste_weights_bytes(const struct waste_model *model, const struct waste_kernels *k)
{
    uint32_t preps = waste_weights_prep_count(model);

    return model->config.layers * sizeof(struct waste_layer_weights) +
           (preps ? preps * one_prep_bytes(model, k) : 0);
}
