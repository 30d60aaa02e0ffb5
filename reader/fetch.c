#include "reader/fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "reader/direct.h"
#include "shm/inject.h"

/* One try after 1, 5 and 25 ms: a bus reset or a stray bit is over by then, a broken disk is not.
 */
enum { FIRST_PAUSE_NS = 1000000, PAUSE_GROWS = 5, MAX_STALLS = 100, DIRECT_STALLS = 3 };

/* Results a turn: checking a K3 record takes a millisecond, and new demand should not wait for
 * many, nor the heartbeat. */
enum { REAP = 2 };

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int waste_fetch_init(struct waste_fetch *f, const struct waste_shm *shm, struct waste_cache *cache,
                     struct waste_banks *banks, struct waste_io *io, uint8_t *base)
{
    uint32_t slots = cache->slots;
    memset(f, 0, sizeof(*f));
    f->shm = shm;
    f->cache = cache;
    f->banks = banks;
    f->io = io;
    f->base = base;
    f->read = calloc(slots, sizeof(*f->read));
    f->waiting = malloc(slots * sizeof(*f->waiting));
    f->plan = malloc(io->depth * sizeof(*f->plan));
    f->done = malloc(REAP * sizeof(*f->done));
    f->prefetch = malloc(io->depth * sizeof(*f->prefetch));
    if (f->read && f->waiting && f->plan && f->done && f->prefetch)
        return 0;
    waste_fetch_finish(f);
    return -ENOMEM;
}

void waste_fetch_finish(struct waste_fetch *f)
{
    free(f->read);
    free(f->waiting);
    free(f->plan);
    free(f->done);
    free(f->prefetch);
    memset(f, 0, sizeof(*f));
}

static void note(struct waste_fetch *f, enum waste_moment event, uint32_t slot)
{
    waste_timeline_note(f->shm->control, event, f->cache->step, f->read[slot].layer,
                        f->read[slot].expert);
}

/* Queues what is missing of this slot's record, or puts it on the waiting list. */
static void ask(struct waste_fetch *f, uint32_t slot, uint64_t due_ns)
{
    struct waste_fetch_read *r = &f->read[slot];
    uint64_t record = f->shm->model->expert.record_bytes;
    struct waste_io_read read = {
        .tag = slot,
        .file = f->banks->of_layer[r->layer],
        .off = r->expert * record + r->done,
        .data = f->base + slot * f->shm->control->slot_bytes + r->done,
        .bytes = (uint32_t)record - r->done,
        .buffer = slot,
        .urgent = r->demand,
    };
    r->due_ns = due_ns;
    if (due_ns == 0 && f->io->in_flight == 0)
        f->busy_ns = now_ns();
    if (due_ns > 0 || !f->io->ops->queue(f->io, &read))
        f->waiting[f->waiting_count++] = slot;
}

static void log_failure(struct waste_fetch *f, const struct waste_fetch_read *r, uint32_t error,
                        uint32_t detail, bool final)
{
    const struct waste_bank *bank = &waste_model_layer(f->shm->model, r->layer)->bank;
    struct waste_log *log = &f->shm->control->log[WASTE_STAGE_READER];
    waste_log_write(log, final ? WASTE_LOG_ERROR : WASTE_LOG_WARNING,
                    "%s: layer %u expert %u: %s%s%s, %s", bank->file, r->layer, r->expert,
                    waste_slot_error_text(error), detail ? ": " : "",
                    detail ? strerror((int)detail) : "", final ? "given up" : "trying again");
}

/* Nothing more is to be read for this slot. */
static void over(struct waste_fetch *f, uint32_t slot, uint64_t now)
{
    if (f->read[slot].demand && --f->demand_reads == 0)
        f->quiet_ns = now;
}

void waste_fetch_note_window(struct waste_fetch *f, const struct waste_want *want, bool demand)
{
    uint64_t now = now_ns(), from = f->quiet_ns > f->demand_ns ? f->quiet_ns : f->demand_ns;
    uint64_t window = f->demand_reads > 0 || f->demand_ns == 0 ? 0 : now - from;
    waste_foresight_window(&f->cache->foresight, want->layer, want->step, window);
    if (!demand)
        return;
    f->demand_ns = now;
    waste_count(f->shm->control, WASTE_C_DRIVES_IDLE_NS, window);
}

