/*
 * Meters: how long a drive's reads and a model's layers take, for who looks at a running pipeline.
 *
 * Each has one writer, and costs it a few stores to its own cache lines. All stores are relaxed:
 * nothing is concluded from two words together, and a look may fall between any two of them.
 */
#ifndef WASTE_SHM_METER_H
#define WASTE_SHM_METER_H

#include <stdatomic.h>
#include <stdint.h>

/* Bucket k counts reads of at most WASTE_LATENCY_FIRST_NS << k, the last one all that took longer.
 */
enum { WASTE_LATENCY_BUCKETS = 17, WASTE_LATENCY_FIRST_NS = 16384 };

/* Reads as one drive gets them: pieces of records. Reader; goes on over its deaths. */
struct waste_drive_meter {
    _Alignas(64) _Atomic uint64_t in_flight; /* at this moment */
    _Atomic uint64_t reads, bytes, ns;       /* ended; from being handed over to the result */
    _Atomic uint64_t bucket[WASTE_LATENCY_BUCKETS];
    uint64_t pad[3];
};
_Static_assert(sizeof(struct waste_drive_meter) == 192, "three cache lines");

/* One layer. Compute; goes on over its deaths. */
struct waste_layer_meter {
    _Alignas(64) _Atomic uint64_t tokens;       /* computed */
    _Atomic uint64_t ns, wait_ns;               /* for them; of that, waiting for experts */
    _Atomic uint64_t recent_ns, recent_wait_ns; /* the same for one token, the last ones counting
                                                   most */
    uint64_t pad[3];
};
_Static_assert(sizeof(struct waste_layer_meter) == 64, "one cache line");

/* A word of the caller's own, which nobody else writes: no locked instruction is needed. */
static inline void waste_meter_add(_Atomic uint64_t *word, uint64_t add)
{
    atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + add,
                          memory_order_relaxed);
}

static inline unsigned waste_latency_bucket(uint64_t ns)
{
    uint64_t over = ns == 0 ? 0 : (ns - 1) / WASTE_LATENCY_FIRST_NS;
    unsigned bucket = over == 0 ? 0 : 64 - (unsigned)__builtin_clzll(over);

    return bucket < WASTE_LATENCY_BUCKETS ? bucket : WASTE_LATENCY_BUCKETS - 1;
}

/* A read of `bytes` (0: it failed) ended after ns. */
static inline void waste_drive_meter_end(struct waste_drive_meter *m, uint64_t ns, uint64_t bytes)
{
    waste_meter_add(&m->reads, 1);
    waste_meter_add(&m->bytes, bytes);
    waste_meter_add(&m->ns, ns);
    waste_meter_add(&m->bucket[waste_latency_bucket(ns)], 1);
}

/* The decayed average moves by 1/8 of the difference; the first value is taken as it is. */
static inline uint64_t waste_meter_decay(uint64_t average, uint64_t value)
{
    return average == 0 ? value : average - average / 8 + value / 8;
}

/* The layer was computed for `tokens` (>= 1) in ns, wait_ns of that waiting. */
static inline void waste_layer_meter_add(struct waste_layer_meter *m, uint32_t tokens, uint64_t ns,
                                         uint64_t wait_ns)
{
    uint64_t recent = atomic_load_explicit(&m->recent_ns, memory_order_relaxed);
    uint64_t recent_wait = atomic_load_explicit(&m->recent_wait_ns, memory_order_relaxed);

    waste_meter_add(&m->tokens, tokens);
    waste_meter_add(&m->ns, ns);
    waste_meter_add(&m->wait_ns, wait_ns);
    atomic_store_explicit(&m->recent_ns, waste_meter_decay(recent, ns / tokens),
                          memory_order_relaxed);
    atomic_store_explicit(&m->recent_wait_ns, waste_meter_decay(recent_wait, wait_ns / tokens),
                          memory_order_relaxed);
}

#endif
