#include "fetcher/compare.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fetcher/address.h"
#include "fetcher/decode.h"
#include "fetcher/io.h"
#include "fetcher/jobs.h"
#include "fetcher/release.h"
#include "reader/container_int.h"
#include "reader/direct.h"
#include "reader/read.h"
#include "shm/slot.h"

enum { BLOCK = 64, DIM = WASTE_VEC_DIM, TASK_VALUES = 1 << 20 };
enum { WORST = 20, WORST_OTHER = 5 }; /* damages that are shown */
#define EXPERTS ".block_sparse_moe.experts."
#define LIMIT 0.5 /* a relative error above it is another matrix, not a coarse one */

/* Errors this small (root mean square) are of rows that became zero because half of the least f16
 * is more than their scale: a quarter of it is what an expert's row spreads by, the most integers
 * of a trunk format are its largest values. No damage. */
static const double faint[WASTE_COMPARE_KINDS] = {
    [WASTE_COMPARE_GATE] = 0x1p-27,    [WASTE_COMPARE_UP] = 0x1p-27,
    [WASTE_COMPARE_DOWN] = 0x1p-27,    [WASTE_COMPARE_Q8G] = 127 * 0x1p-25,
    [WASTE_COMPARE_Q4G] = 7 * 0x1p-25, [WASTE_COMPARE_Q3G] = 3 * 0x1p-25,
};

const char *const waste_compare_kind_names[WASTE_COMPARE_KINDS] = {"gate", "up",  "down", "f32",
                                                                   "q8g",  "q4g", "q3g"};

/* An expert, or rows of a trunk tensor. */
struct task {
    uint64_t matrix; /* the first of an expert's three */
    uint64_t row, rows;
    double error[3], norm[3];
    bool done;
};

struct work {
    struct waste_comparison *c;
    struct waste_inspection *i;
    struct waste_release release;
    int dir_fd;
    float *books; /* [codebooks][entries][8] */
    struct task *task;
    uint64_t tasks, task_room;
    uint32_t damages_before;
    size_t widest; /* values of the widest row */
    struct waste_progress progress;
};

static const struct waste_expert_format *format(const struct work *w)
{
    return &w->i->model->expert;
}

static uint32_t rows_of(const struct work *w, int kind)
{
    const struct waste_config *c = &w->i->model->config;
    return kind == WASTE_COMPARE_DOWN ? c->expert_width : c->expert_inner;
}

static uint32_t cols_of(const struct work *w, int kind)
{
    const struct waste_config *c = &w->i->model->config;
    return kind == WASTE_COMPARE_DOWN ? c->expert_inner : c->expert_width;
}

void waste_compared_name(const struct waste_inspection *i, const struct waste_compared *m,
                         char *out, size_t bytes)
{
    static const int number[] = {1, 3, 2}; /* the release calls gate, up and down so */
    if (m->expert < 0)
        snprintf(out, bytes, "%s", i->index->entry[m->entry].name);
    else
        snprintf(out, bytes, "%smodel.layers.%d" EXPERTS "%d.w%d.weight", i->index->prefix,
                 m->layer, m->expert, number[m->kind]);
}

double waste_compared_error(double error, double norm)
{
    return error == 0 ? 0 : norm == 0 ? HUGE_VAL : sqrt(error / norm);
}

/* ---- the list ---- */

static struct waste_compared *add(struct work *w, struct waste_compared m)
{
    struct waste_comparison *c = w->c;
    if ((c->count & (c->count - 1)) == 0) {
        c->matrix = realloc(c->matrix, (c->count ? 2 * c->count : 1) * sizeof(c->matrix[0]));
        if (!c->matrix)
            abort();
    }
    c->matrix[c->count] = m;
    return &c->matrix[c->count++];
}

static void add_task(struct work *w, struct task t)
{
    if (w->tasks == w->task_room) {
        w->task_room = w->task_room ? 2 * w->task_room : 1024;
        w->task = realloc(w->task, w->task_room * sizeof(w->task[0]));
        if (!w->task)
            abort();
    }
    w->task[w->tasks++] = t;
}

static void damage(struct work *w, const struct waste_compared *m, const char *file,
                   double severity, const char *what)
{
    char name[320];
    waste_compared_name(w->i, m, name, sizeof(name));
    waste_damages_add(&w->i->damages, file, m->layer, m->expert, -1, "%s: %s", name, what);
    w->i->damages.damage[w->i->damages.count - 1].severity = severity;
}

