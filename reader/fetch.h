/*
 * The life of one read: from a slot the cache has claimed to a record that has been checked.
 *
 * A read that comes back short goes on where it stopped; EINTR and EAGAIN are asked again; EIO, the
 * end of the file and a record that fails its checks are tried again after a pause that grows, and
 * then the slot FAILS with a reason and a line in the log. One thread.
 */
#ifndef WASTE_READER_FETCH_H
#define WASTE_READER_FETCH_H

#include "reader/banks.h"
#include "reader/cache.h"
#include "reader/io.h"
#include "reader/usage.h"

enum { WASTE_FETCH_TRIES = 4 }; /* in all */

struct waste_fetch_read {
    uint32_t layer, expert;
    uint32_t done;   /* bytes of the record that are there */
    uint16_t tries;  /* that failed */
    uint16_t stalls; /* results that brought nothing: EINTR, EAGAIN, too little for O_DIRECT */
    bool plain;      /* refused once with EINVAL, and asked again without O_DIRECT */
    bool demand;
    uint64_t due_ns; /* in the waiting list: not before this time */
};

struct waste_fetch {
    const struct waste_shm *shm;
    struct waste_cache *cache;
    struct waste_banks *banks;
    struct waste_io *io;
    uint8_t *base;                 /* of the cache segment */
    struct waste_fetch_read *read; /* [slots], of slots that are READING */
    struct waste_cache_read *plan; /* [depth] */
    struct waste_io_done *done;    /* results of one turn */
    uint32_t *waiting;             /* [slots] reads that pause or found the backend full */
    uint32_t waiting_count;
    uint32_t *prefetch; /* [depth] slots read for a prediction, some of them over meanwhile */
    uint32_t prefetch_count;
    uint64_t seen_records; /* of the cache, when those were last looked through */
    /* what the drives have to do, for the width of prefetching: foresight.h */
    uint32_t demand_reads;        /* not over */
    uint64_t demand_ns, quiet_ns; /* newest demand; since then demand_reads is 0 */
    uint64_t busy_ns, ended_ns;   /* the first read of a busy time; the newest end */
};

/* Everything passed in must outlive it. 0 or -ENOMEM. */
int waste_fetch_init(struct waste_fetch *f, const struct waste_shm *shm, struct waste_cache *cache,
                     struct waste_banks *banks, struct waste_io *io, uint8_t *base);
void waste_fetch_finish(struct waste_fetch *f);

/* Before a prediction or a demand goes to the cache: how long there was no demand to read. */
void waste_fetch_note_window(struct waste_fetch *f, const struct waste_want *want, bool demand);

/* Starts what the cache wants read (`fresh`) and what has paused long enough, as one batch. 0, or
 * -errno when the backend is broken. */
int waste_fetch_pump(struct waste_fetch *f, bool fresh);

/* Starts up to `most` reads of experts from `list` on that earlier runs used. Returns how many of
 * the list are done with: count if there is no room any more. */
uint32_t waste_fetch_warm(struct waste_fetch *f, const struct waste_usage_entry *list,
                          uint32_t count, uint32_t most);

/* Takes a few results; slots turn READY or FAILED and compute's bell rings. Returns how many
 * results there were. */
uint32_t waste_fetch_reap(struct waste_fetch *f);

/* Reads that are not over. */
static inline uint32_t waste_fetch_pending(const struct waste_fetch *f)
{
    return f->io->in_flight + f->waiting_count;
}

/* When the next pause ends (CLOCK_MONOTONIC), UINT64_MAX: nobody pauses. */
uint64_t waste_fetch_due_ns(const struct waste_fetch *f);

#endif
