#include "cli/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/lockfile.h"
#include "cli/output.h"
#include "cli/state.h"

/* ---- the lock ---- */

static int in_use(const struct waste_durable *d)
{
    int fd = open(d->lock_path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    char pid[16] = "";
    ssize_t n = fd >= 0 ? read(fd, pid, sizeof(pid) - 1) : 0;

    if (fd >= 0)
        close(fd);
    pid[n > 0 ? strspn(pid, "0123456789") : 0] = '\0';
    return waste_fail(1, "%s: in use by another waste-run%s%s", d->path,
                      *pid != '\0' ? ", pid " : "", pid);
}

static int lock(struct waste_durable *d)
{
    char pid[16];

    snprintf(d->lock_path, sizeof(d->lock_path), "%s.lock", d->path);
    d->lock_fd = waste_lockfile_open(d->lock_path);
    if (d->lock_fd == -EWOULDBLOCK)
        return in_use(d);
    if (d->lock_fd < 0)
        return waste_fail(waste_exit_of_path(-d->lock_fd), "cannot write %s: %s", d->lock_path,
                          strerror(-d->lock_fd));
    d->used = true;
    snprintf(pid, sizeof(pid), "%d\n", getpid());
    if (ftruncate(d->lock_fd, 0) != 0 || write(d->lock_fd, pid, strlen(pid)) < 0)
        pid[0] = '\0'; /* a full disk: the lock holds without the number */
    return 0;
}

/* ---- the text ---- */

static json_t *asked_json(const struct waste_asked *a)
{
    char seed[24];

    snprintf(seed, sizeof(seed), "%016" PRIx64, a->how.seed);
    return json_pack("{s:b, s:i, s:[I, I], s:I, s:I, s:I, s:f, s:f, s:I, s:s, s:b}", "open",
                     (int)a->open, "status", (int)a->status, "marks", (json_int_t)a->marks.at[0],
                     (json_int_t)a->marks.at[1], "turn", (json_int_t)a->turn, "from",
                     (json_int_t)a->from, "n", (json_int_t)a->n, "temp", a->how.temp, "top_p",
                     a->how.top_p, "top_k", (json_int_t)a->how.top_k, "seed", seed, "ignore_eos",
                     (int)a->how.ignore_eos);
}

static void describe(struct waste_durable *d, struct waste_engine *e, const struct waste_talk *t)
{
    json_t *root = waste_talk_json(t, e->markup != NULL && waste_engine_thinks(e));
    char *text = NULL;

    if (root != NULL) {
        json_object_set_new(root, "raw", json_boolean(d->raw));
        json_object_set_new(root, "stale", json_boolean(t->stale));
        json_object_set_new(root, "cpu", json_string(d->arithmetic.cpu));
        json_object_set_new(root, "chunk", json_integer(d->arithmetic.chunk));
        json_object_set_new(root, "generated",
                            json_integer(t->stale ? 0 : (json_int_t)t->generated));
        if (d->asked.exists)
            json_object_set_new(root, "reply", asked_json(&d->asked));
        text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
        json_decref(root);
    }
    if (text != NULL) /* else the text before it goes on: out of memory is not the file's end */
        waste_autosave_describe(d->autosave, text, strlen(text));
}

/* A whole number of 0 to most; false if it is none. */
static bool number(const json_t *object, const char *name, uint64_t most, uint32_t *out)
{
    const json_t *value = json_object_get(object, name);
    json_int_t n = json_integer_value(value);

    if (!json_is_integer(value) || n < 0 || (uint64_t)n > most)
        return false;
    *out = (uint32_t)n;
    return true;
}

static bool real(const json_t *object, const char *name, double least, double most, double *out)
{
    const json_t *value = json_object_get(object, name);

    *out = json_number_value(value);
    return json_is_number(value) && *out >= least && *out <= most;
}

/* None is harmful: marks only cut a prompt. */
static void read_marks(const json_t *list, struct waste_marks *marks)
{
    for (size_t i = 0; i < WASTE_MARKS; i++) {
        json_int_t at = json_integer_value(json_array_get(list, i));
        waste_marks_add(marks, at > 0 ? (size_t)at : 0, WASTE_MARK_LEAST);
    }
}

/* False: not what describe() writes. */
static bool read_asked(const json_t *o, uint32_t count, uint32_t position, struct waste_asked *a)
{
    const char *seed = json_string_value(json_object_get(o, "seed"));
    uint32_t status;
    char *end;

    *a = (struct waste_asked){.exists = true};
    if (!number(o, "turn", count, &a->turn) || !number(o, "from", count, &a->from) ||
        !number(o, "n", 1u << 30, &a->n) || !number(o, "top_k", 1u << 30, &a->how.top_k) ||
        !number(o, "status", WASTE_REPLY_ERROR, &status) ||
        !real(o, "temp", 0, 100, &a->how.temp) || !real(o, "top_p", 1e-6, 1, &a->how.top_p) ||
        seed == NULL || strlen(seed) != 16 || a->turn > a->from)
        return false;
    a->status = (enum waste_reply_status)status;
    read_marks(json_object_get(o, "marks"), &a->marks);
    a->open = json_is_true(json_object_get(o, "open"));
    a->how.ignore_eos = json_is_true(json_object_get(o, "ignore_eos"));
    a->how.seed = strtoull(seed, &end, 16);
    if (a->open &&
        (a->from == 0 || count != (a->n > 0 && position >= a->from ? position + 1 : a->from) ||
         count > (uint64_t)a->from + a->n))
        return false;
    return *end == '\0';
}

/* What computed the state; nothing is known of a file that does not say. */
static void read_arithmetic(struct waste_durable *d, const json_t *root)
{
    const char *cpu = json_string_value(json_object_get(root, "cpu"));

    snprintf(d->its_cpu, sizeof(d->its_cpu), "%s", cpu != NULL ? cpu : "");
    d->its = (struct waste_arithmetic){.cpu = d->its_cpu};
    number(root, "chunk", UINT32_MAX, &d->its.chunk);
}

static bool is_foreign(const struct waste_durable *d)
{
    return strcmp(d->its.cpu, d->arithmetic.cpu) != 0 || d->its.chunk != d->arithmetic.chunk;
}

static int take_over(struct waste_durable *d, const struct waste_engine *e, struct waste_talk *t,
                     json_t *root, struct waste_error *err)
{
    const struct waste_ids *ids = waste_snapshot_ids(d->file);
    uint32_t position = waste_snapshot_position(d->file), generated;
    const json_t *reply = json_object_get(root, "reply");
    int ret = 0;

    d->raw = json_is_true(json_object_get(root, "raw"));
    read_arithmetic(d, root);
    if (!number(root, "generated", ids->count, &generated) ||
        (reply != NULL && !read_asked(reply, (uint32_t)ids->count, position, &d->asked)))
        return waste_error_set(err, -EBADMSG, "damaged: its text is not a conversation's");
    if (!d->raw && e->markup == NULL)
        return waste_error_set(err, -EINVAL, "a conversation in words, the model has none");
    if (!d->raw)
        ret = waste_talk_adopt(t, e, root, err);
    /* without a state nothing is gone on from but an open reply's prompt */
    t->stale = json_is_true(json_object_get(root, "stale")) || ids->count == 0 ||
               (position == 0 && !d->asked.open);
    t->generated = generated;
    if (ret == 0 && !t->stale) /* of an open reply's tokens the talk knows when it is over */
        ret = waste_ids_append(&t->ids, ids->id, d->asked.open ? d->asked.from : ids->count);
    return ret == -ENOMEM ? waste_error_set(err, ret, "out of memory") : ret;
}

/* One file. -EBADMSG: damaged. */
static int read_file(struct waste_durable *d, const struct waste_engine *e, struct waste_talk *t,
                     const char *path, struct waste_error *err)
{
    const struct waste_config *c = &e->model->config;
    struct waste_snapshot_shape shape;
    struct waste_error why;
    json_error_t where;
    json_t *root;

    waste_state_shape(e->model, &shape);
    int ret = waste_snapshot_open(path, &shape, c->max_context > 0 ? c->max_context : INT32_MAX,
                                  &d->file, err);
    if (ret < 0)
        return ret;
    const struct waste_text *text = waste_snapshot_text(d->file);
    root = json_loadb(text->bytes > 0 ? text->data : "", text->bytes,
                      JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &where);
    ret = root == NULL ? waste_error_set(&why, -EBADMSG, "damaged: its text is no JSON")
                       : take_over(d, e, t, root, &why);
    json_decref(root);
    if (ret < 0) {
        waste_snapshot_close(d->file);
        d->file = NULL;
        d->asked = (struct waste_asked){0};
        waste_error_set(err, ret, "%s: %s", path, why.text);
    }
    return ret;
}

/* FILE, or if it is damaged FILE.old. */
static int read_either(struct waste_durable *d, const struct waste_engine *e, struct waste_talk *t)
{
    struct waste_error err, older_err;
    char older[PATH_MAX + 4];

    int ret = read_file(d, e, t, d->path, &err);
    if (ret == 0 || ret == -ENOENT)
        return 0;
    if (ret != -EBADMSG)
        return waste_fail(2, "%s", err.text);
    snprintf(older, sizeof(older), "%s.old", d->path);
    ret = read_file(d, e, t, older, &older_err);
    if (ret == -ENOENT)
        return waste_fail(2, "%s, and there is no %s", err.text, older);
    if (ret < 0)
        return waste_fail(2, "%s; %s", err.text, older_err.text);
    d->damaged = true;
    fprintf(stderr, "waste-run: warning: %s; going on from %s, %zu tokens\n", err.text, older,
            waste_snapshot_ids(d->file)->count);
    return 0;
}

/* A link stays, what it leads to is replaced or made. 0 or -errno. */
static int resolve(const char *path, char out[PATH_MAX])
{
    char target[PATH_MAX];

    snprintf(out, PATH_MAX, "%s", path);
    for (int links = 0; links < 40; links++) {
        ssize_t n = readlink(out, target, sizeof(target) - 1);
        if (n < 0)
            return 0; /* no link, or nothing yet */
        target[n] = '\0';
        char *slash = strrchr(out, '/');
        size_t dir = target[0] != '/' && slash != NULL ? (size_t)(slash + 1 - out) : 0;
        if (dir + (size_t)n + sizeof(".lock") > PATH_MAX)
            return -ENAMETOOLONG;
        memcpy(out + dir, target, (size_t)n + 1);
    }
    return -ELOOP;
}

int waste_durable_open(struct waste_durable *d, struct waste_engine *e, struct waste_talk *t)
{
    const char *path = e->args->session_path;

    *d = (struct waste_durable){.arithmetic = waste_engine_arithmetic(e)};
    if (path == NULL)
        return 0;
    if (*path == '\0' || strlen(path) >= PATH_MAX - 8)
        return waste_fail(2, "option --session: no name of a file");
    int ret = resolve(path, d->path);
    if (ret < 0)
        return waste_fail(2, "cannot read %s: %s", path, strerror(-ret));
    int rc = lock(d);
    return rc == 0 ? read_either(d, e, t) : rc;
}

/* ---- while the pipeline runs ---- */

static void warn(const char *text)
{
    fprintf(stderr, "waste-run: warning: %s\n", text);
}

static int put_back(struct waste_durable *d, struct waste_engine *e, size_t known)
{
    const struct waste_ids *ids = waste_snapshot_ids(d->file);
    uint32_t position = waste_snapshot_position(d->file);
    struct waste_snapshot_place to;
    struct waste_error err;

    if (known == 0 || position == 0)
        return 0;
    waste_client_replace(&e->client);
    waste_state_place(&e->pipeline, 0, &to);
    if (waste_snapshot_load(d->file, &to, &err) < 0)
        return waste_fail(2, "%s", err.text);
    memcpy(waste_pipeline_log(&e->pipeline), ids->id, ids->count * sizeof(*ids->id));
    e->foreign = is_foreign(d);
    waste_client_restore(&e->client, (uint32_t)known, position, 0);
    return 0;
}

int waste_durable_fit(const struct waste_durable *d, const struct waste_engine *e,
                      uint32_t *out_ctx)
{
    const struct waste_ids *ids = waste_snapshot_ids(d->file);
    uint32_t position = waste_snapshot_position(d->file), from = d->asked.from;
    uint32_t held = position > from ? position : from; /* the newest token takes no place yet */

    if (e->args->ctx > 0 && ids->count > e->args->ctx)
        return waste_fail(2, "%s: %zu tokens, the context holds %u (--ctx)", d->path, ids->count,
                          e->args->ctx);
    return waste_engine_fit(e, ids->id, held, from + d->asked.n - held, out_ctx);
}

int waste_durable_prompt(const struct waste_durable *d, struct waste_ids *turn,
                         struct waste_marks *marks)
{
    const struct waste_asked *a = &d->asked;
    uint32_t position = d->file != NULL ? waste_snapshot_position(d->file) : 0;

    *marks = (struct waste_marks){0};
    if (!a->exists || !a->open || position >= a->from)
        return 0;
    for (unsigned i = 0; i < a->marks.count; i++) /* a mark that lies behind us cuts nothing */
        if (a->turn + a->marks.at[i] > position)
            marks->at[marks->count++] = a->turn + a->marks.at[i] - position;
    return waste_ids_append(turn, waste_snapshot_ids(d->file)->id + position, a->from - position);
}

int waste_durable_start(struct waste_durable *d, struct waste_engine *e, size_t known)
{
    struct waste_error err;
    int rc = 0;

    if (!d->used)
        return 0;
    if (d->file != NULL)
        rc = put_back(d, e, known);
    waste_snapshot_close(d->file);
    d->file = NULL;
    if (rc != 0)
        return rc;
    if (waste_autosave_start(&e->pipeline, e->supervisor, d->path, e->args->session_every,
                             !d->damaged, warn, &d->autosave, &err) != 0)
        return waste_fail(1, "%s", err.text);
    e->client.autosave = d->autosave;
    return 0;
}

void waste_durable_ask(struct waste_durable *d, struct waste_engine *e, const struct waste_talk *t,
                       const struct waste_asked *asked)
{
    if (!d->used)
        return;
    if (asked->open && d->its_cpu[0] != '\0' && is_foreign(d))
        fprintf(
            stderr,
            "waste-run: warning: %s: the reply was begun with %s and --chunk %u and goes on with "
            "%s and %u: it may become another\n",
            d->path, d->its.cpu, d->its.chunk, d->arithmetic.cpu, d->arithmetic.chunk);
    d->asked = *asked;
    d->asked.exists = d->asked.open = true;
    describe(d, e, t);
}

void waste_durable_rest(struct waste_durable *d, struct waste_engine *e, const struct waste_talk *t,
                        enum waste_reply_status status)
{
    /* relaxed: no request runs, so nothing moves it */
    uint64_t commit = atomic_load_explicit(&e->pipeline.session->commit, memory_order_relaxed);

    if (!d->used)
        return;
    d->asked.open = false;
    d->asked.status = status;
    if (t->stale)
        d->asked.exists = false;
    describe(d, e, t);
    waste_autosave_rest(d->autosave, waste_commit_epoch(commit),
                        t->stale ? 0 : (uint32_t)t->ids.count);
}

int waste_durable_finish(struct waste_durable *d, struct waste_engine *e)
{
    if (!d->used)
        return 0;
    e->client.autosave = NULL;
    bool saved = waste_autosave_finish(d->autosave) == 0;
    waste_snapshot_close(d->file);
    unlink(d->lock_path);
    close(d->lock_fd);
    d->used = false;
    return saved ? 0 : WASTE_EXIT_UNSAVED;
}