/* Finds the release's tensor; one that cannot be compared with so many values is a damage. */
static bool has_source(struct work *w, struct waste_compared *m, const char *file, uint64_t values)
{
    char name[320];
    waste_compared_name(w->i, m, name, sizeof(name));
    const struct waste_release_tensor *t = m->source = waste_release_find(&w->release, name);
    if (!t)
        damage(w, m, file, HUGE_VAL, "the source has no such tensor");
    else if (t->type == WASTE_RELEASE_OTHER)
        damage(w, m, file, HUGE_VAL, "the source's type cannot be read");
    else if (waste_release_rows(t) * waste_release_cols(t) != values)
        damage(w, m, file, HUGE_VAL, "the source has another shape");
    else
        return true;
    return false;
}

static bool wanted(const struct waste_inspection *i, int32_t layer)
{
    return layer < 0 ? !i->layer_range
                     : (uint32_t)layer >= i->first_layer && (uint32_t)layer <= i->last_layer;
}

static void list_trunk(struct work *w)
{
    for (uint32_t n = 0; n < w->i->index->count; n++) {
        const struct waste_index_entry *e = &w->i->index->entry[n];
        uint8_t kind = e->fmt == WASTE_FMT_F32   ? WASTE_COMPARE_F32
                       : e->fmt == WASTE_FMT_Q8G ? WASTE_COMPARE_Q8G
                       : e->fmt == WASTE_FMT_Q4G ? WASTE_COMPARE_Q4G
                                                 : WASTE_COMPARE_Q3G;
        struct waste_compared m = {.entry = n, .layer = e->layer, .expert = -1, .kind = kind};
        if (!wanted(w->i, e->layer) || !has_source(w, &m, WASTE_TRUNK_FILE, e->rows * e->cols))
            continue;
        add(w, m);
        w->widest = e->cols > w->widest ? e->cols : w->widest;
        uint64_t step = e->cols < TASK_VALUES ? TASK_VALUES / e->cols : 1;
        for (uint64_t r = 0; r < e->rows; r += step)
            add_task(w, (struct task){.matrix = w->c->count - 1,
                                      .row = r,
                                      .rows = e->rows - r < step ? e->rows - r : step});
        w->c->bytes += e->payload_bytes + e->scale_bytes;
    }
}

static void list_experts(struct work *w)
{
    const struct waste_model *model = w->i->model;
    for (uint32_t l = model->config.dense_layers; l < model->config.layers; l++)
        for (uint32_t e = 0; e < model->config.experts && wanted(w->i, (int32_t)l); e++) {
            const char *file = waste_model_layer(model, l)->bank.file;
            uint64_t first = w->c->count, found = 0;
            for (uint8_t k = 0; k < 3; k++) {
                struct waste_compared *m = add(
                    w,
                    (struct waste_compared){.layer = (int32_t)l, .expert = (int32_t)e, .kind = k});
                found += has_source(w, m, file, (uint64_t)rows_of(w, k) * cols_of(w, k));
            }
            if (found == 3)
                add_task(w, (struct task){.matrix = first});
            w->c->bytes += format(w)->record_bytes;
        }
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* What the release has and the container has not, layers behind the last excepted. */
static void list_missing(struct work *w)
{
    const struct waste_index *x = w->i->index;
    const char **name = calloc(x->count + 1, sizeof(*name));
    size_t prefix = strlen(x->prefix);
    for (uint32_t n = 0; name && n < x->count; n++)
        name[n] = x->entry[n].name;
    if (!name)
        abort();
    qsort(name, x->count, sizeof(*name), by_string);
    for (uint32_t n = 0; n < w->release.tensors; n++) {
        const char *t = w->release.tensor[n].name;
        unsigned layer;
        bool in_layer = strncmp(t, x->prefix, prefix) == 0 &&
                        sscanf(t + prefix, "model.layers.%u.", &layer) == 1;
        const char *expert = strstr(t, EXPERTS);
        if ((expert && strtoul(expert + strlen(EXPERTS), NULL, 10) < w->i->model->config.experts) ||
            (in_layer && layer >= w->i->model->config.layers) ||
            bsearch(&t, name, x->count, sizeof(*name), by_string))
            continue;
        waste_damages_add(&w->i->damages, WASTE_MANIFEST, -1, -1, -1,
                          "the container has no %s, which the source has", t);
        w->i->damages.damage[w->i->damages.count - 1].severity = HUGE_VAL;
    }
    free(name);
}

/* Squared difference and length of n values. */
static void accumulate(const float *w, const float *mine, size_t n, double *error, double *norm)
{
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)w[i] - (double)mine[i];
        e += d * d;
        s += (double)w[i] * w[i];
    }
    *error += e;
    *norm += s;
}