static void failed_try(struct waste_fetch *f, uint32_t slot, uint32_t error, uint32_t detail)
{
    struct waste_fetch_read *r = &f->read[slot];
    r->tries++;
    if (r->tries < WASTE_FETCH_TRIES) {
        uint64_t pause = FIRST_PAUSE_NS;
        for (uint32_t i = 1; i < r->tries; i++)
            pause *= PAUSE_GROWS;
        waste_count(f->shm->control, WASTE_C_READ_RETRIES, 1);
        if (r->tries == 1)
            log_failure(f, r, error, detail, false);
        r->done = 0;
        ask(f, slot, now_ns() + pause);
        return;
    }
    waste_count(f->shm->control, WASTE_C_READ_FAILURES, 1);
    log_failure(f, r, error, detail, true);
    over(f, slot, now_ns());
    waste_cache_failed(f->cache, slot, (enum waste_slot_error)error, detail);
    waste_bell_ring(&f->shm->control->compute_bell);
}

static void stalled(struct waste_fetch *f, uint32_t slot, uint32_t error, uint32_t detail)
{
    if (f->read[slot].stalls++ < MAX_STALLS)
        ask(f, slot, 0);
    else
        failed_try(f, slot, error, detail);
}

/* The whole record is in the slot: check it and let compute have it. */
static void complete(struct waste_fetch *f, uint32_t slot)
{
    const struct waste_model *model = f->shm->model;
    const struct waste_fetch_read *r = &f->read[slot];
    const uint8_t *record = f->base + slot * f->shm->control->slot_bytes;
    note(f, WASTE_MOMENT_ARRIVED, slot);
    uint32_t error = waste_record_check_header(model, r->layer, r->expert, record);
    if (error == WASTE_SLOT_OK && f->shm->control->options.verify)
        error = waste_record_check_crc(model, record);
    if (error == WASTE_SLOT_OK)
        error = waste_record_check_scales(model, record);
    if (error != WASTE_SLOT_OK) {
        failed_try(f, slot, error, 0);
        return;
    }
    waste_count(f->shm->control, WASTE_C_READS, 1);
    uint64_t now = now_ns();
    if (f->ended_ns > f->busy_ns) /* the first one's time is the drive's latency, not its rate */
        waste_foresight_read_took(&f->cache->foresight, now - f->ended_ns);
    f->ended_ns = now;
    over(f, slot, now);
    WASTE_POINT(READ_CHECKED);
    note(f, WASTE_MOMENT_READY, slot); /* before compute can take it and note what it does then */
    waste_cache_ready(f->cache, slot);
    WASTE_POINT(SLOT_READY);
    waste_bell_ring(&f->shm->control->compute_bell);
}

/* The rest of a record of which a read gave n bytes. O_DIRECT goes on at a block only, and is given
 * up where reads end within their first one; without it a read goes on where it ended. */
static void go_on(struct waste_fetch *f, uint32_t slot, uint32_t n)
{
    struct waste_fetch_read *r = &f->read[slot];
    uint32_t file = f->banks->of_layer[r->layer];
    if (n < WASTE_DIRECT_ALIGN && r->stalls >= DIRECT_STALLS && !f->shm->control->options.io_direct)
        waste_banks_drop_direct(f->banks, file);
    uint32_t got = waste_banks_is_direct(f->banks, file) ? n - n % WASTE_DIRECT_ALIGN : n;
    waste_count(f->shm->control, WASTE_C_BYTES_READ, got);
    r->done += got;
    if (got > 0)
        ask(f, slot, 0);
    else
        stalled(f, slot, WASTE_SLOT_SHORT, 0);
}

static void result(struct waste_fetch *f, uint32_t slot, int32_t n)
{
    struct waste_fetch_read *r = &f->read[slot];
    uint32_t left = f->shm->model->expert.record_bytes - r->done;
    WASTE_POINT(READ_DONE);
    if (n == -EINTR || n == -EAGAIN) {
        stalled(f, slot, WASTE_SLOT_EIO, (uint32_t)-n);
    } else if (n == -EINVAL && !r->plain && !f->shm->control->options.io_direct) {
        /* O_DIRECT was granted at open and is refused now, to all reads in flight at once */
        r->plain = true;
        waste_banks_drop_direct(f->banks, f->banks->of_layer[r->layer]);
        ask(f, slot, 0);
    } else if (n < 0) {
        failed_try(f, slot, WASTE_SLOT_EIO, (uint32_t)-n);
    } else if (n == 0 || (uint32_t)n > left) {
        failed_try(f, slot, WASTE_SLOT_SHORT, 0);
    } else if ((uint32_t)n == left) {
        waste_count(f->shm->control, WASTE_C_BYTES_READ, (uint32_t)n);
        r->done += (uint32_t)n;
        complete(f, slot);
    } else {
        go_on(f, slot, (uint32_t)n);
    }
}

