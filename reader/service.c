#include "reader/service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shm/confine.h"
#include "shm/inject.h"
#include "shm/segment.h"

enum {
    SPIN_NS = 15000,         /* look for results before going to sleep: that costs about as much */
    BEAT_NS = 100000000,     /* sleep at most: the heartbeat */
    QUICK_NS = 200000,       /* a record is read in less: what a wake-up costs counts */
    UNPIN_POLL_NS = 1000000, /* demand waits for a slot: an unpin rings no bell */
    WARM_READS = 4,          /* in flight at most: demand waits for them */
    PREFETCH_READS = 8,      /* in flight at most; demand that comes has to share the drive */
};

#define SAVE_NS UINT64_C(180000000000) /* what was learned is written this often */

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct waste_stage *stage(const struct waste_service *s)
{
    return &s->shm.control->stage[WASTE_STAGE_READER];
}

static struct waste_log *log_of(const struct waste_service *s)
{
    return &s->shm.control->log[WASTE_STAGE_READER];
}

bool waste_service_stopping(const struct waste_service *s)
{
    /* acquire: what was posted before somebody asked; the supervisor rings the bell behind it */
    return atomic_load_explicit(&stage(s)->stop, memory_order_acquire) != 0;
}

/* ---- start and end ---- */

/* What another incarnation measured: good enough if it is about a drive we have. */
static uint32_t known_drives(const struct waste_control *control, struct waste_io_drive *known)
{
    /* acquire: pairs with the release in publish_drives, of a process that is gone */
    uint32_t count = atomic_load_explicit(&control->drive_count, memory_order_acquire);
    if (count > WASTE_DRIVES_MAX)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct waste_drive_record *d = &control->drive[i];
        known[i] = (struct waste_io_drive){
            .drive.dev = d->dev, .depth = d->depth, .bytes_per_s = d->bytes_per_s};
    }
    return count;
}

static void publish_drives(struct waste_service *s)
{
    struct waste_control *control = s->shm.control;
    uint32_t count, files = 0, direct = 0;
    const struct waste_io_drive *list = waste_io_drives_list(s->io, &count);
    for (uint32_t i = 0; i < count; i++) {
        struct waste_drive_record *d = &control->drive[i];
        *d = (struct waste_drive_record){.dev = list[i].drive.dev,
                                         .bytes_per_s = list[i].bytes_per_s,
                                         .depth = list[i].depth,
                                         .files = list[i].drive.files,
                                         .direct_files = list[i].direct_files};
        memcpy(d->name, list[i].drive.name, WASTE_DRIVE_NAME);
        files += d->files;
        direct += d->direct_files;
    }
    /* relaxed: for people */
    atomic_store_explicit(&control->io_in_use, s->io->mode, memory_order_relaxed);
    atomic_store_explicit(&control->io_direct, direct == files, memory_order_relaxed);
    /* release: pairs with the acquire of who looks at drive[] */
    atomic_store_explicit(&control->drive_count, count, memory_order_release);
    if (direct < files)
        waste_log_write(log_of(s), WASTE_LOG_WARNING,
                        "%u of %u banks do not allow O_DIRECT: reads go through the page cache",
                        files - direct, files);
}

static int open_io(struct waste_service *s, struct waste_error *err)
{
    struct waste_control *control = s->shm.control;
    struct waste_io_drive known[WASTE_DRIVES_MAX];
    struct waste_error why_not;
    s->setup = (struct waste_io_setup){
        .files = s->banks.fd,
        .file_count = s->banks.count,
        .cache = s->cache_base,
        .slot_bytes = control->slot_bytes,
        .slot_count = control->slot_count,
        .depth = WASTE_IO_DEPTH,
        .meter = control->drive_meter,
    };
    const struct waste_io_drives_options options = {
        .mode = (enum waste_io_mode)control->options.io,
        .direct = control->options.io_direct,
        .depth = control->options.io_depth,
        .known = known,
        .known_count = known_drives(control, known),
    };
    int rc = waste_io_drives_create(&options, &s->setup, &s->io, &why_not, err);
    if (rc < 0)
        return rc;
    if (why_not.text[0])
        waste_log_write(log_of(s), WASTE_LOG_WARNING, "%s; using pread", why_not.text);
    publish_drives(s);
    return 0;
}

