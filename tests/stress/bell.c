/*
 * Ping-pong over two bells: every message is awaited before the next one is sent, so a single lost
 * wake-up stops both sides for good. Random pauses between the steps of the waiter, up to about as
 * long as an answer takes, let the ring fall into every gap between them.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/bell.h"
#include "tests/stress/stress.h"

struct shared {
    struct waste_bell bell[2];
    _Alignas(64) _Atomic uint64_t sent[2];
    uint64_t rounds;
    int event_fd; /* of bell 0; the same number in both processes */
};

static bool arrived(struct shared *s, int from, uint64_t number)
{
    /* acquire: pairs with send() */
    return atomic_load_explicit(&s->sent[from], memory_order_acquire) >= number;
}

static void send(struct shared *s, int from, uint64_t number)
{
    /* release: pairs with arrived() */
    atomic_store_explicit(&s->sent[from], number, memory_order_release);
}

/* Mostly no time at all, so that the fast path is met too. */
static void gap(struct stress_rng *rng)
{
    uint64_t dice = stress_random(rng);

    if (dice % 4 == 0)
        stress_pause(dice / 4 % 1500);
}

static void await(struct shared *s, int me, uint64_t number, struct stress_rng *rng)
{
    for (;;) {
        uint32_t seen = waste_bell_seq(&s->bell[me]);

        gap(rng);
        if (arrived(s, 1 - me, number))
            break;
        gap(rng);
        waste_bell_wait(&s->bell[me], seen, -1, stress_random(rng) % 8 == 0 ? 2000 : 0);
    }
}

static void ping(void *shared)
{
    struct shared *s = shared;
    struct stress_rng rng = stress_rng(1);

    for (uint64_t n = 1; n <= s->rounds; n++) {
        send(s, 0, n);
        waste_bell_ring(&s->bell[1]);
        await(s, 0, n, &rng);
    }
}

static void pong(void *shared)
{
    struct shared *s = shared;
    struct stress_rng rng = stress_rng(2);

    for (uint64_t n = 1; n <= s->rounds; n++) {
        await(s, 1, n, &rng);
        gap(&rng);
        send(s, 1, n);
        waste_bell_ring_fd(&s->bell[0], s->event_fd);
    }
}

/* As ping, but asleep in poll(). */
static void ping_polling(void *shared)
{
    struct shared *s = shared;
    struct stress_rng rng = stress_rng(3);

    for (uint64_t n = 1; n <= s->rounds; n++) {
        send(s, 0, n);
        waste_bell_ring(&s->bell[1]);
        for (;;) {
            struct pollfd p = {.fd = s->event_fd, .events = POLLIN};
            uint64_t count;

            waste_bell_arm(&s->bell[0]);
            gap(&rng);
            if (arrived(s, 1, n))
                break;
            gap(&rng);
            if (poll(&p, 1, -1) < 0 && errno != EINTR)
                stress_fail("poll: %s", strerror(errno));
            if (read(s->event_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
                stress_fail("eventfd: %s", strerror(errno));
        }
        waste_bell_disarm(&s->bell[0]);
    }
}

static int run(stress_side ping_side, uint64_t rounds)
{
    struct shared *s = stress_shared(sizeof(*s), NULL);
    int ret;

    s->rounds = rounds;
    s->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    ret = stress_pair(s, ping_side, pong);
    printf("bell: %lu round trips\n", rounds);
    if (ret == 0 &&
        (atomic_load(&s->bell[0].waiters) != 0 || atomic_load(&s->bell[1].waiters) != 0)) {
        fprintf(stderr, "bell: sleepers are left over\n");
        ret = 1;
    }
    close(s->event_fd);
    return ret;
}

int stress_bell(void)
{
    return run(ping, stress_count(40000));
}

int stress_eventfd(void)
{
    return run(ping_polling, stress_count(40000));
}