/* Waiting reads whose time has come. */
static void resume(struct waste_fetch *f)
{
    uint64_t now = f->waiting_count ? now_ns() : 0;
    for (uint32_t n = f->waiting_count; n-- > 0;) {
        uint32_t slot = f->waiting[n];
        if (f->read[slot].due_ns > now || f->io->in_flight == f->io->depth)
            continue;
        f->waiting[n] = f->waiting[--f->waiting_count];
        ask(f, slot, 0);
    }
}

/*
 * After new demand: a read that was begun for a prediction and is demanded now goes before the
 * others; one whose layer is over is forgotten, if the kernel does not have it yet.
 */
static void sort_prefetches(struct waste_fetch *f)
{
    struct waste_io *io = f->io;
    uint32_t left = 0;
    if (f->seen_records == f->cache->records)
        return;
    f->seen_records = f->cache->records;
    for (uint32_t i = 0; i < f->prefetch_count; i++) {
        uint32_t slot = f->prefetch[i];
        switch (waste_cache_prefetch_state(f->cache, slot)) {
        case WASTE_CACHE_PREFETCH_OVER:
            break;
        case WASTE_CACHE_PREFETCH_DEMANDED:
            f->demand_reads += !f->read[slot].demand;
            f->read[slot].demand = true;
            if (io->ops->urge)
                io->ops->urge(io, slot);
            break;
        case WASTE_CACHE_PREFETCH_PASSED:
            if (io->ops->cancel && io->ops->cancel(io, slot)) {
                waste_cache_cancelled(f->cache, slot);
                break;
            }
            /* fall through */
        case WASTE_CACHE_PREFETCH_AHEAD:
            f->prefetch[left++] = slot;
        }
    }
    f->prefetch_count = left;
}

int waste_fetch_pump(struct waste_fetch *f, bool fresh)
{
    sort_prefetches(f);
    resume(f);
    uint32_t busy = waste_fetch_pending(f), depth = f->io->depth;
    uint32_t n = fresh && busy < depth ? waste_cache_plan(f->cache, f->plan, depth - busy) : 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct waste_cache_read *p = &f->plan[i];
        f->read[p->slot] =
            (struct waste_fetch_read){.layer = p->layer, .expert = p->expert, .demand = p->demand};
        f->demand_reads += p->demand;
        note(f, p->demand ? WASTE_MOMENT_READ : WASTE_MOMENT_PREFETCH, p->slot);
        if (!p->demand && f->prefetch_count < depth)
            f->prefetch[f->prefetch_count++] = p->slot;
        ask(f, p->slot, 0);
    }
    int rc = f->io->ops->submit(f->io);
    if (n > 0)
        WASTE_POINT(READ_SUBMITTED);
    return rc;
}

uint32_t waste_fetch_warm(struct waste_fetch *f, const struct waste_usage_entry *list,
                          uint32_t count, uint32_t most)
{
    uint32_t i = 0;
    for (uint32_t started = 0; i < count && started < most; i++) {
        struct waste_cache_read read;
        int rc = waste_cache_warm(f->cache, list[i].layer, list[i].expert, &read);
        if (rc < 0)
            return count;
        if (rc == 0)
            continue;
        f->read[read.slot] = (struct waste_fetch_read){.layer = read.layer, .expert = read.expert};
        if (f->prefetch_count < f->io->depth)
            f->prefetch[f->prefetch_count++] = read.slot; /* demand may come for it */
        ask(f, read.slot, 0);
        started++;
    }
    return i;
}

uint32_t waste_fetch_reap(struct waste_fetch *f)
{
    uint32_t n = f->io->ops->reap(f->io, f->done, REAP);
    for (uint32_t i = 0; i < n; i++)
        result(f, f->done[i].tag, f->done[i].result);
    return n;
}

uint64_t waste_fetch_due_ns(const struct waste_fetch *f)
{
    uint64_t due = UINT64_MAX;
    for (uint32_t i = 0; i < f->waiting_count; i++)
        if (f->read[f->waiting[i]].due_ns < due)
            due = f->read[f->waiting[i]].due_ns;
    return due;
}
