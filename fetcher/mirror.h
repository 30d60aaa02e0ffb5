/*
 * A directory that holds, or will hold, the files of a remote checkpoint: its lock, its catalog,
 * and what in it is right already. `get` and the sources of `convert` are built on it.
 */
#ifndef WASTE_FETCHER_MIRROR_H
#define WASTE_FETCHER_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include "fetcher/address.h"
#include "fetcher/catalog.h"
#include "fetcher/http.h"
#include "fetcher/repo.h"
#include "options/options.h"

struct waste_mirror_setup {
    const char *source, *path;                     /* SRC, DEST */
    const char *revision;                          /* NULL: as recorded, else main */
    const struct waste_strings *include, *exclude; /* NULL: none */
    uint32_t jobs, retries, stall_seconds;
    double retry_wait;
    bool make;      /* the directory, if there is none */
    bool look_only; /* nothing is written */
    bool quiet;
    const _Atomic bool *stop;
};

struct waste_mirror {
    struct waste_mirror_setup s;
    struct waste_address address;
    struct waste_http *http;
    struct waste_catalog catalog;
    int dir;    /* locked; -1: there is none, and it was not to be made */
    bool made;  /* it was not there before */
    bool known; /* the catalog was there already: no listing was asked for */
};

/*
 * Opens the directory, locks it, and reads its catalog or else asks the server for a listing; files
 * are selected. 0, -EINVAL (SRC, --revision, a
 * path that will not do), -EBUSY (another process is at it), -ECANCELED or
 * another -errno, with err.
 */
int waste_mirror_open(struct waste_mirror *m, const struct waste_mirror_setup *s,
                      struct waste_error *err);
void waste_mirror_close(struct waste_mirror *m);

/* Makes the directory after all, if it was not to be made; the catalog is saved. 0 or -errno with
 * err. */
int waste_mirror_make(struct waste_mirror *m, struct waste_error *err);

/* Another engine like the mirror's, for another thread; NULL with err. */
struct waste_http *waste_mirror_engine(const struct waste_mirror *m, struct waste_error *err);

/*
 * What is in the directory counts: files that are gone or of another size are no longer done, and
 * those that are there without being done are, if a digest says that they are right. The catalog is
 * saved. 0 or -errno with err.
 */
int waste_mirror_settle(struct waste_mirror *m, struct waste_error *err);

int waste_mirror_save(struct waste_mirror *m, struct waste_error *err);

/* Bytes of wanted files, of those what is still to come, and of it what has no known size. */
struct waste_mirror_sizes {
    uint64_t total, left, part; /* part: of files that are not done, what is there */
    uint32_t files, files_left, unknown;
};
void waste_mirror_measure(const struct waste_mirror *m, struct waste_mirror_sizes *out);

/* Bytes free for what is to come; the directory need not be there yet. 0 or -errno. */
int waste_mirror_free_bytes(const struct waste_mirror *m, uint64_t *out);

#endif
