/* A conversion at work: what its parts share. convert.c owns it. */
#ifndef WASTE_FETCHER_CONVERT_H
#define WASTE_FETCHER_CONVERT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "compute/team.h"
#include "fetcher/plan.h"
#include "fetcher/progress.h"
#include "fetcher/release.h"
#include "fetcher/search.h"
#include "fetcher/shape.h"
#include "shm/model.h"

/* What is spent on the experts' codes. */
struct waste_effort {
    uint32_t sample; /* vectors a kind of matrix that books are made of */
    uint32_t seed_rounds, coarse_rounds, rounds, train_width; /* struct waste_trainer's */
    uint32_t width, passes;                                   /* struct waste_encoder's */
};

/* Squared error and squared length of a layer's gate, up and down matrices. */
struct waste_layer_error {
    double error[3][2];
};

struct waste_convert {
    struct waste_release *release;
    struct waste_shape shape;
    struct waste_plan plan;
    /* [moe layer][expert][3]: gate, up, down */
    const struct waste_release_tensor **expert;
    const char *path; /* of the container, for messages; its directory: */
    int dir;
    const struct waste_effort *effort;
    struct waste_search search;
    struct waste_team *team;
    struct waste_progress progress;
    _Atomic uint32_t coded;          /* experts of this layer; relaxed: only shown */
    struct waste_layer_error *error; /* [layers] */
    _Atomic bool failed;             /* a task has printed why; relaxed: the others only stop */
};

/* Rows and columns of a kind of expert matrix: 0 gate, 1 up, 2 down. */
static inline uint32_t waste_convert_rows(const struct waste_convert *c, uint32_t kind)
{
    return kind == 2 ? c->shape.expert_width : c->shape.expert_inner;
}

static inline uint32_t waste_convert_cols(const struct waste_convert *c, uint32_t kind)
{
    return kind == 2 ? c->shape.expert_inner : c->shape.expert_width;
}

/* The tensors of a layer, or of none (-1), into trunk.bin; on the disk on return. 0, or -1 with the
 * reason printed; the same for the next. */
int waste_convert_trunk(struct waste_convert *c, int layer);

/* The experts of a layer: codebooks and bank, on the disk on return. */
int waste_convert_experts(struct waste_convert *c, uint32_t layer);

/* tokenizer.model, specials.json, chat.json and, if the config has a vision tower, vision.json. The
 * engine's own loader must take the tokens; `config` is how the reader sees the release's. */
int waste_convert_texts(struct waste_convert *c, const struct waste_config *config);

#endif
