#include "reader/io_drives.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STALLS = 8, NOBODY = UINT16_MAX, RESULTS = 32, BLOCK = 4096, REFUSALS = 3 };

/* Less than this is read in no time at any depth. */
#define PROBE_LEAST_BYTES (UINT64_C(256) << 20)

/* A read of our user. */
struct job {
    struct waste_io_read read; /* `file` is the drive's */
    uint32_t piece;            /* bytes a part, but the last */
    uint16_t parts, begun, left;
    uint16_t drive;
    uint16_t next; /* of a queue, or free */
    bool queued;
    uint16_t stalls; /* parts asked again after EINTR or EAGAIN */
    uint32_t again;  /* bit n: part n is to be asked again */
    int32_t result[WASTE_IO_PARTS];
    uint64_t begun_ns[WASTE_IO_PARTS]; /* when the part was given to the backend */
};

struct queue {
    uint16_t first, last;
};

struct drive {
    struct waste_io_drive info;
    struct waste_io_setup setup;
    struct waste_io *io;
    int *files;
    struct queue urgent, other;      /* jobs with parts that have not begun */
    struct waste_drive_meter *meter; /* NULL: nobody looks */
};

struct drives_io {
    struct waste_io io;
    uint32_t count;
    uint32_t *drive_of, *file_of; /* [files] */
    int epoll;
    uint16_t free;
    struct job job[WASTE_IO_DEPTH];
    uint32_t ended; /* jobs that are over and not handed out yet */
    uint16_t over[WASTE_IO_DEPTH];
    struct drive drive[WASTE_DRIVES_MAX];
    struct waste_io_drive list[WASTE_DRIVES_MAX];
};

static struct drives_io *self(struct waste_io *io)
{
    return (struct drives_io *)io;
}

const char *waste_io_rung_name(enum waste_io_mode mode, bool direct)
{
    return mode == WASTE_IO_URING   ? direct ? "uring+direct" : "uring"
           : mode == WASTE_IO_PREAD ? direct ? "pread+direct" : "pread"
                                    : "auto";
}

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- queues of jobs ---- */

static void append(struct drives_io *u, struct queue *q, uint16_t job)
{
    u->job[job].next = NOBODY;
    u->job[job].queued = true;
    *(q->first == NOBODY ? &q->first : &u->job[q->last].next) = job;
    q->last = job;
}

/* The job of this tag, taken out of the queue; NOBODY if it is not there, or has begun and shall
 * not have. */
static uint16_t take(struct drives_io *u, struct queue *q, uint32_t tag, bool may_have_begun)
{
    uint16_t before = NOBODY;
    for (uint16_t j = q->first; j != NOBODY; before = j, j = u->job[j].next) {
        if (u->job[j].read.tag != tag || (u->job[j].begun > 0 && !may_have_begun))
            continue;
        *(before == NOBODY ? &q->first : &u->job[before].next) = u->job[j].next;
        if (q->last == j)
            q->last = before;
        u->job[j].queued = false;
        return j;
    }
    return NOBODY;
}

static void free_job(struct drives_io *u, uint16_t job)
{
    u->job[job].next = u->free;
    u->free = job;
    u->io.in_flight--;
}

/* ---- the operations ---- */

static bool queue(struct waste_io *io, const struct waste_io_read *read)
{
    struct drives_io *u = self(io);
    if (u->free == NOBODY)
        return false;
    uint16_t at = u->free;
    struct job *j = &u->job[at];
    u->free = j->next;
    io->in_flight++;
    j->read = *read;
    j->read.file = u->file_of[read->file];
    j->drive = (uint16_t)u->drive_of[read->file];
    j->piece = WASTE_IO_PIECE;
    if (read->bytes / WASTE_IO_PARTS >= WASTE_IO_PIECE)
        j->piece = (read->bytes / WASTE_IO_PARTS / BLOCK + 1) * BLOCK;
    j->parts = (uint16_t)((read->bytes + j->piece - 1) / j->piece);
    j->begun = 0;
    j->stalls = 0;
    j->again = 0;
    j->left = j->parts;
    struct drive *d = &u->drive[j->drive];
    append(u, read->urgent ? &d->urgent : &d->other, at);
    return true;
}

