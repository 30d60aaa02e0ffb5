#include "reader/prefault.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    STEP = 4,        /* slots a wake-up */
    PIECE = 64 << 10 /* bytes a call: a kernel that preempts lazily lets nobody else in before the
                        call is over, or for a tick */
};

/* Changes no byte of pages that are there. False: to be stopped, or not to be had; kernels before
 * 5.14 do not know it. */
static bool populate(const struct waste_prefault *p, uint8_t *slot)
{
    for (uint64_t at = 0; at < p->slot_bytes; at += PIECE) {
        uint64_t left = p->slot_bytes - at;
        /* relaxed: as in work() */
        if (atomic_load_explicit(&p->stop, memory_order_relaxed) ||
            madvise(slot + at, left < PIECE ? left : PIECE, MADV_POPULATE_WRITE) < 0)
            return false;
    }
    return true;
}

static void *work(void *arg)
{
    struct waste_prefault *p = arg;

    /* of this thread only: what compute leaves, or a worker would stand still for milliseconds */
    pthread_setschedparam(pthread_self(), SCHED_IDLE, &(struct sched_param){0});
    sem_post(&p->begun);
    for (uint32_t i = 0; i < p->slots; i++) {
        uint32_t upto;
        /* relaxed, both: a number and an end; the join orders everything */
        while (i >= (upto = atomic_load_explicit(&p->upto, memory_order_relaxed)) &&
               !atomic_load_explicit(&p->stop, memory_order_relaxed))
            sem_wait(&p->more);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            break;
        if (i + p->ahead < upto)
            i = upto - p->ahead; /* the reader was quicker: what is filled has its pages */
        if (!populate(p, p->base + i * p->slot_bytes))
            break;
    }
    return NULL;
}

void waste_prefault_start(struct waste_prefault *p, uint8_t *base, uint64_t slot_bytes,
                          uint32_t slots, uint32_t ahead)
{
    sigset_t all, old;

    p->base = base;
    p->slot_bytes = slot_bytes;
    p->slots = slots;
    p->ahead = ahead;
    atomic_store_explicit(&p->upto, ahead, memory_order_relaxed); /* before the thread */
    atomic_store_explicit(&p->stop, 0, memory_order_relaxed);
    sem_init(&p->begun, 0, 0);
    sem_init(&p->more, 0, 0);
    sigfillset(&all);
    sigdelset(&all, SIGSYS); /* a refused system call: shm/confine.c */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    p->running = pthread_create(&p->thread, NULL, work, p) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    /* soon the process may not do such things any more: shm/confine.h */
    while (p->running && sem_wait(&p->begun) < 0 && errno == EINTR)
        ;
}

void waste_prefault_used(struct waste_prefault *p, uint64_t used)
{
    /* relaxed: only this thread writes it */
    uint32_t upto = atomic_load_explicit(&p->upto, memory_order_relaxed);
    if (!p->running || upto >= p->slots || used + p->ahead < (uint64_t)upto + STEP)
        return;
    used += p->ahead;
    atomic_store_explicit(&p->upto, used < p->slots ? (uint32_t)used : p->slots,
                          memory_order_relaxed);
    sem_post(&p->more);
}

void waste_prefault_stop(struct waste_prefault *p)
{
    if (!p->running)
        return;
    atomic_store_explicit(&p->stop, 1, memory_order_relaxed); /* as above */
    sem_post(&p->more);
    pthread_join(p->thread, NULL);
    sem_destroy(&p->begun);
    sem_destroy(&p->more);
    p->running = false;
}
