/* The experts of one layer: a sample, codebooks of it, then every expert's record. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compute/kernels.h"
#include "fetcher/convert.h"
#include "fetcher/encode.h"
#include "fetcher/fill.h"
#include "fetcher/io.h"
#include "fetcher/record.h"
#include "fetcher/train.h"
#include "shm/model.h"

enum { SEGMENT = 32, ROWS = 64, PAGE = 4096, DIM = WASTE_BOOK_DIM };

/* What one worker needs to code an expert. */
struct scratch {
    uint8_t *record;   /* aligned to PAGE, for O_DIRECT */
    float *values;     /* [ROWS][widest row] */
    int16_t (*x)[DIM]; /* [vectors of the widest row] */
    uint8_t (*code)[WASTE_BOOK_STAGES], (*spare)[WASTE_BOOK_STAGES];
};

struct job {
    struct waste_convert *c;
    uint32_t layer, kind;
    const struct waste_release_tensor **expert; /* [experts][3] */
    struct waste_books *books[3];
    struct scratch *scratch; /* [threads] */
    double (*error)[3][2];   /* [experts] */
    struct waste_sample sample;
    float *scale; /* [segments] of the row each is from */
    uint32_t segments, segment_vectors;
    int fd;
    char file[40]; /* the bank while it is made */
};

static const struct waste_release_tensor *matrix(const struct job *j, uint32_t expert,
                                                 uint32_t kind)
{
    return j->expert[expert * 3 + kind];
}

/* A piece of a row: segments are spread evenly over the rows of all experts, and start anywhere. */
static int take_segment(struct job *j, struct scratch *s, uint32_t segment)
{
    struct waste_convert *c = j->c;
    uint32_t rows = waste_convert_rows(c, j->kind), cols = waste_convert_cols(c, j->kind);
    uint32_t n = j->segment_vectors, per_row = cols / DIM / n;
    uint64_t all = (uint64_t)c->shape.experts * rows * per_row;
    uint64_t at = (uint64_t)((__uint128_t)segment * all / j->segments), row = at / per_row;
    if (waste_release_read(c->release, matrix(j, (uint32_t)(row / rows), j->kind),
                           row % rows * cols, cols, s->values))
        return -1;
    uint16_t scale = waste_encode_scale(s->values, cols);
    if (scale == 0x7c00)
        return waste_fetch_fail("%s: row %llu is too large for an f16 scale",
                                matrix(j, (uint32_t)(row / rows), j->kind)->name,
                                (unsigned long long)(row % rows));
    waste_encode_normalise(s->values, cols, scale, s->x);
    uint32_t first = (uint32_t)(at % per_row) * n;
    memcpy(j->sample.x + (size_t)segment * n, s->x + first, n * sizeof(*s->x));
    j->scale[segment] = waste_half_to_float(scale);
    return 0;
}

static bool stopped(const struct job *j)
{
    return atomic_load_explicit(&j->c->failed, memory_order_relaxed);
}

static void fail(struct job *j)
{
    atomic_store_explicit(&j->c->failed, true, memory_order_relaxed);
}

static void take_segments(void *arg, uint32_t worker)
{
    struct job *j = arg;
    for (uint32_t i; waste_team_claim(j->c->team, worker, &i);)
        if (!stopped(j) && take_segment(j, &j->scratch[worker], i))
            fail(j);
}

/* A vector counts by the square of its row's scale: that is what its error becomes. */
static void weigh(struct job *j)
{
    double mean = 0;
    for (uint32_t i = 0; i < j->segments; i++)
        mean += (double)j->scale[i] * j->scale[i] / j->segments;
    for (uint32_t i = 0; i < j->sample.count; i++) {
        double s = j->scale[i / j->segment_vectors], w = mean > 0 ? 256 * s * s / mean : 1;
        j->sample.weight[i] = (uint16_t)(w < 1                     ? 1
                                         : w > WASTE_SAMPLE_WEIGHT ? WASTE_SAMPLE_WEIGHT
                                                                   : w);
    }
}

/* As many vectors as the effort wants, if there are that many. */
static int take_sample(struct job *j)
{
    const struct waste_convert *c = j->c;
    uint32_t vectors = waste_convert_cols(c, j->kind) / DIM,
             n = vectors < SEGMENT ? vectors : SEGMENT;
    uint64_t all = (uint64_t)c->shape.experts * waste_convert_rows(c, j->kind) * (vectors / n);
    uint64_t want = c->effort->sample / n;
    j->segment_vectors = n;
    j->segments = (uint32_t)(all < want ? all : want);
    j->sample.count = j->segments * n;
    j->sample.x = malloc((size_t)j->sample.count * sizeof(*j->sample.x));
    j->sample.weight = malloc((size_t)j->sample.count * sizeof(*j->sample.weight));
    j->scale = malloc((size_t)j->segments * sizeof(*j->scale));
    if (!j->sample.x || !j->sample.weight || !j->scale)
        return waste_fetch_fail("layer %u: out of memory", j->layer);
    waste_team_run(c->team, take_segments, j, j->segments, 16);
    weigh(j);
    return stopped(j) ? -1 : 0;
}

