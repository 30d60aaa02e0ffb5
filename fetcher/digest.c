#include "fetcher/digest.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

static void to_hex(EVP_MD_CTX *ctx, char *out)
{
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    EVP_DigestFinal_ex(ctx, raw, &n);
    for (unsigned i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
}

static EVP_MD_CTX *begin(const EVP_MD *kind)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();

    if (ctx != NULL && EVP_DigestInit_ex(ctx, kind, NULL) == 1)
        return ctx;
    EVP_MD_CTX_free(ctx);
    return NULL;
}

static int feed(int fd, const _Atomic bool *stop, EVP_MD_CTX *sha256, EVP_MD_CTX *sha1,
                uint64_t *bytes)
{
    char *data = malloc(CHUNK);
    ssize_t n = -1;

    if (data == NULL)
        return -ENOMEM;
    for (*bytes = 0; (n = pread(fd, data, CHUNK, (off_t)*bytes)) != 0; *bytes += (uint64_t)n) {
        if (stop != NULL && atomic_load_explicit(stop, memory_order_relaxed)) {
            errno = ECANCELED;
            n = -1;
        }
        if (n < 0 && errno == EINTR) {
            n = 0;
            continue;
        }
        if (n < 0)
            break;
        EVP_DigestUpdate(sha256, data, (size_t)n);
        if (sha1 != NULL)
            EVP_DigestUpdate(sha1, data, (size_t)n);
    }
    int rc = n < 0 ? -errno : 0;
    free(data);
    return rc;
}

struct hash {
    EVP_MD_CTX *sha256, *sha1; /* sha1: NULL if no git id is wanted */
};

/* `bytes` are to come: git's ids begin with their number. */
static int begin_hash(struct hash *h, bool git, uint64_t bytes)
{
    char head[32];

    h->sha256 = begin(EVP_sha256());
    h->sha1 = git ? begin(EVP_sha1()) : NULL;
    if (h->sha256 == NULL || (git && h->sha1 == NULL))
        return -ENOMEM;
    int n = snprintf(head, sizeof(head), "blob %llu", (unsigned long long)bytes);
    if (git)
        EVP_DigestUpdate(h->sha1, head, (size_t)n + 1);
    return 0;
}

/* With rc 0 the digests go to *out. */
static int end_hash(struct hash *h, int rc, uint64_t bytes, struct waste_digest *out)
{
    if (rc == 0) {
        *out = (struct waste_digest){.bytes = bytes};
        to_hex(h->sha256, out->sha256);
        if (h->sha1 != NULL)
            to_hex(h->sha1, out->git_id);
    }
    EVP_MD_CTX_free(h->sha256);
    EVP_MD_CTX_free(h->sha1);
    return rc;
}

int waste_digest_file(int fd, bool git, const _Atomic bool *stop, struct waste_digest *out)
{
    struct hash h = {NULL, NULL};
    uint64_t bytes = 0;
    struct stat st;

    if (fstat(fd, &st) != 0)
        return -errno;
    int rc = begin_hash(&h, git, (uint64_t)st.st_size);
    if (rc == 0)
        rc = feed(fd, stop, h.sha256, h.sha1, &bytes);
    return end_hash(&h, rc, bytes, out);
}

int waste_digest_bytes(const void *data, size_t bytes, bool git, struct waste_digest *out)
{
    struct hash h = {NULL, NULL};
    int rc = begin_hash(&h, git, bytes);

    if (rc == 0)
        EVP_DigestUpdate(h.sha256, data, bytes);
    if (rc == 0 && git)
        EVP_DigestUpdate(h.sha1, data, bytes);
    return end_hash(&h, rc, bytes, out);
}
