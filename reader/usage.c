#include "reader/usage.h"
#include "reader/read.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x47535557, VERSION = 1, HEADER = 16, ENTRY = 16, NAME_ROOM = 256 };

/* Of a file that is being written; one that is older than this was left by a process that died. */
#define NEW ".new"
enum { OWN_DIGITS = 16, STALE_SECONDS = 3600 };

/* ---- bytes ---- */

static uint32_t get16(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

static uint32_t get32(const uint8_t *p)
{
    return get16(p) | get16(p + 2) << 16;
}

static void put32(uint8_t *p, uint32_t value)
{
    value = htole32(value);
    memcpy(p, &value, sizeof(value));
}

/* ---- reading ---- */

void waste_usage_free(struct waste_usage *u)
{
    free(u->entry);
    memset(u, 0, sizeof(*u));
}

size_t waste_usage_room(const struct waste_model *model)
{
    return HEADER + (size_t)model->config.layers * model->config.experts * ENTRY;
}

static int by_share(const void *a, const void *b)
{
    const struct waste_usage_entry *x = a, *y = b;
    if (x->share != y->share)
        return x->share < y->share ? 1 : -1;
    uint64_t kx = (uint64_t)x->layer << 32 | x->expert, ky = (uint64_t)y->layer << 32 | y->expert;
    return kx < ky ? -1 : kx > ky; /* so that the order does not depend on the sort */
}

static int check_header(const uint8_t *data, size_t bytes, const char *name,
                        const struct waste_model *model, struct waste_error *err)
{
    if (bytes < HEADER || get32(data) != MAGIC || get32(data + 4) != VERSION)
        return waste_error_set(err, -EINVAL, "%s: not a usage file of version 1", name);
    if (bytes > waste_usage_room(model) || (bytes - HEADER) % ENTRY != 0)
        return waste_error_set(err, -EINVAL,
                               "%s: %zu bytes, must be 16 and 16 for each expert, at most %zu",
                               name, bytes, waste_usage_room(model));
    return 0;
}

/* One entry; its hits go to `share` for now. */
static int take_entry(const uint8_t *data, size_t at, const char *name,
                      const struct waste_model *model, uint8_t *seen,
                      struct waste_usage_entry *entry, struct waste_error *err)
{
    uint32_t layer = get16(data + at), expert = get16(data + at + 2);
    const struct waste_layer *l =
        layer < model->config.layers ? waste_model_layer(model, layer) : NULL;
    if (!l || !l->is_moe || expert >= l->bank.experts || expert >= model->config.experts)
        return waste_error_set(err, -EINVAL, "%s: offset %zu: layer %u has no expert %u", name, at,
                               layer, expert);
    if (get32(data + at + 12) != 0)
        return waste_error_set(err, -EINVAL, "%s: offset %zu: the reserved word is %u, must be 0",
                               name, at, get32(data + at + 12));
    if (seen[layer * model->config.experts + expert]++)
        return waste_error_set(err, -EINVAL, "%s: offset %zu: layer %u, expert %u a second time",
                               name, at, layer, expert);
    *entry = (struct waste_usage_entry){layer, expert, (float)get32(data + at + 4)};
    return 0;
}

/* Hits into shares: of as many turns as the file can be about. */
static int weigh(struct waste_usage *u, const struct waste_model *model)
{
    uint32_t layers = model->config.layers;
    float *sum = calloc(layers, sizeof(*sum));
    if (!sum)
        return -ENOMEM;
    for (uint32_t i = 0; i < u->count; i++)
        sum[u->entry[i].layer] += u->entry[i].share;
    for (uint32_t i = 0; i < u->count; i++) {
        float turns =
            fmaxf(sum[u->entry[i].layer] / (float)model->config.top_k, waste_habit_memory());
        u->entry[i].share = fminf(u->entry[i].share / turns, 1);
    }
    free(sum);
    qsort(u->entry, u->count, sizeof(*u->entry), by_share);
    return 0;
}

int waste_usage_parse(const uint8_t *data, size_t bytes, const char *name,
                      const struct waste_model *model, struct waste_usage *u,
                      struct waste_error *err)
{
    memset(u, 0, sizeof(*u));
    int rc = check_header(data, bytes, name, model, err);
    if (rc < 0)
        return rc;
    uint32_t count = (uint32_t)((bytes - HEADER) / ENTRY);
    uint8_t *seen = calloc((size_t)model->config.layers * model->config.experts, 1);
    u->turns = get32(data + 8) | (uint64_t)get32(data + 12) << 32;
    u->entry = malloc((count + 1) * sizeof(*u->entry));
    rc = seen && u->entry ? 0 : waste_error_set(err, -ENOMEM, "%s: out of memory", name);
    for (; rc == 0 && u->count < count; u->count++)
        rc = take_entry(data, HEADER + (size_t)u->count * ENTRY, name, model, seen,
                        &u->entry[u->count], err);
    free(seen);
    if (rc == 0 && weigh(u, model) < 0)
        rc = waste_error_set(err, -ENOMEM, "%s: out of memory", name);
    if (rc < 0)
        waste_usage_free(u);
    return rc;
}

int waste_usage_load(int dir_fd, const char *name, const struct waste_model *model,
                     struct waste_usage *u, struct waste_error *err)
{
    struct stat st;
    uint8_t *data = NULL;
    size_t room = waste_usage_room(model) + 1;
    memset(u, 0, sizeof(*u));
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), rc = -errno;
    if (fd < 0)
        return rc == -ENOENT ? rc : waste_error_set(err, rc, "%s: %s", name, strerror(-rc));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        rc = waste_error_set(err, -EINVAL, "%s: not a regular file", name);
    } else if (!(data = malloc(room))) {
        rc = waste_error_set(err, -ENOMEM, "%s: out of memory", name);
    } else {
        ssize_t n = waste_read_at(fd, data, room, 0); /* a byte too many: it is too long */
        rc = n < 0 ? waste_error_set(err, (int)n, "%s: %s", name, strerror((int)-n))
                   : waste_usage_parse(data, (size_t)n, name, model, u, err);
    }
    free(data);
    close(fd);
    return rc;
}

