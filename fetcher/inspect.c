#include "fetcher/inspect.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/tokenizer.h"
#include "fetcher/io.h"
#include "fetcher/jobs.h"
#include "fetcher/layers.h"
#include "fetcher/progress.h"
#include "reader/container_int.h"
#include "reader/direct.h"
#include "shm/slot.h"

enum { CHUNK = 8 << 20, TEXT_LIMIT = 256 << 20 };

/* What one job looks at. */
enum kind {
    RECORDS, /* `count` records of a bank from `first` on */
    PIECE,   /* piece `first` of file `file` against integrity.json */
    NUMBERS, /* the f32 weights or the f16 scales of trunk tensor `first` */
    BOOKS,   /* codebooks.bin: headers and entries */
};

struct job {
    enum kind kind;
    uint32_t layer, first, count;
    const char *file;
    uint64_t bytes; /* that it reads */
};

struct work {
    struct waste_inspection *i;
    int dir_fd;
    struct job *job;
    uint32_t jobs, room;
    size_t buffer_bytes;
    struct waste_progress progress;
};

/* ---- damages, shorter ---- */

static void cannot_read(struct waste_inspection *i, const char *file, int64_t layer, int64_t expert,
                        uint64_t off, int rc)
{
    waste_damages_add(&i->damages, file, layer, expert, (int64_t)off, "%s",
                      rc == -ENODATA ? "the file ends here" : strerror(-rc));
}

/* ---- what there is to look at ---- */

static void add_job(struct work *w, struct job j)
{
    if (w->jobs == w->room) {
        w->room = w->room ? 2 * w->room : 1024;
        w->job = realloc(w->job, w->room * sizeof(w->job[0]));
        if (!w->job)
            abort();
    }
    w->job[w->jobs++] = j;
    w->i->bytes += j.bytes;
}

/* Size of DIR/name, or the damage that it has none. */
static bool size_of(struct work *w, const char *name, uint64_t *bytes)
{
    struct stat st;
    if (fstatat(w->dir_fd, name, &st, 0) < 0)
        waste_damages_add(&w->i->damages, name, -1, -1, -1, "%s",
                          errno == ENOENT ? "is missing" : strerror(errno));
    else if (!S_ISREG(st.st_mode))
        waste_damages_add(&w->i->damages, name, -1, -1, -1, "is no regular file");
    else {
        *bytes = (uint64_t)st.st_size;
        return true;
    }
    return false;
}

static void wrong_size(struct work *w, const char *name, int64_t layer, uint64_t is, uint64_t must,
                       const char *who)
{
    waste_damages_add(&w->i->damages, name, layer, -1, (int64_t)(is < must ? is : must),
                      "size is %llu, must be %llu (%s)", (unsigned long long)is,
                      (unsigned long long)must, who);
}

static bool wanted(const struct waste_inspection *i, uint32_t layer)
{
    return layer >= i->first_layer && layer <= i->last_layer;
}

static void list_bank(struct work *w, uint32_t layer)
{
    const struct waste_model *m = w->i->model;
    const struct waste_bank *bank = &waste_model_layer(m, layer)->bank;
    uint32_t stride = m->expert.record_bytes;
    uint64_t bytes;
    if (!size_of(w, bank->file, &bytes))
        return;
    if (bytes != bank->bytes)
        wrong_size(w, bank->file, layer, bytes, bank->bytes, WASTE_MANIFEST);
    uint64_t there = (bytes + stride - 1) / stride;
    uint32_t experts = there < bank->experts ? (uint32_t)there : bank->experts;
    uint32_t step = stride < CHUNK ? CHUNK / stride : 1;
    for (uint32_t e = 0; e < experts; e += step) {
        uint32_t n = experts - e < step ? experts - e : step;
        add_job(w, (struct job){RECORDS, layer, e, n, bank->file, (uint64_t)n * stride});
        w->i->records += n;
    }
}

