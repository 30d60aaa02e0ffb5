#include "fetcher/disk.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 10000 };

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static uint64_t next_random(struct waste_disk *d)
{
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return d->random;
}

int waste_disk_open(struct waste_disk *d, const int *files, uint32_t count, uint32_t size,
                    struct waste_error *err)
{
    memset(d, 0, sizeof(*d));
    d->files = malloc(count * sizeof(*d->files));
    d->places = malloc(count * sizeof(*d->places));
    d->data = mmap(NULL, (size_t)WASTE_DISK_DEPTH * size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (!d->files || !d->places || d->data == MAP_FAILED)
        return waste_error_set(err, -ENOMEM, "out of memory");
    d->size = size;
    d->random = (uint64_t)(now_s() * 1e9) | 1;
    for (uint32_t i = 0; i < count; i++) {
        struct stat st;
        if (fstat(files[i], &st) < 0 || st.st_size < (off_t)size)
            continue;
        d->files[d->count] = files[i];
        d->places[d->count++] = (uint64_t)st.st_size / size;
    }
    if (d->count == 0)
        return waste_error_set(err, -EINVAL, "no file holds a read of %u bytes", size);
    /* registered buffers, as the reader has them: finding pages at every read costs a slow CPU more
     * than the drive's time */
    d->setup = (struct waste_io_setup){.files = d->files,
                                       .file_count = d->count,
                                       .cache = d->data,
                                       .slot_bytes = size,
                                       .slot_count = WASTE_DISK_DEPTH,
                                       .depth = WASTE_DISK_DEPTH};
    return waste_io_create(WASTE_IO_AUTO, &d->setup, &d->io, NULL, err);
}

void waste_disk_close(struct waste_disk *d)
{
    waste_io_destroy(d->io);
    if (d->data && d->data != MAP_FAILED)
        munmap(d->data, (size_t)WASTE_DISK_DEPTH * d->size);
    free(d->files);
    free(d->places);
}

static void begin(struct waste_disk *d, uint32_t place)
{
    uint32_t file = (uint32_t)(next_random(d) % d->count);
    struct waste_io_read read = {.tag = place,
                                 .file = file,
                                 .off = next_random(d) % d->places[file] * d->size,
                                 .data = d->data + (uint64_t)place * d->size,
                                 .bytes = d->size,
                                 .buffer = place};
    d->io->ops->queue(d->io, &read);
}

int waste_disk_measure(struct waste_disk *d, uint32_t depth, double seconds,
                       struct waste_disk_rate *out, struct waste_error *err)
{
    struct waste_disk_rate rate = {.depth = depth};
    struct waste_io_done done[WASTE_DISK_DEPTH];
    double start = now_s();
    int32_t wrong = 0;

    for (uint32_t i = 0; i < depth; i++)
        begin(d, i);
    for (;;) {
        int rc = d->io->ops->submit(d->io);
        if (rc < 0)
            return waste_error_set(err, rc, "reading: %s", strerror(-rc));
        if (d->io->in_flight == 0)
            break;
        uint32_t n = d->io->ops->reap(d->io, done, WASTE_DISK_DEPTH);
        struct pollfd fd = {.fd = d->io->fd, .events = POLLIN};
        if (n == 0 && poll(&fd, 1, PATIENCE_MS) == 0)
            return waste_error_set(err, -ETIME, "a read took more than %d s", PATIENCE_MS / 1000);
        if (n == 0)
            d->io->ops->clear(d->io);
        bool more = now_s() - start < seconds && wrong == 0;
        for (uint32_t i = 0; i < n; i++) {
            if (done[i].result != (int32_t)d->size)
                wrong = done[i].result < 0 ? done[i].result : -EIO;
            rate.bytes += d->size;
            rate.reads++;
            if (more)
                begin(d, done[i].tag);
        }
    }
    rate.seconds = now_s() - start;
    if (wrong < 0)
        return waste_error_set(err, wrong, "a read failed: %s", strerror(-wrong));
    *out = rate;
    return 0;
}

static uint64_t count_pages(int fd, uint64_t *total)
{
    long page = sysconf(_SC_PAGESIZE);
    struct stat st;
    uint64_t cached = 0;

    if (fstat(fd, &st) < 0 || st.st_size == 0)
        return 0;
    size_t pages = (size_t)(st.st_size + page - 1) / (size_t)page;
    unsigned char *in = malloc(pages);
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (in && map != MAP_FAILED && mincore(map, (size_t)st.st_size, in) == 0) {
        for (size_t i = 0; i < pages; i++)
            cached += in[i] & 1;
        *total += pages;
    }
    if (map != MAP_FAILED)
        munmap(map, (size_t)st.st_size);
    free(in);
    return cached;
}

uint64_t waste_disk_cached_pages(const struct waste_disk *d, uint64_t *total)
{
    uint64_t cached = 0;

    *total = 0;
    for (uint32_t i = 0; i < d->count; i++)
        cached += count_pages(d->files[i], total);
    return cached;
}

uint64_t waste_disk_device_bytes(void)
{
    FILE *f = fopen("/proc/self/io", "re");
    char line[128];
    uint64_t bytes = 0;

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "read_bytes: %" SCNu64, &bytes) == 1)
            break;
    if (f)
        fclose(f);
    return bytes;
}
