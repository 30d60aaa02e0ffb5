/* How many reads at once a drive rewards, found out by reading. */
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "reader/io_drives.h"

enum {
    LEVELS = 5,
    FIRST = 2,
    PASSES = 2,
    LEVEL_NS = 6000000,
    SLOW_NS = 25000000,
    STUCK_MS = 2000,
    BLOCK = 4096
};
#define GOOD_ENOUGH 0.95

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

struct probe {
    struct waste_io *io;
    const int *files;
    uint32_t count;
    void *data; /* all reads go to the same place: nobody looks at it */
    uint64_t random;
    bool broken;
};

static uint64_t next_random(struct probe *p)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    return p->random;
}

static bool begin(struct probe *p)
{
    struct stat st;
    uint32_t file = (uint32_t)(next_random(p) % p->count);
    if (fstat(p->files[file], &st) < 0 || st.st_size < 2 * WASTE_IO_PIECE)
        return false;
    uint64_t places = ((uint64_t)st.st_size - WASTE_IO_PIECE) / BLOCK;
    struct waste_io_read read = {.file = file,
                                 .off = next_random(p) % places * BLOCK,
                                 .data = p->data,
                                 .bytes = WASTE_IO_PIECE,
                                 .buffer = WASTE_IO_NO_BUFFER};
    return p->io->ops->queue(p->io, &read);
}

/* Waits for at least one result; how many bytes came. */
static uint64_t wait(struct probe *p)
{
    struct waste_io_done done[32];
    uint64_t bytes = 0;
    uint32_t n;
    while ((n = p->io->ops->reap(p->io, done, 32)) == 0) {
        struct pollfd pfd = {.fd = p->io->fd, .events = POLLIN};
        if (poll(&pfd, 1, STUCK_MS) == 0) {
            p->broken = true;
            return 0;
        }
        p->io->ops->clear(p->io);
    }
    for (uint32_t i = 0; i < n; i++) {
        p->broken = p->broken || done[i].result <= 0;
        bytes += done[i].result > 0 ? (uint64_t)done[i].result : 0;
    }
    return bytes;
}

/* Bytes a second with `depth` reads in flight; *slow: deeper would take too long to measure. */
static double measure(struct probe *p, uint32_t depth, bool *slow)
{
    uint64_t start = now_ns(), now = start, bytes = 0;
    while (!p->broken) {
        bool more = now - start < LEVEL_NS;
        while (more && p->io->in_flight < depth && begin(p))
            ;
        if (p->io->ops->submit(p->io) < 0 || (more && p->io->in_flight == 0))
            p->broken = true;
        else if (p->io->in_flight == 0)
            break;
        else
            bytes += wait(p);
        now = now_ns();
    }
    *slow = now - start > SLOW_NS;
    return (double)bytes * 1e9 / (double)(now - start);
}

uint32_t waste_io_probe_depth(struct waste_io *io, const int *files, uint32_t count,
                              uint64_t *bytes_per_s)
{
    struct probe p = {.io = io, .files = files, .count = count};
    double rate[LEVELS] = {0}, best = 0;
    bool slow = false;
    uint32_t chosen = 0;
    p.data = aligned_alloc(BLOCK, WASTE_IO_PIECE);
    if (!p.data)
        return 0;
    p.random = now_ns() | 1;
    /* twice, and the better one counts: a machine that does other things makes it only worse */
    for (uint32_t pass = 0; pass < PASSES && !slow; pass++)
        for (uint32_t i = 0; i < LEVELS && (uint32_t)(FIRST << i) <= io->depth && !slow && !p.broken; i++) {
            double got = measure(&p, FIRST << i, &slow);
            rate[i] = got > rate[i] ? got : rate[i];
            best = got > best ? got : best;
        }
    /* results that are still to come: they need their place, and a backend that is not waited for
     * would mix them up with others */
    for (uint64_t end = now_ns() + UINT64_C(1000000) * STUCK_MS;
         io->in_flight > 0 && now_ns() < end;)
        wait(&p);
    if (io->in_flight == 0)
        free(p.data);
    if (p.broken || best <= 0)
        return 0;
    while (rate[chosen] < GOOD_ENOUGH * best)
        chosen++;
    *bytes_per_s = (uint64_t)rate[chosen];
    return (uint32_t)(FIRST << chosen);
}
