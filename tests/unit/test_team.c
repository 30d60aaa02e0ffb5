/* The worker team: every task once, whatever the machine does to its threads. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cm.h"
#include "compute/team.h"

enum { TASKS = 64 };

struct work {
    struct waste_team *team;
    uint32_t tasks, round;
    uint32_t done[TASKS]; /* by whoever claims the task; plain, so a race is a visible one */
    _Atomic uint32_t total;
    uint32_t ticks;
};

static void phase(void *arg, uint32_t worker)
{
    struct work *w = arg;
    uint32_t task;

    while (waste_team_claim(w->team, worker, &task)) {
        assert_true(task < w->tasks);
        assert_int_equal(w->done[task], w->round);
        w->done[task]++;
        atomic_fetch_add_explicit(&w->total, 1, memory_order_relaxed);
    }
}

static void run_phases(uint32_t threads, uint32_t phases, unsigned pause_us)
{
    const uint64_t any[16] = {0};
    struct work w = {0};
    uint64_t expected = 0;

    assert_int_equal(waste_team_create(&w.team, threads, any), 0);
    assert_int_equal(waste_team_threads(w.team), threads);
    for (uint32_t i = 0; i < phases; i++) {
        w.tasks = TASKS;
        w.round = i;
        waste_team_run(w.team, phase, &w, w.tasks, 1 + i % 17);
        expected += w.tasks;
        for (uint32_t t = 0; t < TASKS; t++)
            assert_int_equal(w.done[t], i + 1);
        if (pause_us)
            usleep(pause_us);
    }
    assert_int_equal(w.total, expected);
    waste_team_destroy(w.team);
}

static void test_every_task_runs_once_a_phase(void **state)
{
    run_phases(1, 2000, 0);
    run_phases(2, 20000, 0);
    run_phases(5, 5000, 0);
}

static void test_workers_that_fell_asleep_come_back(void **state)
{
    run_phases(2, 200, 300);
    run_phases(5, 100, 300);
}

static void test_generations_wrap(void **state)
{
    run_phases(2, 70000, 0);
}

static void nothing(void *arg, uint32_t worker)
{
    uint32_t task;
    struct work *w = arg;
    if (waste_team_claim(w->team, worker, &task))
        atomic_fetch_add(&w->total, 1);
}

static void test_a_phase_without_tasks_or_with_one(void **state)
{
    const uint64_t any[16] = {0};
    struct work w = {0};

    assert_int_equal(waste_team_create(&w.team, 3, any), 0);
    waste_team_run(w.team, nothing, &w, 0, 1);
    assert_int_equal(w.total, 0);
    waste_team_run(w.team, nothing, &w, 1, 4);
    assert_int_equal(w.total, 1);
    waste_team_destroy(w.team);
    waste_team_destroy(NULL);
}

static void tick(void *arg)
{
    ((struct work *)arg)->ticks++;
}

static void test_the_caller_ticks_while_it_works(void **state)
{
    const uint64_t any[16] = {0};
    struct work w = {.tasks = TASKS};

    assert_int_equal(waste_team_create(&w.team, 1, any), 0);
    waste_team_set_tick(w.team, tick, &w);
    waste_team_run(w.team, phase, &w, TASKS, 16);
    assert_int_equal(w.ticks, TASKS + 1); /* the claim that finds nothing ticks too */
    waste_team_destroy(w.team);
}

static void test_bad_sizes_are_refused(void **state)
{
    uint64_t none[16] = {0};
    struct waste_team *team = NULL;

    assert_int_equal(waste_team_create(&team, 0, none), -EINVAL);
    assert_int_equal(waste_team_create(&team, WASTE_TEAM_MAX + 1, none), -EINVAL);
    none[15] = UINT64_C(1) << 63; /* a CPU this machine hardly has */
    if (sysconf(_SC_NPROCESSORS_CONF) < 1024)
        assert_int_equal(waste_team_create(&team, 2, none), -EINVAL);
    assert_null(team);
}

/* Two tasks that wait for each other: each has a worker of its own, and both are at work between
 * the two meetings. */
static void meet(void *arg, uint32_t worker)
{
    uint32_t task;
    struct work *w = arg;

    if (!waste_team_claim(w->team, worker, &task))
        return;
    for (uint32_t round = 1; round <= 2; round++) {
        atomic_fetch_add(&w->total, 1);
        while (atomic_load(&w->total) < w->tasks * round)
            usleep(100);
        if (round == 1)
            usleep(2000);
    }
}

static int64_t shared_ns(uint32_t threads, uint32_t tasks)
{
    const uint64_t any[16] = {0};
    struct work w = {.tasks = tasks};

    assert_int_equal(waste_team_create(&w.team, threads, any), 0);
    waste_team_run(w.team, meet, &w, tasks, 1);
    int64_t ns = waste_team_shared_ns(w.team);
    waste_team_run(w.team, nothing, &w, 1, 1); /* the next phase is counted anew */
    assert_int_equal(waste_team_shared_ns(w.team), 0);
    waste_team_destroy(w.team);
    return ns;
}

static void test_time_is_shared_when_two_are_at_work(void **state)
{
    assert_int_equal(shared_ns(1, 1), 0);
    assert_int_equal(shared_ns(3, 1), 0);
    assert_true(shared_ns(2, 2) >= 2000000);
    assert_true(shared_ns(5, 3) >= 2000000);
}

