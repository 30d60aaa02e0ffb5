/*
 * Loads the trunk into its segment.
 *
 * Tensors in table order, then the codebooks (expanded to f32, subnormal entries 0). After each
 * tensor control->trunk_tensors moves on, so a successor of a dead reader goes on where it stopped.
 * At the end the segment's writable mapping is gone, the segment is sealed and control->trunk_ready
 * is stored (release).
 */
#ifndef WASTE_READER_TRUNK_H
#define WASTE_READER_TRUNK_H

#include <stdbool.h>

#include "reader/container.h"
#include "shm/control.h"

/* Bytes a whole load reads: what TRUNK_LOADED ends at. */
uint64_t waste_trunk_file_bytes(const struct waste_model *model);

/*
 * First refuses a directory that is no longer what the model was made from, also when the trunk is
 * there already. Weights or scales that are not finite are refused by name.
 *
 * `tick` is called at least every 100 ms of work, for the heartbeat; when it returns false (the
 * supervisor wants us to stop) loading ends with -ECANCELED. Counters TRUNK_BYTES_READ and
 * TRUNK_LOADED are kept here. 0, -ECANCELED; -EINVAL: the container is bad; else -errno; err is set
 * unless it is -ECANCELED.
 */
int waste_trunk_load(const struct waste_shm *shm, const char *dir, int trunk_fd,
                     bool (*tick)(void *ctx), void *ctx, struct waste_error *err);

#endif
