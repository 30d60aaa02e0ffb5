/* A pool of threads that call pread(). For kernels and containers where io_uring is refused. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "reader/io.h"

enum { STACK_BYTES = 128 << 10 };

struct io_pread {
    struct waste_io io;
    const struct waste_io_setup *setup;
    uint32_t mask; /* both queues hold a power of two >= depth */
    uint32_t threads;
    pthread_t thread[WASTE_IO_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t more;
    /* under `lock` */
    bool quit;
    uint32_t todo_in, todo_out, todo_visible; /* threads take [out, visible) */
    uint32_t done_in, done_out;
    struct waste_io_read *todo;
    struct waste_io_done *done;
    _Atomic uint32_t ready; /* results in `done`; lets reap look without the lock */
};

static struct io_pread *self(struct waste_io *io)
{
    return (struct io_pread *)io;
}

static void *work(void *arg)
{
    struct io_pread *p = arg;
    const uint64_t one = 1;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->quit && p->todo_out == p->todo_visible)
            pthread_cond_wait(&p->more, &p->lock);
        if (p->quit)
            break;
        struct waste_io_read read = p->todo[p->todo_out++ & p->mask];
        pthread_mutex_unlock(&p->lock);
        ssize_t n = pread(p->setup->files[read.file], read.data, read.bytes, (off_t)read.off);
        int32_t result = n < 0 ? -errno : (int32_t)n;
        pthread_mutex_lock(&p->lock);
        p->done[p->done_in++ & p->mask] = (struct waste_io_done){read.tag, result};
        /* relaxed: reap takes the lock before it looks at `done` */
        atomic_fetch_add_explicit(&p->ready, 1, memory_order_relaxed);
        while (write(p->io.fd, &one, sizeof(one)) < 0 && errno == EINTR)
            ;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool queue(struct waste_io *io, const struct waste_io_read *read)
{
    struct io_pread *p = self(io);
    if (io->in_flight == io->depth)
        return false;
    io->in_flight++;
    pthread_mutex_lock(&p->lock);
    p->todo[p->todo_in++ & p->mask] = *read;
    pthread_mutex_unlock(&p->lock);
    return true;
}

static int submit(struct waste_io *io)
{
    struct io_pread *p = self(io);
    pthread_mutex_lock(&p->lock);
    uint32_t fresh = p->todo_in - p->todo_visible;
    p->todo_visible = p->todo_in;
    pthread_mutex_unlock(&p->lock);
    if (fresh == 1)
        pthread_cond_signal(&p->more);
    else if (fresh > 1)
        pthread_cond_broadcast(&p->more);
    return 0;
}

static uint32_t reap(struct waste_io *io, struct waste_io_done *done, uint32_t max)
{
    struct io_pread *p = self(io);
    /* relaxed: a hint; a result missed now makes the eventfd readable */
    if (atomic_load_explicit(&p->ready, memory_order_relaxed) == 0)
        return 0;
    uint32_t n = 0;
    pthread_mutex_lock(&p->lock);
    while (n < max && p->done_out != p->done_in)
        done[n++] = p->done[p->done_out++ & p->mask];
    pthread_mutex_unlock(&p->lock);
    atomic_fetch_sub_explicit(&p->ready, n, memory_order_relaxed);
    io->in_flight -= n;
    return n;
}

static void clear(struct waste_io *io)
{
    uint64_t count;
    while (read(io->fd, &count, sizeof(count)) < 0 && errno == EINTR)
        ;
}

static void destroy(struct waste_io *io)
{
    struct io_pread *p = self(io);
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_mutex_unlock(&p->lock);
    pthread_cond_broadcast(&p->more);
    for (uint32_t i = 0; i < p->threads; i++)
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->more);
    pthread_mutex_destroy(&p->lock);
    if (io->fd >= 0)
        close(io->fd);
    free(p->todo);
    free(p->done);
    free(p);
}

static const struct waste_io_ops ops = {
    .queue = queue, .submit = submit, .reap = reap, .clear = clear, .destroy = destroy};

/* Signals stay with the main thread. */
static int start_threads(struct io_pread *p, uint32_t want)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc = 0;
    sigfillset(&all);
    sigdelset(&all, SIGSYS); /* of a refused call: comes to the thread that made it */
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (p->threads < want && rc == 0) {
        rc = pthread_create(&p->thread[p->threads], &attr, work, p);
        p->threads += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return p->threads > 0 ? 0 : -rc; /* fewer are slower, not wrong */
}

int waste_io_pread_create(const struct waste_io_setup *setup, struct waste_io **out,
                          struct waste_error *err)
{
    uint32_t size = 1;
    while (size < setup->depth)
        size *= 2;
    struct io_pread *p = calloc(1, sizeof(*p));
    if (!p)
        return waste_error_set(err, -ENOMEM, "pread: out of memory");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    p->io = (struct waste_io){.ops = &ops, .mode = WASTE_IO_PREAD, .depth = setup->depth};
    p->io.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->setup = setup;
    p->mask = size - 1;
    p->todo = malloc(size * sizeof(*p->todo));
    p->done = malloc(size * sizeof(*p->done));
    int rc = p->io.fd < 0 ? -errno : !p->todo || !p->done ? -ENOMEM : 0;
    if (rc == 0)
        rc = start_threads(p, setup->depth < WASTE_IO_THREADS ? setup->depth : WASTE_IO_THREADS);
    if (rc < 0) {
        destroy(&p->io);
        return waste_error_set(err, rc, "pread: cannot start a pool of threads: %s", strerror(-rc));
    }
    *out = &p->io;
    return 0;
}
