/*
 * The calling thread beats the heart and reports progress; a few loader threads each take the next
 * piece (in table order), read it past the page cache into a buffer of their own, copy it to its
 * place and check its numbers. Several reads in flight are what an NVMe drive needs to run at its
 * speed, and the copies are short beside them.
 */
#include "reader/trunk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "reader/codebooks.h"
#include "reader/container_int.h"
#include "reader/direct.h"
#include "reader/integrity.h"
#include "reader/trunk_check.h"
#include "shm/inject.h"
#include "shm/segment.h"

enum {
    LOADERS = 4,
    PIECE = 4 << 20, /* bytes of one read */
    TICK_MS = 50,
    CHECK_BUFFER = 4 << 20, /* of a thread that checks */
    TOUCH = 256,            /* huge pages, before the first of them is made */
};

/* A run of bytes of trunk.bin that goes to one place. */
struct piece {
    uint32_t tensor;
    bool scales; /* f16; else the payload */
    uint64_t file_off, data_off;
    size_t bytes;
    uint64_t at; /* where it starts in its payload or scales */
};

struct load {
    const struct waste_shm *shm;
    const struct waste_model *model;
    const char *dir;
    struct waste_mapping map;  /* of the segment */
    uint8_t *base;             /* its start */
    struct waste_direct trunk; /* trunk.bin */
    size_t buffer_bytes;
    struct waste_integrity *integrity; /* NULL: there is none, or the disk is trusted */
    struct waste_trunk_check check;

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t wake;  /* a loader ended */
    struct piece next;
    uint32_t *missing;   /* [tensor_count] pieces not loaded yet */
    uint32_t next_check; /* piece of trunk.bin */
    uint64_t touched;    /* huge pages of the segment that have something in them */
    bool *huge;          /* [huge pages of the segment] asked for; NULL: no memory for that */
    uint32_t running;
    bool stop;
    int rc; /* the first error */
    struct waste_error *err;
};

static uint64_t scale_bytes(const struct waste_tensor *t)
{
    return (uint64_t)t->rows * t->groups * 2;
}

static uint32_t pieces(uint64_t bytes)
{
    return (uint32_t)((bytes + PIECE - 1) / PIECE);
}

uint64_t waste_trunk_file_bytes(const struct waste_model *model)
{
    uint64_t bytes = waste_codebook_bytes(&model->expert) * model->expert.codebooks;
    for (uint32_t id = 1; id < model->tensor_count; id++) {
        const struct waste_tensor *t = waste_model_tensor(model, id);
        if (t->data)
            bytes += t->payload_bytes + scale_bytes(t);
    }
    return bytes;
}

/* Under the lock: the next piece, false when all are taken. */
static bool take_piece(struct load *l, struct piece *out)
{
    struct piece *n = &l->next;
    for (; n->tensor < l->model->tensor_count; n->tensor++, n->scales = false, n->at = 0) {
        const struct waste_tensor *t = waste_model_tensor(l->model, n->tensor);
        if (!t->data)
            continue;
        if (!n->scales && n->at >= t->payload_bytes) {
            n->scales = true;
            n->at = 0;
        }
        uint64_t total = n->scales ? scale_bytes(t) : t->payload_bytes;
        if (n->at >= total)
            continue;
        *out = *n;
        out->bytes = total - n->at < PIECE ? (size_t)(total - n->at) : PIECE;
        out->file_off = (n->scales ? t->file_scale_off : t->file_off) + n->at;
        out->data_off = (n->scales ? t->scales : t->data) + n->at;
        n->at += out->bytes;
        return true;
    }
    return false;
}

/* Under the lock: moves control->trunk_tensors over everything that is complete. */
static void advance(struct load *l)
{
    struct waste_control *c = l->shm->control;
    uint32_t done = atomic_load_explicit(&c->trunk_tensors, memory_order_relaxed); /* our own */
    while (done + 1 < l->model->tensor_count && l->missing[done + 1] == 0)
        done++;
    /* release: pairs with the acquire in waste_trunk_load of our successor */
    atomic_store_explicit(&c->trunk_tensors, done, memory_order_release);
}

static void set_error(struct load *l, int rc)
{
    l->rc = rc;
    l->stop = true;
}

/* Names the place of a number that no weight can be. */
static int bad_number(struct load *l, const struct piece *p, uint64_t index)
{
    const struct waste_tensor *t = waste_model_tensor(l->model, p->tensor);
    char name[128];
    uint64_t columns = p->scales ? t->groups : t->cols;
    waste_container_tensor_name(l->model, p->tensor, name, sizeof(name));
    return waste_error_set(
        l->err, -EINVAL, "%s/" WASTE_TRUNK_FILE ": %s: %s of row %llu, %s %llu is not finite",
        l->dir, name, p->scales ? "the scale" : "the weight", (unsigned long long)(index / columns),
        p->scales ? "group" : "column", (unsigned long long)(index % columns));
}

