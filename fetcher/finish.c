#include "fetcher/finish.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 2 };

struct waste_finisher {
    pthread_t thread[THREADS];
    uint32_t threads;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct waste_finish_job *todo, *over; /* todo: first come, first served */
    _Atomic bool stop;
    void (*wake)(void *);
    void *ctx;
};

static void work(struct waste_finisher *f, struct waste_finish_job *job)
{
    job->rc = fsync(job->fd) != 0 ? -errno : 0;
    if (job->rc != 0)
        waste_error_set(&job->err, job->rc, "%s: cannot be brought to the disk: %s", job->file.name,
                        strerror(-job->rc));
    else
        job->rc = waste_verdict(job->fd, &job->file, &f->stop, &job->digest, &job->err);
}

static void *thread_main(void *user)
{
    struct waste_finisher *f = user;

    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        struct waste_finish_job *job = f->todo;
        if (job == NULL) {
            pthread_cond_wait(&f->more, &f->lock);
            continue;
        }
        f->todo = job->next;
        pthread_mutex_unlock(&f->lock);
        work(f, job);
        pthread_mutex_lock(&f->lock);
        job->next = f->over;
        f->over = job;
        f->wake(f->ctx);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

struct waste_finisher *waste_finisher_create(void (*wake)(void *), void *ctx,
                                             struct waste_error *err)
{
    struct waste_finisher *f = calloc(1, sizeof(*f));

    if (f != NULL) {
        pthread_mutex_init(&f->lock, NULL);
        pthread_cond_init(&f->more, NULL);
        f->wake = wake;
        f->ctx = ctx;
        while (f->threads < THREADS &&
               pthread_create(&f->thread[f->threads], NULL, thread_main, f) == 0)
            f->threads++;
    }
    if (f != NULL && f->threads > 0)
        return f;
    waste_error_set(err, -EAGAIN, "no thread can be started");
    waste_finisher_destroy(f);
    return NULL;
}

void waste_finisher_destroy(struct waste_finisher *f)
{
    if (f == NULL)
        return;
    pthread_mutex_lock(&f->lock);
    atomic_store(&f->stop, true);
    pthread_cond_broadcast(&f->more);
    pthread_mutex_unlock(&f->lock);
    for (uint32_t i = 0; i < f->threads; i++)
        pthread_join(f->thread[i], NULL);
    pthread_cond_destroy(&f->more);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

void waste_finisher_put(struct waste_finisher *f, struct waste_finish_job *job)
{
    struct waste_finish_job **end = &f->todo;

    pthread_mutex_lock(&f->lock);
    while (*end != NULL)
        end = &(*end)->next;
    job->next = NULL;
    *end = job;
    pthread_cond_signal(&f->more);
    pthread_mutex_unlock(&f->lock);
}

struct waste_finish_job *waste_finisher_take(struct waste_finisher *f)
{
    pthread_mutex_lock(&f->lock);
    struct waste_finish_job *job = f->over;
    if (job != NULL)
        f->over = job->next;
    pthread_mutex_unlock(&f->lock);
    return job;
}
