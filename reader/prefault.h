/*
 * Memory for slots before they are needed: the first read into a slot otherwise waits until the
 * kernel has found and cleared its pages, a millisecond for a record of a few megabytes, with the
 * drive idle. A thread of low priority goes a number of slots ahead of the cache, in the order in
 * which an empty cache uses them, and no further: memory that is never used is never taken.
 */
#ifndef WASTE_READER_PREFAULT_H
#define WASTE_READER_PREFAULT_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct waste_prefault {
    uint8_t *base;
    uint64_t slot_bytes;
    uint32_t slots;
    bool running;
    pthread_t thread;
    sem_t begun, more;
    uint32_t ahead;
    _Atomic uint32_t upto; /* slots it may populate */
    _Atomic uint32_t stop;
};

/* The first `slots` slots from `base` on, `ahead` of them at once. Without a thread nothing is lost
 * but time. */
void waste_prefault_start(struct waste_prefault *p, uint8_t *base, uint64_t slot_bytes,
                          uint32_t slots, uint32_t ahead);

/* So many slots have been filled. Costs a load most of the time. */
void waste_prefault_used(struct waste_prefault *p, uint64_t used);

/* Waits for the piece at work. Twice is fine, and so is a zeroed *p. */
void waste_prefault_stop(struct waste_prefault *p);

#endif
