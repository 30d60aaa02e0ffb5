#include "compute/team.h"

#include "shm/cpus.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * The team's word holds all that a phase's start and end need, so that joining, leaving, closing
 * and going to sleep are single compare-and-swaps on one word:
 *
 *   bit 0       closed: every task is claimed, nobody may join any more
 *   bit 1       some worker sleeps until the next phase opens
 *   bit 2       the caller sleeps until the last worker leaves
 *   bits 3-15   workers inside the phase, the caller not counted
 *   bits 16-31  generation, +1 a phase
 *
 * A worker that sleeps through 65536 phases takes the current one for one it has seen: it misses
 * it, as any late worker does.
 */
#define CLOSED 1u
#define WORKER_SLEEPS 2u
#define CALLER_SLEEPS 4u
#define ACTIVE_ONE 8u
#define ACTIVE_MASK 0xfff8u
#define GENERATION_SHIFT 16

/* FUTEX_WAIT_BITSET classes: who waits on the word. */
enum { WAKE_CALLER = 1, WAKE_WORKERS = 2 };

enum { SPIN_NS = 60000, PAUSES_A_LOOK = 32 };

/* A claim takes at most this part of a fair share of the tasks that are left. */
enum { CLAIM_PART = 2 };

struct waste_team {
    _Alignas(64) _Atomic uint32_t word;
    _Alignas(64) _Atomic uint32_t next; /* the next unclaimed task */
    /* worker 0, before it opens the phase */
    _Alignas(64) waste_phase_fn *fn;
    void *arg;
    uint32_t tasks, run, generation;
    /* set once */
    uint32_t threads;
    bool spin;           /* every worker has a CPU of its own */
    bool room;           /* and there is more than one */
    _Atomic bool shared; /* see waste_team_share */
    void (*tick)(void *);
    void *tick_arg;
    cpu_set_t home; /* the caller's affinity before it joined */
    _Atomic bool quit;
    uint32_t started;
    struct worker {
        _Alignas(64) struct waste_team *team;
        pthread_t thread;
        uint32_t number;
        uint32_t claimed, claimed_end; /* the rest of its last claim */
        uint32_t took_part;            /* generation of the phase below */
        int64_t start_ns, end_ns;      /* of its work there; read by worker 0 after leave() */
    } worker[];
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint32_t class)
{
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, NULL, NULL, class);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t class)
{
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, INT32_MAX, NULL, NULL, class);
}

/* Spins until the word is no longer `seen` or the patience is over; returns the word. */
static uint32_t spin_on(struct waste_team *team, uint32_t seen)
{
    int64_t end = 0;

    for (;;) {
        for (int i = 0; i < PAUSES_A_LOOK; i++) {
            /* acquire: pairs with the exchange that opens a phase and the subtraction that leaves
             * it */
            uint32_t word = atomic_load_explicit(&team->word, memory_order_acquire);
            if (word != seen)
                return word;
            cpu_relax();
        }
        int64_t now = now_ns();
        if (!end)
            end = now + SPIN_NS;
        if (now >= end)
            return seen;
        /* relaxed: a hint */
        if (!team->spin || atomic_load_explicit(&team->shared, memory_order_relaxed))
            sched_yield();
        if (!team->spin)
            end = now;
    }
}

/* Blocks until a phase other than `seen` is open, and joins it. False: the team is dissolved. */
static bool join(struct waste_team *team, uint32_t *seen)
{
    uint32_t word = atomic_load_explicit(&team->word, memory_order_acquire);

    for (;;) {
        /* acquire: pairs with the release in waste_team_destroy */
        if (atomic_load_explicit(&team->quit, memory_order_acquire))
            return false;
        if (word >> GENERATION_SHIFT != *seen && !(word & CLOSED)) {
            /* acquire: fn, arg and tasks of this phase; pairs with the opening exchange */
            if (!atomic_compare_exchange_weak_explicit(&team->word, &word, word + ACTIVE_ONE,
                                                       memory_order_acquire, memory_order_acquire))
                continue;
            *seen = word >> GENERATION_SHIFT;
            return true;
        }
        uint32_t after = spin_on(team, word);
        if (after != word) {
            word = after;
            continue;
        }
        /* announces the sleep; the exchange that opens the next phase sees it or makes this fail
         */
        if (!(word & WORKER_SLEEPS) &&
            !atomic_compare_exchange_strong_explicit(&team->word, &word, word | WORKER_SLEEPS,
                                                     memory_order_acquire, memory_order_acquire))
            continue;
        futex_wait(&team->word, word | WORKER_SLEEPS, WAKE_WORKERS);
        word = atomic_load_explicit(&team->word, memory_order_acquire);
    }
}