/* The C library's, counted: by the caller, and by its workers. */
static _Thread_local bool is_caller;
static _Atomic uint32_t yields[2];

int sched_yield(void)
{
    atomic_fetch_add(&yields[is_caller], 1);
    return (int)syscall(SYS_sched_yield);
}

enum { WAITS_US = 2000, LOOK_US = 100, PATIENCE_US = 5000000 };

/* Whether whoever of the two waits has yielded: if it is to, as soon as it does. */
static bool yields_are_seen(bool caller, bool expected)
{
    uint32_t limit = expected ? PATIENCE_US : WAITS_US;

    for (uint32_t us = 0; !atomic_load(&yields[caller]) && us < limit; us += LOOK_US)
        usleep(LOOK_US);
    return atomic_load(&yields[caller]) > 0;
}

struct wait {
    struct waste_team *team;
    _Atomic uint32_t met;
    bool expected, seen;
};

/* The caller is done as soon as both are there, and waits for the worker, who looks on. */
static void caller_waits(void *arg, uint32_t worker)
{
    uint32_t task;
    struct wait *w = arg;

    if (!waste_team_claim(w->team, worker, &task))
        return;
    atomic_fetch_add(&w->met, 1);
    while (atomic_load(&w->met) < 2)
        usleep(LOOK_US);
    if (worker)
        w->seen = yields_are_seen(true, w->expected);
}

/* After a phase that both took part in the worker waits for the next one. */
static bool waiters_yield(struct waste_team *team, bool caller, bool expected)
{
    struct wait w = {.team = team, .expected = caller && expected};
    struct work both = {.team = team, .tasks = 2};

    waste_team_run(team, meet, &both, 2, 1); /* no wait from before waste_team_share goes on */
    atomic_store(&yields[0], 0);
    atomic_store(&yields[1], 0);
    waste_team_run(team, caller_waits, &w, 2, 1);
    return caller ? w.seen : yields_are_seen(false, expected);
}

static void check_waiters(struct waste_team *team, bool expected)
{
    assert_int_equal(waiters_yield(team, true, expected), expected);
    assert_int_equal(waiters_yield(team, false, expected), expected);
}

static void test_who_spins_lets_others_run_if_there_are_any(void **state)
{
    const uint64_t any[16] = {0};
    struct waste_team *team;
    cpu_set_t home;

    is_caller = true;
    assert_int_equal(sched_getaffinity(0, sizeof home, &home), 0);
    assert_int_equal(waste_team_create(&team, 2, any), 0);
    bool own = CPU_COUNT(&home) > 1; /* each has a CPU: nobody is to be let, at first */
    check_waiters(team, !own);
    waste_team_share(team, true);
    check_waiters(team, true);
    waste_team_share(team, false);
    check_waiters(team, !own);
    waste_team_destroy(team);
}

static void test_who_has_no_cpu_of_its_own_lets_others_run(void **state)
{
    uint64_t one[16] = {0};
    struct waste_team *team;
    cpu_set_t home;
    int cpu = 0;

    is_caller = true;
    assert_int_equal(sched_getaffinity(0, sizeof home, &home), 0);
    while (!CPU_ISSET(cpu, &home))
        cpu++;
    one[cpu / 64] = UINT64_C(1) << cpu % 64;
    assert_int_equal(waste_team_create(&team, 2, one), 0);
    check_waiters(team, true);
    waste_team_destroy(team);
}

static bool has_room(uint32_t threads, const uint64_t cpus[16])
{
    struct waste_team *team;

    assert_int_equal(waste_team_create(&team, threads, cpus), 0);
    bool room = waste_team_has_room(team);
    waste_team_destroy(team);
    return room;
}

static void test_room_is_a_cpu_for_each_worker_and_more_than_one(void **state)
{
    uint64_t one[16] = {0}, two[16] = {0};
    cpu_set_t home;
    int found = 0;

    assert_int_equal(sched_getaffinity(0, sizeof home, &home), 0);
    for (int c = 0; c < 1024 && found < 2; c++) {
        if (!CPU_ISSET(c, &home))
            continue;
        two[c / 64] |= UINT64_C(1) << c % 64;
        if (!found++)
            one[c / 64] |= UINT64_C(1) << c % 64;
    }
    assert_false(has_room(1, one)); /* the reader has to work there, too */
    assert_false(has_room(2, one));
    if (found < 2)
        return;
    assert_true(has_room(1, two));
    assert_true(has_room(2, two));
    assert_false(has_room(3, two));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_runs_once_a_phase),
        cmocka_unit_test(test_workers_that_fell_asleep_come_back),
        cmocka_unit_test(test_generations_wrap),
        cmocka_unit_test(test_time_is_shared_when_two_are_at_work),
        cmocka_unit_test(test_a_phase_without_tasks_or_with_one),
        cmocka_unit_test(test_the_caller_ticks_while_it_works),
        cmocka_unit_test(test_room_is_a_cpu_for_each_worker_and_more_than_one),
        cmocka_unit_test(test_who_spins_lets_others_run_if_there_are_any),
        cmocka_unit_test(test_who_has_no_cpu_of_its_own_lets_others_run),
        cmocka_unit_test(test_bad_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