static int take_over_cache(struct waste_service *s, struct waste_error *err)
{
    const struct waste_control *control = s->shm.control;
    struct waste_cache_repair repair;
    if (s->cache_bytes / control->slot_bytes < control->slot_count)
        return waste_error_set(err, -EINVAL,
                               "cache segment: %llu bytes, %u slots of %llu need more",
                               (unsigned long long)s->cache_bytes, control->slot_count,
                               (unsigned long long)control->slot_bytes);
    int rc = waste_cache_init(&s->cache, &s->shm, PREFETCH_READS, s->cache_fd, &repair);
    if (rc == -EINVAL)
        return waste_error_set(err, rc, "cache: %u slots, at least %u needed", control->slot_count,
                               waste_model_floor_slots(s->shm.model));
    if (rc < 0)
        return waste_error_set(err, rc, "cache: %s", strerror(-rc));
    if (repair.lost)
        waste_log_write(
            log_of(s), WASTE_LOG_WARNING,
            "%u slots may still be written to by a dead reader's reads and are not used",
            repair.lost);
    if (repair.emptied || repair.punched || repair.directory)
        waste_log_write(log_of(s), WASTE_LOG_INFO,
                        "cache taken over: %u experts kept, %u slots emptied, %u punched, %u "
                        "directory entries corrected",
                        repair.kept, repair.emptied, repair.punched, repair.directory);
    if (control->options.mlock) {
        /* the pages come one by one, so each is locked when it is there */
        const struct waste_mapping map = {s->cache_base, s->cache_bytes};
        rc = waste_segment_lock(&map, true);
        if (rc < 0)
            return waste_error_set(err, -EPERM,
                                   "option --mlock: cannot lock the cache: %s (see ulimit -l)",
                                   strerror(-rc));
    }
    /* pages that slots not in use any more still have */
    for (uint32_t slot = s->cache.retired; repair.kept > 0 && slot != WASTE_SLOT_NONE;
         slot = s->cache.slot[slot].next)
        waste_segment_punch(s->cache_fd, slot * control->slot_bytes, control->slot_bytes);
    return 0;
}

/* What earlier runs learned, from where it is kept, else from the model's own list. */
static void recall_usage(struct waste_service *s, int model_fd)
{
    struct waste_error err;
    const char *from = s->usage_dir;
    int rc = -ENOENT;
    if (s->usage_fd >= 0)
        rc = waste_usage_load(s->usage_fd, s->usage_name, s->shm.model, &s->usage, &err);
    if (rc == -ENOENT && model_fd >= 0) {
        from = s->dir;
        rc = waste_usage_load(model_fd, "usage.waste", s->shm.model, &s->usage, &err);
    }
    if (rc < 0 && rc != -ENOENT)
        waste_log_write(log_of(s), WASTE_LOG_LOSS, "%s/%s; starting without what was learned", from,
                        err.text);
    for (uint32_t i = 0; i < s->usage.count; i++) {
        const struct waste_usage_entry *e = &s->usage.entry[i];
        waste_cache_recall(&s->cache, e->layer, e->expert, e->share);
    }
}

