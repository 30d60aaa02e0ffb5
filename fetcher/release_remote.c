/*
 * A release on a hub or at a URL: headers of shards and small files come over the net into memory,
 * shards into OUT/.staging when they are wanted, checked as `get` checks them, and are deleted when
 * nothing more is to be read from them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/courier.h"
#include "fetcher/io.h"
#include "fetcher/listing.h"
#include "fetcher/progress.h"
#include "fetcher/release.h"
#include "fetcher/verdict.h"

enum { HEADER_FIRST = 1 << 20 };

struct remote {
    struct waste_mirror m;
    struct waste_courier *courier; /* NULL until the first shard is wanted */
    char *staging;
    uint32_t *file; /* [shards] in the catalog */
    json_t *kept;   /* headers, until they are asked for */
    bool quiet;
};

/* ---- small files and headers ---- */

static int fail(const struct waste_release *r, const struct waste_error *err)
{
    return waste_fetch_fail("%s: %s", r->path, err->text);
}

static char *url_of(const struct remote *s, const char *name)
{
    return waste_address_file(&s->m.address, s->m.catalog.revision, name);
}

static int small(struct waste_release *r, const char *name, size_t limit, char **out, size_t *bytes)
{
    struct remote *s = r->state;
    const struct waste_file *f = waste_catalog_find(&s->m.catalog, name);
    struct waste_http_text text;
    struct waste_error err;
    char *url = f != NULL && !f->absent ? url_of(s, name) : NULL;

    if (f == NULL || f->absent)
        return -ENOENT;
    int rc = url == NULL ? waste_error_set(&err, -ENOMEM, "out of memory")
                         : waste_http_get(s->m.http, url, name, limit, NULL, &text, &err);
    free(url);
    if (rc == -ENOENT && f->optional)
        return rc;
    if (rc == 0 && waste_verdict_bytes(text.data, text.bytes, f, &err) != 0) {
        free(text.data);
        rc = -EIO;
    }
    if (rc != 0)
        return fail(r, &err);
    *out = text.data;
    *bytes = text.bytes;
    return 0;
}

/* At least the first `want` bytes of a shard, if it has them. Those of a small one are the whole,
 * whose sum may be known: a wrong one is asked for again, twice. */
static int get_first(const struct waste_release *r, const char *name, size_t want, uint64_t total,
                     struct waste_http_text *out)
{
    struct remote *s = r->state;
    const struct waste_file *f = &s->m.catalog.file[s->file[r->shards]];
    struct waste_error err;
    char *url = url_of(s, name);
    int rc = -EIO;

    if (url == NULL)
        return waste_fetch_fail("out of memory");
    for (int tries = 0; rc == -EIO && tries < 3; tries++) {
        rc = waste_http_get_first(s->m.http, url, name, want, total, NULL, out, &err);
        if (rc != 0)
            break;
        if (out->bytes == f->size && waste_verdict_bytes(out->data, out->bytes, f, &err) != 0) {
            free(out->data);
            out->data = NULL;
            rc = -EIO;
        }
    }
    free(url);
    return rc == 0 ? 0 : fail(r, &err);
}

/* The length of the header of a shard whose first bytes are here; 0 with the reason printed. */
static size_t header_length(const struct waste_release *r, const char *name, uint64_t bytes,
                            const struct waste_http_text *text)
{
    struct waste_error err;
    size_t length = 0;

    if (text->bytes < 8)
        waste_fetch_fail("%s/%s: %zu bytes are no safetensors file", r->path, name, text->bytes);
    else if (waste_safetensors_length(name, bytes, (const uint8_t *)text->data, &length, &err) != 0)
        fail(r, &err);
    return length;
}

