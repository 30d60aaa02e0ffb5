/*
 * Which experts a layer will choose, told from the hidden state of the layer before it.
 *
 * One predictor a thread. Nothing here trusts the shapes in the model record: the record lies in
 * shared memory, and its check (waste_model_check) is about bounds, not about meaning.
 */
#ifndef WASTE_ROUTER_PREDICT_H
#define WASTE_ROUTER_PREDICT_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/kernels.h"
#include "shm/model.h"

struct waste_predictor {
    const struct waste_model *model;
    const uint8_t *trunk;
    struct waste_kernels kernels;
    uint32_t hidden, experts;
    uint32_t count;                             /* ids a prediction has */
    float *normed;                              /* [hidden] */
    float *prepared;                            /* [waste_act_floats(hidden)] */
    float *logits, *scratch, *no_bias, *scores; /* [experts] */
};

/*
 * `trunk` is the mapped trunk segment, model->trunk_bytes long, complete before the first
 * waste_predict. `lookahead` experts are wanted (at least 1, capped by the model's and `most`).
 * 0, -EINVAL (a layer's norm or router has an impossible shape, or WASTE_CPU names no level of this
 * CPU), -ENOMEM.
 */
int waste_predictor_init(struct waste_predictor *p, const struct waste_model *model,
                         const uint8_t *trunk, uint32_t lookahead, uint32_t most);
void waste_predictor_finish(struct waste_predictor *p);

bool waste_predictor_is_moe(const struct waste_predictor *p, uint32_t layer);

/* The first MoE layer after `layer`, or UINT32_MAX if there is none. */
uint32_t waste_predictor_next(const struct waste_predictor *p, uint32_t layer);

/*
 * ids[count] = the experts that MoE layer `layer` would choose for x[hidden], best first: the top
 * of sigmoid(W_gate RMSNorm(x) * norm_w) + bias. False, ids untouched: x is not finite.
 */
bool waste_predict(struct waste_predictor *p, uint32_t layer, const float *x, uint32_t *ids);

#endif
