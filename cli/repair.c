#include "cli/repair.h"

#include <string.h>

#include "shm/inject.h"

/*
 * A slot the reader left in READING, or in no legal state: a device may still be writing to its
 * pages, so they are thrown away (the late data goes nowhere) before anybody can use the slot.
 * Where that fails the slot stays READING, which nobody uses: the next reader tries again, or does
 * without it. Compute never touches such a slot, so nobody else writes the word.
 */
static void repair_slots(struct waste_pipeline *p)
{
    uint64_t slot_bytes = p->model->expert.record_bytes;

    for (uint32_t i = 0; i < p->plan.room_slots; i++) {
        struct waste_slot *slot = &p->shm.slot[i];
        /* acquire: whatever the dead reader published last is seen whole */
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
        if (waste_slot_valid(word) && waste_slot_state(word) != WASTE_SLOT_READING)
            continue;
        uint64_t next = word & ~(WASTE_SLOT_GEN_ONE - 1); /* stays, so that no old pin fits */
        int rc = waste_segment_punch(p->fd[WASTE_SEG_CACHE], i * slot_bytes, slot_bytes);
        if (rc != 0)
            waste_log_write(&p->shm.control->log[WASTE_STAGE_COUNT], WASTE_LOG_ERROR,
                            "cannot punch slot %u out of the cache: %s; it is not used", i,
                            strerror(-rc));
        WASTE_POINT(RUN_PUNCHED);
        /* release: pairs with the next reader's load before it claims the slot */
        atomic_store_explicit(&slot->word, next | (rc != 0 ? WASTE_SLOT_READING : WASTE_SLOT_EMPTY),
                              memory_order_release);
    }
}

static void clear_pins(struct waste_pipeline *p)
{
    for (uint32_t i = 0; i < p->plan.room_slots; i++)
        waste_slot_clear_pins(&p->shm.slot[i]);
}

/* The end of `ring` whose owner has died. Capacity and stride are ours to know. */
static void repair_ring(struct waste_pipeline *p, struct waste_ring *ring, uint32_t capacity,
                        uint32_t stride, enum waste_ring_end end)
{
    bool changed = ring->capacity != capacity || ring->stride != stride;

    ring->capacity = capacity;
    ring->stride = stride;
    if (waste_ring_repair(ring, end) || changed)
        waste_log_write(&p->shm.control->log[WASTE_STAGE_COUNT], WASTE_LOG_WARNING,
                        "a ring's cursors made no sense and were repaired");
}

void waste_repair(struct waste_pipeline *p, enum waste_stage_id stage)
{
    struct waste_shm *shm = &p->shm;

    switch (stage) {
    case WASTE_STAGE_READER:
        repair_slots(p);
        repair_ring(p, shm->demand, WASTE_DEMAND_RING, p->want_stride, WASTE_RING_CONSUMER);
        repair_ring(p, shm->prefetch, WASTE_PREFETCH_RING, p->want_stride, WASTE_RING_CONSUMER);
        break;
    case WASTE_STAGE_COMPUTE:
        clear_pins(p);
        repair_ring(p, shm->demand, WASTE_DEMAND_RING, p->want_stride, WASTE_RING_PRODUCER);
        repair_ring(p, shm->hidden, WASTE_HIDDEN_RING, p->hidden_stride, WASTE_RING_PRODUCER);
        break;
    case WASTE_STAGE_ROUTER:
        repair_ring(p, shm->hidden, WASTE_HIDDEN_RING, p->hidden_stride, WASTE_RING_CONSUMER);
        repair_ring(p, shm->prefetch, WASTE_PREFETCH_RING, p->want_stride, WASTE_RING_PRODUCER);
        break;
    case WASTE_STAGE_COUNT:
        break;
    }
}
