#include "reader/io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PROBE_BYTES = 4096, PROBE_TIMEOUT_MS = 10000, PROBE_TRIES = 4 };

/* One read, waited for. -ETIME if nothing came: the caller must not free `data` then. */
static int32_t read_and_wait(struct waste_io *io, void *data)
{
    struct waste_io_read read = {.data = data, .bytes = PROBE_BYTES, .buffer = WASTE_IO_NO_BUFFER};
    struct waste_io_done done;
    struct timespec start, now;
    io->ops->queue(io, &read);
    int rc = io->ops->submit(io);
    if (rc < 0)
        return rc;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (io->ops->reap(io, &done, 1) == 0) {
        struct pollfd pfd = {.fd = io->fd, .events = POLLIN};
        poll(&pfd, 1, 100);
        if (pfd.revents & POLLIN)
            io->ops->clear(io);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000 > PROBE_TIMEOUT_MS)
            return -ETIME;
    }
    return done.result;
}

static void drop_direct(const struct waste_io_setup *setup)
{
    for (uint32_t i = 0; i < setup->file_count; i++) {
        int flags = fcntl(setup->files[i], F_GETFL);
        if (flags >= 0)
            fcntl(setup->files[i], F_SETFL, flags & ~O_DIRECT);
    }
}

/* Does a read work at all? A result that says something about the disk (EIO) is good enough. */
static int probe(struct waste_io *io, const struct waste_io_setup *setup)
{
    void *data = aligned_alloc(PROBE_BYTES, PROBE_BYTES);
    if (!data)
        return -ENOMEM;
    int32_t result = 0;
    for (int i = 0; i < PROBE_TRIES; i++) {
        result = read_and_wait(io, data);
        if (result == -EINVAL && i == 0)
            drop_direct(setup); /* granted at open, refused at the first read */
        else if (result != -EINTR && result != -EAGAIN)
            break;
    }
    if (result == -ETIME)
        return result;
    free(data);
    return result >= 0 || result == -EIO ? 0 : result;
}

static int create_probed(int (*create)(const struct waste_io_setup *, struct waste_io **,
                                       struct waste_error *),
                         const struct waste_io_setup *setup, struct waste_io **out,
                         const char *name, struct waste_error *err)
{
    struct waste_io *io;
    int rc = create(setup, &io, err);
    if (rc < 0)
        return rc;
    rc = setup->file_count ? probe(io, setup) : 0;
    if (rc == 0) {
        *out = io;
        return 0;
    }
    if (rc != -ETIME)
        waste_io_destroy(io); /* else its read is still in flight: left to the end of the process */
    return waste_error_set(err, rc, "%s: a first read of %d bytes failed: %s", name, PROBE_BYTES,
                           strerror(-rc));
}

int waste_io_create(enum waste_io_mode mode, const struct waste_io_setup *setup,
                    struct waste_io **out, struct waste_error *why_not, struct waste_error *err)
{
    struct waste_error uring;
    if (why_not)
        why_not->text[0] = '\0';
    if (mode != WASTE_IO_PREAD) {
        int rc = create_probed(waste_io_uring_create, setup, out, "io_uring", &uring);
        if (rc == 0)
            return 0;
        if (mode == WASTE_IO_URING)
            return waste_error_set(err, rc, "io_uring is not available: %s; use --io pread",
                                   uring.text);
        if (why_not)
            *why_not = uring;
    }
    return create_probed(waste_io_pread_create, setup, out, "pread", err);
}