static void start_usage(struct waste_service *s)
{
    s->usage_fd = -1;
    if (!s->usage_name)
        return;
    int model_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->usage_fd = open(s->usage_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = s->usage_fd < 0 ? -errno : 0;
    recall_usage(s, model_fd);
    if (model_fd >= 0)
        close(model_fd);
    if (rc == 0 && faccessat(s->usage_fd, ".", W_OK | X_OK, 0) < 0)
        rc = -errno;
    if (rc == 0)
        waste_usage_sweep(s->usage_fd, s->usage_name);
    if (rc == 0)
        rc = waste_usage_saver_start(&s->saver, s->usage_fd, s->usage_name, s->shm.model);
    s->saved_ns = now_ns();
    if (rc < 0) {
        waste_log_write(log_of(s), WASTE_LOG_INFO, "what is learned is not kept: %s: %s",
                        s->usage_dir, strerror(-rc));
        if (s->usage_fd >= 0)
            close(s->usage_fd);
        s->usage_fd = -1;
    }
}

static void keep_usage(struct waste_service *s)
{
    s->saved_ns = now_ns();
    if (!s->saver.running || s->saved_records == s->cache.records)
        return;
    s->saved_records = s->cache.records;
    waste_usage_saver_save(&s->saver, &s->cache.policy.habit, s->usage.turns);
}

static void finish_usage(struct waste_service *s)
{
    keep_usage(s);
    int rc = waste_usage_saver_stop(&s->saver);
    if (rc < 0)
        waste_log_write(log_of(s), WASTE_LOG_LOSS, "what was learned is not kept: %s/%s: %s",
                        s->usage_dir, s->usage_name, strerror(-rc));
    if (s->usage_fd >= 0)
        close(s->usage_fd);
    waste_usage_free(&s->usage);
}

/* Memory for one token's experts ahead of what is used. */
static void start_prefault(struct waste_service *s)
{
    uint32_t set = waste_model_moe_layers(s->shm.model) * s->cache.top_k;
    waste_prefault_start(&s->prefault, s->cache_base, s->shm.control->slot_bytes,
                         waste_cache_in_use(&s->cache), set, s->cache.top_k);
}

int waste_service_init(struct waste_service *s, struct waste_error *err)
{
    s->embed.fd = s->usage_fd = -1;
    s->want = malloc(s->shm.control->want_stride);
    if (!s->want)
        return waste_error_set(err, -ENOMEM, "out of memory");
    int rc = take_over_cache(s, err); /* before the backend may pin pages of a slot to be punched */
    if (rc == 0)
        rc = waste_banks_open(&s->banks, s->dir, s->shm.model, err);
    if (rc == 0)
        rc = waste_embed_open(&s->embed, &s->shm, s->dir, err);
    if (rc == 0)
        rc = open_io(s, err);
    if (rc == 0 &&
        waste_fetch_init(&s->fetch, &s->shm, &s->cache, &s->banks, s->io, s->cache_base) < 0)
        rc = waste_error_set(err, -ENOMEM, "out of memory");
    if (rc == 0) {
        start_usage(s);
        start_prefault(s);
    }
    return rc;
}

void waste_service_finish(struct waste_service *s)
{
    waste_prefault_stop(&s->prefault);
    finish_usage(s);
    waste_fetch_finish(&s->fetch);
    waste_io_destroy(s->io);
    waste_embed_close(&s->embed);
    waste_banks_close(&s->banks);
    waste_cache_finish(&s->cache);
    free(s->want);
}

/* ---- requests ---- */

/* What shared memory may hold is anybody's guess; a line for the 1st, 2nd, 4th, 8th ... time. */
static void complain(struct waste_service *s, uint64_t *count, const char *what)
{
    uint64_t n = ++*count;
    if ((n & (n - 1)) == 0)
        waste_log_write(log_of(s), WASTE_LOG_WARNING, "%s (%llu so far)", what,
                        (unsigned long long)n);
}

/* The oldest record, copied, or NULL. The caller releases it after it has acted on it. */
static const struct waste_want *peek(struct waste_service *s, struct waste_ring *ring,
                                     uint32_t capacity)
{
    uint32_t stride = s->shm.control->want_stride;
    if (!waste_ring_valid(ring, capacity, stride)) {
        ring->capacity = capacity;
        ring->stride = stride;
        waste_ring_repair(ring, WASTE_RING_CONSUMER);
        complain(s, &s->repairs, "request ring with impossible cursors emptied");
        return NULL;
    }
    const struct waste_want *shared = waste_ring_peek(ring);
    if (!shared)
        return NULL;
    memcpy(s->want, shared, stride);
    return s->want;
}

/*
 * Takes demand records, one after the other, as long as each finds its slots at once. Compute may
 * take a FAILED slot for the answer to its record once the record is released: by then a slot that
 * FAILED for an older record is gone.
 */
static bool take_demand(struct waste_service *s, int *rc)
{
    bool any = false;
    const struct waste_want *want;
    while (*rc == 0 && !waste_cache_wanting(&s->cache) &&
           (want = peek(s, s->shm.demand, WASTE_DEMAND_RING))) {
        any = true;
        WASTE_POINT(DEMAND_TAKEN);
        if (waste_cache_check_demand(&s->cache, want, waste_want_capacity(s->shm.control)) == 0) {
            if (want->kind == WASTE_WANT_STEP || want->kind == WASTE_WANT_CHUNK)
                waste_fetch_note_window(&s->fetch, want, true);
            waste_cache_demand(&s->cache, want);
            waste_timeline_note(s->shm.control, WASTE_MOMENT_TAKEN, want->step, want->layer,
                                s->cache.wanted_count);
            *rc = waste_fetch_pump(&s->fetch, true);
        } else {
            complain(s, &s->bad_demands, "demand for an impossible layer, expert or count dropped");
        }
        WASTE_POINT(DEMAND_ACTED);
        waste_ring_release(s->shm.demand);
        WASTE_POINT(DEMAND_RELEASED);
    }
    return any;
}

/* Demand that could be taken now. */
static bool demand_waits(const struct waste_service *s)
{
    return !waste_cache_wanting(&s->cache) && waste_ring_used(s->shm.demand) > 0;
}

/* Demand is being read. */
static bool demand_flies(const struct waste_service *s)
{
    return s->fetch.demand_reads > 0;
}

/*
 * Predictions are taken when no demand is being read: some drives announce what they have done when
 * nothing is left to do, so demand would be there no sooner than what is read ahead behind it.
 * Where a record takes long the drive would stand still while the last one is checked.
 */
static bool predictions_wait(const struct waste_service *s)
{
    return demand_flies(s) && s->cache.foresight.read.value < QUICK_NS;
}

static bool take_prefetch(struct waste_service *s)
{
    bool any = false;
    const struct waste_want *want;
    /* a demand record may have come since take_demand: what was posted behind it stays behind it */
    while (!predictions_wait(s) && (want = peek(s, s->shm.prefetch, WASTE_PREFETCH_RING)) &&
           !demand_waits(s)) {
        any = true;
        WASTE_POINT(PREFETCH_TAKEN);
        if (waste_cache_check_prefetch(&s->cache, want, waste_want_capacity(s->shm.control)) == 0) {
            waste_fetch_note_window(&s->fetch, want, false);
            waste_cache_prefetch(&s->cache, want);
        } else {
            complain(s, &s->bad_prefetches,
                     "prefetch of an impossible layer, expert or count dropped");
        }
        waste_ring_release(s->shm.prefetch);
        WASTE_POINT(PREFETCH_RELEASED);
    }
    return any;
}

/* ---- the budget ---- */

/* Nobody asks anything of compute. */
static bool compute_is_idle(const struct waste_service *s)
{
    /* relaxed: whose record we have taken was not idle when it posted it */
    return atomic_load_explicit(&s->shm.control->stage[WASTE_STAGE_COMPUTE].activity,
                                memory_order_relaxed) == WASTE_ACT_IDLE;
}

/* Towards the size that waste-run wants; a few slots a turn. */
static void resize(struct waste_service *s)
{
    struct waste_control *control = s->shm.control;
    uint32_t out[8], wanted = waste_cache_wanted_slots(&s->cache);
    if (waste_cache_in_use(&s->cache) == wanted) {
        /* relaxed: for people */
        atomic_store_explicit(&control->slots_in_use, wanted, memory_order_relaxed);
        return;
    }
    if (compute_is_idle(s))
        waste_cache_rest(&s->cache);
    waste_prefault_stop(&s->prefault); /* it would fill the holes again */
    uint32_t n = waste_cache_resize(&s->cache, out, 8);
    for (uint32_t i = 0; i < n; i++) {
        waste_io_release(s->io, out[i]); /* else the kernel would hold on to the pages */
        waste_segment_punch_mapped(s->cache_base + out[i] * control->slot_bytes,
                                   control->slot_bytes);
    }
    waste_count(control, WASTE_C_CACHE_SHRUNK, n);
    atomic_store_explicit(&control->slots_in_use, waste_cache_in_use(&s->cache),
                          memory_order_relaxed); /* for people */
}

/* ---- the loop ---- */

static bool requests_waiting(const struct waste_service *s)
{
    return demand_waits(s) || (!predictions_wait(s) && waste_ring_used(s->shm.prefetch) > 0) ||
           waste_embed_wanted(&s->embed);
}

static int64_t sleep_ns(const struct waste_service *s)
{
    int64_t limit = BEAT_NS;
    uint64_t due = waste_fetch_due_ns(&s->fetch);
    if (waste_cache_wanting(&s->cache))
        limit = UNPIN_POLL_NS;
    if (due == UINT64_MAX)
        return limit;
    int64_t left = (int64_t)(due - now_ns());
    return left < 0 ? 0 : left < limit ? left : limit;
}

/* While compute waits its CPUs are free; else one of its workers may wait for ours. */
static uint64_t spin_ns(const struct waste_service *s)
{
    return demand_flies(s) ? SPIN_NS : 0;
}

/* While compute waits for a read, or for a request, it leaves CPUs to others. */
static bool compute_waits(const struct waste_service *s)
{
    return demand_flies(s) || !s->cache.any_demand || compute_is_idle(s);
}

/* Sleeps until a bell rings, a read ends or a pause is over. */
static void rest(struct waste_service *s)
{
    struct waste_bell *bell = &s->shm.control->reader_bell;
    struct pollfd fd[2] = {{.fd = s->event_fd, .events = POLLIN},
                           {.fd = s->io->fd, .events = POLLIN}};
    int64_t ns = sleep_ns(s);
    struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    waste_prefault_quiet(&s->prefault, compute_waits(s));
    waste_bell_arm(bell);
    /* after arming: whoever publishes from here on sees the bell armed and writes the eventfd */
    if (!requests_waiting(s) && !waste_service_stopping(s))
        ppoll(fd, 2, &timeout, NULL);
    waste_bell_disarm(bell);
    if (fd[0].revents & POLLIN) {
        uint64_t count;
        ssize_t n = read(s->event_fd, &count, sizeof(count));
        (void)n; /* only a wake-up; the work is in the rings */
    }
    if (fd[1].revents & POLLIN)
        s->io->ops->clear(s->io);
}

/* While there is nothing else to do: reads of what earlier runs used. True if one began. */
static bool warm(struct waste_service *s, int *rc)
{
    uint32_t left = s->usage.count - s->usage_next;
    if (left == 0 || *rc < 0 || requests_waiting(s) || waste_fetch_pending(&s->fetch) > 0)
        return false;
    s->usage_next += waste_fetch_warm(&s->fetch, &s->usage.entry[s->usage_next], left, WARM_READS);
    *rc = s->io->ops->submit(s->io);
    return true;
}

/* One turn; true if there was anything to do. */
static bool turn(struct waste_service *s, bool stopping, int *rc)
{
    bool any = false;
    if (!stopping) {
        resize(s);
        any = take_demand(s, rc);
        any |= waste_embed_serve(&s->embed) > 0;
        any |= take_prefetch(s);
    }
    if (*rc == 0)
        *rc = waste_fetch_pump(&s->fetch, !stopping);
    if (waste_fetch_reap(&s->fetch) > 0) {
        any = true;
        /* relaxed: our own counter */
        waste_prefault_used(
            &s->prefault,
            atomic_load_explicit(&s->shm.control->counter[WASTE_C_READS], memory_order_relaxed));
    }
    if (!any && !stopping)
        any = warm(s, rc);
    if (s->cache.healed != s->healed_seen) {
        s->healed_seen = s->cache.healed;
        complain(s, &s->heals, "slots or directory entries overwritten by somebody else, repaired");
    }
    return any;
}

int waste_service_run(struct waste_service *s)
{
    uint64_t idle_since = 0;
    bool asked = false;
    int rc = 0;
    while (rc == 0) {
        bool stopping =
            asked; /* one more turn: what was posted before is learned from and counted */
        asked = waste_service_stopping(s);
        bool any = turn(s, stopping, &rc);
        uint32_t pending = waste_fetch_pending(&s->fetch);
        waste_confine_report(WASTE_STAGE_READER, log_of(s));
        waste_stage_mark(stage(s), pending ? WASTE_ACT_READING : WASTE_ACT_IDLE,
                         s->cache.any_demand ? (int)s->cache.layer : -1);
        if (stopping && pending == 0)
            break;
        uint64_t now = now_ns();
        if (now - s->saved_ns > SAVE_NS)
            keep_usage(s);
        if (any)
            idle_since = now;
        else if (now - idle_since > spin_ns(s))
            rest(s);
    }
    if (rc < 0)
        waste_log_write(log_of(s), WASTE_LOG_ERROR, "reading: %s", strerror(-rc));
    return rc;
}
