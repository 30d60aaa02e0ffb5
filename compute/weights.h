/*
 * The model's tensors as pointers: every id of shm/model.h resolved once against this process's
 * mapping of the trunk segment, and the codebooks prepared for the kernels in use.
 *
 * The model has passed waste_model_check() (waste_control_attach does that), so every tensor lies
 * inside the trunk segment; shapes and formats are what reader/container.c demands of each role.
 */
#ifndef WASTE_COMPUTE_WEIGHTS_H
#define WASTE_COMPUTE_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "compute/kernels.h"
#include "shm/model.h"

struct waste_layer_weights {
    const struct waste_layer *layer;
    struct waste_matrix m[WASTE_LAYER_TENSOR_COUNT]; /* by role; data NULL = this layer has none */
};

struct waste_weights {
    const struct waste_model *model;
    const uint8_t *trunk;
    struct waste_matrix m[WASTE_MODEL_TENSOR_COUNT]; /* but the embedding, which is not in memory */
    struct waste_layer_weights *layer;               /* [layers] */

    /* Prepared codebook triples, [MoE layer][gate, up, down]; every record of a layer uses the
     * layer's own (reader/container.h refuses any other). */
    uint8_t *prep;
    size_t prep_bytes; /* one */
};

/* trunk is the mapped segment, at least model->trunk_bytes long; it need not hold the data yet. 0
 * or -ENOMEM. */
int waste_weights_init(struct waste_weights *w, const struct waste_model *model,
                       const uint8_t *trunk, const struct waste_kernels *k);
void waste_weights_finish(struct waste_weights *w);

/* A vector's values. */
static inline const float *waste_weights_vector(const struct waste_matrix *m)
{
    return (const float *)m->data;
}

enum waste_matrix_kind { WASTE_KIND_GATE, WASTE_KIND_UP, WASTE_KIND_DOWN, WASTE_KIND_COUNT };

/* The prepared triple of a MoE layer. */
static inline void *waste_weights_prep(const struct waste_weights *w, uint32_t layer,
                                       enum waste_matrix_kind kind)
{
    uint32_t n = layer - w->model->config.dense_layers;
    return w->prep + ((size_t)n * WASTE_KIND_COUNT + kind) * w->prep_bytes;
}

/* The same as stored: f32 [stages][entries][8]. */
const float *waste_weights_books(const struct waste_weights *w, uint32_t layer,
                                 enum waste_matrix_kind kind);

/* Prepares triple `n` of waste_weights_prep_count(); needs the trunk to be loaded. */
void waste_weights_prepare(struct waste_weights *w, const struct waste_kernels *k, uint32_t n);
uint32_t waste_weights_prep_count(const struct waste_model *model);

/* Heap bytes that waste_weights_init() takes. */
uint64_t waste_weights_bytes(const struct waste_model *model, const struct waste_kernels *k);

#endif
