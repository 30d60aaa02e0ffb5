/* The cache without a disk: reads end when the test says so. Of the demo model. */
#ifndef WASTE_TESTS_UNIT_CACHE_RIG_H
#define WASTE_TESTS_UNIT_CACHE_RIG_H

#include "cm.h"

#include <stdbool.h>
#include <stdint.h>

#include "reader/cache.h"

extern struct waste_model *model;
extern uint32_t top_k, experts;
extern uint64_t seed; /* of random_below; WASTE_TEST_SEED */

int rig_set_up(void **state);
int rig_tear_down(void **state);

struct rig {
    void *base;
    struct waste_shm shm;
    struct waste_cache cache;
    struct waste_cache_repair repair;
    struct waste_cache_read reading[4096]; /* not over yet, in any order */
    uint32_t reading_count;
    uint64_t step;
    union {
        struct waste_want want;
        uint32_t room[256];
    };
};

uint32_t random_below(uint32_t n);
/* Shared memory only. */
void create_shared(struct rig *r, uint32_t slots);
/* An empty cache to which all predictions are worth a read (whether they are: test_foresight.c). */
void create(struct rig *r, uint32_t slots, uint32_t prefetch_limit);
void destroy(struct rig *r);
uint64_t word(struct rig *r, uint32_t slot);
uint32_t directory(struct rig *r, uint32_t layer, uint32_t expert);
bool ready(struct rig *r, uint32_t layer, uint32_t expert);
/* Every slot is in exactly the one place its state and flags say, and both sides agree. */
void assert_consistent(struct rig *r);
/* What the cache wants read, into reading[]. */
void plan(struct rig *r, uint32_t room);
/* One of reading[], taken out. */
struct waste_cache_read take_reading(struct rig *r, uint32_t i);
/* All end well, in any order. */
void finish_reads(struct rig *r);
void set_want(struct rig *r, uint64_t step, uint32_t layer, const uint32_t *expert, uint32_t count);
void demand(struct rig *r, uint32_t layer, const uint32_t *expert, uint32_t count);
void prefetch(struct rig *r, uint64_t step, uint32_t layer, const uint32_t *expert, uint32_t count);
/* Different experts. */
void pick(uint32_t *expert, uint32_t count);
uint64_t counter(struct rig *r, enum waste_counter id);
bool is_held(const struct waste_cache *c, uint32_t slot);

#endif
