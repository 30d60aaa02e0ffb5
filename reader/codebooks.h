/* codebooks.bin into the trunk segment, behind the tensors: the last step of loading the trunk. */
#ifndef WASTE_READER_CODEBOOKS_H
#define WASTE_READER_CODEBOOKS_H

#include <stdbool.h>
#include <stdint.h>

#include "reader/container.h"
#include "reader/integrity.h"
#include "shm/control.h"

struct waste_codebooks {
    const struct waste_model *model;
    const char *dir;
    struct waste_control *control;
    const struct waste_integrity *integrity; /* NULL: not checked */
    uint8_t *base;                           /* the trunk segment */
};

/*
 * Expands every entry to f32 (subnormals 0) at model->expert.codebook_data; entries that are not
 * finite are refused. `tick` as for waste_trunk_load, from the calling thread. 0, -ECANCELED
 * without a word, or another -errno with err.
 */
int waste_codebooks_load(const struct waste_codebooks *c, bool (*tick)(void *ctx), void *ctx,
                         struct waste_error *err);

/* Counts bytes of the trunk, codebooks included, that are in their place. Any thread. */
static inline void waste_trunk_note_loaded(struct waste_control *c, uint64_t bytes)
{
    waste_count(c, WASTE_C_TRUNK_BYTES_READ, bytes);
    waste_count(c, WASTE_C_TRUNK_LOADED, bytes);
}

#endif