/* The last byte of codebooks.bin that a bank needs. */
static uint64_t books_needed(const struct waste_model *m)
{
    uint32_t books = 0;
    for (uint32_t l = m->config.dense_layers; l < m->config.layers; l++) {
        uint32_t end = waste_model_layer(m, l)->bank.codebook_base + 3 * m->expert.stages;
        books = end > books ? end : books;
    }
    return books;
}

static void list_books(struct work *w)
{
    uint64_t bytes, stride = waste_codebook_bytes(&w->i->model->expert);
    if (!size_of(w, WASTE_CODEBOOK_FILE, &bytes))
        return;
    uint64_t need = books_needed(w->i->model) * stride;
    if (bytes < need)
        wrong_size(w, WASTE_CODEBOOK_FILE, -1, bytes, need, "the banks' codebooks");
    else if (bytes % stride)
        waste_damages_add(&w->i->damages, WASTE_CODEBOOK_FILE, -1, -1,
                          (int64_t)(bytes / stride * stride), "%llu bytes behind the last codebook",
                          (unsigned long long)(bytes % stride));
    uint64_t books = bytes / stride < 65536 ? bytes / stride : 65536;
    add_job(w, (struct job){BOOKS, 0, 0, (uint32_t)books, WASTE_CODEBOOK_FILE, books * stride});
}

/* The numbers of the trunk that could be none, and whether the file ends where it must. */
static void list_trunk(struct work *w)
{
    const struct waste_index *x = w->i->index;
    uint64_t bytes, end = 0;
    if (!size_of(w, WASTE_TRUNK_FILE, &bytes))
        return;
    for (uint32_t n = 0; n < x->count; n++)
        end = x->entry[n].end > end ? x->entry[n].end : end;
    /* a writer may have filled up the last page */
    if (bytes < end || bytes - end >= WASTE_DIRECT_ALIGN)
        wrong_size(w, WASTE_TRUNK_FILE, -1, bytes, end, "the trunk index of " WASTE_MANIFEST);
    for (uint32_t n = 0; n < x->count; n++) {
        const struct waste_index_entry *e = &x->entry[n];
        if (e->layer >= 0 ? !wanted(w->i, (uint32_t)e->layer) : w->i->layer_range != NULL)
            continue;
        if (e->rows)
            add_job(w, (struct job){NUMBERS, 0, n, 1, WASTE_TRUNK_FILE,
                                    e->groups ? e->scale_bytes : e->payload_bytes});
    }
}

/* Whether piece `piece` of trunk.bin holds something of the layers that are wanted. */
static bool piece_wanted(const struct waste_inspection *i, uint32_t piece)
{
    uint64_t begin = (uint64_t)piece * WASTE_INTEGRITY_PIECE, end = begin + WASTE_INTEGRITY_PIECE;
    if (!i->layer_range || !i->index)
        return true;
    for (uint32_t n = 0; n < i->index->count; n++) {
        const struct waste_index_entry *e = &i->index->entry[n];
        if (e->layer >= 0 && wanted(i, (uint32_t)e->layer) && e->off < end && e->end > begin)
            return true;
    }
    return false;
}

/* Sizes and pieces as integrity.json says. */
static void list_sealed(struct work *w)
{
    for (uint32_t n = 0; n < w->i->integrity->files; n++) {
        const struct waste_integrity_file *f = &w->i->integrity->file[n];
        uint64_t bytes;
        if (!size_of(w, f->name, &bytes))
            continue;
        if (bytes != f->bytes)
            wrong_size(w, f->name, -1, bytes, f->bytes, WASTE_INTEGRITY_FILE);
        for (uint32_t p = 0; p < f->pieces; p++) {
            size_t size = waste_integrity_piece_bytes(f->bytes, p);
            bool trunk = strcmp(f->name, WASTE_TRUNK_FILE) == 0;
            if ((uint64_t)p * WASTE_INTEGRITY_PIECE + size <= bytes &&
                (!trunk || piece_wanted(w->i, p)))
                add_job(w, (struct job){PIECE, 0, p, 1, f->name, size});
        }
    }
}

/* ---- jobs ---- */

