/* The trunk index of a container's manifest, all of it: tensors outside the prefix too. */
#ifndef WASTE_FETCHER_INDEX_H
#define WASTE_FETCHER_INDEX_H

#include <stdint.h>

#include "reader/container.h"

struct waste_index_entry {
    char *name; /* with the prefix */
    uint32_t fmt;
    int32_t layer; /* -1: of none */
    /* one row: all axes but the last are rows; of a quantised tensor outside the prefix (the vision
     * tower) the first axis is, the rest is flattened; rows 0: laid out in a way that is not known
     */
    uint64_t rows, cols, row_bytes, groups;
    uint64_t off, payload_bytes, scale_off, scale_bytes;
    uint64_t end; /* of its last byte in trunk.bin */
};

struct waste_index {
    char *prefix;
    uint32_t count;
    struct waste_index_entry *entry; /* in the manifest's order */
};

/* Of a container that waste_container_open_index accepts. 0, -EINVAL or -ENOMEM with err set. */
int waste_index_load(const char *dir, struct waste_index **out, struct waste_error *err);
void waste_index_free(struct waste_index *index);

#endif
