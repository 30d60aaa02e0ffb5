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

int waste_digest_file(int fd, bool git, const _Atomic bool *stop, struct waste_digest *out)
{
    struct waste_digest d = {.bytes = 0};
    struct stat st;
    char head[32];

    if (fstat(fd, &st) != 0)
        return -errno;
    EVP_MD_CTX *sha256 = begin(EVP_sha256()), *sha1 = git ? begin(EVP_sha1()) : NULL;
    int rc = sha256 == NULL || (git && sha1 == NULL) ? -ENOMEM : 0;
    if (rc == 0 && git) {
        int n = snprintf(head, sizeof(head), "blob %llu", (unsigned long long)st.st_size);
        EVP_DigestUpdate(sha1, head, (size_t)n + 1);
    }
    if (rc == 0)
        rc = feed(fd, stop, sha256, sha1, &d.bytes);
    if (rc == 0) {
        to_hex(sha256, d.sha256);
        if (git)
            to_hex(sha1, d.git_id);
        *out = d;
    }
    EVP_MD_CTX_free(sha256);
    EVP_MD_CTX_free(sha1);
    return rc;
}
