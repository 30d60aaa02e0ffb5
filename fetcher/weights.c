#include "fetcher/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fetcher/fill.h"
#include "fetcher/io.h"
#include "fetcher/jobs.h"
#include "fetcher/record.h"
#include "shm/model.h"

enum { JOB_BYTES = 16 << 20, PAGE = 4096 };

struct waste_weights_job {
    uint32_t layer;        /* of a bank; UINT32_MAX: the trunk */
    uint32_t tensor;       /* of the trunk */
    uint32_t first, count; /* rows or records */
};

static void add_job(struct waste_weights *w, struct waste_weights_job job, size_t bytes)
{
    if (w->job_count == w->job_room) {
        w->job_room = w->job_room ? 2 * w->job_room : 1024;
        w->jobs = realloc(w->jobs, w->job_room * sizeof(*w->jobs));
        if (!w->jobs)
            abort();
    }
    w->jobs[w->job_count++] = job;
    if (w->buffer_bytes < bytes)
        w->buffer_bytes = bytes;
}

static uint32_t groups_of(const struct waste_plan_tensor *t)
{
    return t->fmt ? (t->cols + WASTE_GROUP - 1) / WASTE_GROUP : 0;
}

static void list_jobs(struct waste_weights *w)
{
    for (uint32_t i = 0; i < w->plan->tensor_count; i++) {
        const struct waste_plan_tensor *t = &w->plan->tensor[i];
        size_t row = waste_fill_row_bytes(t->fmt, t->cols) + 2 * groups_of(t);
        uint32_t step = t->fmt && row < JOB_BYTES ? (uint32_t)(JOB_BYTES / row) : 1;
        if (!t->fmt) /* one stream of floats for the whole tensor */
            step = t->rows;
        for (uint32_t r = 0; r < t->rows; r += step) {
            uint32_t n = t->rows - r < step ? t->rows - r : step;
            add_job(w, (struct waste_weights_job){UINT32_MAX, i, r, n}, n * row);
        }
    }
    uint32_t step = w->plan->record_bytes < JOB_BYTES ? JOB_BYTES / w->plan->record_bytes : 1;
    for (uint32_t l = w->shape->dense_layers; l < w->shape->layers; l++)
        for (uint32_t e = 0; e < w->shape->experts; e += step) {
            uint32_t n = w->shape->experts - e < step ? w->shape->experts - e : step;
            add_job(w, (struct waste_weights_job){l, 0, e, n}, (size_t)n * w->plan->record_bytes);
        }
}

/* Rows [first, first + count) of a tensor, and behind all payload their scales. */
static int run_trunk(struct waste_weights *w, const struct waste_weights_job *j, int fd,
                     uint8_t *buf)
{
    const struct waste_plan_tensor *t = &w->plan->tensor[j->tensor];
    const char *name = t->name + strlen(w->plan->prefix);
    uint64_t seed = w->seed;
    size_t row = waste_fill_row_bytes(t->fmt, t->cols), payload = j->count * row;
    if (!t->fmt) {
        waste_fill_floats((float *)buf, (size_t)t->rows * t->cols, t->low, t->high,
                          waste_fill_key(seed, name, 0));
        return waste_io_pwrite(fd, buf, payload, t->off);
    }
    size_t groups = groups_of(t);
    double deviation = (t->high - t->low) / sqrt(12.0);
    double scale = deviation / waste_fill_row_deviation(t->fmt);
    for (uint32_t r = 0; r < j->count; r++) {
        uint64_t key = waste_fill_key(seed, name, j->first + r);
        waste_fill_row(buf + r * row, t->fmt, t->cols, key);
        waste_fill_scales(buf + payload + r * groups * 2, groups, scale, waste_mix(key));
    }
    int e = waste_io_pwrite(fd, buf, payload, t->off + j->first * row);
    return e ? e
             : waste_io_pwrite(fd, buf + payload, j->count * groups * 2,
                               t->scale_off + j->first * groups * 2);
}

/* The row block behind the last full one holds rows that are not there: their indices are 0. */
static void clear_padding(uint8_t *index, uint32_t rows, uint32_t positions, uint32_t index_bytes)
{
    uint32_t live = rows % 64;
    if (!live)
        return;
    uint8_t *block = index + (size_t)(rows / 64) * positions * 64 * index_bytes;
    for (uint32_t p = 0; p < positions; p++)
        memset(block + ((size_t)p * 64 + live) * index_bytes, 0, (size_t)(64 - live) * index_bytes);
}

static double book_amplitude(const struct waste_shape *s, uint32_t stage)
{
    return ldexp(s->subnormal ? 0x1p-11 : 1, -(int)stage);
}