/* A piece in memory holds finite numbers only, or the index of the first that is none in *bad. */
static bool all_finite(const struct waste_tensor *t, const struct piece *p, const uint8_t *data,
                       uint64_t *bad)
{
    uint32_t any = 0;
    if (p->scales) {
        const uint16_t *h = (const uint16_t *)data;
        for (size_t i = 0; i < p->bytes / 2; i++)
            any |= (h[i] & 0x7c00u) == 0x7c00u;
        for (*bad = 0; any && (h[*bad] & 0x7c00u) != 0x7c00u;)
            ++*bad;
        *bad += p->at / 2;
    } else if (t->fmt == WASTE_FMT_F32) {
        const uint32_t *f = (const uint32_t *)data;
        for (size_t i = 0; i < p->bytes / 4; i++)
            any |= (f[i] & 0x7f800000u) == 0x7f800000u;
        for (*bad = 0; any && (f[*bad] & 0x7f800000u) != 0x7f800000u;)
            ++*bad;
        *bad += p->at / 4;
    }
    return !any;
}

/* A whole piece to its place. `buffer` holds buffer_bytes, aligned for O_DIRECT. */
static int read_piece(struct load *l, const struct piece *p, uint8_t *buffer)
{
    return waste_direct_read(&l->trunk, p->file_off, p->bytes, l->base + p->data_off, buffer);
}

static int read_error(struct load *l, const struct piece *p, int rc)
{
    char name[128];
    waste_container_tensor_name(l->model, p->tensor, name, sizeof(name));
    if (rc == -ENODATA)
        return waste_error_set(l->err, -EINVAL,
                               "%s/" WASTE_TRUNK_FILE ": %s: file ends before byte %llu", l->dir,
                               name, (unsigned long long)(p->file_off + p->bytes));
    return waste_error_set(l->err, rc, "%s/" WASTE_TRUNK_FILE ": %s: reading at byte %llu: %s",
                           l->dir, name, (unsigned long long)p->file_off, strerror(-rc));
}

/*
 * Under the lock, which is let go meanwhile: the part of the segment that a piece fills goes into
 * huge pages before it is filled. A quarter of the time a token's products take hangs on that.
 */
static void want_huge(struct load *l, const struct piece *p)
{
    uint64_t last = (p->data_off + p->bytes - 1) / WASTE_HUGE_PAGE;

    /* the lock is kept: nobody may come to a page that is not touched yet */
    if (last >= l->touched)
        for (uint64_t end = last + TOUCH; l->touched < end; l->touched++)
            waste_segment_touch(&l->map, l->touched);
    for (uint64_t page = p->data_off / WASTE_HUGE_PAGE; page <= last; page++) {
        if (!l->huge || page >= l->map.bytes / WASTE_HUGE_PAGE || l->huge[page])
            continue;
        l->huge[page] = true;
        pthread_mutex_unlock(&l->lock);
        int rc = waste_segment_make_huge(&l->map, page);
        pthread_mutex_lock(&l->lock);
        if (rc == 0)
            waste_count(l->shm->control, WASTE_C_TRUNK_HUGE, WASTE_HUGE_PAGE);
    }
}

static void *loader_main(void *arg)
{
    struct load *l = arg;
    struct piece p;
    uint8_t *buffer = aligned_alloc(WASTE_DIRECT_ALIGN, l->buffer_bytes);
    pthread_mutex_lock(&l->lock);
    if (!buffer && !l->stop)
        set_error(l, waste_error_set(l->err, -ENOMEM, "loading the trunk: out of memory"));
    while (!l->stop && take_piece(l, &p)) {
        uint64_t bad = 0;
        want_huge(l, &p);
        pthread_mutex_unlock(&l->lock);
        int rc = read_piece(l, &p, buffer);
        WASTE_POINT(TRUNK_PIECE);
        bool finite = rc < 0 || all_finite(waste_model_tensor(l->model, p.tensor), &p,
                                           l->base + p.data_off, &bad);
        pthread_mutex_lock(&l->lock);
        if (rc == 0 && finite) {
            l->missing[p.tensor]--;
            waste_trunk_note_loaded(l->shm->control, p.bytes);
            advance(l);
            WASTE_POINT(TRUNK_TENSOR);
        } else if (l->rc == 0) {
            set_error(l, rc < 0 ? read_error(l, &p, rc) : bad_number(l, &p, bad));
        }
    }
    l->running--;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    free(buffer);
    return NULL;
}

