#include "tests/unit/cm.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "shm/bell.h"

static const int64_t MS = 1000000;

static int64_t now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void a_ring_moves_seq_and_nothing_else(void **state)
{
    struct waste_bell bell = {0};

    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(waste_bell_seq(&bell), i);
        waste_bell_ring(&bell);
    }
    assert_int_equal(atomic_load(&bell.waiters), 0);
    assert_int_equal(atomic_load(&bell.armed), 0);
}

static void a_wait_on_an_old_seq_returns_at_once(void **state)
{
    struct waste_bell bell = {0};
    uint32_t seen = waste_bell_seq(&bell);

    waste_bell_ring(&bell);
    assert_true(waste_bell_wait(&bell, seen, -1, 0)); /* would hang */
    assert_int_equal(atomic_load(&bell.waiters), 0);
}

static void seq_may_wrap(void **state)
{
    struct waste_bell bell = {0};

    atomic_store(&bell.seq, UINT32_MAX);
    waste_bell_ring(&bell);
    assert_int_equal(waste_bell_seq(&bell), 0);
    assert_true(waste_bell_wait(&bell, UINT32_MAX, -1, 0));
}

static void a_wait_without_a_ring_ends_at_its_timeout(void **state)
{
    static const int64_t spin[] = {0, 5, 3600000}; /* ms; the last is cut to the timeout */
    struct waste_bell bell = {0};

    for (size_t i = 0; i < 3; i++) {
        int64_t start = now();

        assert_false(waste_bell_wait(&bell, 0, 30 * MS, spin[i] * MS)); /* would hang */
        assert_true(now() - start >= 30 * MS);
    }
    assert_false(waste_bell_wait(&bell, 0, 0, 3600000 * MS));
    assert_int_equal(atomic_load(&bell.waiters), 0);
}

static void *ring_when_asleep(void *arg)
{
    struct waste_bell *bell = arg;

    while (atomic_load(&bell->waiters) == 0)
        usleep(200);
    usleep(20000); /* now it sleeps in the kernel, or is about to: both must work */
    waste_bell_ring(bell);
    return NULL;
}

static void a_ring_wakes_a_sleeper(void **state)
{
    struct waste_bell bell = {0};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, ring_when_asleep, &bell), 0);
    assert_true(waste_bell_wait(&bell, 0, -1, 0)); /* would hang */
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&bell.waiters), 0);
}

static void *wait_for_it(void *arg)
{
    return waste_bell_wait(arg, 0, -1, 0) ? arg : NULL;
}

static void a_ring_wakes_every_sleeper(void **state)
{
    struct waste_bell bell = {0};
    pthread_t thread[4];

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, wait_for_it, &bell), 0);
    while (atomic_load(&bell.waiters) < 4)
        usleep(200);
    usleep(20000);
    waste_bell_ring(&bell);
    for (int i = 0; i < 4; i++) {
        void *result;

        pthread_join(thread[i], &result);
        assert_ptr_equal(result, &bell);
    }
}

static void on_alarm(int sig)
{
}

static void a_signal_ends_a_wait(void **state)
{
    struct waste_bell bell = {0};
    struct sigaction sa = {.sa_handler = on_alarm}, old;
    struct itimerval timer = {.it_value.tv_usec = 20000, .it_interval.tv_usec = 20000}, off = {0};

    sigaction(SIGALRM, &sa, &old);
    setitimer(ITIMER_REAL, &timer, NULL);
    assert_false(waste_bell_wait(&bell, 0, -1, 0)); /* would hang */
    setitimer(ITIMER_REAL, &off, NULL);
    sigaction(SIGALRM, &old, NULL);
    assert_int_equal(atomic_load(&bell.waiters), 0);
}

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

static void the_eventfd_is_written_only_while_armed(void **state)
{
    struct waste_bell bell = {0};
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint64_t count;

    waste_bell_ring_fd(&bell, fd);
    assert_int_equal(waste_bell_seq(&bell), 1);
    assert_false(readable(fd));
    waste_bell_arm(&bell);
    assert_int_equal(waste_bell_seq(&bell), 1);
    assert_false(readable(fd));
    waste_bell_ring_fd(&bell, fd);
    assert_true(readable(fd));
    /* A ringer that dies between seeing `armed` and writing has not spoilt it for the next one. */
    assert_int_equal(read(fd, &count, 8), 8);
    waste_bell_ring_fd(&bell, fd);
    assert_true(readable(fd));
    assert_int_equal(read(fd, &count, 8), 8);
    waste_bell_disarm(&bell);
    waste_bell_ring_fd(&bell, fd);
    assert_false(readable(fd));
    assert_int_equal(waste_bell_seq(&bell), 4);
    close(fd);
}

static void ringing_keeps_errno_and_survives_a_full_eventfd(void **state)
{
    struct waste_bell bell = {0};
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint64_t most = UINT64_MAX - 1;

    assert_int_equal(write(fd, &most, 8), 8);
    waste_bell_arm(&bell);
    errno = 123;
    waste_bell_ring_fd(&bell, fd);
    assert_int_equal(errno, 123);
    waste_bell_ring_fd(&bell, -1);
    assert_int_equal(errno, 123);
    close(fd);
}

static void a_dead_sleeper_only_costs_system_calls(void **state)
{
    struct waste_bell bell = {0};

    atomic_store(&bell.waiters, 3);
    waste_bell_ring(&bell);
    assert_false(waste_bell_wait(&bell, 1, 5 * MS, 0));
    assert_int_equal(atomic_load(&bell.waiters), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_moves_seq_and_nothing_else),
        cmocka_unit_test(a_wait_on_an_old_seq_returns_at_once),
        cmocka_unit_test(seq_may_wrap),
        cmocka_unit_test(a_wait_without_a_ring_ends_at_its_timeout),
        cmocka_unit_test(a_ring_wakes_a_sleeper),
        cmocka_unit_test(a_ring_wakes_every_sleeper),
        cmocka_unit_test(a_signal_ends_a_wait),
        cmocka_unit_test(the_eventfd_is_written_only_while_armed),
        cmocka_unit_test(ringing_keeps_errno_and_survives_a_full_eventfd),
        cmocka_unit_test(a_dead_sleeper_only_costs_system_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
