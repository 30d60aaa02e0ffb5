/*
 * Reading records from disk into slots: one small table of operations, two backends (io_uring, and
 * pread from a pool of threads), and the choice between them.
 *
 * A backend is dumb on purpose: it hands back what the kernel said about each read, bytes or
 * -errno, in any order. Short reads, retries and checks belong to its user (reader/fetch.h), so
 * they are the same for every backend and can be tested with one that lies.
 *
 * Thread rules: all calls from one thread.
 */
#ifndef WASTE_READER_IO_H
#define WASTE_READER_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "reader/container.h"
#include "shm/control.h"

#define WASTE_IO_NO_BUFFER UINT32_MAX

enum { WASTE_IO_DEPTH = 64, WASTE_IO_THREADS = 16 };

struct waste_io_read {
    uint32_t tag;  /* comes back with the result */
    uint32_t file; /* index into waste_io_setup.files */
    uint64_t off;
    void *data;
    uint32_t bytes;
    uint32_t buffer; /* the slot `data` lies in, or WASTE_IO_NO_BUFFER */
    bool urgent;     /* goes before those that are not and have not begun */
};

struct waste_io_done {
    uint32_t tag;
    int32_t result; /* bytes read, 0 at the end of the file, or -errno */
};

/* What reads go between. Kept by the backend: must outlive it. */
struct waste_io_setup {
    const int *files;
    uint32_t file_count;
    uint8_t *cache; /* slot n at cache + n * slot_bytes */
    uint64_t slot_bytes;
    uint32_t slot_count;
    uint32_t depth;                  /* reads in flight at most */
    struct waste_drive_meter *meter; /* [WASTE_DRIVE_RECORDS], of each drive; NULL: nobody looks */
};

struct waste_io;

struct waste_io_ops {
    /* False: `depth` reads are in flight already. */
    bool (*queue)(struct waste_io *io, const struct waste_io_read *read);
    /* Everything queued goes to the kernel. 0, or -errno if the backend is broken for good. */
    int (*submit)(struct waste_io *io);
    /* Results that are there, without waiting and, when there are none, without a system call. */
    uint32_t (*reap)(struct waste_io *io, struct waste_io_done *done, uint32_t max);
    /* Called when poll() said `fd` is readable. */
    void (*clear)(struct waste_io *io);
    /* No read may be in flight. */
    void (*destroy)(struct waste_io *io);
    /* The pages of this slot may be thrown away from now on, until the next read into it: none of
     * its reads is in flight. */
    void (*release)(struct waste_io *io, uint32_t slot);
    /* NULL where reads begin at once. A read that has not begun becomes urgent / is forgotten: no
     * result will come. False: it has begun. */
    bool (*urge)(struct waste_io *io, uint32_t tag);
    bool (*cancel)(struct waste_io *io, uint32_t tag);
};

struct waste_io {
    const struct waste_io_ops *ops;
    enum waste_io_mode mode;
    int fd; /* readable when there are results to reap */
    uint32_t depth, in_flight;
};

static inline void waste_io_release(struct waste_io *io, uint32_t slot)
{
    if (io->ops->release)
        io->ops->release(io, slot);
}

/* 0 or -errno, `err` set. */
int waste_io_uring_create(const struct waste_io_setup *setup, struct waste_io **out,
                          struct waste_error *err);
int waste_io_pread_create(const struct waste_io_setup *setup, struct waste_io **out,
                          struct waste_error *err);

/*
 * The backend for `mode`. AUTO: io_uring if a real read through it works, else pread. Probes with
 * one read of the first file; a file that refuses O_DIRECT only now loses it. `why_not`, if not
 * NULL, tells why AUTO passed io_uring over (else it is empty). 0 or -errno, `err` set.
 */
int waste_io_create(enum waste_io_mode mode, const struct waste_io_setup *setup,
                    struct waste_io **out, struct waste_error *why_not, struct waste_error *err);

static inline void waste_io_destroy(struct waste_io *io)
{
    if (io)
        io->ops->destroy(io);
}

#endif
