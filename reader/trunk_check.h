/*
 * Whether trunk.bin is what integrity.json says, once it is loaded: a piece's bytes are taken from
 * the trunk segment where it has them (no second read, and what is checked is what will be used),
 * from the disk where it does not: the embedding, tensors the engine does not use, gaps.
 */
#ifndef WASTE_READER_TRUNK_CHECK_H
#define WASTE_READER_TRUNK_CHECK_H

#include "reader/direct.h"
#include "reader/integrity.h"
#include "shm/model.h"

/* A run of the file that lies in the segment. */
struct waste_trunk_extent {
    uint64_t begin, end; /* in trunk.bin */
    uint64_t data;       /* in the segment */
    uint32_t tensor;
};

struct waste_trunk_check {
    /* the caller's */
    const struct waste_model *model;
    const char *dir;
    const uint8_t *base;                     /* of the segment */
    const struct waste_integrity_file *file; /* trunk.bin's; its size is right */
    const struct waste_direct *trunk;        /* trunk.bin, open */
    /* the module's */
    struct waste_trunk_extent *extent; /* sorted, none overlaps another */
    uint32_t extents;
};

/* 0 or -ENOMEM. finish also after a failure. */
int waste_trunk_check_init(struct waste_trunk_check *c);
void waste_trunk_check_finish(struct waste_trunk_check *c);

/* One piece of the file. `buffer` holds buffer_bytes, 16384 or more, aligned to 4096. Many
 * threads may call it. 0, -EINVAL (the piece is damaged) or -errno; err is set. */
int waste_trunk_check_piece(const struct waste_trunk_check *c, uint32_t piece, uint8_t *buffer,
                            size_t buffer_bytes, struct waste_error *err);

#endif
