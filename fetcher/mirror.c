#include "fetcher/mirror.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fetcher/io.h"
#include "fetcher/listing.h"
#include "fetcher/part.h"
#include "fetcher/verdict.h"

enum { REVISION_BYTES = 200 };

/* ---- the directory ---- */

static int path_error(struct waste_error *err, int error, const char *what, const char *path)
{
    return waste_error_set(err, waste_exit_of_path(error) == WASTE_EXIT_USAGE ? -EINVAL : -error,
                           "cannot %s %s: %s", what, path, strerror(error));
}

static int open_directory(struct waste_mirror *m, struct waste_error *err)
{
    const char *path = m->s.path;

    m->made = m->s.make && mkdir(path, 0777) == 0;
    if (m->s.make && !m->made && errno != EEXIST)
        return path_error(err, errno, "make", path);
    m->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (m->dir < 0 && !m->s.make && errno == ENOENT)
        return 0;
    if (m->dir < 0)
        return path_error(err, errno, "open", path);
    if (waste_io_lock(m->dir, false))
        return 0;
    return waste_error_set(err, -EBUSY, "another waste-fetch is at work in %s", path);
}

/* ---- the token and the engine ---- */

static int check_token(const char *token, struct waste_error *err)
{
    for (const char *c = token; *c != '\0'; c++)
        if (*c <= 32 || *c >= 127)
            return waste_error_set(err, -EINVAL, "HF_TOKEN has characters that no token has");
    return strlen(token) <= 1024 ? 0 : waste_error_set(err, -EINVAL, "HF_TOKEN is too long");
}

struct waste_http *waste_mirror_engine(const struct waste_mirror *m, struct waste_error *err)
{
    const char *token = getenv("HF_TOKEN"), *hub = waste_address_hub();
    struct waste_http_options o = {.jobs = m->s.jobs,
                                   .retry = {.retries = m->s.retries, .wait = m->s.retry_wait},
                                   .stall_seconds = m->s.stall_seconds};

    if (token != NULL && *token != '\0') {
        if (check_token(token, err) != 0)
            return NULL;
        if (waste_address_is_private(hub)) {
            o.token = token;
            o.token_url = hub;
        }
    }
    return waste_http_create(&o, err);
}

/* ---- the catalog ---- */

/* A branch, a tag or a commit. */
static int check_revision(const char *revision, struct waste_error *err)
{
    bool bad = *revision == '\0' || strlen(revision) > REVISION_BYTES ||
               strstr(revision, "..") != NULL || *revision == '/';

    for (const char *c = revision; *c != '\0'; c++)
        bad |= *c <= 32 || *c >= 127 || *c == '\\';
    return bad ? waste_error_set(err, -EINVAL, "--revision '%.100s' is no branch, tag or commit",
                                 revision)
               : 0;
}

static bool same(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* The catalog is of this source, and of the revision that is asked for. */
static int check_catalog(const struct waste_mirror *m, struct waste_error *err)
{
    const struct waste_catalog *l = &m->catalog;
    const char *revision = m->s.revision;

    if (strcmp(l->source, m->address.source) != 0 || !same(l->endpoint, m->address.endpoint))
        return waste_error_set(err, -EINVAL, "%s holds %.200s%s%.100s: choose another directory",
                               m->s.path, l->source, l->endpoint != NULL ? " of " : "",
                               l->endpoint != NULL ? l->endpoint : "");
    if (revision == NULL || same(revision, l->asked) || same(revision, l->revision))
        return 0;
    return waste_error_set(err, -EINVAL, "%s holds revision %.100s: choose another directory",
                           m->s.path, l->revision != NULL ? l->revision : "(none)");
}

static struct waste_repo repo_of(const struct waste_mirror *m)
{
    return (struct waste_repo){
        .http = m->http, .address = &m->address, .revision = m->s.revision, .stop = m->s.stop};
}

int waste_mirror_save(struct waste_mirror *m, struct waste_error *err)
{
    return m->s.look_only || m->dir < 0 ? 0 : waste_catalog_save(m->dir, &m->catalog, err);
}

static int load_or_list(struct waste_mirror *m, struct waste_error *err)
{
    struct waste_repo repo = repo_of(m);
    int rc = m->dir < 0 ? -ENOENT : waste_catalog_load(m->dir, &m->catalog, err);

    if (rc == 0) {
        m->known = true;
        return check_catalog(m, err);
    }
    if (rc != -ENOENT)
        return rc;
    rc = waste_repo_list(&repo, &m->catalog, err);
    return rc != 0 ? rc : waste_listing_check(&m->catalog, err);
}

static bool asks_size(const struct waste_file *f)
{
    return f->wanted && !f->done && f->size == WASTE_SIZE_UNKNOWN;
}

/* Sizes are asked for once, if there are files that lack one. */
static int complete_sizes(struct waste_mirror *m, struct waste_error *err)
{
    struct waste_repo repo = repo_of(m);
    bool lacks = false;

    for (uint32_t i = 0; i < m->catalog.count; i++)
        lacks |= asks_size(&m->catalog.file[i]);
    return lacks ? waste_repo_ask_sizes(&repo, &m->catalog, err) : 0;
}

int waste_mirror_open(struct waste_mirror *m, const struct waste_mirror_setup *s,
                      struct waste_error *err)
{
    static const struct waste_strings none;

    *m = (struct waste_mirror){.s = *s, .dir = -1};
    int rc = waste_address_parse(s->source, &m->address, err);

    if (rc == 0 && s->revision != NULL && !m->address.hub)
        rc = waste_error_set(err, -EINVAL, "--revision is for a hub's OWNER/NAME, not for a URL");
    if (rc == 0 && s->revision != NULL)
        rc = check_revision(s->revision, err);
    if (rc == 0)
        m->http = waste_mirror_engine(m, err);
    if (rc == 0 && m->http == NULL)
        rc = -EINVAL;
    if (rc == 0)
        rc = open_directory(m, err);
    if (rc == 0)
        rc = load_or_list(m, err);
    if (rc == 0)
        rc = waste_repo_select(&m->catalog, s->include != NULL ? s->include : &none,
                               s->exclude != NULL ? s->exclude : &none, err);
    if (rc == 0)
        rc = complete_sizes(m, err);
    if (rc == 0)
        rc = waste_mirror_save(m, err);
    if (rc != 0 && m->made) /* an empty one is of no use to anybody; another is not removed */
        rmdir(s->path);
    if (rc != 0)
        waste_mirror_close(m);
    return rc;
}

int waste_mirror_make(struct waste_mirror *m, struct waste_error *err)
{
    int rc = 0;

    m->s.make = true;
    if (m->dir < 0)
        rc = open_directory(m, err);
    return rc == 0 ? waste_mirror_save(m, err) : rc;
}

void waste_mirror_close(struct waste_mirror *m)
{
    waste_http_destroy(m->http);
    waste_catalog_finish(&m->catalog);
    waste_address_finish(&m->address);
    if (m->dir >= 0)
        close(m->dir);
    m->http = NULL;
    m->dir = -1;
}

/* ---- what is there ---- */

static bool is_there(int dir, const struct waste_file *f)
{
    struct stat st;

    return fstatat(dir, f->name, &st, 0) == 0 && S_ISREG(st.st_mode) &&
           (f->size == WASTE_SIZE_UNKNOWN || (uint64_t)st.st_size == f->size);
}

/* Files to look at: those that are there without being done, and can be told to be right. */
static uint32_t choose_unsettled(struct waste_mirror *m, bool *look)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < m->catalog.count; i++) {
        struct waste_file *f = &m->catalog.file[i];
        bool there = is_there(m->dir, f);
        f->done &= there;
        look[i] = f->wanted && !f->done && there && waste_verdict_is_sure(f);
        count += look[i];
    }
    return count;
}