static void check_record(struct waste_inspection *i, const struct job *j, uint32_t expert,
                         const uint8_t *r)
{
    const struct waste_expert_format *x = &i->model->expert;
    int64_t off = (int64_t)expert * x->record_bytes;
    uint32_t value, want;
    const char *field = waste_record_wrong_field(i->model, j->layer, expert, r, &value, &want);
    if (field)
        waste_damages_add(&i->damages, j->file, j->layer, expert, off,
                          "header: %s is %u, must be %u", field, value, want);
    if (waste_record_check_crc(i->model, r) != WASTE_SLOT_OK)
        waste_damages_add(&i->damages, j->file, j->layer, expert, off,
                          "crc32 of the record does not match its header");
    else if (waste_record_check_scales(i->model, r) != WASTE_SLOT_OK)
        waste_damages_add(&i->damages, j->file, j->layer, expert, off + x->scale_off,
                          "a row scale is not finite");
    for (uint32_t at = x->crc_end; at < x->record_bytes; at++)
        if (r[at]) {
            waste_damages_add(&i->damages, j->file, j->layer, expert, off + at,
                              "padding is not zero");
            break;
        }
}

static void check_records(struct work *w, const struct job *j, const struct waste_direct *file,
                          uint8_t *buffer)
{
    uint32_t stride = w->i->model->expert.record_bytes;
    uint64_t off = (uint64_t)j->first * stride;
    if (waste_direct_read(file, off, (size_t)j->count * stride, buffer, NULL) == 0) {
        for (uint32_t n = 0; n < j->count; n++)
            check_record(w->i, j, j->first + n, buffer + (size_t)n * stride);
        return;
    }
    for (uint32_t n = 0; n < j->count; n++) { /* one of them is not there: which? */
        uint64_t at = off + (uint64_t)n * stride;
        int rc = waste_direct_read(file, at, stride, buffer, NULL);
        if (rc < 0)
            cannot_read(w->i, j->file, j->layer, j->first + n, at, rc);
        else
            check_record(w->i, j, j->first + n, buffer);
    }
}

static void check_piece(struct work *w, const struct job *j, const struct waste_direct *file,
                        uint8_t *buffer)
{
    const struct waste_integrity_file *f = waste_integrity_find(w->i->integrity, j->file);
    uint64_t at = (uint64_t)j->first * WASTE_INTEGRITY_PIECE;
    size_t bytes = waste_integrity_piece_bytes(f->bytes, j->first);
    int rc = waste_direct_read(file, at, bytes, buffer, buffer + WASTE_INTEGRITY_PIECE);
    if (rc < 0)
        cannot_read(w->i, j->file, -1, -1, at, rc);
    else if (waste_integrity_crc(0, buffer, bytes) != f->crc[j->first])
        waste_damages_add(
            &w->i->damages, j->file, -1, -1, (int64_t)at,
            "piece %u of %zu bytes does not have the checksum that " WASTE_INTEGRITY_FILE " says",
            j->first, bytes);
}

/* The first number in it that is none: its index, or `count`. */
static size_t first_odd(const uint8_t *data, size_t count, bool halves)
{
    const uint16_t *h = (const uint16_t *)data;
    const uint32_t *f = (const uint32_t *)data;
    size_t i = 0;
    while (i < count &&
           (halves ? (h[i] & 0x7c00u) != 0x7c00u : (f[i] & 0x7f800000u) != 0x7f800000u))
        i++;
    return i;
}

static void check_numbers(struct work *w, const struct job *j, const struct waste_direct *file,
                          uint8_t *buffer)
{
    const struct waste_index_entry *e = &w->i->index->entry[j->first];
    bool halves = e->groups != 0;
    uint64_t begin = halves ? e->scale_off : e->off, bytes = j->bytes;
    size_t each = halves ? 2 : 4;
    for (uint64_t at = 0; at < bytes; at += CHUNK) {
        size_t n = bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK;
        int rc = waste_direct_read(file, begin + at, n, buffer, buffer + CHUNK);
        if (rc < 0) {
            cannot_read(w->i, j->file, e->layer, -1, begin + at, rc);
            return;
        }
        size_t odd = first_odd(buffer, n / each, halves);
        if (odd < n / each) {
            waste_damages_add(&w->i->damages, j->file, e->layer, -1,
                              (int64_t)(begin + at + odd * each), "%s: a %s is not finite", e->name,
                              halves ? "scale" : "weight");
            return;
        }
    }
}

