/* A release in a directory. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/io.h"
#include "fetcher/release.h"

static int64_t modified(const struct stat *st)
{
    return st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
}

/* A descriptor, or -errno. */
static int open_shard(const struct waste_release *r, const char *name, struct stat *st)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", r->path, name) >= sizeof(path))
        return -ENAMETOOLONG;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    if (fstat(fd, st) || !S_ISREG(st->st_mode)) {
        close(fd);
        return -EINVAL;
    }
    return fd;
}

static int cannot_open(const struct waste_release *r, const char *name, int error)
{
    return waste_fetch_fail("cannot open %s/%s: %s", r->path, name,
                            error == -EINVAL ? "is no regular file" : strerror(-error));
}

static bool is_same(const struct waste_release_shard *s, const struct stat *st)
{
    return (uint64_t)st->st_size == s->bytes && st->st_ino == s->inode &&
           modified(st) == s->modified;
}

static int want(struct waste_release *r, uint32_t shard)
{
    struct stat st;
    const struct waste_release_shard *s = &r->shard[shard];
    int fd = open_shard(r, s->name, &st);
    if (fd < 0 && s->gone)
        return waste_fetch_fail("%s/%s was deleted (--reclaim) by a conversion that has used it up",
                                r->path, s->name);
    if (fd < 0)
        return cannot_open(r, s->name, fd);
    if (is_same(s, &st))
        return fd;
    close(fd);
    return waste_fetch_fail("%s/%s was changed while it was at work with", r->path, s->name);
}

static int unchanged(const struct waste_release *r, uint32_t shard)
{
    struct stat st;
    const struct waste_release_shard *s = &r->shard[shard];
    if (!fstat(s->fd, &st) && is_same(s, &st))
        return 0;
    return waste_fetch_fail("%s/%s was changed while it was read", r->path, s->name);
}

static int done(struct waste_release *r, uint32_t shard)
{
    struct waste_release_shard *s = &r->shard[shard];
    char path[4096];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", r->path, s->name);
    if (!r->reclaim || s->gone)
        return 0;
    if (!stat(path, &st) && !is_same(s, &st))
        return waste_fetch_fail("%s is another file than the one that was read: it is not deleted",
                                path);
    if (unlink(path) && errno != ENOENT)
        return waste_fetch_fail("cannot delete %s: %s", path, strerror(errno));
    s->gone = true;
    return 0;
}

static int small(struct waste_release *r, const char *name, size_t limit, char **out, size_t *bytes)
{
    struct waste_error err;
    int rc = waste_container_read_file(r->path, name, limit, out, bytes, &err);
    if (rc == -ENOENT)
        return rc;
    return rc < 0 ? waste_fetch_fail("%s", err.text) : 0;
}

/* The first bytes of an open shard. 0 with malloc'd waste_release_probe() bytes. */
static int read_first(const struct waste_release *r, const char *name, int fd, uint64_t bytes,
                      char **out, size_t *json_bytes)
{
    uint8_t first[8] = {0};
    struct waste_error err;
    if (pread(fd, first, 8, 0) != 8)
        return waste_fetch_fail("%s/%s: %llu bytes are no safetensors file", r->path, name,
                                (unsigned long long)bytes);
    if (waste_safetensors_length(name, bytes, first, json_bytes, &err))
        return waste_fetch_fail("%s/%s", r->path, err.text);
    size_t probe = waste_release_probe(bytes, *json_bytes);
    char *text = malloc(probe);
    if (!text)
        return waste_fetch_fail("%s: out of memory", name);
    for (size_t done = 0; done < probe;) {
        ssize_t n = pread(fd, text + done, probe - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            waste_fetch_fail("cannot read %s/%s: %s", r->path, name,
                             n ? strerror(errno) : "it is shorter than it was");
            free(text);
            return -1;
        }
        done += (size_t)n;
    }
    *out = text;
    return 0;
}

/* 0, -1, or -ENOENT without a word. */
static int add_shard(struct waste_release *r, const char *name, const json_t *cached)
{
    struct stat st, self;
    char *first = NULL;
    size_t json_bytes = 0;
    int fd = open_shard(r, name, &st);
    if (fd == -ENOENT)
        return waste_release_add_kept(r, name, cached);
    if (fd < 0)
        return cannot_open(r, name, fd);
    uint64_t bytes = (uint64_t)st.st_size;
    int rc = read_first(r, name, fd, bytes, &first, &json_bytes);
    close(fd);
    if (rc == 0)
        rc = waste_release_add_shard(r, name, bytes, first, json_bytes);
    if (rc == 0) {
        struct waste_release_shard *s = &r->shard[r->shards - 1];
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", r->path, name);
        s->here = true;
        s->inode = st.st_ino;
        s->modified = modified(&st);
        s->link = !lstat(path, &self) && S_ISLNK(self.st_mode);
    }
    free(first);
    return rc;
}

static int add_shards(struct waste_release *r, char *const *names, uint32_t count,
                      const json_t *kept)
{
    char missing[400] = "";
    uint32_t lost = 0;
    for (uint32_t i = 0; i < count; i++) {
        int rc = add_shard(r, names[i], kept);
        if (rc == -ENOENT) {
            size_t n = strlen(missing);
            if (lost++ < 4)
                snprintf(missing + n, sizeof(missing) - n, "%s%s", lost > 1 ? ", " : "", names[i]);
        } else if (rc) {
            return -1;
        }
    }
    if (lost > 4)
        return waste_fetch_fail("%s: %u of %u shards are missing: %s and %u more", r->path, lost,
                                count, missing, lost - 4);
    if (lost)
        return waste_fetch_fail("%s: %u of %u shards %s missing: %s", r->path, lost, count,
                                lost > 1 ? "are" : "is", missing);
    return 0;
}

static char *headers(struct waste_release *r)
{
    json_t *all = json_object();
    char *text = NULL, *first;
    for (uint32_t i = 0; i < r->shards; i++) {
        struct stat st;
        size_t n;
        int fd = open_shard(r, r->shard[i].name, &st);
        if (fd < 0 || read_first(r, r->shard[i].name, fd, (uint64_t)st.st_size, &first, &n)) {
            if (fd >= 0)
                close(fd);
            goto out;
        }
        close(fd);
        int rc = waste_release_keep_header(all, &r->shard[i], first + 8, n);
        free(first);
        if (rc)
            goto out;
    }
    text = json_dumps(all, JSON_COMPACT);
out:
    json_decref(all);
    return text;
}

static const struct waste_release_ops local = {.want = want,
                                               .unchanged = unchanged,
                                               .done = done,
                                               .small = small,
                                               .add_shards = add_shards,
                                               .headers = headers};

int waste_release_open_local(struct waste_release *r, const char *path, const char *cached)
{
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return waste_fetch_cannot("open", path, errno);
    close(dir);
    *r = (struct waste_release){.ops = &local, .path = strdup(path)};
    int rc = r->path ? waste_release_list(r, cached) : waste_fetch_fail("out of memory");
    if (rc)
        waste_release_close(r);
    return rc;
}
