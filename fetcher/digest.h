/* Digests of files, by libcrypto. */
#ifndef WASTE_FETCHER_DIGEST_H
#define WASTE_FETCHER_DIGEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fetcher/catalog.h"

struct waste_digest {
    uint64_t bytes;
    char sha256[WASTE_SHA256_TEXT];
    char git_id[WASTE_SHA1_TEXT]; /* sha1 of "blob BYTES", a NUL and the file; "": not asked for */
};

/* Reads fd from its beginning, `git` if git_id is wanted. Gives up when *stop becomes true (NULL:
 * never). 0, -ECANCELED or -errno. Any thread. */
int waste_digest_file(int fd, bool git, const _Atomic bool *stop, struct waste_digest *out);

/* The same of bytes in memory. 0 or -ENOMEM. */
int waste_digest_bytes(const void *data, size_t bytes, bool git, struct waste_digest *out);

#endif