static void check_books(struct work *w, const struct job *j, const struct waste_direct *file,
                        uint8_t *buffer)
{
    const struct waste_expert_format *x = &w->i->model->expert;
    size_t stride = (size_t)waste_codebook_bytes(x);
    struct waste_error err;
    for (uint32_t b = 0; b < j->count; b++) {
        uint64_t at = (uint64_t)b * stride;
        int rc = waste_direct_read(file, at, stride, buffer, buffer + CHUNK);
        if (rc < 0)
            cannot_read(w->i, j->file, -1, -1, at, rc);
        else if (waste_codebook_check_header(x, buffer, b, &err) < 0)
            waste_damages_add(&w->i->damages, j->file, -1, -1, (int64_t)at, "%s",
                              err.text + strlen(WASTE_CODEBOOK_FILE ": "));
        size_t values = (stride - WASTE_CODEBOOK_HEADER) / 2;
        size_t odd = rc < 0 ? values : first_odd(buffer + WASTE_CODEBOOK_HEADER, values, true);
        if (odd < values)
            waste_damages_add(&w->i->damages, j->file, -1, -1,
                              (int64_t)(at + WASTE_CODEBOOK_HEADER + 2 * odd),
                              "codebook %u: an entry is not finite", b);
    }
}

static int run(void *ctx, uint64_t number, uint8_t *buffer)
{
    static void (*const checks[])(struct work *, const struct job *, const struct waste_direct *,
                                  uint8_t *) = {
        [RECORDS] = check_records,
        [PIECE] = check_piece,
        [NUMBERS] = check_numbers,
        [BOOKS] = check_books,
    };
    struct work *w = ctx;
    const struct job *j = &w->job[number];
    struct waste_direct file;
    int rc = waste_direct_open(&file, w->dir_fd, j->file);
    if (rc < 0)
        cannot_read(w->i, j->file, -1, -1, 0, rc);
    else
        checks[j->kind](w, j, &file, buffer);
    waste_direct_close(&file);
    atomic_fetch_add_explicit(&w->progress.done, j->bytes, memory_order_relaxed);
    return 0;
}

/* ---- small files ---- */

/* True if it is there and JSON. */
static bool check_text(struct waste_inspection *i, const char *name, bool optional)
{
    struct waste_error err;
    json_error_t error;
    char *text = NULL;
    size_t bytes = 0;
    int rc = waste_container_read_file(i->dir, name, TEXT_LIMIT, &text, &bytes, &err);
    if (rc == -ENOENT && optional)
        return false;
    if (rc < 0) {
        waste_damages_add(&i->damages, name, -1, -1, -1, "%s",
                          rc == -ENOENT ? "is missing" : err.text);
        return false;
    }
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!value)
        waste_damages_add(&i->damages, name, -1, -1, error.position, "is no JSON: %s", error.text);
    json_decref(value);
    free(text);
    i->bytes += bytes;
    return value != NULL;
}

/* The engine's own loader has the last word on the tokens. */
static void check_tokens(struct waste_inspection *i)
{
    static const char *const names[] = {"specials.json", "tokenizer.model"};
    bool specials = check_text(i, names[0], false);
    struct waste_tokenizer *tokenizer = NULL;
    struct waste_error err;
    int rc = i->model ? waste_tokenizer_open_model(i->dir, &i->model->config, &tokenizer, &err)
                      : waste_tokenizer_open(i->dir, 0, &tokenizer, &err);
    waste_tokenizer_destroy(tokenizer);
    const char *name =
        rc < 0 && !strncmp(err.text, names[0], strlen(names[0])) ? names[0] : names[1];
    const char *what = rc < 0 ? err.text : "";
    if (!strncmp(what, name, strlen(name)))
        what += strlen(name) + strspn(what + strlen(name), ": ");
    if (rc == -ENOENT)
        waste_damages_add(&i->damages, names[1], -1, -1, -1, "is missing");
    else if (rc < 0 && (specials || name == names[1]))
        waste_damages_add(&i->damages, name, -1, -1, -1, "%s", what);
}

