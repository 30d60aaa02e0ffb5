/*
 * Single-producer single-consumer ring of fixed-size records between two processes.
 *
 * The cursors never wrap (64-bit record counts). head is written by the producer only, tail by the
 * consumer only, each alone on its cache line; a process that dies between writing a record and
 * moving its cursor loses that record and nothing else, and its successor goes on from the cursor
 * it finds.
 */
#ifndef WASTE_SHM_RING_H
#define WASTE_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct waste_ring {
    _Alignas(64) _Atomic uint64_t head; /* producer: records published */
    _Alignas(64) _Atomic uint64_t tail; /* consumer: records taken */
    _Alignas(64) uint32_t capacity;     /* records, a power of two; set once */
    uint32_t stride;                    /* bytes a record, a multiple of 8; set once */
    uint64_t pad[7];
    /* records follow: capacity * stride bytes */
};
_Static_assert(sizeof(struct waste_ring) == 192, "ring header: three cache lines");

/* Which end a caller of waste_ring_repair owns. */
enum waste_ring_end { WASTE_RING_PRODUCER, WASTE_RING_CONSUMER };

/* Bytes a ring takes in a segment (a multiple of 64), or 0 if capacity is no power of two or stride
 * no multiple of 8. */
size_t waste_ring_bytes(uint32_t capacity, uint32_t stride);

/* Before the ring is shared. `ring` is 64-aligned and waste_ring_bytes() long. */
void waste_ring_init(struct waste_ring *ring, uint32_t capacity, uint32_t stride);

/* Cursors and geometry make sense: tail <= head <= tail + capacity, and geometry equals what the
 * caller expects. */
bool waste_ring_valid(const struct waste_ring *ring, uint32_t capacity, uint32_t stride);

/*
 * Called by the successor of a dead (or insane) producer or consumer before its first operation:
 * moves only the cursor of that end so that the ring is valid again. A repaired consumer drops what
 * it had not taken if the cursors made no sense. Returns true if something had to be changed.
 */
bool waste_ring_repair(struct waste_ring *ring, enum waste_ring_end end);

/* Producer: room for one record, or NULL when full (or the tail is insane). Fill it, then publish.
 */
void *waste_ring_claim(struct waste_ring *ring);
void waste_ring_publish(struct waste_ring *ring);

/* Consumer: the oldest record, or NULL when empty. Use it in place, then release. */
const void *waste_ring_peek(struct waste_ring *ring);
void waste_ring_release(struct waste_ring *ring);

/* Records published and not yet taken; any process, a snapshot. */
uint64_t waste_ring_used(const struct waste_ring *ring);

#endif