/* The next part of this job to the drive's backend. */
static bool begin_part(struct drives_io *u, struct drive *d, uint16_t at)
{
    struct job *j = &u->job[at];
    uint32_t number = j->again ? (uint32_t)__builtin_ctz(j->again) : j->begun;
    uint32_t off = number * j->piece, left = j->read.bytes - off;
    struct waste_io_read part = j->read;
    part.tag = (uint32_t)at * WASTE_IO_PARTS + number;
    part.off += off;
    part.data = (uint8_t *)part.data + off;
    part.bytes = left < j->piece ? left : j->piece;
    if (!d->io->ops->queue(d->io, &part))
        return false;
    j->begun_ns[number] = d->meter ? now_ns() : 0;
    if (j->again)
        j->again &= j->again - 1;
    else
        j->begun++;
    return true;
}

/* Up to the drive's depth goes to its backend. True if anything did. */
static bool feed(struct drives_io *u, struct drive *d)
{
    bool any = false;
    int refused = 0;
    while (d->io->in_flight < d->info.depth) {
        struct queue *q = d->urgent.first != NOBODY ? &d->urgent : &d->other;
        uint16_t at = q->first;
        if (at == NOBODY)
            break;
        if (!begin_part(u, d, at)) {
            /* a result will bring us back here, if one is to come */
            if (d->io->in_flight > 0 || ++refused == REFUSALS)
                break;
            continue;
        }
        any = true;
        if (u->job[at].begun == u->job[at].parts && u->job[at].again == 0) {
            q->first = u->job[at].next;
            u->job[at].queued = false;
        }
    }
    return any;
}

static void show_in_flight(struct drive *d)
{
    /* relaxed: a gauge, for people */
    if (d->meter)
        atomic_store_explicit(&d->meter->in_flight, d->io->in_flight, memory_order_relaxed);
}

static int submit(struct waste_io *io)
{
    struct drives_io *u = self(io);
    int rc = 0;
    for (uint32_t i = 0; i < u->count && rc == 0; i++) {
        feed(u, &u->drive[i]);
        rc = u->drive[i].io->ops->submit(u->drive[i].io);
        show_in_flight(&u->drive[i]);
    }
    return rc;
}

/* What is there from the start on, or the first part's error. */
static int32_t result_of(const struct job *j)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < j->parts; i++) {
        uint32_t left = j->read.bytes - total, want = left < j->piece ? left : j->piece;
        if (j->result[i] < 0)
            return total > 0 ? (int32_t)total : j->result[i];
        total += (uint32_t)j->result[i];
        if ((uint32_t)j->result[i] < want)
            break;
    }
    return (int32_t)total;
}

/* A part that only met a busy moment is asked again by itself: together with the others it might
 * meet one every time. */
static bool ask_again(struct drives_io *u, struct drive *d, uint16_t at, uint32_t part,
                      int32_t result)
{
    struct job *j = &u->job[at];
    if ((result != -EINTR && result != -EAGAIN) || j->stalls == MAX_STALLS)
        return false;
    j->stalls++;
    j->again |= UINT32_C(1) << part;
    if (!j->queued)
        append(u, j->read.urgent ? &d->urgent : &d->other, at);
    return true;
}

static void collect(struct drives_io *u, struct drive *d)
{
    struct waste_io_done done[RESULTS];
    uint32_t n;
    do {
        n = d->io->ops->reap(d->io, done, RESULTS);
        uint64_t now = d->meter && n > 0 ? now_ns() : 0;
        for (uint32_t i = 0; i < n; i++) {
            uint16_t at = (uint16_t)(done[i].tag / WASTE_IO_PARTS);
            struct job *j = &u->job[at];
            uint32_t part = done[i].tag % WASTE_IO_PARTS;
            j->result[part] = done[i].result;
            if (d->meter)
                waste_drive_meter_end(d->meter, now - j->begun_ns[part],
                                      done[i].result > 0 ? (uint64_t)done[i].result : 0);
            if (!ask_again(u, d, at, part, done[i].result) && --j->left == 0)
                u->over[u->ended++] = at;
        }
    } while (n == RESULTS);
    /* the drive goes on before its results are looked at */
    if ((d->urgent.first != NOBODY || d->other.first != NOBODY) && feed(u, d))
        d->io->ops->submit(d->io);
    show_in_flight(d);
}