/* Names that are no part of the container: other engines' files, sessions, leftovers. */
static void list_extra(struct work *w)
{
    DIR *d = fdopendir(openat(w->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") &&
            !waste_inspection_knows(w->i, e->d_name))
            json_array_append_new(w->i->extra, waste_io_json(e->d_name));
    if (d)
        closedir(d);
}

bool waste_inspection_knows(const struct waste_inspection *i, const char *name)
{
    static const char *const names[] = {WASTE_MANIFEST,    WASTE_TRUNK_FILE,    WASTE_CODEBOOK_FILE,
                                        "tokenizer.model", "specials.json",     "chat.json",
                                        "vision.json",     "usage.waste",       "convert.json",
                                        "synth.json",      WASTE_INTEGRITY_FILE};
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++)
        if (strcmp(name, names[n]) == 0)
            return true;
    for (uint32_t l = i->model ? i->model->config.dense_layers : 0;
         i->model && l < i->model->config.layers; l++)
        if (strcmp(name, waste_model_layer(i->model, l)->bank.file) == 0)
            return true;
    return false;
}

/* ---- all of it ---- */

static int list_all(struct work *w)
{
    struct waste_inspection *i = w->i;
    struct waste_error err;
    if (waste_container_open_index(i->dir, &i->model, &err) < 0 ||
        waste_index_load(i->dir, &i->index, &err) < 0)
        waste_damages_add(&i->damages, WASTE_MANIFEST, -1, -1, -1, "%s", err.text);
    i->last_layer = UINT32_MAX;
    if (i->layer_range && i->model &&
        waste_layers_parse(i->layer_range, i->model->config.layers, &i->first_layer,
                           &i->last_layer))
        return -1;
    if (!i->ignore_integrity && waste_integrity_read(i->dir, &i->integrity, &err) < 0)
        waste_damages_add(&i->damages, WASTE_INTEGRITY_FILE, -1, -1, -1, "%s", err.text);
    if (i->integrity)
        list_sealed(w);
    if (i->index) {
        list_trunk(w);
        list_books(w);
        for (uint32_t l = i->model->config.dense_layers; l < i->model->config.layers; l++)
            if (wanted(i, l))
                list_bank(w, l);
    }
    check_tokens(i);
    check_text(i, "chat.json", true);
    check_text(i, "vision.json", true);
    if (i->model) /* without it nobody knows the banks' names */
        list_extra(w);
    return 0;
}

int waste_inspect(struct waste_inspection *i)
{
    struct work w = {.i = i};
    waste_damages_init(&i->damages, !i->list_only);
    i->extra = json_array();
    w.dir_fd = open(i->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w.dir_fd < 0)
        return waste_fetch_cannot("open", i->dir, errno);
    if (list_all(&w)) {
        close(w.dir_fd);
        return -1;
    }
    size_t room = WASTE_INTEGRITY_PIECE + WASTE_INTEGRITY_PIECE + 2 * WASTE_DIRECT_ALIGN;
    if (i->model && i->model->expert.record_bytes > room)
        room = i->model->expert.record_bytes;
    waste_progress_init(&w.progress, "verify", i->bytes, i->quiet);
    int e = waste_jobs_run(
        &(struct waste_jobs){.count = w.jobs,
                             .run = run,
                             .ctx = &w,
                             .buffer_bytes = room,
                             .threads = i->threads ? i->threads : waste_jobs_readers(),
                             .progress = &w.progress});
    i->seconds = waste_progress_finish(&w.progress);
    free(w.job);
    close(w.dir_fd);
    return e ? waste_fetch_fail("cannot verify %s: %s", i->dir, strerror(-e)) : 0;
}

void waste_inspection_finish(struct waste_inspection *i)
{
    waste_damages_finish(&i->damages);
    waste_integrity_free(i->integrity);
    waste_index_free(i->index);
    free(i->model);
    json_decref(i->extra);
}
