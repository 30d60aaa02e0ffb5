#include "fetcher/verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fetcher/content.h"
#include "fetcher/progress.h"

enum { THREADS_MOST = 16 };

bool waste_verdict_is_sure(const struct waste_file *f)
{
    return f->sha256[0] != '\0' || f->git_id[0] != '\0' || f->actual[0] != '\0';
}

static int wrong(const struct waste_file *f, const char *kind, const char *is, const char *should,
                 struct waste_error *err)
{
    return waste_error_set(err, -EBADMSG, "%s: %s is %s, should be %s", f->name, kind, is, should);
}

static int compare(const struct waste_digest *d, const struct waste_file *f,
                   struct waste_error *err)
{
    if (f->size != WASTE_SIZE_UNKNOWN && d->bytes != f->size)
        return waste_error_set(err, -EBADMSG, "%s: has %llu bytes, should have %llu", f->name,
                               (unsigned long long)d->bytes, (unsigned long long)f->size);
    if (f->sha256[0] != '\0' && strcmp(d->sha256, f->sha256) != 0)
        return wrong(f, "sha256", d->sha256, f->sha256, err);
    if (f->git_id[0] != '\0' && strcmp(d->git_id, f->git_id) != 0)
        return wrong(f, "the git id", d->git_id, f->git_id, err);
    if (f->actual[0] != '\0' && strcmp(d->sha256, f->actual) != 0)
        return wrong(f, "sha256", d->sha256, f->actual, err);
    return 0;
}

int waste_verdict(int fd, const struct waste_file *f, const _Atomic bool *stop,
                  struct waste_digest *out, struct waste_error *err)
{
    struct waste_digest d;
    const char *fault;
    int rc = waste_digest_file(fd, f->git_id[0] != '\0', stop, &d);

    if (rc != 0)
        return waste_error_set(err, rc, "%s: cannot be read: %s", f->name, strerror(-rc));
    rc = compare(&d, f, err);
    if (rc != 0)
        return rc;
    fault = waste_verdict_is_sure(f) ? NULL : waste_content_fault(fd, f->name, d.bytes);
    if (fault != NULL)
        return waste_error_set(err, -EBADMSG, "%s: what the server sends %s", f->name, fault);
    *out = d;
    return 0;
}

int waste_verdict_bytes(const void *data, size_t bytes, const struct waste_file *f,
                        struct waste_error *err)
{
    struct waste_digest d;
    int rc = waste_digest_bytes(data, bytes, f->git_id[0] != '\0', &d);

    return rc == 0 ? compare(&d, f, err) : waste_error_set(err, rc, "out of memory");
}

struct look {
    int dir;
    const struct waste_catalog *l;
    const bool *look;
    const _Atomic bool *stop;
    struct waste_finding *finding;
    struct waste_progress progress;
    _Atomic uint32_t next, running;
};

static void look_at(struct look *k, uint32_t i)
{
    const struct waste_file *f = &k->l->file[i];
    struct waste_finding *out = &k->finding[i];
    struct stat st;
    int fd = openat(k->dir, f->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    out->found = WASTE_FOUND_NOT;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        int rc = waste_verdict(fd, f, k->stop, &out->digest, &out->err);
        out->found = rc != 0                    ? WASTE_FOUND_WRONG
                     : waste_verdict_is_sure(f) ? WASTE_FOUND_RIGHT
                                                : WASTE_FOUND_UNSURE;
        atomic_fetch_add_explicit(&k->progress.done, (uint64_t)st.st_size, memory_order_relaxed);
    }
    close(fd);
}

static void *look_thread(void *user)
{
    struct look *k = user;
    uint32_t i;

    while (!atomic_load_explicit(k->stop, memory_order_relaxed) &&
           (i = atomic_fetch_add_explicit(&k->next, 1, memory_order_relaxed)) < k->l->count)
        if (k->look[i])
            look_at(k, i);
    atomic_fetch_sub_explicit(&k->running, 1, memory_order_release);
    return NULL;
}

static uint64_t bytes_to_look_at(const struct look *k)
{
    uint64_t bytes = 0;
    struct stat st;

    for (uint32_t i = 0; i < k->l->count; i++)
        if (k->look[i] && fstatat(k->dir, k->l->file[i].name, &st, 0) == 0)
            bytes += (uint64_t)st.st_size;
    return bytes;
}

int waste_verdict_all(int dir, const struct waste_catalog *l, const bool *look, uint32_t threads,
                      const char *what, bool quiet, const _Atomic bool *stop,
                      struct waste_finding *finding)
{
    struct look k = {.dir = dir, .l = l, .look = look, .stop = stop, .finding = finding};
    pthread_t thread[THREADS_MOST];
    uint32_t started = 0;
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};

    waste_progress_init(&k.progress, what, bytes_to_look_at(&k), quiet);
    while (started < threads && started < THREADS_MOST) {
        atomic_fetch_add_explicit(&k.running, 1, memory_order_relaxed);
        if (pthread_create(&thread[started], NULL, look_thread, &k) != 0) {
            atomic_fetch_sub_explicit(&k.running, 1, memory_order_relaxed);
            break;
        }
        started++;
    }
    if (started == 0) { /* then here */
        atomic_fetch_add_explicit(&k.running, 1, memory_order_relaxed);
        look_thread(&k);
    }
    while (atomic_load_explicit(&k.running, memory_order_acquire) >
           0) { /* pairs with its release */
        waste_progress_show(&k.progress);
        nanosleep(&pause, NULL);
    }
    for (uint32_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    waste_progress_finish(&k.progress);
    return atomic_load_explicit(stop, memory_order_relaxed) ? -ECANCELED : 0;
}
