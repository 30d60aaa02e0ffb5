/*
 * What a container of a shape consists of: trunk tensors with their formats (the writer's rule) and
 * places, expert record geometry, sizes, manifest.
 */
#ifndef WASTE_FETCHER_PLAN_H
#define WASTE_FETCHER_PLAN_H

#include <jansson.h>
#include <stdint.h>

#include "fetcher/shape.h"

struct waste_plan_tensor {
    char name[120]; /* with the prefix */
    uint32_t fmt, axes, shape[3];
    uint32_t rows, cols;
    double low, high; /* the uniform range its values are drawn from */
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

/* 0, or -1 with the reason printed. */
int waste_plan_init(struct waste_plan *plan, const struct waste_shape *shape);
void waste_plan_finish(struct waste_plan *plan);

/* The manifest as JSON text, to be freed; NULL without memory. */
char *waste_plan_manifest(const struct waste_plan *plan, const struct waste_shape *shape);

#endif
