#include "fetcher/download.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fetcher/finish.h"
#include "fetcher/listing.h"
#include "fetcher/part.h"

struct item {
    struct waste_download *d;
    struct waste_file *file;
    enum waste_download_state state;
    struct waste_transfer transfer;
    struct waste_finish_job job;
    struct waste_part part;
    char *url;
    bool repeated; /* all of it was fetched again because it was wrong */
    struct waste_error error;
};

struct waste_download {
    struct waste_download_setup s;
    struct waste_finisher *finisher;
    struct item *item; /* one a file of the catalog */
    uint32_t busy;
    uint64_t received;
    bool broken;
    struct waste_error error;
};

/* The directory, not the file, is what fails: nothing more is tried. Returns -1. */
static int break_down(struct waste_download *d, struct waste_transfer *t, int rc, const char *what)
{
    const char *more =
        rc == -ENOSPC || rc == -EDQUOT ? "; make room, the same command goes on" : "";

    if (!d->broken)
        waste_error_set(&d->error, rc, "%s/%s: %s: %s%s", d->s.path, t->name, what, strerror(-rc),
                        more);
    d->broken = true;
    return waste_transfer_never(t, "%s: %s: %s", t->name, what, strerror(-rc));
}

static int save(struct waste_download *d)
{
    struct waste_error err;

    if (waste_catalog_save(d->s.dir, d->s.catalog, &err) == 0)
        return 0;
    if (!d->broken)
        waste_error_set(&d->error, 0, "%s: %.400s", d->s.path, err.text);
    d->broken = true;
    return -1;
}

/* ---- the part ---- */

static void take_back(struct item *it, uint64_t bytes)
{
    atomic_fetch_sub_explicit(it->d->s.done, bytes, memory_order_relaxed);
}

static int begin_anew(struct item *it)
{
    uint64_t had = it->part.bytes;
    int rc = waste_part_empty(&it->part);

    if (rc != 0)
        return break_down(it->d, &it->transfer, rc, "cannot be emptied");
    take_back(it, had);
    return 0;
}

/* What an earlier attempt left is only worth going on from if it can be told whether it is still
 * the same file: by a validator now, or by a digest at the end. */
static bool may_resume(const struct item *it)
{
    const struct waste_file *f = it->file;
    bool sure = f->sha256[0] != '\0' || f->git_id[0] != '\0';

    if (it->transfer.status == 416 || (f->size != WASTE_SIZE_UNKNOWN && it->part.bytes > f->size))
        return false;
    return sure || f->etag[0] != '\0';
}

static int prepare(struct waste_transfer *t)
{
    struct item *it = t->ctx;
    const struct waste_file *f = it->file;

    if (it->d->broken)
        return waste_transfer_never(t, "%s", it->d->error.text);
    int rc = it->part.fd < 0 ? waste_part_open(it->d->s.dir, f->name, &it->part) : 0;
    if (rc != 0)
        return break_down(it->d, t, rc, "cannot be opened");
    if (it->part.bytes > 0 && !may_resume(it) && begin_anew(it) != 0)
        return -1;
    t->status = 0;
    t->offset = it->part.bytes;
    t->validator = f->etag[0] != '\0' ? f->etag : NULL;
    t->size_known = f->size_given;
    return f->size_given && it->part.bytes == f->size && f->size > 0;
}

/* ---- the response ---- */

/* What If-Range may say: a strong entity tag, or else a date. */
static const char *validator_of(const struct waste_response *r)
{
    if (r->etag[0] == '"')
        return r->etag;
    return r->etag[0] == '\0' ? r->modified : "";
}

/* "HEX" in quotes, as the hub gives it for what is in LFS. */
static void take_sha256(const char *etag, struct waste_file *f)
{
    char hex[WASTE_SHA256_TEXT];
    const char *begin = etag + (*etag == '"');
    size_t length = strcspn(begin, "\"");

    if (f->sha256[0] != '\0' || length != sizeof(hex) - 1)
        return;
    memcpy(hex, begin, length);
    hex[length] = '\0';
    if (!waste_listing_is_hex(hex, length))
        return;
    for (size_t i = 0; i < length; i++)
        if (hex[i] >= 'A' && hex[i] <= 'F')
            hex[i] = (char)(hex[i] - 'A' + 'a');
    memcpy(f->sha256, hex, sizeof(hex));
}

/* A part of the file: exactly the one that was asked for, of the same file. */
static int take_part(struct item *it, const struct waste_response *r)
{
    struct waste_transfer *t = &it->transfer;
    struct waste_file *f = it->file;
    const char *validator = validator_of(r);
    bool other = f->etag[0] == '"' && validator[0] == '"' && strcmp(f->etag, validator) != 0;
    bool total = r->total != WASTE_SIZE_UNKNOWN && f->size != WASTE_SIZE_UNKNOWN;

    if (r->range_first == t->offset && !other && !(total && r->total != f->size) &&
        (r->length == WASTE_SIZE_UNKNOWN || r->length == r->range_last - r->range_first + 1))
        return 0;
    if (begin_anew(it) != 0)
        return -1;
    if (other || r->range_first == t->offset)
        return waste_transfer_again(t, "%s: it has changed at the server", t->name);
    return waste_transfer_again(
        t, "%s: the server sends bytes from %llu, from %llu on were asked for", t->name,
        (unsigned long long)r->range_first, (unsigned long long)t->offset);
}