/* ---- writing ---- */

size_t waste_usage_encode(const struct waste_habit *h, uint64_t turns, uint8_t *data)
{
    uint32_t most = 0, count = 0;
    for (uint32_t l = 0; l < h->layers; l++)
        most = h->turns[l] > most ? h->turns[l] : most;
    turns += most;
    for (uint32_t key = 0; key < h->layers * h->experts; key++) {
        uint32_t hits = (uint32_t)lroundf(waste_habit_uses(h, key));
        uint8_t *at = data + HEADER + (size_t)count * ENTRY;
        if (hits == 0)
            continue;
        uint32_t age = waste_habit_age(h, key);
        uint64_t seen = age && turns + 1 > age ? turns + 1 - age : 0;
        put32(at, key / h->experts | key % h->experts << 16);
        put32(at + 4, hits);
        put32(at + 8, seen < UINT32_MAX ? (uint32_t)seen : UINT32_MAX);
        put32(at + 12, 0);
        count++;
    }
    put32(data, MAGIC);
    put32(data + 4, VERSION);
    put32(data + 8, (uint32_t)turns);
    put32(data + 12, (uint32_t)(turns >> 32));
    return HEADER + (size_t)count * ENTRY;
}

static int write_all(int fd, const uint8_t *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, data + done, bytes - done);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return fsync(fd) < 0 ? -errno : 0;
}

/*
 * A process's number would not do for one's own: processes of other pid namespaces may have it too,
 * and the same directory.
 */
int waste_usage_write(int dir_fd, const char *name, const uint8_t *data, size_t bytes)
{
    char temporary[NAME_ROOM];
    uint64_t own;
    if (getrandom(&own, sizeof(own), 0) != sizeof(own))
        return -errno;
    int n = snprintf(temporary, sizeof(temporary), "%s.%0*" PRIx64 NEW, name, (int)OWN_DIGITS, own);
    if (n < 0 || n >= NAME_ROOM)
        return -ENAMETOOLONG;
    /* the only flags that a confined reader may open with: shm/confine.h */
    int fd = openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    int rc = write_all(fd, data, bytes);
    close(fd);
    if (rc == 0 && renameat(dir_fd, temporary, dir_fd, name) < 0)
        rc = -errno;
    if (rc < 0)
        unlinkat(dir_fd, temporary, 0);
    return rc;
}

/* NAME.0123456789abcdef.new */
static bool is_temporary(const char *file, const char *name)
{
    size_t n = strlen(name);
    return strncmp(file, name, n) == 0 && file[n] == '.' &&
           strspn(file + n + 1, "0123456789abcdef") == OWN_DIGITS &&
           strcmp(file + n + 1 + OWN_DIGITS, NEW) == 0;
}

void waste_usage_sweep(int dir_fd, const char *name)
{
    int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    struct stat st;
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (is_temporary(e->d_name, name) &&
            fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
            st.st_uid == geteuid() && time(NULL) - st.st_mtime > STALE_SECONDS)
            unlinkat(dir_fd, e->d_name, 0);
    if (dir)
        closedir(dir);
    else if (copy >= 0)
        close(copy);
}

/* ---- the thread ---- */

static void *save(void *arg)
{
    struct waste_usage_saver *s = arg;
    pthread_mutex_lock(&s->lock);
    while (s->due || !s->quit) {
        if (!s->due) {
            pthread_cond_wait(&s->change, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        int rc = waste_usage_write(s->dir_fd, s->name, s->data, s->bytes);
        pthread_mutex_lock(&s->lock);
        s->result = rc;
        s->due = false;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int waste_usage_saver_start(struct waste_usage_saver *s, int dir_fd, const char *name,
                            const struct waste_model *model)
{
    sigset_t all, old;
    memset(s, 0, sizeof(*s));
    s->dir_fd = dir_fd;
    s->name = name;
    s->data = malloc(waste_usage_room(model));
    if (!s->data)
        return -ENOMEM;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, NULL);
    sigfillset(&all);
    sigdelset(&all, SIGSYS); /* shm/confine.h */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = -pthread_create(&s->thread, NULL, save, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    s->running = rc == 0;
    if (rc < 0) {
        free(s->data);
        s->data = NULL;
    }
    return rc;
}

void waste_usage_saver_save(struct waste_usage_saver *s, const struct waste_habit *habit,
                            uint64_t turns)
{
    pthread_mutex_lock(&s->lock);
    if (!s->due) {
        s->bytes = waste_usage_encode(habit, turns, s->data);
        s->due = true;
        pthread_cond_signal(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
}

int waste_usage_saver_stop(struct waste_usage_saver *s)
{
    if (!s->running)
        return s->result;
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_signal(&s->change);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->running = false;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->change);
    free(s->data);
    s->data = NULL;
    return s->result;
}
