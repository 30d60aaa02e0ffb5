/* The manifest's index of trunk.bin: where each tensor lies, in which shape and format. */
#ifndef WASTE_READER_CONTAINER_INDEX_H
#define WASTE_READER_CONTAINER_INDEX_H

#include "reader/container_int.h"

enum { WASTE_TRUNK_AXES = 8, WASTE_TRUNK_SHAPE_TEXT = WASTE_TRUNK_AXES * 12 + 1 };

/* One validated entry. */
struct waste_trunk_entry {
    const char *name; /* in the JSON, prefix removed */
    uint32_t number;  /* in the manifest, for errors */
    uint32_t fmt, axes;
    uint64_t shape[WASTE_TRUNK_AXES];
    uint64_t rows, cols, row_bytes, groups;
    uint64_t off, scale_off;
    bool ours; /* inside the prefix */
};

/* Those inside the prefix, sorted by name, no name twice. */
struct waste_trunk_index {
    struct waste_trunk_entry *tensor;
    size_t tensors;
};

/* All of the index is validated, against p->trunk_file_bytes too: 0, or -EINVAL or -ENOMEM with
 * p->err. waste_trunk_index_free is due in any case. */
int waste_parse_trunk_index(struct waste_parse *p, struct waste_trunk_index *index);
void waste_trunk_index_free(struct waste_trunk_index *index);

/* NULL if there is none. */
const struct waste_trunk_entry *waste_trunk_index_find(const struct waste_trunk_index *index,
                                                       const char *name);

/* Sets the bytes a row takes and its quantisation groups, from fmt and cols. */
void waste_trunk_index_rows(struct waste_trunk_entry *e);

/* -EINVAL with p->err: `text` is wrong with the tensor. */
int waste_trunk_index_error(const struct waste_parse *p, const struct waste_trunk_entry *e,
                            const char *text);

/* "2304, 1024" in `out` of WASTE_TRUNK_SHAPE_TEXT bytes. */
const char *waste_trunk_index_shape(const struct waste_trunk_entry *e, char *out, size_t bytes);

#endif