/* Row scale that makes an expert matrix of `cols` columns keep the size of what it multiplies. */
static double expert_scale(const struct waste_weights *w, uint32_t cols)
{
    double variance = 0;
    for (uint32_t i = 0; i < w->plan->stages; i++)
        variance += book_amplitude(w->shape, i) * book_amplitude(w->shape, i) / 3;
    return 1 / sqrt(variance * cols);
}

static void make_record(const struct waste_weights *w, uint8_t *rec, uint32_t layer,
                        uint32_t expert)
{
    const struct waste_plan *p = w->plan;
    uint32_t in = w->shape->expert_inner, n = w->shape->expert_width;
    char stream[32];
    snprintf(stream, sizeof(stream), "experts-L%u", layer);
    uint64_t key = waste_fill_key(w->seed, stream, expert);
    waste_fill_bytes(rec, p->scale_off + 1, key);
    clear_padding(rec + p->gate_off, in, n / 8, p->index_bytes);
    clear_padding(rec + p->up_off, in, n / 8, p->index_bytes);
    clear_padding(rec + p->down_off, n, in / 8, p->index_bytes);
    waste_fill_scales(rec + p->scale_off, 2 * (size_t)in, expert_scale(w, n), waste_mix(key));
    waste_fill_scales(rec + p->scale_off + 4 * (size_t)in, n, expert_scale(w, in),
                      waste_mix(key + 1));
    waste_record_finish(rec, p, w->shape, layer, expert);
}

static int run_bank(struct waste_weights *w, const struct waste_weights_job *j, int fd,
                    uint8_t *buf)
{
    size_t stride = w->plan->record_bytes;
    for (uint32_t e = 0; e < j->count; e++)
        make_record(w, buf + e * stride, j->layer, j->first + e);
    return waste_io_pwrite(fd, buf, j->count * stride, j->first * (uint64_t)stride);
}

static void file_of(char out[32], uint32_t layer)
{
    if (layer == UINT32_MAX)
        snprintf(out, 32, "trunk.bin");
    else
        waste_bank_name(out, layer);
}

/* Banks bypass the page cache where that is possible: they are written once, page by page. */
static int open_file(int dir, uint32_t layer)
{
    char name[32];
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC, fd = -1;
    file_of(name, layer);
    if (layer != UINT32_MAX)
        fd = openat(dir, name, flags | O_DIRECT, 0644);
    return fd >= 0 ? fd : openat(dir, name, flags, 0644);
}

static int run_job(struct waste_weights *w, const struct waste_weights_job *j, uint8_t *buf)
{
    bool trunk = j->layer == UINT32_MAX;
    int fd = open_file(w->dir, j->layer);
    if (fd < 0)
        return -errno;
    int e = trunk ? run_trunk(w, j, fd, buf) : run_bank(w, j, fd, buf);
    if (close(fd) && !e)
        e = -errno;
    const struct waste_plan_tensor *t = &w->plan->tensor[j->tensor];
    uint64_t n = trunk ? t->bytes / t->rows * j->count : (uint64_t)w->plan->record_bytes * j->count;
    atomic_fetch_add_explicit(&w->progress.done, n, memory_order_relaxed);
    return e;
}

static int run(void *ctx, uint64_t job, uint8_t *buffer)
{
    struct waste_weights *w = ctx;
    return run_job(w, &w->jobs[job], buffer);
}

int waste_weights_write(struct waste_weights *w)
{
    list_jobs(w);
    waste_progress_init(&w->progress, "synth", w->plan->total_bytes, w->quiet);
    int e = waste_jobs_run(&(struct waste_jobs){.count = w->job_count,
                                                .run = run,
                                                .ctx = w,
                                                .buffer_bytes = w->buffer_bytes,
                                                .threads = w->threads,
                                                .progress = &w->progress});
    free(w->jobs);
    w->jobs = NULL;
    w->seconds = waste_progress_finish(&w->progress);
    return e ? waste_fetch_fail("cannot write %s: %s", w->path, strerror(-e)) : 0;
}

int waste_weights_write_codebooks(struct waste_weights *w)
{
    const struct waste_plan *p = w->plan;
    size_t book = waste_book_bytes(p);
    uint8_t *all = calloc(p->books, book);
    uint16_t *values = malloc((size_t)p->entries * 16);
    int e = -1;
    if (!all || !values) {
        waste_fetch_fail("out of memory");
        goto out;
    }
    for (uint32_t b = 0; b < p->books; b++) {
        uint8_t *h = all + b * book;
        waste_book_header(h, p, w->shape, b);
        waste_fill_codebook(values, p->entries, book_amplitude(w->shape, b % p->stages),
                            waste_fill_key(w->seed, "codebook", b));
        for (uint32_t i = 0; i < p->entries * 8; i++)
            waste_put16(h + 16 + 2 * (size_t)i, values[i]);
    }
    e = waste_io_write_file(w->dir, "codebooks.bin", all, p->books * book);
out:
    free(all);
    free(values);
    return e;
}