static uint32_t reap(struct waste_io *io, struct waste_io_done *done, uint32_t max)
{
    struct drives_io *u = self(io);
    uint32_t n = 0;
    for (uint32_t i = 0; i < u->count; i++)
        collect(u, &u->drive[i]);
    while (n < max && n < u->ended) {
        const struct job *j = &u->job[u->over[n]];
        done[n] = (struct waste_io_done){j->read.tag, result_of(j)};
        free_job(u, u->over[n++]);
    }
    u->ended -= n;
    memmove(u->over, u->over + n, u->ended * sizeof(*u->over));
    return n;
}

static void clear(struct waste_io *io)
{
    struct drives_io *u = self(io);
    for (uint32_t i = 0; i < u->count; i++)
        u->drive[i].io->ops->clear(u->drive[i].io);
}

static void release(struct waste_io *io, uint32_t slot)
{
    struct drives_io *u = self(io);
    for (uint32_t i = 0; i < u->count; i++)
        waste_io_release(u->drive[i].io, slot);
}

static bool urge(struct waste_io *io, uint32_t tag)
{
    struct drives_io *u = self(io);
    for (uint32_t i = 0; i < u->count; i++) {
        uint16_t j = take(u, &u->drive[i].other, tag, true);
        if (j == NOBODY)
            continue;
        u->job[j].read.urgent = true;
        append(u, &u->drive[i].urgent, j);
        return true;
    }
    return false;
}

static bool cancel(struct waste_io *io, uint32_t tag)
{
    struct drives_io *u = self(io);
    for (uint32_t i = 0; i < u->count; i++) {
        uint16_t j = take(u, &u->drive[i].other, tag, false);
        if (j == NOBODY)
            continue;
        free_job(u, j);
        return true;
    }
    return false;
}

static void destroy(struct waste_io *io)
{
    struct drives_io *u = self(io);
    for (uint32_t i = 0; i < u->count; i++) {
        waste_io_destroy(u->drive[i].io);
        free(u->drive[i].files);
    }
    if (u->epoll >= 0)
        close(u->epoll);
    free(u->drive_of);
    free(u->file_of);
    free(u);
}

static const struct waste_io_ops ops = {.queue = queue,
                                        .submit = submit,
                                        .reap = reap,
                                        .clear = clear,
                                        .destroy = destroy,
                                        .release = release,
                                        .urge = urge,
                                        .cancel = cancel};

/* ---- start ---- */

static struct drives_io *make(const struct waste_io_setup *setup)
{
    struct waste_drive found[WASTE_DRIVES_MAX];
    struct drives_io *u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    u->io = (struct waste_io){.ops = &ops, .fd = -1, .depth = WASTE_IO_DEPTH};
    u->epoll = -1;
    u->free = NOBODY;
    for (uint16_t j = WASTE_IO_DEPTH; j-- > 0;) {
        u->job[j].next = u->free;
        u->free = j;
    }
    u->drive_of = calloc(setup->file_count + 1, sizeof(*u->drive_of));
    u->file_of = calloc(setup->file_count + 1, sizeof(*u->file_of));
    if (!u->drive_of || !u->file_of) {
        destroy(&u->io);
        return NULL;
    }
    u->count = waste_drives_find(setup->files, setup->file_count, found, u->drive_of);
    for (uint32_t i = 0; i < u->count; i++) {
        struct drive *d = &u->drive[i];
        d->info.drive = found[i];
        d->meter = setup->meter ? &setup->meter[i] : NULL;
        d->urgent = d->other = (struct queue){NOBODY, NOBODY};
        d->setup = *setup;
        d->setup.files = d->files = malloc(found[i].files * sizeof(*d->files));
        d->setup.file_count = 0;
        if (d->files)
            continue;
        destroy(&u->io);
        return NULL;
    }
    for (uint32_t i = 0; i < setup->file_count; i++) {
        struct drive *d = &u->drive[u->drive_of[i]];
        u->file_of[i] = d->setup.file_count;
        d->files[d->setup.file_count++] = setup->files[i];
    }
    return u;
}

static void close_drives(struct drives_io *u)
{
    for (uint32_t i = 0; i < u->count; i++) {
        waste_io_destroy(u->drive[i].io);
        u->drive[i].io = NULL;
    }
}

static int open_all(struct drives_io *u, enum waste_io_mode mode, struct waste_error *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < u->count && rc == 0; i++)
        rc = waste_io_create(mode, &u->drive[i].setup, &u->drive[i].io, NULL, err);
    if (rc < 0)
        close_drives(u);
    u->io.mode = mode;
    return rc;
}

