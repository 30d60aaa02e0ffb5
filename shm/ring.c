#include "shm/ring.h"

static unsigned char *record(const struct waste_ring *ring, uint64_t number)
{
    uint64_t index = number & (ring->capacity - 1);

    return (unsigned char *)(ring + 1) + index * ring->stride;
}

size_t waste_ring_bytes(uint32_t capacity, uint32_t stride)
{
    if (capacity == 0 || (capacity & (capacity - 1)) != 0 || stride == 0 || stride % 8 != 0)
        return 0;
    return sizeof(struct waste_ring) + (((size_t)capacity * stride + 63) & ~(size_t)63);
}

void waste_ring_init(struct waste_ring *ring, uint32_t capacity, uint32_t stride)
{
    /* relaxed: nobody else knows the ring yet; whoever hands it out publishes it */
    atomic_store_explicit(&ring->head, 0, memory_order_relaxed);
    atomic_store_explicit(&ring->tail, 0, memory_order_relaxed);
    ring->capacity = capacity;
    ring->stride = stride;
}

uint64_t waste_ring_used(const struct waste_ring *ring)
{
    /* Tail first: head only grows, so the difference cannot go below zero in a sane ring. acquire:
     * keeps the two loads in this order. */
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);

    return head - tail;
}

bool waste_ring_valid(const struct waste_ring *ring, uint32_t capacity, uint32_t stride)
{
    uint64_t used, tail;

    if (waste_ring_bytes(capacity, stride) == 0 || ring->capacity != capacity ||
        ring->stride != stride)
        return false;
    /* With both ends running, `used` is too large when the tail it read was old. Believe it only
     * if the tail stood still. Terminates: each new round means records were taken. */
    do {
        tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
        used = waste_ring_used(ring);
        /* relaxed: behind the acquire loads in waste_ring_used */
    } while (used > capacity && tail != atomic_load_explicit(&ring->tail, memory_order_relaxed));
    return used <= capacity;
}

bool waste_ring_repair(struct waste_ring *ring, enum waste_ring_end end)
{
    if (waste_ring_valid(ring, ring->capacity, ring->stride))
        return false;
    /* The other end stands still while the ring is insane: it gets NULL from every call. release
     * and acquire: as in publish and release, this is an ordinary move of the cursor. */
    if (end == WASTE_RING_PRODUCER)
        atomic_store_explicit(&ring->head, atomic_load_explicit(&ring->tail, memory_order_acquire),
                              memory_order_release);
    else
        atomic_store_explicit(&ring->tail, atomic_load_explicit(&ring->head, memory_order_acquire),
                              memory_order_release);
    return true;
}

void *waste_ring_claim(struct waste_ring *ring)
{
    /* relaxed: our own cursor */
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    /* acquire: pairs with waste_ring_release; the consumer has done with the record */
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);

    return head - tail < ring->capacity ? record(ring, head) : NULL;
}

void waste_ring_publish(struct waste_ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    /* release: pairs with the acquire in waste_ring_peek; the record is complete */
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

const void *waste_ring_peek(struct waste_ring *ring)
{
    /* relaxed: our own cursor */
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    /* acquire: pairs with waste_ring_publish */
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);

    /* Unsigned: 0 (empty) and everything above capacity (insane) fail the same comparison. */
    return head - tail - 1 < ring->capacity ? record(ring, tail) : NULL;
}

void waste_ring_release(struct waste_ring *ring)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    /* release: pairs with the acquire in waste_ring_claim; our reads of the record are over */
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
}
