/*
 * A release as it is published, with random weights: safetensors shards with their index,
 * config.json, tokenizer files. What `waste-fetch convert` reads.
 *
 * Matrices have bell-shaped values (the sum of four uniform ones) around exactly 0, vectors the
 * uniform ranges of plan.h. A value depends on the seed, the tensor's name and the row only.
 */
#ifndef WASTE_FETCHER_CHECKPOINT_H
#define WASTE_FETCHER_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "fetcher/outdir.h"
#include "fetcher/plan.h"
#include "fetcher/shape.h"

/* Of the weights. MXFP4: the experts', as pairs weight_packed and weight_scale; the rest is BF16.
 * A_log and the router's bias are F32 in any case. */
enum waste_source_type {
    WASTE_SOURCE_DEFAULT, /* as released: MXFP4 for K3, BF16 for Kimi-Linear */
    WASTE_SOURCE_BF16,
    WASTE_SOURCE_F16,
    WASTE_SOURCE_F32,
    WASTE_SOURCE_MXFP4,
};

struct waste_checkpoint {
    const struct waste_shape *shape;
    const struct waste_plan *plan;
    enum waste_source_type type;
    struct waste_outdir *out; /* gets bytes and seconds */
    int dir;                  /* the same, open */
    uint64_t seed;
    uint64_t shard_bytes; /* a shard is no larger, unless one tensor is */
    uint32_t threads;     /* 0: as many as CPUs */
    bool quiet;
};

/* The type that DEFAULT stands for; -1 with the reason printed if the shape cannot have `type`. */
int waste_checkpoint_type(const struct waste_shape *shape, enum waste_source_type *type);

/* The recipe first, the index last. 0, or -1 with the reason printed. */
int waste_checkpoint_write(const struct waste_checkpoint *c);

#endif
