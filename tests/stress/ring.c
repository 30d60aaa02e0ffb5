/* A ring with bells on both ends: every record once, whole, in order; nobody sleeps forever. */
#include <stdio.h>

#include "shm/bell.h"
#include "shm/ring.h"
#include "tests/stress/stress.h"

enum { CAPACITY = 32, WORDS = 8, STRIDE = WORDS * 8 };

struct shared {
    struct waste_bell to_consumer, to_producer;
    _Atomic uint64_t target; /* records to move before both stop; 0: not known yet */
    _Atomic uint64_t taken;  /* records the consumers verified */
};

static struct waste_ring *at(void *shared)
{
    return (struct waste_ring *)((char *)shared + 4096);
}

/* Before number `target` both sides stop. */
static bool over(struct shared *s, uint64_t number)
{
    /* acquire: pairs with the supervisor's store */
    uint64_t target = atomic_load_explicit(&s->target, memory_order_acquire);

    return target != 0 && number >= target;
}

static void fill(uint64_t *record, uint64_t number)
{
    uint64_t sum = number;

    record[0] = number;
    for (int i = 1; i < WORDS - 1; i++)
        sum += record[i] = stress_mix(number * WORDS + (uint64_t)i);
    record[WORDS - 1] = sum;
}

static void check(const uint64_t *record, uint64_t number)
{
    uint64_t sum = record[0];

    if (record[0] != number)
        stress_fail("ring: record %lu where %lu was due", record[0], number);
    for (int i = 1; i < WORDS - 1; i++) {
        if (record[i] != stress_mix(number * WORDS + (uint64_t)i))
            stress_fail("ring: record %lu has a foreign word", number);
        sum += record[i];
    }
    if (record[WORDS - 1] != sum)
        stress_fail("ring: record %lu is torn", number);
}

/* The number of a record is the cursor it is published at, so a successor needs no other memory. */
static void producer(void *shared)
{
    struct shared *s = shared;
    struct waste_ring *ring = at(shared);
    struct stress_rng rng = stress_rng(1);
    uint64_t number;

    waste_ring_repair(ring, WASTE_RING_PRODUCER);
    number = atomic_load_explicit(&ring->head, memory_order_relaxed); /* our own cursor */
    while (!over(s, number)) {
        uint32_t seen = waste_bell_seq(&s->to_producer);
        uint64_t *record = waste_ring_claim(ring);

        if (!record) {
            waste_bell_wait(&s->to_producer, seen, -1, stress_random(&rng) % 4 * 1000);
            continue;
        }
        fill(record, number++);
        waste_ring_publish(ring);
        waste_bell_ring(&s->to_consumer);
        if (stress_random(&rng) % 512 == 0)
            stress_pause(stress_random(&rng) % 2000);
    }
    waste_bell_ring(&s->to_consumer);
}

static void consumer(void *shared)
{
    struct shared *s = shared;
    struct waste_ring *ring = at(shared);
    struct stress_rng rng = stress_rng(2);
    uint64_t number;

    waste_ring_repair(ring, WASTE_RING_CONSUMER);
    number = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* our own cursor */
    while (!over(s, number)) {
        uint32_t seen = waste_bell_seq(&s->to_consumer);
        const uint64_t *record = waste_ring_peek(ring);

        if (!record) {
            waste_bell_wait(&s->to_consumer, seen, -1, stress_random(&rng) % 4 * 1000);
            continue;
        }
        check(record, number++);
        waste_ring_release(ring);
        atomic_store_explicit(&s->taken, number, memory_order_relaxed); /* read at the end */
        waste_bell_ring(&s->to_producer);
        if (stress_random(&rng) % 512 == 0)
            stress_pause(stress_random(&rng) % 2000);
    }
}

static struct shared *make(void)
{
    struct shared *s = stress_shared(4096 + waste_ring_bytes(CAPACITY, STRIDE), NULL);

    waste_ring_init(at(s), CAPACITY, STRIDE);
    return s;
}

static int judge(struct shared *s)
{
    uint64_t target = atomic_load(&s->target);

    printf("ring: %lu records\n", target);
    if (atomic_load(&s->taken) == target && waste_ring_valid(at(s), CAPACITY, STRIDE))
        return 0;
    fprintf(stderr, "ring: %lu of %lu records arrived\n", atomic_load(&s->taken), target);
    return 1;
}

int stress_ring(void)
{
    struct shared *s = make();

    atomic_store(&s->target, stress_count(1000000));
    return stress_pair(s, producer, consumer) || judge(s);
}

/* A side that died between publishing and ringing told nobody: the supervisor does. */
static void after(void *shared, int side)
{
    struct shared *s = shared;

    waste_bell_ring(side == 0 ? &s->to_consumer : &s->to_producer);
}

static void finish(void *shared)
{
    struct shared *s = shared;

    /* release: pairs with over() */
    atomic_store_explicit(&s->target, atomic_load(&at(shared)->head) + 20000, memory_order_release);
}

int stress_kill_ring(void)
{
    struct shared *s = make();

    return stress_kill(s, producer, consumer, (int)stress_count(200), after, finish) || judge(s);
}
