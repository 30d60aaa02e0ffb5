/*
 * Harness of the shm/ stress tests: two sides that hammer one shared segment, as processes (fork)
 * or, for the thread sanitizer, as threads; and a supervisor that kills sides at random moments and
 * starts successors.
 *
 * Nothing here waits with a timeout: a lost wake-up hangs its side, and the watchdog turns a hang
 * into a failure.
 */
#ifndef WASTE_TESTS_STRESS_H
#define WASTE_TESTS_STRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stress_options {
    bool threads;
    double scale; /* of the number of operations; 1 = the quick suite */
    uint64_t seed;
    int watchdog_s;
};
extern struct stress_options stress_options;

/* n operations scaled, at least 1. */
uint64_t stress_count(uint64_t n);

/* A zero-filled shared mapping on a memfd of its own; *out_fd may be NULL. Never fails. */
void *stress_shared(size_t bytes, int *out_fd);

/* Says what is wrong and ends this process with 1. */
void stress_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* xorshift; the state is never 0. */
struct stress_rng {
    uint64_t state;
};
struct stress_rng stress_rng(uint64_t salt);
uint64_t stress_random(struct stress_rng *rng);

/* Busy for n pauses: moves the two sides against each other. */
void stress_pause(uint64_t n);

uint64_t stress_mix(uint64_t x);

typedef void (*stress_side)(void *shared);

/* Runs both until both return. 0, or 1 with a message. */
int stress_pair(void *shared, stress_side a, stress_side b);

/*
 * Runs both as processes and kills a random one `kills` times, 0 to 3 ms apart; after(shared, side)
 * is the supervisor's work after reaping side 0 or 1, before its successor starts. Then
 * finish(shared) tells the sides to come to an end.
 */
int stress_kill(void *shared, stress_side a, stress_side b, int kills,
                void (*after)(void *shared, int side), void (*finish)(void *shared));

/* The tests; 0 or 1. */
int stress_ring(void);
int stress_bell(void);
int stress_eventfd(void);
int stress_slots(void);
int stress_hot_slot(void);
int stress_log(void);
int stress_kill_ring(void);
int stress_kill_slots(void);
int stress_kill_log(void);
int stress_kill_commit(void);
int stress_kill_embed(void);

#endif
