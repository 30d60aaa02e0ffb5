/*
 * Shapes of models to synthesise: the released ones, small ones for tests, or any release's
 * config.json.
 */
#ifndef WASTE_FETCHER_SHAPE_H
#define WASTE_FETCHER_SHAPE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* A named shape: a release's config as JSON, with what differs from `base` on top. */
struct waste_named_shape {
    const char *name, *base, *config, *help;
    uint32_t expert_fmt; /* 0: VQ3R */
    uint32_t trunk_bits; /* 0: 4 */
    bool subnormal;      /* scales of most trunk tensors and many codebook entries are subnormal */
};
extern const struct waste_named_shape waste_named_shapes[];
extern const uint32_t waste_named_shape_count;

/* What the generator needs of a config. Dimensions in elements. */
struct waste_shape {
    json_t *config; /* owned: the manifest's `config` */
    const char *arch;
    bool k3;            /* A_log padded to head_dim */
    const char *prefix; /* of tensors: language_model. if k3, unless a release has it otherwise */
    uint32_t layers, dense_layers, hidden, vocab, dense_inner;
    uint32_t experts, top_k, expert_inner, expert_width, shared_experts;
    bool latent, latent_norm;
    uint32_t kda_heads, kda_dim, conv_width;
    bool full_gate;
    uint32_t mla_heads, q_lora, kv_lora, nope_dim, rope_dim, v_dim;
    bool out_gate;
    uint32_t res_block;
    uint8_t *is_kda;     /* [layers] */
    uint32_t expert_fmt; /* enum waste_fmt */
    uint32_t trunk_bits;
    bool subnormal;
    const char *where; /* while it is loaded: the config, for messages */
};

/*
 * Resolves NAME or a path to a config.json; layers 0: as the config says. Prints what is wrong with
 * it to stderr and returns -1. waste_shape_finish takes a zeroed shape, too.
 */
int waste_shape_load(struct waste_shape *shape, const char *name, uint32_t layers);

/*
 * From the text of a release's config.json. `config` becomes what a manifest has: the text part
 * unchanged, what is around it under `_outer`.
 */
int waste_shape_load_release(struct waste_shape *shape, const char *path, const char *text);
void waste_shape_finish(struct waste_shape *shape);

#endif
