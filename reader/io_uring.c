/*
 * io_uring: files registered once, slots registered as fixed buffers when first used, a whole batch
 * submitted with one system call, completions taken from the ring without any.
 *
 * A slot is registered as late as possible because registering pins its pages, and so allocates
 * them: doing the whole cache at once would stop the reader for many seconds. Where the kernel
 * refuses (RLIMIT_MEMLOCK counts pinned pages) reads go on unregistered; that costs a page walk a
 * read. Registered pages stay the segment's pages only as long as nobody punches a hole over them:
 * slots are punched between two readers, never under one.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "reader/io.h"

enum { MAX_BUFFERS = 1 << 14 };              /* the kernel's limit a ring */
#define MAX_BUFFER_BYTES (UINT64_C(1) << 30) /* and a buffer */

struct io_uring_io {
    struct waste_io io;
    const struct waste_io_setup *setup;
    struct io_uring ring;
    bool fixed_files, fixed_buffers;
    uint32_t group;      /* slots a registered buffer */
    uint8_t *registered; /* [buffers] */
};

static struct io_uring_io *self(struct waste_io *io)
{
    return (struct io_uring_io *)io;
}

static int submit(struct waste_io *io)
{
    struct io_uring_io *u = self(io);
    while (io_uring_sq_ready(&u->ring) > 0) {
        int rc = io_uring_submit(&u->ring);
        if (rc == -EAGAIN || rc == -EBUSY)
            return 0; /* short of memory, or completions wait: the next call goes on */
        if (rc < 0 && rc != -EINTR)
            return rc;
    }
    return 0;
}

/* The registered buffer that holds this slot, registering it if need be; -1: none. */
static int buffer_of(struct io_uring_io *u, uint32_t slot)
{
    if (!u->fixed_buffers || slot >= u->setup->slot_count)
        return -1;
    uint32_t n = slot / u->group, first = n * u->group;
    if (u->registered[n])
        return (int)n;
    /* the kernel may have to find and clear the slot's pages first: the drive need not wait */
    if (io_uring_sq_ready(&u->ring) > 0)
        submit(&u->io);
    uint32_t slots =
        u->setup->slot_count - first < u->group ? u->setup->slot_count - first : u->group;
    struct iovec iov = {.iov_base = u->setup->cache + first * u->setup->slot_bytes,
                        .iov_len = slots * u->setup->slot_bytes};
    if (io_uring_register_buffers_update_tag(&u->ring, n, &iov, NULL, 1) != 1) {
        u->fixed_buffers = false; /* the rest would be refused too */
        return -1;
    }
    u->registered[n] = 1;
    return (int)n;
}

static bool queue(struct waste_io *io, const struct waste_io_read *read)
{
    struct io_uring_io *u = self(io);
    if (io->in_flight == io->depth)
        return false;
    int buffer = read->buffer == WASTE_IO_NO_BUFFER ? -1 : buffer_of(u, read->buffer);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (!sqe)
        return false; /* the kernel has not taken the last batch yet (EAGAIN, EBUSY) */
    int fd = u->fixed_files ? (int)read->file : u->setup->files[read->file];
    if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, fd, read->data, read->bytes, read->off, buffer);
    else
        io_uring_prep_read(sqe, fd, read->data, read->bytes, read->off);
    if (u->fixed_files)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, read->tag);
    io->in_flight++;
    return true;
}

static uint32_t reap(struct waste_io *io, struct waste_io_done *done, uint32_t max)
{
    struct io_uring_io *u = self(io);
    struct io_uring_cqe *cqe;
    uint32_t n = 0;
    if (io_uring_sq_ready(&u->ring) > 0)
        submit(io); /* what the kernel would not take before */
    while (n < max && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        done[n++] = (struct waste_io_done){(uint32_t)io_uring_cqe_get_data64(cqe), cqe->res};
        io_uring_cqe_seen(&u->ring, cqe);
    }
    io->in_flight -= n;
    return n;
}

