/*
 * The header of a safetensors file as hostile input: u64 length, that many bytes of JSON
 * ({"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}), then the
 * data that the offsets count from.
 */
#ifndef WASTE_FETCHER_SAFETENSORS_H
#define WASTE_FETCHER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "reader/container.h"

enum {
    WASTE_SAFETENSORS_AXES = 6,
    WASTE_SAFETENSORS_NAME = 256,
    WASTE_SAFETENSORS_HEADER = 100000000, /* the format's own limit, in bytes of JSON */
};

struct waste_safetensors_entry {
    const char *name;  /* at most WASTE_SAFETENSORS_NAME - 1 bytes; valid during the call */
    const char *dtype; /* "BF16", ...: one the format knows */
    uint32_t axes;
    uint32_t shape[WASTE_SAFETENSORS_AXES];
    uint64_t off, bytes; /* in the file */
};

/*
 * Length of the JSON that `first`, the file's first 8 bytes, announces. 0, or -EINVAL with err set
 * if a file of file_bytes cannot have it. `file` names it in errors.
 */
int waste_safetensors_length(const char *file, uint64_t file_bytes, const uint8_t first[8],
                             size_t *json_bytes, struct waste_error *err);

/*
 * Calls each(ctx, entry) for every tensor, in the order of their data, after the whole header has
 * been checked: known types, sizes that are what type and shape give, offsets that lie in the file
 * and leave neither a gap nor an overlap, no name twice. 0, -EINVAL or -ENOMEM with err set, or
 * what `each` returned first that is not 0.
 */
int waste_safetensors_parse(const char *file, uint64_t file_bytes, const char *json,
                            size_t json_bytes,
                            int (*each)(void *ctx, const struct waste_safetensors_entry *entry),
                            void *ctx, struct waste_error *err);

#endif
