/*
 * The experts one layer of one step needs, from the demand record to the last unpin.
 *
 *     waste_experts_begin -> waste_experts_demand -> waste_experts_take, again and again
 *                         -> waste_experts_release
 *
 * An expert that was taken stays pinned, and its record readable, until the release. The cache has
 * at least 2 x top_k slots, so holding top_k - 1 pins while waiting for the last never starves the
 * reader of room.
 */
#ifndef WASTE_COMPUTE_EXPERTS_H
#define WASTE_COMPUTE_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/control.h"

struct waste_experts {
    /* set once */
    const struct waste_shm *shm;
    const uint8_t *cache;
    int reader_event;
    /* one layer's, [top_k] in selection order */
    uint32_t *id;
    float *weight;
    uint32_t *slot; /* WASTE_SLOT_NONE until taken */
    const uint8_t **record;
    uint32_t count, missing;
    uint32_t layer;
    uint64_t step;
    /* the demand as last posted */
    bool posted;
    uint32_t incarnation; /* of the reader it was posted to */
    uint64_t mark;        /* the ring's head behind it */
    int64_t posted_ns;
};

/* The slot the directory names for an expert, and its number, if it holds that expert now; else
 * NULL. */
struct waste_slot *waste_experts_find(const struct waste_shm *shm, uint32_t layer, uint32_t expert,
                                      uint32_t *number);
/* It can be pinned, or could a moment ago. */
bool waste_experts_ready(const struct waste_shm *shm, uint32_t layer, uint32_t expert);

/* -EIO, and a line that says why the reader gave this expert up. */
int waste_experts_failed(const struct waste_shm *shm, uint32_t layer, uint32_t expert,
                         struct waste_slot *slot, char *text, size_t text_bytes);

/* Starts a layer with nothing demanded. id[] and weight[] are the caller's to fill next. */
void waste_experts_begin(struct waste_experts *e, uint64_t step, uint32_t layer);

/* Posts the first `count` of id[] as this layer's demand. Wakes the reader if one of them is not in
 * memory yet. Any worker, once a layer. */
void waste_experts_demand(struct waste_experts *e, uint32_t count);

/*
 * Pins every missing expert that is in memory by now; taken[] (top_k long) gets their places in the
 * selection, *count how many. Posts the demand again when the reader lost it. 0, or -EIO when the
 * reader gave one up: text gets one line naming file, layer, expert and reason.
 */
int waste_experts_take(struct waste_experts *e, uint32_t *taken, uint32_t *count, char *text,
                       size_t text_bytes);

/* Unpins all. */
void waste_experts_release(struct waste_experts *e);

#endif