static void leave(struct waste_team *team)
{
    /* release: what this worker wrote; pairs with the caller's acquire in wait_for_workers */
    uint32_t before = atomic_fetch_sub_explicit(&team->word, ACTIVE_ONE, memory_order_release);
    if ((before & CALLER_SLEEPS) && (before & ACTIVE_MASK) == ACTIVE_ONE)
        futex_wake(&team->word, WAKE_CALLER);
}

static void work(struct worker *w, uint32_t generation)
{
    w->start_ns = now_ns();
    w->team->fn(w->team->arg, w->number);
    w->end_ns = now_ns();
    w->took_part = generation;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint32_t seen = 0;

    while (join(w->team, &seen)) {
        work(w, seen);
        leave(w->team);
    }
    return NULL;
}

static void wait_for_workers(struct waste_team *team)
{
    /* acquire on every path that finds nobody inside: pairs with leave() */
    uint32_t word = atomic_fetch_or_explicit(&team->word, CLOSED, memory_order_acquire) | CLOSED;

    while (word & ACTIVE_MASK) {
        uint32_t after = spin_on(team, word);
        if (after != word) {
            word = after;
            continue;
        }
        if (!(word & CALLER_SLEEPS) &&
            !atomic_compare_exchange_strong_explicit(&team->word, &word, word | CALLER_SLEEPS,
                                                     memory_order_acquire, memory_order_acquire))
            continue;
        futex_wait(&team->word, word | CALLER_SLEEPS, WAKE_CALLER);
        word = atomic_load_explicit(&team->word, memory_order_acquire);
    }
}

/* A new generation, open or closed, with nobody inside. */
static void next_generation(struct waste_team *team, uint32_t flags)
{
    uint32_t word = atomic_load_explicit(&team->word, memory_order_relaxed);
    uint32_t opened = ((word >> GENERATION_SHIFT) + 1) << GENERATION_SHIFT | flags;

    /* release: the phase's description; pairs with the acquire in join(). An exchange, so that a
     * worker that announced its sleep in between is seen. */
    word = atomic_exchange_explicit(&team->word, opened, memory_order_release);
    if (word & WORKER_SLEEPS)
        futex_wake(&team->word, WAKE_WORKERS);
}

void waste_team_run(struct waste_team *team, waste_phase_fn *fn, void *arg, uint32_t tasks,
                    uint32_t run)
{
    team->fn = fn;
    team->arg = arg;
    team->tasks = tasks;
    team->run = run;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed); /* published by the opening */
    if (team->started && tasks > 1)
        next_generation(team, 0);
    /* relaxed: only worker 0 changes it */
    team->generation = atomic_load_explicit(&team->word, memory_order_relaxed) >> GENERATION_SHIFT;
    work(&team->worker[0], team->generation);
    if (team->started && tasks > 1)
        wait_for_workers(team);
}

/* From when the second one came to when the last but one went. */
int64_t waste_team_shared_ns(const struct waste_team *team)
{
    const struct worker *own = &team->worker[0];
    int64_t first = own->start_ns, second = INT64_MAX, last = own->end_ns, last_but_one = 0;

    for (uint32_t i = 1; i <= team->started && team->tasks > 1; i++) {
        const struct worker *w = &team->worker[i];
        if (w->took_part != team->generation)
            continue;
        int64_t start = w->start_ns, end = w->end_ns;
        second = start > first ? (start < second ? start : second) : first;
        first = start < first ? start : first;
        last_but_one = end < last ? (end > last_but_one ? end : last_but_one) : last;
        last = end > last ? end : last;
    }
    return last_but_one > second ? last_but_one - second : 0;
}