/* ---- tasks ---- */

/* What was read will not be read again. */
static void forget(const struct work *w, const struct waste_release_tensor *t)
{
    const struct waste_release_part *parts[] = {&t->data, &t->scale};
    for (int i = 0; i < (t->type == WASTE_RELEASE_MXFP4 ? 2 : 1); i++)
        posix_fadvise(w->release.shard[parts[i]->shard].fd, (off_t)parts[i]->off,
                      (off_t)parts[i]->bytes, POSIX_FADV_DONTNEED);
}

static int compare_rows(struct work *w, struct task *t, uint8_t *buffer)
{
    const struct waste_index_entry *e = &w->i->index->entry[w->c->matrix[t->matrix].entry];
    const struct waste_release_tensor *source = w->c->matrix[t->matrix].source;
    size_t payload = (size_t)(t->rows * e->row_bytes), scales = (size_t)(t->rows * e->groups * 2);
    float *theirs = (float *)buffer, *mine = theirs + w->widest;
    uint8_t *data = (uint8_t *)(mine + w->widest), *bounce = data;
    data += (payload + scales + 3 * WASTE_DIRECT_ALIGN) / WASTE_DIRECT_ALIGN * WASTE_DIRECT_ALIGN;
    struct waste_direct file;
    int rc = waste_direct_open(&file, w->dir_fd, WASTE_TRUNK_FILE);
    if (rc == 0)
        rc = waste_direct_read(&file, e->off + t->row * e->row_bytes, payload, data, bounce);
    if (rc == 0 && scales)
        rc = waste_direct_read(&file, e->scale_off + t->row * e->groups * 2, scales, data + payload,
                               bounce);
    waste_direct_close(&file);
    if (rc < 0)
        return 0; /* the inspection has said so */
    for (uint64_t r = 0; r < t->rows; r++) {
        if (waste_release_read(&w->release, source, (t->row + r) * e->cols, e->cols, theirs))
            return -EIO;
        waste_decode_row(e, data + r * e->row_bytes, data + payload + r * e->groups * 2, mine);
        accumulate(theirs, mine, e->cols, t->error, t->norm);
    }
    if (t->row + t->rows == e->rows)
        forget(w, source);
    t->done = true;
    return 0;
}

/* One matrix of an expert whose record is in memory. */
static int compare_matrix(struct work *w, struct task *t, int kind, const uint8_t *record,
                          float *theirs, float *mine)
{
    const struct waste_expert_format *x = format(w);
    const struct waste_compared *m = &w->c->matrix[t->matrix + (uint64_t)kind];
    const uint32_t index_off[3] = {x->gate_off, x->up_off, x->down_off};
    uint32_t rows = rows_of(w, kind), cols = cols_of(w, kind), inner = rows_of(w, 0);
    const uint8_t *scales = record + x->scale_off + 2 * (size_t)inner * (uint32_t)kind;
    const float *books =
        w->books +
        ((size_t)waste_record_codebook(record) + (uint32_t)kind * x->stages) * x->entries * DIM;
    for (uint32_t r = 0; r < rows; r += BLOCK) {
        uint32_t n = rows - r < BLOCK ? rows - r : BLOCK;
        size_t values = (size_t)n * cols;
        if (waste_release_read(&w->release, m->source, (uint64_t)r * cols, values, theirs))
            return -EIO;
        waste_decode_block(x, books, record + index_off[kind], scales, r / BLOCK, n, cols, mine);
        accumulate(theirs, mine, values, &t->error[kind], &t->norm[kind]);
    }
    forget(w, m->source);
    return 0;
}