/* The whole file from its beginning, whatever was there before. */
static int take_whole(struct item *it, const struct waste_response *r)
{
    struct waste_transfer *t = &it->transfer;
    struct waste_file *f = it->file;

    if (it->part.bytes > 0 && begin_anew(it) != 0)
        return -1;
    if (f->size_given && r->length != WASTE_SIZE_UNKNOWN && r->length != f->size)
        return waste_transfer_again(t, "%s: the server has %llu bytes, the listing %llu", t->name,
                                    (unsigned long long)r->length, (unsigned long long)f->size);
    if (!f->size_given)
        f->size = r->length;
    const char *validator = validator_of(r);
    take_sha256(r->linked_etag, f);
    if (strcmp(f->etag, validator) == 0)
        return 0;
    memcpy(f->etag, validator, strlen(validator) + 1);
    return save(it->d) == 0 ? 0 : waste_transfer_never(t, "%s", it->d->error.text);
}

static int response(struct waste_transfer *t, const struct waste_response *r)
{
    struct item *it = t->ctx;

    return r->status == 206 ? take_part(it, r) : take_whole(it, r);
}

static int body(struct waste_transfer *t, const void *data, size_t n)
{
    struct item *it = t->ctx;
    uint64_t size = it->file->size;

    it->d->received += n;
    if (size != WASTE_SIZE_UNKNOWN && n > size - it->part.bytes) {
        if (begin_anew(it) != 0)
            return -1;
        return waste_transfer_again(t, "%s: the server sends more than its %llu bytes", t->name,
                                    (unsigned long long)size);
    }
    int rc = waste_part_append(&it->part, data, n);
    if (rc != 0)
        return break_down(it->d, t, rc, "cannot be written");
    atomic_fetch_add_explicit(it->d->s.done, n, memory_order_relaxed);
    return 0;
}

static int complete(struct waste_transfer *t)
{
    struct item *it = t->ctx;
    struct waste_file *f = it->file;

    if (f->size != WASTE_SIZE_UNKNOWN && it->part.bytes < f->size)
        return waste_transfer_again(t, "%s: the server ends after %llu of %llu bytes", t->name,
                                    (unsigned long long)it->part.bytes,
                                    (unsigned long long)f->size);
    f->size = it->part.bytes;
    return 0;
}

/* ---- the end ---- */

static void set_state(struct item *it, enum waste_download_state state)
{
    bool was = it->state == WASTE_DOWNLOAD_FETCHING || it->state == WASTE_DOWNLOAD_CHECKING;
    bool is = state == WASTE_DOWNLOAD_FETCHING || state == WASTE_DOWNLOAD_CHECKING;

    it->d->busy += (uint32_t)is - (uint32_t)was;
    it->state = state;
    if (!is)
        waste_part_close(&it->part);
}

static void fail(struct item *it, const struct waste_error *err)
{
    it->error = *err;
    set_state(it, WASTE_DOWNLOAD_FAILED);
}

static bool is_absent(const struct item *it)
{
    long status = it->transfer.status;

    return it->file->optional && (status == 404 || status == 410 || status == 403);
}

static void ended(struct waste_transfer *t)
{
    struct item *it = t->ctx;

    if (t->state == WASTE_TRANSFER_DONE) {
        it->job = (struct waste_finish_job){.fd = it->part.fd, .file = *it->file, .ctx = it};
        set_state(it, WASTE_DOWNLOAD_CHECKING);
        waste_finisher_put(it->d->finisher, &it->job);
    } else if (is_absent(it)) {
        waste_part_remove(it->d->s.dir, it->file->name);
        it->file->wanted = false;
        it->file->absent = true;
        set_state(it, WASTE_DOWNLOAD_ABSENT);
        save(it->d);
    } else {
        fail(it, &t->error);
    }
}

static const struct waste_transfer_ops ops = {
    .prepare = prepare, .response = response, .body = body, .complete = complete, .ended = ended};

static void publish(struct item *it)
{
    struct waste_download *d = it->d;
    struct waste_file *f = it->file;
    int rc = waste_part_publish(d->s.dir, f->name);

    if (rc != 0) {
        break_down(d, &it->transfer, rc, "cannot be put in place");
        fail(it, &d->error);
        return;
    }
    f->done = true;
    f->dropped = false;
    f->etag[0] = '\0';
    memcpy(f->actual, it->job.digest.sha256, sizeof(f->actual));
    set_state(it, save(d) == 0 ? WASTE_DOWNLOAD_DONE : WASTE_DOWNLOAD_FAILED);
}

