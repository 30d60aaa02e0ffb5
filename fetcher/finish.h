/*
 * The threads that have the last word on a file that came whole: its bytes are brought to the disk
 * and checked there, while the transfers go on.
 */
#ifndef WASTE_FETCHER_FINISH_H
#define WASTE_FETCHER_FINISH_H

#include "fetcher/verdict.h"

struct waste_finisher;

struct waste_finish_job {
    int fd;
    struct waste_file file; /* a copy; its name must live until the job is taken back */
    void *ctx;
    struct waste_finish_job *next;

    int rc; /* 0, -EBADMSG (other bytes than there should be) or -errno, with err */
    struct waste_digest digest;
    struct waste_error err;
};

/* `wake` is called by a thread after each job; NULL with err if there is no thread. */
struct waste_finisher *waste_finisher_create(void (*wake)(void *), void *ctx,
                                             struct waste_error *err);
/* Ends the jobs that are under way as cancelled; none is given back. */
void waste_finisher_destroy(struct waste_finisher *f);

void waste_finisher_put(struct waste_finisher *f, struct waste_finish_job *job);
struct waste_finish_job *
waste_finisher_take(struct waste_finisher *f); /* one that is over, or NULL */

#endif
