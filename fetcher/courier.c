#include "fetcher/courier.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fetcher/download.h"
#include "fetcher/part.h"
#include "fetcher/progress.h"

enum { ASK_NOTHING, ASK_FETCH, ASK_DROP };
enum { SHOW_MS = 200 };

struct waste_courier {
    struct waste_mirror *m;
    struct waste_http *http;
    struct waste_download *download;
    _Atomic uint64_t received; /* nobody looks: the line shows the part's size */
    pthread_t thread;

    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t asked, changed;
    uint8_t *ask;                     /* [files] what the caller wants next */
    enum waste_download_state *state; /* [files] as of the last step */
    bool stop, broken;
    struct waste_error error; /* if broken */
};

/* ---- the thread ---- */

static void drop(struct waste_courier *c, uint32_t i)
{
    struct waste_file *f = &c->m->catalog.file[i];
    struct waste_error err;

    unlinkat(c->m->dir, f->name, 0);
    waste_part_remove(c->m->dir, f->name);
    f->done = false;
    f->dropped = true;
    waste_mirror_save(c->m, &err); /* else it is found missing later, which is as well */
}

/* Does what was asked for. Called with the lock, which is open in the meantime. */
static bool take_asks(struct waste_courier *c)
{
    bool any = false;

    for (uint32_t i = 0; i < c->m->catalog.count; i++) {
        uint8_t ask = c->ask[i];
        c->ask[i] = ASK_NOTHING;
        if (ask == ASK_NOTHING)
            continue;
        pthread_mutex_unlock(&c->lock);
        if (ask == ASK_DROP)
            drop(c, i);
        else if (!c->m->catalog.file[i].done)
            waste_download_add(c->download, i);
        pthread_mutex_lock(&c->lock);
        any = true;
    }
    return any;
}

/* What became of the files, for those who wait. With the lock. */
static void publish(struct waste_courier *c)
{
    const struct waste_error *broken = waste_download_broken(c->download);

    for (uint32_t i = 0; i < c->m->catalog.count; i++) {
        enum waste_download_state now = waste_download_state(c->download, i);
        if (c->ask[i] != ASK_NOTHING) /* what was asked for meanwhile counts */
            continue;
        if (c->m->catalog.file[i].done)
            now = WASTE_DOWNLOAD_DONE;
        c->state[i] = now;
    }
    if (broken != NULL)
        c->error = *broken;
    c->broken = broken != NULL;
    pthread_cond_broadcast(&c->changed);
}

static void *thread_main(void *user)
{
    struct waste_courier *c = user;
    uint32_t busy = 0;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        bool any = take_asks(c);
        if (c->stop && !any)
            break;
        if (!any && busy == 0) {
            pthread_cond_wait(&c->asked, &c->lock);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        busy = waste_download_step(c->download, SHOW_MS);
        pthread_mutex_lock(&c->lock);
        publish(c);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- the caller ---- */

static int create(struct waste_courier *c, struct waste_mirror *m, struct waste_error *err)
{
    pthread_condattr_t monotonic;

    c->m = m;
    c->ask = calloc(m->catalog.count + 1, sizeof(*c->ask));
    c->state = calloc(m->catalog.count + 1, sizeof(*c->state));
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->asked, NULL);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (c->ask == NULL || c->state == NULL)
        return waste_error_set(err, -ENOMEM, "out of memory");
    c->http = waste_mirror_engine(m, err);
    if (c->http == NULL)
        return -EINVAL;
    const struct waste_download_setup setup = {.dir = m->dir,
                                               .path = m->s.path,
                                               .catalog = &m->catalog,
                                               .address = &m->address,
                                               .http = c->http,
                                               .done = &c->received};
    c->download = waste_download_create(&setup, err);
    return c->download != NULL ? 0 : -ENOMEM;
}

static void destroy(struct waste_courier *c)
{
    waste_download_destroy(c->download);
    waste_http_destroy(c->http);
    pthread_cond_destroy(&c->asked);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->ask);
    free(c->state);
    free(c);
}

struct waste_courier *waste_courier_start(struct waste_mirror *m, struct waste_error *err)
{
    struct waste_courier *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        waste_error_set(err, -ENOMEM, "out of memory");
        return NULL;
    }
    int rc = create(c, m, err);
    if (rc == 0 && pthread_create(&c->thread, NULL, thread_main, c) != 0)
        rc = waste_error_set(err, -EAGAIN, "no thread can be started");
    if (rc == 0)
        return c;
    destroy(c);
    return NULL;
}

static void ask(struct waste_courier *c, uint32_t i, uint8_t what)
{
    pthread_mutex_lock(&c->lock);
    if (what == ASK_DROP)
        c->state[i] = WASTE_DOWNLOAD_IDLE;
    else if (c->state[i] == WASTE_DOWNLOAD_IDLE || c->state[i] == WASTE_DOWNLOAD_FAILED)
        c->state[i] = WASTE_DOWNLOAD_FETCHING;
    else
        what = c->ask[i]; /* it is there or under way */
    c->ask[i] = what;
    pthread_cond_signal(&c->asked);
    pthread_mutex_unlock(&c->lock);
    waste_http_wake(c->http);
}

void waste_courier_fetch(struct waste_courier *c, uint32_t i)
{
    ask(c, i, ASK_FETCH);
}

void waste_courier_drop(struct waste_courier *c, uint32_t i)
{
    ask(c, i, ASK_DROP);
}

void waste_courier_stop(struct waste_courier *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->asked);
    pthread_mutex_unlock(&c->lock);
    waste_http_wake(c->http);
    pthread_join(c->thread, NULL);
    destroy(c);
}

/* With the lock. False after a while without news. */
static void wait_a_while(struct waste_courier *c)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += SHOW_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

int waste_courier_wait(struct waste_courier *c, uint32_t i, uint64_t bytes, struct waste_error *err)
{
    const char *name = c->m->catalog.file[i].name; /* never changes */
    struct waste_progress p;
    char what[200];
    int rc = 0;

    snprintf(what, sizeof(what), "fetch %s", name);
    waste_progress_init(&p, what, bytes, c->m->s.quiet);
    p.begun = waste_part_bytes(c->m->dir, name);
    pthread_mutex_lock(&c->lock);
    while (!c->broken && c->state[i] != WASTE_DOWNLOAD_DONE &&
           c->state[i] != WASTE_DOWNLOAD_FAILED && c->state[i] != WASTE_DOWNLOAD_ABSENT) {
        wait_a_while(c);
        atomic_store_explicit(&p.done, waste_part_bytes(c->m->dir, name), memory_order_relaxed);
        waste_progress_show(&p);
    }
    if (c->state[i] != WASTE_DOWNLOAD_DONE) {
        *err = c->broken ? c->error : *waste_download_error(c->download, i);
        rc = -EIO;
    }
    pthread_mutex_unlock(&c->lock);
    waste_progress_finish(&p);
    return rc;
}
