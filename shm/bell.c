/*
 * Why no wake-up is lost, without a fence or a seq_cst access.
 *
 * All accesses that matter on `seq` are read-modify-writes with acq_rel order, so they stand in one
 * order, and each one sees everything that came before an earlier one in the thread that did it.
 *
 *     ringer  R0  publish the work                    waiter  W1  seen = seq (acquire)
 *             R1  seq += 1        (RMW, acq_rel)              W2  look for work: none
 *             R2  read `waiters`                              W3  waiters += 1
 *             R3  if != 0: FUTEX_WAKE                         W4  seq += 0    (RMW, acq_rel)
 *                                                             W5  if != seen: do not sleep
 *                                                             W6  FUTEX_WAIT(seq == seen)
 *
 * R1 before W4: if also before W1, then W1 is acquire, R1 happened before it, and W2 saw the work.
 *     Else W4 returns a value that is not `seen`, and W5 does not sleep.
 * W4 before R1: W3 happens before R2, so R2 reads at least 1 (every decrement follows its own
 *     increment, and the waiter's own is not yet undone while it sleeps) and R3 wakes. The kernel
 *     compares seq and queues the waiter under one lock, which FUTEX_WAKE takes too: either the
 *     waiter is queued before and is woken, or it takes the lock after R3, so after R1, and finds
 *     that seq is not `seen`.
 *
 * The plain-store version (waiters = 1; if (seq == seen) sleep; against seq++; if (waiters) wake)
 * is the wrong one: a store followed by a load of another word may pass it, on x86 too.
 *
 * The eventfd is the same proof with `armed` for `waiters`: A1 armed = 1, A2 seq += 0, A3 look for
 * work, A4 poll; against R1, then R2 read `armed`, R3 write the fd. R1 before A2: A3 sees the work.
 * A2 before R1: R2 reads 1 and the fd becomes readable, and stays so until the owner reads it.
 *
 * Only the owner clears `armed`. If the ringer did, one that dies after clearing and before writing
 * would leave an owner asleep that later ringers take for awake. As it is, the death of a ringer
 * at any point loses at most its own ring, and the supervisor rings after it has reaped it.
 *
 * seq wraps after 2^32 rings. A waiter would have to be stopped between W1 and W6 for exactly that
 * many (minutes of nothing but ringing) to sleep through one; waits have timeouts.
 */
#include "shm/bell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/inject.h"

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void ring(struct waste_bell *bell)
{
    /* R1. acq_rel: pairs with the RMW in waste_bell_wait and waste_bell_arm, and with the acquire
     * load in waste_bell_seq. */
    atomic_fetch_add_explicit(&bell->seq, 1, memory_order_acq_rel);
    WASTE_POINT(BELL_SEQ);
    /* R2. relaxed: ordered behind R1, which acquires. */
    if (atomic_load_explicit(&bell->waiters, memory_order_relaxed) != 0)
        syscall(SYS_futex, &bell->seq, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void waste_bell_ring(struct waste_bell *bell)
{
    int saved = errno; /* callers may be signal handlers */

    ring(bell);
    errno = saved;
}

void waste_bell_ring_fd(struct waste_bell *bell, int event_fd)
{
    uint64_t one = 1;
    int saved = errno;

    ring(bell);
    /* R2. relaxed: ordered behind R1, which acquires; pairs with the RMW in waste_bell_arm. */
    if (atomic_load_explicit(&bell->armed, memory_order_relaxed) != 0)
        /* EAGAIN means the counter is full: then the fd is readable already. */
        while (write(event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
            ;
    errno = saved;
}

/* True as soon as seq moved, false at `until`. Looks at the clock every 32 pauses only. */
static bool spin(struct waste_bell *bell, uint32_t seen, int64_t until)
{
    do {
        for (int i = 0; i < 32; i++) {
            if (waste_bell_seq(bell) != seen)
                return true;
            cpu_relax();
        }
    } while (now_ns() < until);
    return false;
}

/* The caller has announced itself in `waiters`. `deadline` < 0: none. */
static bool sleep_on(struct waste_bell *bell, uint32_t seen, int64_t deadline)
{
    struct timespec ts = {.tv_sec = (time_t)(deadline / 1000000000),
                          .tv_nsec = (long)(deadline % 1000000000)};

    /* W4. acq_rel: pairs with the RMW in ring(). */
    while (atomic_fetch_add_explicit(&bell->seq, 0, memory_order_acq_rel) == seen) {
        /* Not PRIVATE: the word is shared between processes. BITSET takes an absolute time. */
        long ret = syscall(SYS_futex, &bell->seq, FUTEX_WAIT_BITSET, seen,
                           deadline < 0 ? NULL : &ts, NULL, FUTEX_BITSET_MATCH_ANY);
        if (ret < 0 && errno != EAGAIN)
            return waste_bell_seq(bell) != seen; /* ETIMEDOUT, EINTR */
    }
    return true;
}

bool waste_bell_wait(struct waste_bell *bell, uint32_t seen, int64_t timeout_ns, int64_t spin_ns)
{
    int64_t deadline = -1, start;
    bool moved;

    if (waste_bell_seq(bell) != seen)
        return true;
    if (timeout_ns == 0)
        return false;
    start = now_ns();
    if (timeout_ns > 0 && timeout_ns < INT64_MAX - start)
        deadline = start + timeout_ns;
    if (timeout_ns > 0 && spin_ns > timeout_ns)
        spin_ns = timeout_ns;
    if (spin_ns > 0 && spin(bell, seen, start + spin_ns))
        return true;
    /* W3. relaxed: the RMW on seq that follows carries it to the ringer. */
    atomic_fetch_add_explicit(&bell->waiters, 1, memory_order_relaxed);
    moved = sleep_on(bell, seen, deadline);
    /* relaxed: a ringer that still reads the old count makes one useless system call */
    atomic_fetch_sub_explicit(&bell->waiters, 1, memory_order_relaxed);
    return moved;
}

void waste_bell_arm(struct waste_bell *bell)
{
    /* A1. relaxed: carried by A2. */
    atomic_store_explicit(&bell->armed, 1, memory_order_relaxed);
    /* A2. acq_rel: pairs with the RMW in ring(). */
    atomic_fetch_add_explicit(&bell->seq, 0, memory_order_acq_rel);
}

void waste_bell_disarm(struct waste_bell *bell)
{
    /* relaxed: a ringer that still sees 1 writes the fd once for nothing */
    atomic_store_explicit(&bell->armed, 0, memory_order_relaxed);
}
