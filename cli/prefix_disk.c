#include "cli/prefix_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SUFFIX ".prefix"
#define LIVED "-lived"
#define BESIDE ".prefix.new" /* of a writer, see snapshot.h */
enum { STALE_SECONDS = 3600 };

void waste_prefix_path(const char *dir, const struct waste_prefix_key *key, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%016" PRIx64 "-%08" PRIx32 "-%016" PRIx64 "%s" SUFFIX, dir,
             key->fingerprint, key->position, key->hash, key->lived ? LIVED : "");
}

static bool has_end(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n > m && strcmp(name + n - m, end) == 0;
}

static bool read_name(const char *name, struct waste_prefix_key *key)
{
    int end = 0;

    if (sscanf(name, "%16" SCNx64 "-%8" SCNx32 "-%16" SCNx64 "%n", &key->fingerprint,
               &key->position, &key->hash, &end) != 3)
        return false;
    key->lived = strcmp(name + end, LIVED SUFFIX) == 0;
    return key->lived || strcmp(name + end, SUFFIX) == 0;
}

/* Longest first. */
static int by_position(const void *a, const void *b)
{
    const struct waste_prefix_key *x = a, *y = b;

    return (x->position < y->position) - (x->position > y->position);
}

/* The keys of the files that may be it; malloc'd. */
static struct waste_prefix_key *candidates(const struct waste_prefix_options *o,
                                           const struct waste_prefix_prompt *prompt,
                                           const uint64_t *hashes, uint32_t least,
                                           size_t *out_count)
{
    struct waste_prefix_key *list = NULL, key;
    DIR *dir = opendir(o->dir);
    size_t n = 0, room = 0;
    struct dirent *e;

    while (dir != NULL && (e = readdir(dir)) != NULL) {
        if (!read_name(e->d_name, &key) || key.fingerprint != o->shape.fingerprint ||
            key.position <= least || !waste_prefix_serves(prompt, key.position, key.lived) ||
            key.hash != hashes[key.position])
            continue;
        if (n == room) {
            struct waste_prefix_key *more = realloc(list, (room = room * 2 + 8) * sizeof(*list));
            if (more == NULL)
                break;
            list = more;
        }
        list[n++] = key;
    }
    if (dir != NULL)
        closedir(dir);
    if (n > 0)
        qsort(list, n, sizeof(*list), by_position);
    *out_count = n;
    return list;
}

void waste_prefix_lost(const struct waste_prefix_options *o, const struct waste_error *why)
{
    struct waste_error said;

    waste_error_set(&said, 0, "%.400s; what it kept is computed again", why->text);
    o->note(o->arg, WASTE_LOG_LOSS, said.text);
}

/* The file of this key, if it holds what its name says. */
static struct waste_snapshot_file *open_one(const struct waste_prefix_options *o,
                                            const struct waste_prefix_key *key, const uint32_t *ids)
{
    struct waste_snapshot_file *f;
    struct waste_error err;
    char path[PATH_MAX];

    waste_prefix_path(o->dir, key, path);
    int ret = waste_snapshot_open(path, &o->shape, key->position, &f, &err);
    if (ret == -EBADMSG || ret == -ESTALE || ret == -EFBIG) {
        waste_prefix_lost(o, &err);
        unlink(path);
    }
    if (ret < 0)
        return NULL;
    const struct waste_ids *held = waste_snapshot_ids(f);
    if (held->count != key->position || waste_snapshot_position(f) != key->position ||
        memcmp(held->id, ids, key->position * sizeof(*ids)) != 0) {
        waste_snapshot_close(f); /* other tokens of the same hash */
        return NULL;
    }
    utimensat(AT_FDCWD, path, NULL, 0); /* used now */
    return f;
}

struct waste_snapshot_file *waste_prefix_disk_find(const struct waste_prefix_options *options,
                                                   const struct waste_prefix_prompt *prompt,
                                                   const uint64_t *hashes, uint32_t least,
                                                   struct waste_prefix_key *key)
{
    struct waste_snapshot_file *f = NULL;
    size_t n;
    struct waste_prefix_key *list = candidates(options, prompt, hashes, least, &n);

    for (size_t i = 0; f == NULL && i < n; i++) {
        *key = list[i];
        f = open_one(options, key, prompt->ids);
    }
    free(list);
    return f;
}

struct file {
    char name[NAME_MAX + 1];
    uint64_t bytes;
    int64_t used_ns;
};

static int by_use(const void *a, const void *b)
{
    const struct file *x = a, *y = b;

    return (x->used_ns > y->used_ns) - (x->used_ns < y->used_ns);
}

/* Files of the store; malloc'd. Leftovers of dead writers are removed on the way. */
static struct file *list_files(DIR *dir, size_t *out_count, uint64_t *out_bytes)
{
    struct file *list = NULL;
    size_t n = 0, room = 0;
    struct dirent *e;
    struct stat st;

    *out_bytes = 0;
    while ((e = readdir(dir)) != NULL) {
        bool beside = has_end(e->d_name, BESIDE);

        if ((!beside && !has_end(e->d_name, SUFFIX)) ||
            fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (beside) {
            if (time(NULL) - st.st_mtime > STALE_SECONDS)
                unlinkat(dirfd(dir), e->d_name, 0);
            continue;
        }
        if (n == room) {
            struct file *more = realloc(list, (room = room * 2 + 8) * sizeof(*list));
            if (more == NULL)
                break;
            list = more;
        }
        snprintf(list[n].name, sizeof(list[n].name), "%s", e->d_name);
        list[n].bytes = (uint64_t)st.st_size;
        list[n].used_ns = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec;
        *out_bytes += list[n++].bytes;
    }
    *out_count = n;
    return list;
}

void waste_prefix_disk_trim(const char *path, uint64_t room)
{
    DIR *dir = opendir(path);
    uint64_t bytes;
    size_t n;

    if (dir == NULL)
        return;
    struct file *list = list_files(dir, &n, &bytes);
    if (bytes > room)
        qsort(list, n, sizeof(*list), by_use);
    for (size_t i = 0; bytes > room && i < n; i++) {
        unlinkat(dirfd(dir), list[i].name, 0);
        bytes -= list[i].bytes;
    }
    free(list);
    closedir(dir);
}