static bool claim_run(struct waste_team *team, struct worker *own)
{
    /* relaxed throughout: the numbers are all that is handed out; the word orders the data */
    uint32_t n, next = atomic_load_explicit(&team->next, memory_order_relaxed);

    do {
        if (next >= team->tasks)
            return false;
        n = (team->tasks - next) / (CLAIM_PART * team->threads);
        n = n > team->run ? team->run : n;
        n = n < 1 ? 1 : n;
    } while (!atomic_compare_exchange_weak_explicit(&team->next, &next, next + n,
                                                    memory_order_relaxed, memory_order_relaxed));
    own->claimed = next;
    own->claimed_end = next + n;
    return true;
}

bool waste_team_claim(struct waste_team *team, uint32_t worker, uint32_t *task)
{
    struct worker *own = &team->worker[worker];

    if (!worker && team->tick)
        team->tick(team->tick_arg);
    if (own->claimed == own->claimed_end && !claim_run(team, own))
        return false;
    *task = own->claimed++;
    return true;
}

static int start_workers(struct waste_team *team, const cpu_set_t *cpus, bool pin)
{
    pthread_attr_t attr;
    cpu_set_t mine = *cpus;
    int err = 0;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, WASTE_TEAM_STACK_BYTES);
    for (uint32_t i = 1; i < team->threads && !err; i++) {
        struct worker *w = &team->worker[i];
        w->number = i;
        if (pin)
            waste_cpus_only(cpus, i, &mine);
        pthread_attr_setaffinity_np(&attr, sizeof mine, &mine);
        err = pthread_create(&w->thread, &attr, worker_main, w);
        if (!err)
            team->started++;
    }
    pthread_attr_destroy(&attr);
    if (pin)
        waste_cpus_only(cpus, 0, &mine);
    if (!err)
        err = pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);
    return -err;
}

int waste_team_create(struct waste_team **out, uint32_t threads, const uint64_t cpus[16])
{
    struct waste_team *team;
    size_t bytes = sizeof *team + threads * sizeof team->worker[0];
    cpu_set_t use;
    int count, err;

    if (!threads || threads > WASTE_TEAM_MAX)
        return -EINVAL;
    team = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!team)
        return -ENOMEM;
    memset(team, 0, bytes);
    team->threads = threads;
    for (uint32_t i = 0; i < threads; i++)
        team->worker[i] = (struct worker){.team = team, .took_part = UINT32_MAX};
    atomic_init(&team->word, CLOSED);
    err = -pthread_getaffinity_np(pthread_self(), sizeof team->home, &team->home);
    if (err) {
        free(team);
        return err;
    }
    count = waste_cpus_usable(cpus, &team->home, &use);
    team->spin = (int)threads <= count;
    team->room = team->spin && count > 1;
    err = count ? start_workers(team, &use, waste_cpus_pinned(threads, count)) : -EINVAL;
    if (err) {
        waste_team_destroy(team);
        return err;
    }
    *out = team;
    return 0;
}

void waste_team_destroy(struct waste_team *team)
{
    if (!team)
        return;
    /* release: pairs with the acquire in join() */
    atomic_store_explicit(&team->quit, true, memory_order_release);
    next_generation(team, CLOSED);
    futex_wake(&team->word, WAKE_WORKERS);
    for (uint32_t i = 1; i <= team->started; i++)
        pthread_join(team->worker[i].thread, NULL);
    pthread_setaffinity_np(pthread_self(), sizeof team->home, &team->home);
    free(team);
}

void waste_team_set_tick(struct waste_team *team, void (*tick)(void *), void *arg)
{
    team->tick = tick;
    team->tick_arg = arg;
}

void waste_team_share(struct waste_team *team, bool shared)
{
    atomic_store_explicit(&team->shared, shared, memory_order_relaxed);
}

uint32_t waste_team_threads(const struct waste_team *team)
{
    return team->threads;
}

bool waste_team_has_room(const struct waste_team *team)
{
    return team->room;
}
