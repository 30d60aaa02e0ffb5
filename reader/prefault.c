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

/* Slots that may be populated now. */
static uint32_t limit(const struct waste_prefault *p)
{
    /* relaxed, both: numbers; the join orders everything */
    uint32_t used = atomic_load_explicit(&p->used, memory_order_relaxed);
    bool quiet = atomic_load_explicit(&p->quiet, memory_order_relaxed);
    uint64_t upto = (uint64_t)used + (quiet ? p->ahead : p->least);
    return upto < p->slots ? (uint32_t)upto : p->slots;
}

/* Until it is this slot's turn. False: to be stopped. */
static bool wait_for(struct waste_prefault *p, uint32_t slot)
{
    /* relaxed: as in limit() */
    while (!atomic_load_explicit(&p->stop, memory_order_relaxed)) {
        if (slot < limit(p))
            return true;
        sem_wait(&p->more);
    }
    return false;
}

/* Changes no byte of pages that are there. False: to be stopped, or not to be had; kernels before
 * 5.14 do not know it. */
static bool populate(struct waste_prefault *p, uint32_t slot)
{
    uint8_t *base = p->base + slot * p->slot_bytes;
    for (uint64_t at = 0; at < p->slot_bytes; at += PIECE) {
        uint64_t left = p->slot_bytes - at;
        if (!wait_for(p, slot) ||
            madvise(base + at, left < PIECE ? left : PIECE, MADV_POPULATE_WRITE) < 0)
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
    uint32_t next = 0;
    while (wait_for(p, next)) {
        /* relaxed, both: as in limit(); who sees an older `next` only wakes us once too often */
        uint32_t used = atomic_load_explicit(&p->used, memory_order_relaxed);
        if (next < used)
            next = used; /* the reader was quicker: what is filled has its pages */
        if (!populate(p, next))
            break;
        atomic_store_explicit(&p->next, ++next, memory_order_relaxed);
    }
    return NULL;
}

void waste_prefault_start(struct waste_prefault *p, uint8_t *base, uint64_t slot_bytes,
                          uint32_t slots, uint32_t ahead, uint32_t least)
{
    sigset_t all, old;

    p->base = base;
    p->slot_bytes = slot_bytes;
    p->slots = slots;
    p->ahead = ahead;
    p->least = least < ahead ? least : ahead;
    atomic_store_explicit(&p->used, 0, memory_order_relaxed); /* these before the thread */
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->quiet, 1, memory_order_relaxed);
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

/* There may be work where there was none. */
static void wake(struct waste_prefault *p)
{
    /* relaxed: as in work() */
    if (p->running && atomic_load_explicit(&p->next, memory_order_relaxed) < limit(p))
        sem_post(&p->more);
}

void waste_prefault_used(struct waste_prefault *p, uint64_t used)
{
    /* relaxed, both: only this thread writes it */
    uint32_t before = atomic_load_explicit(&p->used, memory_order_relaxed);
    if (before == p->slots || used < (uint64_t)before + STEP)
        return;
    atomic_store_explicit(&p->used, used < p->slots ? (uint32_t)used : p->slots,
                          memory_order_relaxed);
    wake(p);
}

void waste_prefault_quiet(struct waste_prefault *p, bool quiet)
{
    /* relaxed, both: only this thread writes it */
    bool was = atomic_load_explicit(&p->quiet, memory_order_relaxed);
    if (quiet == was)
        return;
    atomic_store_explicit(&p->quiet, quiet, memory_order_relaxed);
    if (quiet)
        wake(p);
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