static int fetch_header(struct waste_release *r, const char *name)
{
    struct remote *s = r->state;
    struct waste_http_text text;
    uint32_t shard = r->shards;

    uint64_t listed = s->m.catalog.file[s->file[shard]].size;

    if (get_first(r, name, HEADER_FIRST, listed, &text) != 0)
        return -1;
    uint64_t bytes = listed != WASTE_SIZE_UNKNOWN ? listed : text.total;
    size_t length = bytes == WASTE_SIZE_UNKNOWN ? 0 : header_length(r, name, bytes, &text);
    int rc = length > 0 ? 0 : -1;
    if (bytes == WASTE_SIZE_UNKNOWN)
        waste_fetch_fail("%s/%s: the server does not say how long it is", r->path, name);
    size_t probe = rc == 0 ? waste_release_probe(bytes, length) : 0;
    if (rc == 0 && text.bytes < probe) {
        free(text.data);
        text.data = NULL;
        rc = get_first(r, name, probe, bytes, &text);
    }
    if (rc == 0 && text.bytes < probe)
        rc = waste_fetch_fail("%s/%s: the server sends %zu bytes of its first %zu", r->path, name,
                              text.bytes, probe);
    if (rc == 0)
        rc = waste_release_add_shard(r, name, bytes, text.data, length);
    if (rc == 0)
        rc = waste_release_keep_header(s->kept, &r->shard[shard], text.data + 8, length);
    free(text.data);
    return rc;
}

static int add_kept(struct waste_release *r, const char *name, const json_t *kept)
{
    uint32_t shard = r->shards;
    int rc = waste_release_add_kept(r, name, kept);

    if (rc == 0)
        r->shard[shard].gone = false;
    return rc;
}

/* ---- shards ---- */

static int start(struct waste_release *r)
{
    struct remote *s = r->state;
    struct waste_error err;

    if (s->courier != NULL)
        return 0;
    if (waste_mirror_make(&s->m, &err) == 0)
        s->courier = waste_courier_start(&s->m, &err);
    return s->courier != NULL ? 0 : fail(r, &err);
}

/* What was fetched begins with the header and the values that were looked at. */
static int check_first(const struct waste_release *r, uint32_t shard, int fd)
{
    const struct waste_release_shard *s = &r->shard[shard];
    struct waste_digest d = {.bytes = 0};
    struct waste_error err;
    uint8_t first[8];
    size_t length = 0, probe = 0;
    char *text = NULL;

    if (pread(fd, first, 8, 0) == 8 &&
        waste_safetensors_length(s->name, s->bytes, first, &length, &err) == 0) {
        probe = waste_release_probe(s->bytes, length);
        text = malloc(probe);
    }
    if (text != NULL && pread(fd, text, probe, 0) == (ssize_t)probe)
        waste_digest_bytes(text, probe, false, &d);
    free(text);
    return strcmp(d.sha256, s->sum) == 0
               ? 0
               : waste_fetch_fail("%s/%s: its first bytes are not those that were seen at first",
                                  r->path, s->name);
}