static void clear(struct waste_io *io)
{
    (void)io; /* the ring's descriptor is readable exactly as long as completions wait */
}

static void destroy(struct waste_io *io)
{
    struct io_uring_io *u = self(io);
    io_uring_queue_exit(&u->ring);
    free(u->registered);
    free(u);
}

/* An empty buffer in place of the slot's: the kernel lets go of its pages. */
static void release(struct waste_io *io, uint32_t slot)
{
    struct io_uring_io *u = self(io);
    struct iovec none = {0};
    uint32_t n = slot / u->group;
    if (!u->registered || slot >= u->setup->slot_count || !u->registered[n])
        return;
    if (io_uring_register_buffers_update_tag(&u->ring, n, &none, NULL, 1) == 1)
        u->registered[n] = 0;
}

static const struct waste_io_ops ops = {.queue = queue,
                                        .submit = submit,
                                        .reap = reap,
                                        .clear = clear,
                                        .destroy = destroy,
                                        .release = release};

static void register_what_goes(struct io_uring_io *u)
{
    const struct waste_io_setup *s = u->setup;
    u->fixed_files =
        s->file_count > 0 && io_uring_register_files(&u->ring, s->files, s->file_count) == 0;
    u->group = s->slot_count / MAX_BUFFERS + 1;
    uint32_t buffers = s->slot_count / u->group + 1;
    u->registered = calloc(buffers, 1);
    u->fixed_buffers = u->registered && u->group * s->slot_bytes <= MAX_BUFFER_BYTES &&
                       io_uring_register_buffers_sparse(&u->ring, buffers) == 0;
}

/* liburing 2.3 declares functions for these two and does not export them. */
static int register_raw(struct io_uring_io *u, unsigned what, void *arg, unsigned count)
{
    return syscall(SYS_io_uring_register, u->ring.ring_fd, what, arg, count) < 0 ? -errno : 0;
}

/*
 * A ring can open files and sockets, past any seccomp filter. This one reads the files it knows,
 * and takes slots as buffers. A kernel that knows no restrictions (before 5.10) made it without the
 * flag.
 */
static int restrict_and_enable(struct io_uring_io *u)
{
    struct io_uring_restriction allowed[] = {
        {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ},
        {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ_FIXED},
        {.opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED, .sqe_flags = IOSQE_FIXED_FILE},
        {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_BUFFERS_UPDATE},
    };
    int rc = register_raw(u, IORING_REGISTER_RESTRICTIONS, allowed,
                          sizeof(allowed) / sizeof(allowed[0]));

    return rc < 0 ? rc : register_raw(u, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
}

static int create_ring(struct io_uring_io *u)
{
    uint32_t depth = u->setup->depth;
    int rc = io_uring_queue_init(depth, &u->ring, IORING_SETUP_R_DISABLED);
    bool disabled = rc >= 0;

    if (rc == -EINVAL)
        rc = io_uring_queue_init(depth, &u->ring, 0);
    if (rc < 0)
        return rc;
    register_what_goes(u);
    rc = disabled ? restrict_and_enable(u) : 0;
    if (rc < 0) {
        io_uring_queue_exit(&u->ring);
        free(u->registered);
    }
    return rc;
}

int waste_io_uring_create(const struct waste_io_setup *setup, struct waste_io **out,
                          struct waste_error *err)
{
    struct io_uring_io *u = calloc(1, sizeof(*u));
    if (!u)
        return waste_error_set(err, -ENOMEM, "out of memory");
    u->io = (struct waste_io){.ops = &ops, .mode = WASTE_IO_URING, .depth = setup->depth};
    u->setup = setup;
    int rc = create_ring(u);
    if (rc < 0) {
        free(u);
        return waste_error_set(err, rc, "the kernel refused it: %s", strerror(-rc));
    }
    u->io.fd = u->ring.ring_fd;
    *out = &u->io;
    return 0;
}