/* Waits for the loaders, ticking. Called with no loader's work of our own. */
static void wait_for_loaders(struct load *l, bool (*tick)(void *), void *ctx)
{
    pthread_mutex_lock(&l->lock);
    while (l->running > 0) {
        struct timespec until;
        pthread_mutex_unlock(&l->lock);
        bool go_on = tick(ctx);
        pthread_mutex_lock(&l->lock);
        if (!go_on && l->rc == 0)
            set_error(l, -ECANCELED);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (l->running > 0)
            pthread_cond_clockwait(&l->wake, &l->lock, CLOCK_MONOTONIC, &until);
    }
    pthread_mutex_unlock(&l->lock);
}

static int open_trunk(struct load *l)
{
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/" WASTE_TRUNK_FILE, l->dir) >= (int)sizeof(path))
        return waste_error_set(l->err, -ENAMETOOLONG, "the model directory's name is too long");
    int rc = waste_direct_open(&l->trunk, AT_FDCWD, path);
    return rc < 0 ? waste_error_set(l->err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

/* What a dead reader left undone: every tensor past `done` starts anew. */
static int plan_pieces(struct load *l, uint32_t done)
{
    uint64_t largest = 0, loaded = 0;
    l->missing = calloc(l->model->tensor_count, sizeof(l->missing[0]));
    if (!l->missing)
        return waste_error_set(l->err, -ENOMEM, "loading the trunk: out of memory");
    for (uint32_t id = 1; id < l->model->tensor_count; id++) {
        const struct waste_tensor *t = waste_model_tensor(l->model, id);
        if (!t->data)
            continue;
        if (id <= done) {
            loaded += t->payload_bytes + scale_bytes(t);
            continue;
        }
        l->missing[id] = pieces(t->payload_bytes) + pieces(scale_bytes(t));
        largest = t->payload_bytes > largest ? t->payload_bytes : largest;
        largest = scale_bytes(t) > largest ? scale_bytes(t) : largest;
    }
    /* relaxed: a statistic */
    atomic_store_explicit(&l->shm->control->counter[WASTE_C_TRUNK_LOADED], loaded,
                          memory_order_relaxed);
    l->next.tensor = done + 1;
    l->buffer_bytes =
        (size_t)waste_align_up(largest < PIECE ? largest : PIECE, WASTE_DIRECT_ALIGN) +
        WASTE_DIRECT_ALIGN; /* an unaligned piece touches one block more */
    return 0;
}

/* Runs `body` in all loaders, and waits for them, ticking. */
static int run_loaders(struct load *l, void *(*body)(void *), bool (*tick)(void *), void *ctx)
{
    pthread_t thread[LOADERS];
    uint32_t started = 0;
    int rc = 0;
    for (; started < LOADERS; started++) {
        pthread_mutex_lock(&l->lock);
        l->running++;
        pthread_mutex_unlock(&l->lock);
        rc = pthread_create(&thread[started], NULL, body, l);
        if (rc != 0)
            break;
    }
    if (started < LOADERS) {
        pthread_mutex_lock(&l->lock);
        l->running--;
        if (started == 0)
            set_error(l, waste_error_set(l->err, -rc, "starting a loader: %s", strerror(rc)));
        pthread_mutex_unlock(&l->lock);
    }
    wait_for_loaders(l, tick, ctx);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    return l->rc;
}

static void *checker_main(void *arg)
{
    struct load *l = arg;
    uint8_t *buffer = aligned_alloc(WASTE_DIRECT_ALIGN, CHECK_BUFFER);
    pthread_mutex_lock(&l->lock);
    if (!buffer && !l->stop)
        set_error(l, waste_error_set(l->err, -ENOMEM, "checking the trunk: out of memory"));
    while (!l->stop && l->next_check < l->check.file->pieces) {
        uint32_t piece = l->next_check++;
        struct waste_error err;
        pthread_mutex_unlock(&l->lock);
        int rc = waste_trunk_check_piece(&l->check, piece, buffer, CHECK_BUFFER, &err);
        pthread_mutex_lock(&l->lock);
        if (rc < 0 && l->rc == 0)
            set_error(l, waste_error_set(l->err, rc, "%s", err.text));
    }
    l->running--;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    free(buffer);
    return NULL;
}

/* All of trunk.bin against integrity.json, if there is one. */
static int check_tensors(struct load *l, bool (*tick)(void *), void *ctx)
{
    struct stat st;
    if (!l->integrity)
        return 0;
    l->check = (struct waste_trunk_check){
        .model = l->model,
        .dir = l->dir,
        .base = l->base,
        .file = waste_integrity_find(l->integrity, WASTE_TRUNK_FILE),
        .trunk = &l->trunk,
    };
    if (fstat(l->trunk.buffered, &st) < 0)
        return waste_error_set(l->err, -errno, "%s/" WASTE_TRUNK_FILE ": %s", l->dir,
                               strerror(errno));
    if ((uint64_t)st.st_size != l->check.file->bytes)
        return waste_error_set(
            l->err, -EINVAL,
            "%s/" WASTE_TRUNK_FILE ": size is %llu, " WASTE_INTEGRITY_FILE " says %llu", l->dir,
            (unsigned long long)st.st_size, (unsigned long long)l->check.file->bytes);
    if (waste_trunk_check_init(&l->check) < 0)
        return waste_error_set(l->err, -ENOMEM, "checking the trunk: out of memory");
    return run_loaders(l, checker_main, tick, ctx);
}

static void finish_load(struct load *l)
{
    waste_direct_close(&l->trunk);
    waste_trunk_check_finish(&l->check);
    waste_integrity_free(l->integrity);
    free(l->missing);
    free(l->huge);
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
}

/* Maps, loads, unmaps: nothing writable is left when it returns. */
static int load_into(const struct waste_shm *shm, const char *dir, int trunk_fd,
                     bool (*tick)(void *), void *ctx, struct waste_error *err)
{
    struct load l = {
        .shm = shm, .model = shm->model, .dir = dir, .err = err, .trunk = WASTE_DIRECT_NONE};
    /* acquire: pairs with the release in advance() of a reader before us */
    uint32_t done = atomic_load_explicit(&shm->control->trunk_tensors, memory_order_acquire);
    int rc = waste_segment_map(trunk_fd, WASTE_SEG_TRUNK, true, &l.map);
    if (rc < 0)
        return waste_error_set(err, rc, "mapping the trunk segment: %s", strerror(-rc));
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.wake, NULL);
    l.base = l.map.base;
    l.huge = calloc(l.map.bytes / WASTE_HUGE_PAGE + 1, sizeof(l.huge[0]));
    if (l.map.bytes < l.model->trunk_bytes) {
        rc = waste_error_set(err, -EINVAL, "trunk segment: size is %zu, must be %llu", l.map.bytes,
                             (unsigned long long)l.model->trunk_bytes);
        goto out;
    }
    if (done >= l.model->tensor_count)
        done = 0; /* no value of ours: start over */
    if (shm->control->options.verify)
        rc = waste_integrity_read(dir, &l.integrity, err);
    if (rc == 0)
        rc = plan_pieces(&l, done);
    if (rc == 0)
        rc = open_trunk(&l);
    if (rc == 0)
        rc = run_loaders(&l, loader_main, tick, ctx);
    WASTE_POINT(TRUNK_TENSORS);
    struct waste_codebooks books = {.model = l.model,
                                    .dir = dir,
                                    .control = shm->control,
                                    .integrity = l.integrity,
                                    .base = l.base};
    if (rc == 0)
        rc = check_tensors(&l, tick, ctx);
    if (rc == 0)
        rc = waste_codebooks_load(&books, tick, ctx, err);
    WASTE_POINT(TRUNK_CODEBOOKS);
out:
    finish_load(&l);
    waste_segment_unmap(&l.map);
    return rc;
}

static bool is_sealed(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_WRITE);
}

int waste_trunk_load(const struct waste_shm *shm, const char *dir, int trunk_fd,
                     bool (*tick)(void *ctx), void *ctx, struct waste_error *err)
{
    struct waste_control *c = shm->control;
    int rc = waste_container_recheck(dir, shm->model, err);
    if (rc < 0)
        return rc == -ESTALE ? -EINVAL : rc;
    /* relaxed: only readers write it, and the last one is dead */
    if (atomic_load_explicit(&c->trunk_ready, memory_order_relaxed))
        return 0;
    if (!is_sealed(trunk_fd)) { /* sealed: the last reader died between the seal and the word */
        rc = load_into(shm, dir, trunk_fd, tick, ctx, err);
        if (rc < 0)
            return rc;
        rc = waste_segment_seal(trunk_fd);
        if (rc < 0)
            return waste_error_set(err, rc, "sealing the trunk segment: %s", strerror(-rc));
    }
    WASTE_POINT(TRUNK_SEALED);
    /* release: pairs with the acquire of every stage that maps the trunk */
    atomic_store_explicit(&c->trunk_ready, 1, memory_order_release);
    WASTE_POINT(TRUNK_ANNOUNCED);
    return 0;
}
