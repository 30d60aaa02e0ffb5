/* Trunk tensors of a release to trunk.bin. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fetcher/convert.h"
#include "fetcher/fill.h"
#include "fetcher/io.h"
#include "fetcher/quantise.h"
#include "shm/model.h"

enum { STEP = 1 << 18 }; /* values a task takes, or a row */

struct task {
    const struct waste_plan_tensor *tensor;
    uint64_t first, count; /* rows; values of F32 */
};

struct job {
    struct waste_convert *c;
    struct task *task;
    uint32_t tasks, room;
    int fd;
};

static void add(struct job *j, struct task t)
{
    if (j->tasks == j->room) {
        j->room = j->room ? 2 * j->room : 256;
        j->task = realloc(j->task, j->room * sizeof(*j->task));
        if (!j->task)
            abort();
    }
    j->task[j->tasks++] = t;
}

static void list(struct job *j, int layer)
{
    const struct waste_plan *p = &j->c->plan;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const struct waste_plan_tensor *t = &p->tensor[i];
        uint64_t all = t->fmt ? t->rows : (uint64_t)t->rows * t->cols;
        uint64_t step = !t->fmt ? STEP : t->cols < STEP ? STEP / t->cols : 1;
        if (t->layer != layer)
            continue;
        for (uint64_t at = 0; at < all; at += step)
            add(j, (struct task){t, at, all - at < step ? all - at : step});
    }
}

static int write_floats(struct job *j, const struct task *t, float *values)
{
    if (waste_release_read(j->c->release, t->tensor->source, t->first, t->count, values))
        return -1;
    int e = waste_io_pwrite(j->fd, values, t->count * 4, t->tensor->off + t->first * 4);
    return e ? waste_fetch_fail("cannot write %s/trunk.bin: %s", j->c->path, strerror(-e)) : 0;
}

static int write_rows(struct job *j, const struct task *t, float *values, uint8_t *out)
{
    const struct waste_plan_tensor *p = t->tensor;
    size_t row = waste_fill_row_bytes(p->fmt, p->cols);
    size_t groups = (p->cols + WASTE_GROUP - 1) / WASTE_GROUP, payload = t->count * row;
    if (waste_release_read(j->c->release, p->source, t->first * p->cols, t->count * p->cols,
                           values))
        return -1;
    for (uint64_t r = 0; r < t->count; r++)
        if (waste_quantise_row(values + r * p->cols, p->cols, p->fmt, out + r * row,
                               out + payload + r * groups * 2))
            return waste_fetch_fail("%s: row %llu is too large for f16 scales", p->name,
                                    (unsigned long long)(t->first + r));
    int e = waste_io_pwrite(j->fd, out, payload, p->off + t->first * row);
    if (!e)
        e = waste_io_pwrite(j->fd, out + payload, t->count * groups * 2,
                            p->scale_off + t->first * groups * 2);
    return e ? waste_fetch_fail("cannot write %s/trunk.bin: %s", j->c->path, strerror(-e)) : 0;
}

static int run_task(struct job *j, const struct task *t)
{
    const struct waste_plan_tensor *p = t->tensor;
    uint64_t values = p->fmt ? t->count * p->cols : t->count;
    uint64_t bytes = p->fmt ? p->bytes / p->rows * t->count : 0;
    float *in = malloc(values * sizeof(*in));
    uint8_t *out = malloc(bytes + 1);
    int rc = !in || !out ? waste_fetch_fail("%s: out of memory", p->name)
             : p->fmt    ? write_rows(j, t, in, out)
                         : write_floats(j, t, in);
    free(in);
    free(out);
    const struct waste_release_tensor *s = p->source;
    uint64_t all = (uint64_t)p->rows * p->cols;
    atomic_fetch_add_explicit(&j->c->progress.done, (s->data.bytes + s->scale.bytes) * values / all,
                              memory_order_relaxed);
    return rc;
}

static void work(void *arg, uint32_t worker)
{
    struct job *j = arg;
    for (uint32_t i; waste_team_claim(j->c->team, worker, &i);)
        if (!atomic_load_explicit(&j->c->failed, memory_order_relaxed) && run_task(j, &j->task[i]))
            atomic_store_explicit(&j->c->failed, true, memory_order_relaxed);
}

int waste_convert_trunk(struct waste_convert *c, int layer)
{
    struct job j = {.c = c,
                    .fd = openat(c->dir, "trunk.bin", O_WRONLY | O_CREAT | O_CLOEXEC, 0644)};
    if (j.fd < 0)
        return waste_fetch_fail("cannot open %s/trunk.bin: %s", c->path, strerror(errno));
    list(&j, layer);
    waste_team_run(c->team, work, &j, j.tasks, 1);
    free(j.task);
    int rc = atomic_load_explicit(&c->failed, memory_order_relaxed) ? -1 : 0;
    if (rc == 0 && fdatasync(j.fd))
        rc = waste_fetch_fail("cannot write %s/trunk.bin: %s", c->path, strerror(errno));
    close(j.fd);
    return rc;
}