/* One mode for all drives. */
static int open_drives(struct drives_io *u, enum waste_io_mode mode, struct waste_error *why_not,
                       struct waste_error *err)
{
    struct waste_error first;
    if (why_not)
        why_not->text[0] = '\0';
    if (mode != WASTE_IO_AUTO)
        return open_all(u, mode, err);
    if (open_all(u, WASTE_IO_URING, &first) == 0)
        return 0;
    if (why_not)
        *why_not = first;
    return open_all(u, WASTE_IO_PREAD, err);
}

/* One descriptor that is readable when any drive's is. */
static int join(struct drives_io *u, struct waste_error *err)
{
    if (u->count == 1) {
        u->io.fd = u->drive[0].io->fd;
        return 0;
    }
    u->io.fd = u->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (uint32_t i = 0; i < u->count; i++) {
        struct epoll_event event = {.events = EPOLLIN};
        if (u->epoll < 0 || epoll_ctl(u->epoll, EPOLL_CTL_ADD, u->drive[i].io->fd, &event) < 0)
            return waste_error_set(err, -errno, "epoll: %s", strerror(errno));
    }
    return 0;
}

static int choose_depth(struct drive *d, const struct waste_io_drives_options *o,
                        struct waste_error *err)
{
    struct waste_io_drive *info = &d->info;
    info->direct_files = 0;
    for (uint32_t i = 0; i < d->setup.file_count; i++)
        info->direct_files += (fcntl(d->files[i], F_GETFL) & O_DIRECT) != 0;
    info->depth = o->depth;
    for (uint32_t i = 0; i < o->known_count && info->depth == 0; i++) {
        if (o->known[i].drive.dev != info->drive.dev)
            continue;
        info->depth = o->known[i].depth;
        info->bytes_per_s = o->known[i].bytes_per_s;
    }
    if (info->depth == 0 && info->direct_files > 0 && info->drive.bytes >= PROBE_LEAST_BYTES) {
        info->depth =
            waste_io_probe_depth(d->io, d->files, d->setup.file_count, &info->bytes_per_s);
        if (info->depth > 0 && info->depth < WASTE_IO_DEPTH_LEAST)
            info->depth = WASTE_IO_DEPTH_LEAST;
        if (d->io->in_flight > 0) {
            d->io = NULL; /* the kernel still has its reads: left to the end of the process */
            return waste_error_set(err, -ETIME, "drive %s does not answer", info->drive.name);
        }
    }
    if (info->depth == 0)
        info->depth = WASTE_IO_DEPTH_DEFAULT;
    if (info->depth > d->io->depth)
        info->depth = d->io->depth;
    return 0;
}

static int check_direct(const struct drives_io *u, struct waste_error *err)
{
    for (uint32_t i = 0; i < u->count; i++) {
        const struct waste_io_drive *info = &u->drive[i].info;
        if (info->direct_files < info->drive.files)
            return waste_error_set(err, -EINVAL,
                                   "%s is not available: %u of %u banks on drive %s do not allow "
                                   "O_DIRECT; use --io %s",
                                   waste_io_rung_name(u->io.mode, true),
                                   info->drive.files - info->direct_files, info->drive.files,
                                   info->drive.name, waste_io_rung_name(u->io.mode, false));
    }
    return 0;
}

int waste_io_drives_create(const struct waste_io_drives_options *options,
                           const struct waste_io_setup *setup, struct waste_io **out,
                           struct waste_error *why_not, struct waste_error *err)
{
    struct drives_io *u = make(setup);
    if (!u)
        return waste_error_set(err, -ENOMEM, "out of memory");
    int rc = open_drives(u, options->mode, why_not, err);
    if (rc == 0)
        rc = join(u, err);
    for (uint32_t i = 0; i < u->count && rc == 0; i++) {
        rc = choose_depth(&u->drive[i], options, err);
        u->list[i] = u->drive[i].info;
    }
    if (rc == 0 && options->direct)
        rc = check_direct(u, err);
    if (rc < 0)
        destroy(&u->io);
    else
        *out = &u->io;
    return rc;
}

const struct waste_io_drive *waste_io_drives_list(const struct waste_io *io, uint32_t *count)
{
    const struct drives_io *u = (const struct drives_io *)io;
    *count = u->count;
    return u->list;
}