static int open_staged(const struct waste_release *r, uint32_t shard)
{
    const struct remote *s = r->state;
    const struct waste_release_shard *w = &r->shard[shard];
    struct stat st;
    int fd = openat(s->m.dir, w->name, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return waste_fetch_fail("cannot open %s/%s: %s", s->staging, w->name, strerror(errno));
    int rc = fstat(fd, &st) != 0 || (uint64_t)st.st_size != w->bytes
                 ? waste_fetch_fail("%s/%s: other bytes came than the %llu that were announced",
                                    r->path, w->name, (unsigned long long)w->bytes)
                 : check_first(r, shard, fd);
    if (rc == 0)
        return fd;
    close(fd);
    return -1;
}

static int want(struct waste_release *r, uint32_t shard)
{
    struct remote *s = r->state;
    struct waste_error err;

    if (start(r) != 0)
        return -1;
    waste_courier_fetch(s->courier, s->file[shard]);
    if (waste_courier_wait(s->courier, s->file[shard], r->shard[shard].bytes, &err) != 0)
        return fail(r, &err);
    r->shard[shard].here = true;
    return open_staged(r, shard);
}

static void hint(struct waste_release *r, uint32_t shard)
{
    struct remote *s = r->state;

    if (start(r) == 0)
        waste_courier_fetch(s->courier, s->file[shard]);
}

static int done(struct waste_release *r, uint32_t shard)
{
    struct remote *s = r->state;

    if (!r->shard[shard].here) /* nor was it fetched */
        return 0;
    if (start(r) != 0)
        return -1;
    r->shard[shard].here = false;
    waste_courier_drop(s->courier, s->file[shard]);
    return 0;
}

static char *headers(struct waste_release *r)
{
    struct remote *s = r->state;
    char *text = json_dumps(s->kept, JSON_COMPACT);

    json_decref(s->kept);
    s->kept = json_object();
    return text;
}

/* ---- opening and closing ---- */

/* The commit and the sums are kept as long as another run may go on. */
static void remove_staging(const struct waste_release *r)
{
    struct remote *s = r->state;

    if (!r->used_up || s->m.dir < 0)
        return;
    unlinkat(s->m.dir, WASTE_CATALOG_NAME, 0);
    rmdir(s->staging);
}

static void close_remote(struct waste_release *r)
{
    struct remote *s = r->state;

    waste_courier_stop(s->courier);
    remove_staging(r);
    waste_mirror_close(&s->m);
    json_decref(s->kept);
    free(s->staging);
    free(s->file);
    free(s);
}

static int open_mirror(struct waste_release *r, const struct waste_release_remote *how)
{
    static const _Atomic bool never;
    struct remote *s = r->state;
    struct waste_error err;

    if (asprintf(&s->staging, "%s/.staging", how->out) < 0) {
        s->staging = NULL;
        return waste_fetch_fail("out of memory");
    }
    const struct waste_mirror_setup setup = {.source = how->source,
                                             .path = s->staging,
                                             .revision = how->revision,
                                             .jobs = how->jobs,
                                             .retries = how->retries,
                                             .stall_seconds = how->stall_seconds,
                                             .retry_wait = how->retry_wait,
                                             .quiet = how->quiet,
                                             .stop = &never};
    int rc = waste_mirror_open(&s->m, &setup, &err);
    if (rc == 0)
        rc = waste_mirror_settle(&s->m, &err);
    if (rc == 0)
        return 0;
    return (rc == -EINVAL ? waste_fetch_refuse : waste_fetch_fail)("%s", err.text);
}

static int add_shard(struct waste_release *r, const char *name, const json_t *kept)
{
    struct remote *s = r->state;
    const struct waste_file *f = waste_catalog_find(&s->m.catalog, name);

    if (f == NULL)
        return waste_fetch_fail("%s: the index names %s, which the listing does not have", r->path,
                                name);
    s->file[r->shards] = (uint32_t)(f - s->m.catalog.file);
    int rc = add_kept(r, name, kept);
    if (rc == -ENOENT)
        rc = fetch_header(r, name);
    if (rc == 0)
        r->shard[r->shards - 1].here = f->done;
    return rc;
}

static int add_shards(struct waste_release *r, char *const *names, uint32_t count,
                      const json_t *kept)
{
    struct remote *s = r->state;
    struct waste_progress p;
    int rc = 0;

    s->kept = json_object();
    s->file = calloc(count, sizeof(*s->file));
    if (s->kept == NULL || s->file == NULL)
        rc = waste_fetch_fail("out of memory");
    waste_progress_init(&p, "headers", (uint64_t)count * HEADER_FIRST, s->quiet);
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        rc = add_shard(r, names[i], kept);
        atomic_store(&p.done, (uint64_t)(i + 1) * HEADER_FIRST);
        waste_progress_show(&p);
    }
    waste_progress_finish(&p);
    return rc;
}

static const struct waste_release_ops remote = {.want = want,
                                                .hint = hint,
                                                .done = done,
                                                .small = small,
                                                .add_shards = add_shards,
                                                .headers = headers,
                                                .close = close_remote};

int waste_release_open_remote(struct waste_release *r, const struct waste_release_remote *how,
                              const char *cached)
{
    struct remote *s = calloc(1, sizeof(*s));

    *r = (struct waste_release){.ops = &remote, .state = s, .copies = true};
    if (s == NULL)
        return waste_fetch_fail("out of memory");
    s->m.dir = -1;
    s->quiet = how->quiet;
    int rc = open_mirror(r, how);
    if (rc == 0) {
        r->path = strdup(s->m.address.source);
        rc = r->path != NULL ? waste_release_list(r, cached) : waste_fetch_fail("out of memory");
    }
    if (rc != 0)
        waste_release_close(r);
    return rc;
}