static void drop_sample(struct job *j)
{
    free(j->sample.x);
    free(j->sample.weight);
    free(j->scale);
    j->sample = (struct waste_sample){0};
    j->scale = NULL;
}

static int make_books(struct job *j)
{
    const struct waste_effort *e = j->c->effort;
    const struct waste_trainer how = {&j->c->search,    j->c->team, e->seed_rounds,
                                      e->coarse_rounds, e->rounds,  e->train_width};
    for (j->kind = 0; j->kind < 3; j->kind++) {
        j->books[j->kind] = waste_books_create(j->c->plan.stages, j->c->plan.entries);
        int rc = j->books[j->kind] ? take_sample(j) : waste_fetch_fail("out of memory");
        if (rc == 0 &&
            waste_train(j->books[j->kind], &j->sample, &how, waste_mix(j->layer * 3 + j->kind)))
            rc = waste_fetch_fail("layer %u: out of memory", j->layer);
        drop_sample(j);
        if (rc)
            return -1;
    }
    return 0;
}

static int write_books(const struct job *j)
{
    struct waste_convert *c = j->c;
    const struct waste_plan *p = &c->plan;
    uint32_t first = waste_record_first_book(p, &c->shape, j->layer), n = 3 * p->stages;
    size_t bytes = waste_book_bytes(p);
    uint8_t *all = calloc(n, bytes), *at = all;
    if (!all)
        return waste_fetch_fail("layer %u: out of memory", j->layer);
    for (uint32_t i = 0; i < n; i++, at += bytes) {
        waste_book_header(at, p, &c->shape, first + i);
        const int16_t *v = &j->books[i / p->stages]->entry[i % p->stages][0][0];
        for (uint32_t k = 0; k < p->entries * DIM; k++)
            waste_put16(at + 16 + 2 * k, waste_half_of((float)v[k] / WASTE_BOOK_UNIT));
    }
    int fd = openat(c->dir, "codebooks.bin", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    int e = fd < 0 ? -errno : waste_io_pwrite(fd, all, n * bytes, first * (uint64_t)bytes);
    if (!e && fdatasync(fd))
        e = -errno;
    if (fd >= 0)
        close(fd);
    free(all);
    return e ? waste_fetch_fail("cannot write %s/codebooks.bin: %s", c->path, strerror(-e)) : 0;
}

/* Codes of row r to their places: [row block of 64][position][row in block][stage]. */
static void place(const struct waste_plan *p, uint8_t *index, uint32_t r, uint32_t vectors,
                  const uint8_t (*code)[WASTE_BOOK_STAGES])
{
    uint8_t *at = index + ((size_t)(r / 64) * vectors * 64 + r % 64) * p->index_bytes;
    for (uint32_t v = 0; v < vectors; v++, at += 64 * p->index_bytes) {
        if (p->index_bits == 8) {
            memcpy(at, code[v], p->stages);
            continue;
        }
        uint32_t bits =
            (uint32_t)(code[v][0] | code[v][1] << 6 | code[v][2] << 12 | code[v][3] << 18);
        waste_put16(at, bits);
        at[2] = (uint8_t)(bits >> 16);
    }
}

static int code_matrix(struct job *j, struct scratch *s, uint32_t expert, uint32_t kind)
{
    struct waste_convert *c = j->c;
    const struct waste_plan *p = &c->plan;
    const struct waste_encoder how = {&c->search, c->effort->width, c->effort->passes};
    const struct waste_release_tensor *t = matrix(j, expert, kind);
    const uint32_t index[3] = {p->gate_off, p->up_off, p->down_off};
    uint32_t rows = waste_convert_rows(c, kind), cols = waste_convert_cols(c, kind);
    uint8_t *scales = s->record + p->scale_off + kind * 2 * c->shape.expert_inner;
    for (uint32_t r = 0; r < rows; r++) {
        uint16_t scale = 0;
        const float *row = s->values + (size_t)(r % ROWS) * cols;
        if (r % ROWS == 0 &&
            waste_release_read(c->release, t, (uint64_t)r * cols,
                               (uint64_t)(rows - r < ROWS ? rows - r : ROWS) * cols, s->values))
            return -1;
        if (waste_encode_row(&how, j->books[kind], row, cols, s->x, s->code, s->spare, &scale,
                             j->error[expert][kind]))
            return waste_fetch_fail("%s: row %u is too large for an f16 scale", t->name, r);
        waste_put16(scales + 2 * r, scale);
        place(p, s->record + index[kind], r, cols / DIM,
              (const uint8_t(*)[WASTE_BOOK_STAGES])s->code);
    }
    atomic_fetch_add_explicit(&c->progress.done, t->data.bytes + t->scale.bytes,
                              memory_order_relaxed);
    return 0;
}

static int code_expert(struct job *j, struct scratch *s, uint32_t expert)
{
    const struct waste_plan *p = &j->c->plan;
    memset(s->record, 0, p->record_bytes);
    for (uint32_t kind = 0; kind < 3; kind++)
        if (code_matrix(j, s, expert, kind))
            return -1;
    waste_record_finish(s->record, p, &j->c->shape, j->layer, expert);
    atomic_fetch_add_explicit(&j->c->coded, 1, memory_order_relaxed);
    int e = waste_io_pwrite(j->fd, s->record, p->record_bytes, (uint64_t)expert * p->record_bytes);
    return e ? waste_fetch_fail("cannot write %s/%s: %s", j->c->path, j->file, strerror(-e)) : 0;
}

static void code_experts(void *arg, uint32_t worker)
{
    struct job *j = arg;
    for (uint32_t i; waste_team_claim(j->c->team, worker, &i);)
        if (!stopped(j) && code_expert(j, &j->scratch[worker], i))
            fail(j);
}

/* Past the page cache where that is possible: it is written once and not read again. */
static int open_bank(const struct job *j)
{
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    int fd = openat(j->c->dir, j->file, flags | O_DIRECT, 0644);
    return fd >= 0 ? fd : openat(j->c->dir, j->file, flags, 0644);
}

static void sum_errors(struct job *j)
{
    for (uint32_t e = 0; e < j->c->shape.experts; e++)
        for (uint32_t k = 0; k < 3; k++)
            for (uint32_t i = 0; i < 2; i++)
                j->c->error[j->layer].error[k][i] += j->error[e][k][i];
}

static int write_bank(struct job *j)
{
    struct waste_convert *c = j->c;
    char bank[32];
    waste_bank_name(bank, j->layer);
    snprintf(j->file, sizeof(j->file), "%s.part", bank);
    j->fd = open_bank(j);
    if (j->fd < 0)
        return waste_fetch_fail("cannot open %s/%s: %s", c->path, j->file, strerror(errno));
    waste_team_run(c->team, code_experts, j, c->shape.experts, 1);
    int e = !stopped(j) && fsync(j->fd) ? errno : 0;
    if (close(j->fd) && !e)
        e = errno;
    if (stopped(j))
        return -1;
    if (!e && (renameat(c->dir, j->file, c->dir, bank) || fsync(c->dir)))
        e = errno;
    if (e)
        return waste_fetch_fail("cannot write %s/%s: %s", c->path, bank, strerror(e));
    sum_errors(j);
    return 0;
}

static int create(struct job *j)
{
    const struct waste_convert *c = j->c;
    uint32_t n = c->shape.expert_width, in = c->shape.expert_inner, widest = n > in ? n : in;
    uint32_t threads = waste_team_threads(c->team);
    j->error = calloc(c->shape.experts, sizeof(*j->error));
    j->scratch = calloc(threads, sizeof(*j->scratch));
    bool ok = j->error && j->scratch;
    for (uint32_t i = 0; ok && i < threads; i++) {
        struct scratch *s = &j->scratch[i];
        s->record = aligned_alloc(PAGE, c->plan.record_bytes);
        s->values = malloc((size_t)ROWS * widest * sizeof(*s->values));
        s->x = malloc(widest / DIM * sizeof(*s->x));
        s->code = malloc(widest / DIM * sizeof(*s->code));
        s->spare = malloc(widest / DIM * sizeof(*s->spare));
        ok = s->record && s->values && s->x && s->code && s->spare;
    }
    return ok ? 0 : waste_fetch_fail("layer %u: out of memory", j->layer);
}

static void destroy(struct job *j)
{
    for (uint32_t i = 0; j->scratch && i < waste_team_threads(j->c->team); i++) {
        struct scratch *s = &j->scratch[i];
        free(s->record);
        free(s->values);
        free(s->x);
        free(s->code);
        free(s->spare);
    }
    free(j->scratch);
    free(j->error);
    for (int i = 0; i < 3; i++)
        waste_books_destroy(j->books[i]);
}

int waste_convert_experts(struct waste_convert *c, uint32_t layer)
{
    struct job j = {.c = c, .layer = layer};
    j.expert = c->expert + (size_t)(layer - c->shape.dense_layers) * c->shape.experts * 3;
    int rc = create(&j);
    if (rc == 0)
        rc = make_books(&j);
    if (rc == 0)
        rc = write_books(&j);
    if (rc == 0)
        rc = write_bank(&j);
    destroy(&j);
    return rc;
}
