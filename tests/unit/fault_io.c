#include "fault_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TAGS = 1 << 16 };

struct fault_io {
    struct waste_io io;
    struct waste_io *inner;
    const struct waste_io_setup *setup;
    unsigned long short_bytes, eintr, eagain, busy, eio, badcrc, eioall, nodirect, latedirect, full;
    unsigned long reads, attempts;
    struct waste_io_done lie[64]; /* results that never went to the inner backend */
    uint32_t lies;
    uint8_t *spoil[MAX_TAGS]; /* a byte to flip when this tag is done */
};

static struct fault_io *self(struct waste_io *io)
{
    return (struct fault_io *)io;
}

static bool every(unsigned long n, unsigned long count)
{
    return n && count % n == 0;
}

static int no_direct(struct fault_io *f, const struct waste_io_read *read, bool probe)
{
    return (f->nodirect || (f->latedirect && !probe)) &&
                   (fcntl(f->setup->files[read->file], F_GETFL) & O_DIRECT)
               ? -EINVAL
               : 0;
}

static int verdict(struct fault_io *f)
{
    if (f->reads <= f->busy)
        return f->reads % 2 ? -EINTR : -EAGAIN;
    if (every(f->eintr, f->reads))
        return -EINTR;
    if (every(f->eagain, f->reads))
        return -EAGAIN;
    return f->eioall || (f->eio && f->reads == f->eio) ? -EIO : 0;
}

static bool queue(struct waste_io *io, const struct waste_io_read *read)
{
    struct fault_io *f = self(io);
    struct waste_io_read cut = *read;
    if (every(f->full, ++f->attempts) || f->lies == 64 || io->in_flight == io->depth)
        return false;
    bool probe = read->buffer == WASTE_IO_NO_BUFFER;
    f->reads += !probe;
    int rc = no_direct(f, read, probe);
    if (rc == 0 && !probe)
        rc = verdict(f);
    if (rc < 0) {
        f->lie[f->lies++] = (struct waste_io_done){read->tag, rc};
        io->in_flight++;
        return true;
    }
    if (!probe && f->short_bytes && cut.bytes > f->short_bytes) {
        /* what O_DIRECT would refuse to read goes to a whole block and is reported shorter */
        cut.bytes = (uint32_t)((f->short_bytes + 4095) / 4096 * 4096);
        if (cut.bytes > read->bytes)
            cut.bytes = read->bytes;
    }
    if (!probe && f->badcrc && f->reads == f->badcrc && read->tag < MAX_TAGS)
        f->spoil[read->tag] = (uint8_t *)read->data + 100;
    if (!f->inner->ops->queue(f->inner, &cut)) {
        f->reads -= !probe;
        return false;
    }
    io->in_flight++;
    return true;
}

static int submit(struct waste_io *io)
{
    return self(io)->inner->ops->submit(self(io)->inner);
}

static uint32_t reap(struct waste_io *io, struct waste_io_done *done, uint32_t max)
{
    struct fault_io *f = self(io);
    uint32_t n = 0;
    while (n < max && f->lies)
        done[n++] = f->lie[--f->lies];
    uint32_t first = n;
    n += f->inner->ops->reap(f->inner, done + n, max - n);
    for (uint32_t i = first; i < n; i++) {
        if (f->short_bytes && done[i].result > (int32_t)f->short_bytes)
            done[i].result = (int32_t)f->short_bytes;
        if (done[i].tag < MAX_TAGS && f->spoil[done[i].tag]) {
            *f->spoil[done[i].tag] ^= 4;
            f->spoil[done[i].tag] = NULL;
        }
    }
    io->in_flight -= n;
    return n;
}

static void clear(struct waste_io *io)
{
    self(io)->inner->ops->clear(self(io)->inner);
}

static void destroy(struct waste_io *io)
{
    self(io)->inner->ops->destroy(self(io)->inner);
    free(io);
}

static void release(struct waste_io *io, uint32_t slot)
{
    waste_io_release(self(io)->inner, slot);
}

static const struct waste_io_ops ops = {.queue = queue,
                                        .submit = submit,
                                        .reap = reap,
                                        .clear = clear,
                                        .destroy = destroy,
                                        .release = release};

static unsigned long value(const char *plan, const char *name)
{
    char want[32];
    snprintf(want, sizeof(want), ",%s=", name);
    const char *found = NULL;
    if (strncmp(plan, want + 1, strlen(want) - 1) == 0)
        found = plan + strlen(want) - 1;
    else if ((found = strstr(plan, want)))
        found += strlen(want);
    return found ? strtoul(found, NULL, 10) : 0;
}

struct waste_io *fault_io_create(struct waste_io *inner, const struct waste_io_setup *setup,
                                 const char *plan)
{
    struct fault_io *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    f->io =
        (struct waste_io){.ops = &ops, .mode = inner->mode, .fd = inner->fd, .depth = inner->depth};
    f->inner = inner;
    f->setup = setup;
    f->short_bytes = value(plan, "short");
    f->eintr = value(plan, "eintr");
    f->eagain = value(plan, "eagain");
    f->busy = value(plan, "busy");
    f->eio = value(plan, "eio");
    f->eioall = value(plan, "eioall");
    f->badcrc = value(plan, "badcrc");
    f->nodirect = value(plan, "nodirect");
    f->latedirect = value(plan, "latedirect");
    f->full = value(plan, "full");
    return &f->io;
}

/* Link-time replacements: -Wl,--wrap=waste_io_uring_create -Wl,--wrap=waste_io_pread_create */

typedef int create_function(const struct waste_io_setup *setup, struct waste_io **out,
                            struct waste_error *err);
create_function __real_waste_io_uring_create, __wrap_waste_io_uring_create;
create_function __real_waste_io_pread_create, __wrap_waste_io_pread_create;

static int create(create_function *real, const struct waste_io_setup *setup, struct waste_io **out,
                  struct waste_error *err)
{
    const char *plan = getenv("WASTE_FAULT");
    int rc = real(setup, out, err);
    if (rc == 0 && plan)
        *out = fault_io_create(*out, setup, plan);
    return rc;
}

int __wrap_waste_io_uring_create(const struct waste_io_setup *setup, struct waste_io **out,
                                 struct waste_error *err)
{
    const char *plan = getenv("WASTE_FAULT");
    unsigned long refuse = plan ? value(plan, "uring") : 0;
    if (refuse)
        return waste_error_set(err, -(int)refuse, "the kernel refused it: %s",
                               strerror((int)refuse));
    return create(__real_waste_io_uring_create, setup, out, err);
}

int __wrap_waste_io_pread_create(const struct waste_io_setup *setup, struct waste_io **out,
                                 struct waste_error *err)
{
    return create(__real_waste_io_pread_create, setup, out, err);
}