int waste_mirror_settle(struct waste_mirror *m, struct waste_error *err)
{
    bool *look = calloc(m->catalog.count + 1, sizeof(*look));
    struct waste_finding *finding = calloc(m->catalog.count + 1, sizeof(*finding));
    int rc = look == NULL || finding == NULL ? waste_error_set(err, -ENOMEM, "out of memory") : 0;

    if (rc == 0 && m->dir >= 0 && choose_unsettled(m, look) > 0) {
        rc = waste_verdict_all(m->dir, &m->catalog, look, m->s.jobs, "check", m->s.quiet, m->s.stop,
                               finding);
        if (rc != 0)
            waste_error_set(err, rc, "stopped");
        for (uint32_t i = 0; i < m->catalog.count && rc == 0; i++) {
            struct waste_file *f = &m->catalog.file[i];
            if (!look[i] || finding[i].found != WASTE_FOUND_RIGHT)
                continue;
            f->done = true;
            f->size = finding[i].digest.bytes;
            memcpy(f->actual, finding[i].digest.sha256, sizeof(f->actual));
            waste_part_remove(m->dir, f->name);
        }
    }
    if (rc == 0)
        rc = waste_mirror_save(m, err);
    free(look);
    free(finding);
    return rc;
}

void waste_mirror_measure(const struct waste_mirror *m, struct waste_mirror_sizes *out)
{
    *out = (struct waste_mirror_sizes){.total = 0};
    for (uint32_t i = 0; i < m->catalog.count; i++) {
        const struct waste_file *f = &m->catalog.file[i];
        uint64_t part = !f->wanted || f->done || m->dir < 0 ? 0 : waste_part_bytes(m->dir, f->name);
        if (!f->wanted)
            continue;
        out->files++;
        out->files_left += !f->done;
        if (f->size == WASTE_SIZE_UNKNOWN) {
            out->unknown++;
            continue;
        }
        part = part > f->size ? 0 : part;
        out->total += f->size;
        out->part += part;
        out->left += f->done ? 0 : f->size - part;
    }
}

int waste_mirror_free_bytes(const struct waste_mirror *m, uint64_t *out)
{
    struct statvfs v;
    char *parent = strdup(m->s.path), *slash;
    int rc;

    if (parent == NULL)
        return -ENOMEM;
    size_t n = strlen(parent);
    while (n > 1 && parent[n - 1] == '/')
        parent[--n] = '\0';
    slash = strrchr(parent, '/');
    if (slash != NULL)
        slash[slash == parent] = '\0';
    rc = m->dir >= 0 ? fstatvfs(m->dir, &v) : statvfs(slash != NULL ? parent : ".", &v);
    rc = rc != 0 ? -errno : 0;
    free(parent);
    if (rc == 0)
        *out = (uint64_t)v.f_bavail * v.f_frsize;
    return rc;
}
