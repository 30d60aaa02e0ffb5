/*
 * Is a file what the catalog says? The same question after a transfer, for a file that is found in
 * the directory, and for --check.
 */
#ifndef WASTE_FETCHER_VERDICT_H
#define WASTE_FETCHER_VERDICT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "fetcher/catalog.h"
#include "fetcher/digest.h"

/* 0: it is, *out is what it has; -EBADMSG with err, which names both sums or sizes; else -errno
 * with err. Reads all of it. Any thread. */
int waste_verdict(int fd, const struct waste_file *f, const _Atomic bool *stop,
                  struct waste_digest *out, struct waste_error *err);

/* The same of bytes in memory. */
int waste_verdict_bytes(const void *data, size_t bytes, const struct waste_file *f,
                        struct waste_error *err);

/* There is a digest to compare with: a verdict of 0 means that every byte is right. */
bool waste_verdict_is_sure(const struct waste_file *f);

enum waste_found {
    WASTE_FOUND_NOT, /* it is missing */
    WASTE_FOUND_RIGHT,
    WASTE_FOUND_WRONG,  /* with err */
    WASTE_FOUND_UNSURE, /* the size is right, and no digest is known */
};

struct waste_finding {
    enum waste_found found;
    struct waste_digest digest;
    struct waste_error err;
};

/*
 * Looks at the files below `dir` for which look[i], on `threads` threads; finding[i] is what came
 * of it. `what` names the progress line. 0, or -ECANCELED (*stop became true).
 */
int waste_verdict_all(int dir, const struct waste_catalog *l, const bool *look, uint32_t threads,
                      const char *what, bool quiet, const _Atomic bool *stop,
                      struct waste_finding *finding);

#endif