static int compare_expert(struct work *w, struct task *t, uint8_t *buffer)
{
    const struct waste_compared *m = &w->c->matrix[t->matrix];
    uint32_t layer = (uint32_t)m->layer, expert = (uint32_t)m->expert;
    const struct waste_model *model = w->i->model;
    size_t bytes = format(w)->record_bytes;
    struct waste_direct file;
    int rc = waste_direct_open(&file, w->dir_fd, waste_model_layer(model, layer)->bank.file);
    if (rc == 0)
        rc = waste_direct_read(&file, (uint64_t)expert * bytes, bytes, buffer, NULL);
    waste_direct_close(&file);
    if (rc < 0 || waste_record_check_header(model, layer, expert, buffer) != WASTE_SLOT_OK ||
        waste_record_check_crc(model, buffer) != WASTE_SLOT_OK)
        return 0; /* the inspection has said so */
    float *theirs = (float *)(buffer + bytes), *mine = theirs + BLOCK * w->widest;
    for (int k = 0; k < 3 && rc == 0; k++)
        rc = compare_matrix(w, t, k, buffer, theirs, mine);
    t->done = rc == 0;
    return rc;
}

static int run(void *ctx, uint64_t number, uint8_t *buffer)
{
    struct work *w = ctx;
    struct task *t = &w->task[number];
    const struct waste_compared *m = &w->c->matrix[t->matrix];
    uint64_t bytes = format(w)->record_bytes;
    int rc = m->expert < 0 ? compare_rows(w, t, buffer) : compare_expert(w, t, buffer);
    if (m->expert < 0) {
        const struct waste_index_entry *e = &w->i->index->entry[m->entry];
        bytes = t->rows * (e->row_bytes + e->groups * 2);
    }
    atomic_fetch_add_explicit(&w->progress.done, bytes, memory_order_relaxed);
    return rc;
}

/* ---- before and after ---- */

/* All books as f32; subnormal entries are zero. */
static int load_books(struct work *w)
{
    const struct waste_expert_format *x = format(w);
    uint64_t stride = waste_codebook_bytes(x), books = 0;
    struct waste_direct file;
    for (uint32_t l = w->i->model->config.dense_layers; l < w->i->model->config.layers; l++) {
        uint64_t end = waste_model_layer(w->i->model, l)->bank.codebook_base + 3 * x->stages;
        books = end > books ? end : books;
    }
    size_t values = (size_t)x->entries * DIM;
    uint8_t *raw = malloc((size_t)(books * stride));
    w->books = malloc((size_t)books * values * sizeof(float));
    if (!raw || !w->books) {
        free(raw);
        return waste_fetch_fail("out of memory");
    }
    int rc = waste_direct_open(&file, w->dir_fd, WASTE_CODEBOOK_FILE);
    if (rc == 0 &&
        waste_read_at(file.buffered, raw, (size_t)(books * stride), 0) != (ssize_t)(books * stride))
        rc = -ENODATA;
    waste_direct_close(&file);
    for (uint64_t b = 0; b < books && rc == 0; b++)
        for (size_t v = 0; v < values; v++) {
            w->books[b * values + v] =
                waste_decode_entry(raw + b * stride + WASTE_CODEBOOK_HEADER + 2 * v);
        }
    free(raw);
    return rc < 0 ? waste_fetch_fail("cannot read %s/" WASTE_CODEBOOK_FILE ": %s", w->i->dir,
                                     strerror(-rc))
                  : 0;
}

/* Of what was compared: the error is more than the format's coarseness. */
static bool is_damage(const struct work *w, const struct waste_compared *m)
{
    const struct waste_index_entry *e = &w->i->index->entry[m->entry];
    double values = m->expert < 0 ? (double)e->rows * (double)e->cols
                                  : (double)rows_of(w, m->kind) * cols_of(w, m->kind);
    if (m->kind == WASTE_COMPARE_F32)
        return m->error > 0;
    return waste_compared_error(m->error, m->norm) > LIMIT &&
           sqrt(m->error / values) > faint[m->kind];
}

