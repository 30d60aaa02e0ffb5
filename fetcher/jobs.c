#include "fetcher/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { PAGE = 4096, READERS = 8 };

struct crew {
    const struct waste_jobs *jobs;
    _Atomic uint64_t next;    /* job to claim; relaxed: a job needs nothing of another */
    _Atomic int error;        /* the first -errno; relaxed: read again after the join */
    _Atomic uint32_t running; /* threads; relaxed: only ends the progress loop */
};

static void *worker(void *arg)
{
    struct crew *c = arg;
    uint8_t *buffer = aligned_alloc(PAGE, (c->jobs->buffer_bytes + PAGE) / PAGE * PAGE);
    int e = buffer ? 0 : -ENOMEM, none = 0;
    while (!e && !atomic_load_explicit(&c->error, memory_order_relaxed)) {
        uint64_t i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed);
        if (i >= c->jobs->count)
            break;
        e = c->jobs->run(c->jobs->ctx, i, buffer);
    }
    free(buffer);
    if (e)
        atomic_compare_exchange_strong_explicit(&c->error, &none, e, memory_order_relaxed,
                                                memory_order_relaxed);
    atomic_fetch_sub_explicit(&c->running, 1, memory_order_relaxed);
    return NULL;
}

uint32_t waste_jobs_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set))
        return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > WASTE_JOBS_THREADS ? WASTE_JOBS_THREADS : (uint32_t)n;
}

uint32_t waste_jobs_readers(void)
{
    uint32_t cpus = waste_jobs_cpus();
    return cpus < READERS ? READERS : cpus;
}

int waste_jobs_run(const struct waste_jobs *jobs)
{
    struct crew c = {.jobs = jobs};
    pthread_t thread[WASTE_JOBS_THREADS];
    uint32_t want = jobs->threads ? jobs->threads : waste_jobs_cpus(), made = 0;
    int e = 0;
    if (want > WASTE_JOBS_THREADS)
        want = WASTE_JOBS_THREADS;
    atomic_store_explicit(&c.running, want, memory_order_relaxed);
    while (made < want && !(e = pthread_create(&thread[made], NULL, worker, &c)))
        made++;
    atomic_fetch_sub_explicit(&c.running, want - made, memory_order_relaxed);
    while (atomic_load_explicit(&c.running, memory_order_relaxed)) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        waste_progress_show(jobs->progress);
    }
    for (uint32_t i = 0; i < made; i++)
        pthread_join(thread[i], NULL);
    /* relaxed: the join orders it */
    return made ? atomic_load_explicit(&c.error, memory_order_relaxed) : -e;
}
