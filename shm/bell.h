/*
 * Doorbells: a futex word another process can sleep on without ever losing a wake-up.
 *
 * Protocol. The ringer first publishes what it has to say (release), then waste_bell_ring(). The
 * waiter reads `seq` (waste_bell_seq), THEN looks whether there is work, and only then waits for
 * `seq` to change:
 *
 *     for (;;) {
 *         uint32_t seq = waste_bell_seq(bell);       // 1
 *         if (there is work)                         // 2
 *             break;
 *         waste_bell_wait(bell, seq, timeout_ns);    // 3: returns at once if seq moved since 1
 *     }
 *
 * The wrong order (2 before 1) loses a ring that falls between them.
 *
 * A bell may carry an eventfd so that a process which also waits for I/O completions can sleep in
 * poll(); see waste_bell_arm().
 */
#ifndef WASTE_SHM_BELL_H
#define WASTE_SHM_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct waste_bell {
    _Alignas(64) _Atomic uint32_t seq; /* any ringer adds 1 */
    _Atomic uint32_t
        waiters; /* sleepers in the futex; a dead sleeper only costs spurious wake calls */
    _Atomic uint32_t
        armed; /* the owner sleeps (or is about to) on its eventfd; set and cleared by the owner */
    uint32_t pad[13];
};
_Static_assert(sizeof(struct waste_bell) == 64, "a bell is one cache line");

/*
 * Tells everybody who waits that something changed. Any process, any thread, async-signal-safe.
 *
 * A ringer that is killed between publishing and ringing has told nobody. So whoever reaps a dead
 * stage (the supervisor) rings the bells that stage used to ring.
 */
void waste_bell_ring(struct waste_bell *bell);

/* As waste_bell_ring, and also writes `event_fd` if the owner has armed it (owner sleeping in
 * poll). */
void waste_bell_ring_fd(struct waste_bell *bell, int event_fd);

static inline uint32_t waste_bell_seq(struct waste_bell *bell)
{
    /* acquire: pairs with the fetch_add(release) in waste_bell_ring */
    return atomic_load_explicit(&bell->seq, memory_order_acquire);
}

/*
 * Sleeps until `seq` differs from `seen`, the timeout passes (timeout_ns, < 0: no limit) or a
 * signal arrives. Spins for `spin_ns` first. Returns true if seq moved. Needs a writable mapping.
 */
bool waste_bell_wait(struct waste_bell *bell, uint32_t seen, int64_t timeout_ns, int64_t spin_ns);

/*
 * Owner of an eventfd bell (a non-blocking eventfd; one thread owns the bell). Ringers write the fd
 * only while it is armed.
 *
 *     for (;;) {
 *         waste_bell_arm(bell);                       // 1
 *         if (there is work)                          // 2: after 1, or a ring in between is lost
 *             break;
 *         poll(event_fd, ...);                        // 3
 *         read(event_fd, ...);                        // 4: before the next look, or it eats a ring
 *     }
 *     waste_bell_disarm(bell);
 *
 * A late ringer may write the fd after the owner disarmed: the next poll() returns once for
 * nothing.
 */
void waste_bell_arm(struct waste_bell *bell);
void waste_bell_disarm(struct waste_bell *bell);

#endif
