/*
 * Memory for slots before they are needed: the first read into a slot otherwise waits until the
 * kernel has found and cleared its pages, a millisecond for a record of a few megabytes, with the
 * drive idle; a virtual machine may take 10 us to give a page, ten times that. A thread of low
 * priority goes a number of slots ahead of the cache, in the order in which an empty cache uses
 * them, and no further: memory that is never used is never taken. A low priority alone does not
 * keep it from a worker's CPU for a tick: only the few slots that are wanted next are worth that,
 * the others are for when compute waits.
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
    uint32_t ahead, least;
    _Atomic uint32_t used; /* slots that were filled */
    _Atomic uint32_t next; /* the one it comes to */
    _Atomic uint32_t quiet, stop;
};

/* The first `slots` slots from `base` on, `ahead` of them at once, and always that many more than
 * are used; `least` while it is not quiet. Without a thread nothing is lost but time. */
void waste_prefault_start(struct waste_prefault *p, uint8_t *base, uint64_t slot_bytes,
                          uint32_t slots, uint32_t ahead, uint32_t least);

/* So many slots have been filled. Costs a load most of the time. */
void waste_prefault_used(struct waste_prefault *p, uint64_t used);

/* Whether compute has no use for all CPUs; so it is at first. Costs a load most of the time. */
void waste_prefault_quiet(struct waste_prefault *p, bool quiet);

/* Waits for the piece at work. Twice is fine, and so is a zeroed *p. */
void waste_prefault_stop(struct waste_prefault *p);

#endif