/* In the order of the tasks, so that sums do not depend on threads. */
static void collect(struct work *w)
{
    for (uint64_t n = 0; n < w->tasks; n++) {
        const struct task *t = &w->task[n];
        for (uint64_t k = 0; k < (w->c->matrix[t->matrix].expert < 0 ? 1 : 3); k++) {
            struct waste_compared *m = &w->c->matrix[t->matrix + k];
            m->done = t->done && (m->done || t->row == 0);
            m->error += t->error[k];
            m->norm += t->norm[k];
        }
    }
    uint64_t exacts = 0, exacts_off = 0;
    for (uint64_t n = 0; n < w->c->count; n++) {
        const struct waste_compared *m = &w->c->matrix[n];
        double error = waste_compared_error(m->error, m->norm);
        char text[96];
        const char *file = m->expert < 0
                               ? WASTE_TRUNK_FILE
                               : waste_model_layer(w->i->model, (uint32_t)m->layer)->bank.file;
        snprintf(text, sizeof(text), "relative error %.3g against the source", error);
        bool exact = m->kind == WASTE_COMPARE_F32, off = is_damage(w, m);
        if (m->done && off)
            damage(w, m, file, error, text);
        exacts += m->done && exact;
        exacts_off += m->done && exact && off;
    }
    w->c->other_release = (exacts_off > 3 && 2 * exacts_off > exacts) ||
                          2 * (uint64_t)(w->i->damages.count - w->damages_before) > w->c->count;
}

/* A release that is another one differs everywhere: that is said once, and how the worst differ. */
static void show_damages(const struct work *w)
{
    struct waste_damages *d = &w->i->damages;
    uint32_t count = d->count - w->damages_before;
    if (w->c->other_release && d->show)
        waste_fetch_note("%s is another release than the one %s was made of: %u tensors differ",
                         w->release.path, w->i->dir, count);
    waste_damages_show_worst(d, w->damages_before, w->c->other_release ? WORST_OTHER : WORST);
}

static int compare_all(struct work *w)
{
    const struct waste_expert_format *x = format(w);
    for (uint32_t s = 0; s < w->release.shards; s++)
        if (waste_release_want(&w->release, s))
            return -1;
    for (int k = 0; k < 3; k++)
        w->widest = cols_of(w, k) > w->widest ? cols_of(w, k) : w->widest;
    w->damages_before = waste_damages_hold(&w->i->damages);
    list_trunk(w);
    list_experts(w);
    if (!w->i->layer_range)
        list_missing(w);
    if (load_books(w))
        return -1;
    size_t rows = 2 * (TASK_VALUES * 8 + w->widest * 12) + 8 * WASTE_DIRECT_ALIGN;
    size_t expert = x->record_bytes + 2 * BLOCK * w->widest * sizeof(float);
    waste_progress_init(&w->progress, "compare", w->c->bytes, w->i->quiet);
    int rc = waste_jobs_run(&(struct waste_jobs){.count = w->tasks,
                                                 .run = run,
                                                 .ctx = w,
                                                 .buffer_bytes = rows > expert ? rows : expert,
                                                 .threads = w->i->threads,
                                                 .progress = &w->progress});
    w->c->seconds = waste_progress_finish(&w->progress);
    if (rc < 0)
        return rc == -EIO ? -1 : waste_fetch_fail("cannot compare: %s", strerror(-rc));
    if (waste_release_unchanged(&w->release))
        return -1;
    collect(w);
    show_damages(w);
    return 0;
}

int waste_compare(struct waste_comparison *c, struct waste_inspection *i, const char *source)
{
    struct work w = {.c = c, .i = i, .dir_fd = -1};
    memset(c, 0, sizeof(*c));
    if (!i->index)
        return waste_fetch_fail("%s cannot be compared: its manifest is damaged", i->dir);
    if (waste_address_is_remote(source))
        return waste_fetch_fail("--against %s: a directory is wanted, waste-fetch get makes one of "
                                "a hub's or a URL's release",
                                source);
    int rc = waste_release_open_local(&w.release, source, NULL);
    if (rc == 0) {
        w.dir_fd = open(i->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        rc = w.dir_fd < 0 ? waste_fetch_fail("cannot open %s: %s", i->dir, strerror(errno))
                          : compare_all(&w);
    }
    for (uint64_t n = 0; n < c->count; n++)
        c->matrix[n].source = NULL; /* it goes with the release */
    waste_release_close(&w.release);
    if (w.dir_fd >= 0)
        close(w.dir_fd);
    free(w.books);
    free(w.task);
    return rc;
}

void waste_comparison_finish(struct waste_comparison *c)
{
    free(c->matrix);
    memset(c, 0, sizeof(*c));
}