/* Wrong bytes are fetched once more, from the beginning; wrong again, and they are given up. */
static void finished(struct item *it)
{
    if (it->job.rc == 0) {
        publish(it);
    } else if (it->job.rc != -EBADMSG) {
        it->d->broken = true;
        it->d->error = it->job.err;
        fail(it, &it->job.err);
    } else if (begin_anew(it) != 0) {
        fail(it, &it->d->error);
    } else if (!it->repeated) {
        it->repeated = true;
        it->file->etag[0] = '\0';
        set_state(it, WASTE_DOWNLOAD_FETCHING);
        waste_http_add(it->d->s.http, &it->transfer);
    } else {
        struct waste_error err;
        waste_error_set(&err, 0, "%.440s; it was fetched twice", it->job.err.text);
        waste_part_remove(it->d->s.dir, it->file->name);
        fail(it, &err);
    }
}

/* ---- all of it ---- */

static void wake(void *http)
{
    waste_http_wake(http);
}

/* Which start of the machine this is; "" if that cannot be told. */
static void read_boot_id(char out[WASTE_BOOT_TEXT])
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (f == NULL || fgets(out, WASTE_BOOT_TEXT, f) == NULL)
        out[0] = '\0';
    if (f != NULL)
        fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

/* After a start of the machine a part may have its size and not its bytes: without a digest to find
 * out by, it is not gone on from. */
static void distrust_parts(struct waste_catalog *l)
{
    char boot[WASTE_BOOT_TEXT];

    read_boot_id(boot);
    for (uint32_t i = 0; i < l->count; i++)
        if (boot[0] == '\0' || strcmp(boot, l->boot) != 0)
            l->file[i].etag[0] = '\0';
    memcpy(l->boot, boot, sizeof(boot));
}

struct waste_download *waste_download_create(const struct waste_download_setup *s,
                                             struct waste_error *err)
{
    struct waste_download *d = calloc(1, sizeof(*d));

    if (d != NULL) {
        d->s = *s;
        d->item = calloc(s->catalog->count + 1, sizeof(*d->item));
    }
    if (d == NULL || d->item == NULL) {
        free(d);
        waste_error_set(err, -ENOMEM, "out of memory");
        return NULL;
    }
    for (uint32_t i = 0; i < s->catalog->count; i++) {
        struct item *it = &d->item[i];
        *it = (struct item){.d = d, .file = &s->catalog->file[i], .part.fd = -1};
    }
    distrust_parts(s->catalog);
    d->finisher = waste_finisher_create(wake, s->http, err);
    if (d->finisher != NULL)
        return d;
    free(d->item);
    free(d);
    return NULL;
}

void waste_download_destroy(struct waste_download *d)
{
    if (d == NULL)
        return;
    waste_finisher_destroy(d->finisher);
    for (uint32_t i = 0; i < d->s.catalog->count; i++) {
        waste_http_cancel(d->s.http, &d->item[i].transfer);
        waste_part_close(&d->item[i].part);
        free(d->item[i].url);
    }
    free(d->item);
    free(d);
}

void waste_download_add(struct waste_download *d, uint32_t i)
{
    struct item *it = &d->item[i];

    if (d->broken || it->state == WASTE_DOWNLOAD_FETCHING || it->state == WASTE_DOWNLOAD_CHECKING)
        return;
    it->repeated = false;
    set_state(it, WASTE_DOWNLOAD_FETCHING);
    if (it->url == NULL)
        it->url = waste_address_file(d->s.address, d->s.catalog->revision, it->file->name);
    it->transfer =
        (struct waste_transfer){.url = it->url, .name = it->file->name, .ops = &ops, .ctx = it};
    if (it->url == NULL) {
        break_down(d, &it->transfer, -ENOMEM, "cannot be asked for");
        fail(it, &d->error);
        return;
    }
    atomic_fetch_add_explicit(d->s.done, waste_part_bytes(d->s.dir, it->file->name),
                              memory_order_relaxed);
    it->file->done = false;
    waste_http_add(d->s.http, &it->transfer);
}

uint32_t waste_download_step(struct waste_download *d, int timeout_ms)
{
    struct waste_finish_job *job;

    if (d->broken)
        return 0;
    waste_http_step(d->s.http, timeout_ms);
    while ((job = waste_finisher_take(d->finisher)) != NULL)
        finished(job->ctx);
    return d->broken ? 0 : d->busy;
}

enum waste_download_state waste_download_state(const struct waste_download *d, uint32_t i)
{
    return d->item[i].state;
}

const struct waste_error *waste_download_error(const struct waste_download *d, uint32_t i)
{
    return &d->item[i].error;
}

const struct waste_error *waste_download_broken(const struct waste_download *d)
{
    return d->broken ? &d->error : NULL;
}

uint64_t waste_download_received(const struct waste_download *d)
{
    return d->received;
}
