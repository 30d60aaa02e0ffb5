/*
 * What a container of a shape consists of: trunk tensors with their formats (the writer's rule) and
 * places, expert record geometry, sizes, manifest.
 */
#ifndef WASTE_FETCHER_PLAN_H
#define WASTE_FETCHER_PLAN_H

#include <jansson.h>
#include <stdint.h>

#include "fetcher/release.h"
#include "fetcher/shape.h"

struct waste_plan_tensor {
    char name[WASTE_SAFETENSORS_NAME]; /* with the prefix */
    uint32_t fmt, axes, shape[WASTE_SAFETENSORS_AXES];
    uint32_t rows, cols;
    int layer;                                 /* -1: none */
    bool vision;                               /* outside the prefix */
    double low, high;                          /* synth: its values are uniform in this range */
    const struct waste_release_tensor *source; /* convert: where they come from */
    uint64_t off, scale_off, payload_bytes, bytes;
};

struct waste_plan {
    const char *prefix;
    struct waste_plan_tensor *tensor;
    uint32_t tensor_count, tensor_room;
    uint64_t trunk_bytes;
    uint32_t stages, entries, index_bits, index_bytes;
    uint32_t gate_off, up_off, down_off, scale_off, crc_end, record_bytes;
    uint32_t moe_layers, books; /* books = 3 x stages a MoE layer */
    uint64_t codebook_bytes, bank_bytes, total_bytes;
};

/* The tensors a shape needs. 0, or -1 with the reason printed. */
int waste_plan_init(struct waste_plan *plan, const struct waste_shape *shape);

/* The tensors `pick` takes from a release: 1 takes one, 0 leaves it, -1 ends with the reason
 * printed; `layer` is the one its name has, or -1. */
int waste_plan_init_release(struct waste_plan *plan, const struct waste_shape *shape,
                            const struct waste_release *release,
                            int (*pick)(void *ctx, const struct waste_release_tensor *t, int layer),
                            void *ctx);
void waste_plan_finish(struct waste_plan *plan);

/* What of a container is there. */
struct waste_plan_done {
    bool outer;     /* tensors of no layer */
    uint8_t *layer; /* [layers] its tensors, its bank, its codebooks */
};

/* The manifest as JSON text, to be freed; NULL without memory. With `done` NULL or complete, that
 * of the whole container, else it lists what is there and says so under "partial". */
char *waste_plan_manifest(const struct waste_plan *plan, const struct waste_shape *shape,
                          const struct waste_plan_done *done);

#endif
