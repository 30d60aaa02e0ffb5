#include "cli/prefix.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/background.h"
#include "cli/prefix_int.h"

struct waste_prefix_entry {
    struct waste_prefix_entry *next; /* used before this one */
    struct waste_prefix_key key;
    uint32_t *ids;
    struct waste_snapshot_place state; /* its rows layer after layer */
    uint64_t bytes;
    bool to_disk; /* the thread is to write it, or does: it stays */
    bool on_disk; /* was written */
};

struct waste_prefix {
    struct waste_prefix_options options;
    pthread_t thread;

    pthread_mutex_t lock; /* of the following */
    pthread_cond_t work, written;
    struct waste_prefix_entry *newest;
    struct waste_prefix_entry *held; /* is about to be put back: it stays */
    uint64_t used;                   /* bytes of all entries */
    uint64_t memory_bytes;           /* and their limit */
    bool quit, noted;
};

static void free_entry(struct waste_prefix_entry *e)
{
    if (e == NULL)
        return;
    free(e->ids);
    free(e->state.bank);
    free(e->state.rows);
    free(e);
}

uint64_t waste_prefix_bytes(const struct waste_snapshot_shape *shape, uint32_t position)
{
    return sizeof(struct waste_prefix_entry) + 4 * (uint64_t)position + shape->bank_bytes +
           (uint64_t)shape->mla_layers * shape->row_bytes * position;
}

/* ---- memory ---- */

/* Where what was not used for longest is; NULL: there is none that may go. */
static struct waste_prefix_entry **oldest_at(struct waste_prefix *s)
{
    struct waste_prefix_entry **found = NULL;

    for (struct waste_prefix_entry **at = &s->newest; *at != NULL; at = &(*at)->next)
        if (*at != s->held)
            found = at;
    return found;
}

/* Drops what was not used for longest until there is room; `wait`: for what is on its way to the
 * disk, too. False: there is too little memory for it. With the lock. */
static bool make_room(struct waste_prefix *s, uint64_t bytes, bool wait)
{
    struct waste_prefix_entry **at;

    while (s->used + bytes > s->memory_bytes && bytes <= s->memory_bytes &&
           (at = oldest_at(s)) != NULL) {
        struct waste_prefix_entry *e = *at;

        if (e->to_disk && !wait)
            return false;
        if (e->to_disk) {
            pthread_cond_wait(&s->written, &s->lock);
            continue;
        }
        *at = e->next;
        s->used -= e->bytes;
        free_entry(e);
    }
    return s->used + bytes <= s->memory_bytes;
}

void waste_prefix_limit(struct waste_prefix *s, uint64_t memory_bytes)
{
    pthread_mutex_lock(&s->lock);
    s->memory_bytes = memory_bytes;
    make_room(s, 0, false);
    pthread_mutex_unlock(&s->lock);
    malloc_trim(0); /* what was given up is to be had */
}

/* ---- the disk ---- */

static void say_once(struct waste_prefix *s, const char *text)
{
    pthread_mutex_lock(&s->lock);
    bool said = s->noted;
    s->noted = true;
    pthread_mutex_unlock(&s->lock);
    if (!said)
        s->options.note(s->options.arg, WASTE_LOG_WARNING, text);
}

/* Writes one, unless it is there or is too large. */
static void write_file(struct waste_prefix *s, const struct waste_prefix_key *key,
                       const uint32_t *ids, const struct waste_snapshot_place *state)
{
    const struct waste_prefix_options *o = &s->options;
    struct waste_snapshot snapshot = {
        .ids = ids, .count = key->position, .position = key->position, .state = *state};
    struct waste_error err;
    char path[PATH_MAX];

    if (o->dir == NULL || waste_prefix_bytes(&o->shape, key->position) > o->disk_bytes)
        return;
    waste_prefix_path(o->dir, key, path);
    if (access(path, F_OK) == 0)
        return;
    int ret = waste_snapshot_write(path, &o->shape, &snapshot, false, &err);
    if (ret < 0 && ret != -EBUSY) /* another process writes the same */
        say_once(s, err.text);
    waste_prefix_disk_trim(o->dir, o->disk_bytes);
}

static struct waste_prefix_entry *next_to_write(const struct waste_prefix *s)
{
    struct waste_prefix_entry *e = s->newest;

    while (e != NULL && !e->to_disk)
        e = e->next;
    return e;
}

static void *run(void *arg)
{
    struct waste_prefix *s = arg;

    waste_background_nice();
    pthread_mutex_lock(&s->lock);
    for (;;) {
        struct waste_prefix_entry *e = next_to_write(s);

        if (e == NULL && s->quit)
            break;
        if (e == NULL) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        write_file(s, &e->key, e->ids, &e->state);
        pthread_mutex_lock(&s->lock);
        e->on_disk = true; /* or cannot be */
        e->to_disk = false;
        make_room(s, 0, false); /* its turn may have come meanwhile */
        pthread_cond_signal(&s->written);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int waste_prefix_create(const struct waste_prefix_options *options, struct waste_prefix **out,
                        struct waste_error *err)
{
    struct waste_prefix *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return waste_error_set(err, -ENOMEM, "out of memory");
    s->options = *options;
    s->memory_bytes = options->memory_bytes;
    s->options.dir = options->dir != NULL ? strdup(options->dir) : NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->written, NULL);
    int ret = waste_background_start(&s->thread, run, s);
    if (ret < 0) {
        free((char *)s->options.dir);
        free(s);
        return waste_error_set(err, ret, "cannot start a thread: %s", strerror(-ret));
    }
    *out = s;
    return 0;
}

void waste_prefix_destroy(struct waste_prefix *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    for (struct waste_prefix_entry *e = s->newest, *next; e != NULL; e = next) {
        next = e->next;
        free_entry(e);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->written);
    free((char *)s->options.dir);
    free(s);
}

/* ---- finding ---- */

bool waste_prefix_serves(const struct waste_prefix_prompt *prompt, uint32_t position, bool lived)
{
    if (position >= prompt->count)
        return false;
    for (unsigned i = 0; !lived && i < prompt->cuts; i++)
        lived = prompt->cut[i] == position;
    return lived;
}

static bool is_of(const struct waste_prefix_entry *e, const uint32_t *ids)
{
    return memcmp(e->ids, ids, e->key.position * sizeof(*ids)) == 0;
}

/* In memory. */
static struct waste_prefix_entry *longest(const struct waste_prefix *s,
                                          const struct waste_prefix_prompt *prompt)
{
    struct waste_prefix_entry *best = NULL;

    for (struct waste_prefix_entry *e = s->newest; e != NULL; e = e->next)
        if ((best == NULL || e->key.position > best->key.position) &&
            waste_prefix_serves(prompt, e->key.position, e->key.lived) && is_of(e, prompt->ids))
            best = e;
    return best;
}

/* hashes[i] of the first i tokens; malloc'd, or NULL. */
static uint64_t *hash_all(const struct waste_prefix *s, const uint32_t *ids, uint32_t count)
{
    uint64_t *hashes = malloc(((size_t)count + 1) * sizeof(*hashes));

    if (hashes == NULL)
        return NULL;
    hashes[0] = s->options.arithmetic;
    for (uint32_t i = 0; i < count; i++)
        hashes[i + 1] = waste_prefix_hash(hashes[i], ids[i]);
    return hashes;
}

void waste_prefix_find(struct waste_prefix *s, const struct waste_prefix_prompt *prompt,
                       struct waste_prefix_hit *hit)
{
    uint64_t *hashes = s->options.dir != NULL ? hash_all(s, prompt->ids, prompt->count) : NULL;
    struct waste_prefix_key key = {0}, on_disk;

    pthread_mutex_lock(&s->lock);
    *hit = (struct waste_prefix_hit){.entry = longest(s, prompt)};
    s->held = hit->entry;
    if (hit->entry != NULL)
        key = hit->entry->key;
    pthread_mutex_unlock(&s->lock);
    if (hashes != NULL)
        hit->file = waste_prefix_disk_find(&s->options, prompt, hashes, key.position, &on_disk);
    if (hit->file != NULL) {
        pthread_mutex_lock(&s->lock);
        s->held = hit->entry = NULL;
        pthread_mutex_unlock(&s->lock);
        key = on_disk;
    }
    hit->position = key.position;
    hit->lived = key.lived;
    free(hashes);
}

/* To the front: used now. With the lock. */
static void touch(struct waste_prefix *s, struct waste_prefix_entry *e)
{
    struct waste_prefix_entry **at = &s->newest;

    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    e->next = s->newest;
    s->newest = e;
}

static void copy_rows(const struct waste_snapshot_shape *shape, uint32_t position,
                      const struct waste_snapshot_place *from,
                      const struct waste_snapshot_place *to)
{
    for (uint32_t i = 0; i < shape->mla_layers; i++)
        memcpy(to->rows + i * to->layer_stride, from->rows + i * from->layer_stride,
               (uint64_t)position * shape->row_bytes);
}

bool waste_prefix_load(struct waste_prefix *s, struct waste_prefix_hit *hit,
                       const struct waste_snapshot_place *to)
{
    struct waste_error err;
    bool good = true;

    if (hit->entry != NULL) {
        memcpy(to->bank, hit->entry->state.bank, s->options.shape.bank_bytes);
        copy_rows(&s->options.shape, hit->position, &hit->entry->state, to);
        pthread_mutex_lock(&s->lock);
        touch(s, hit->entry);
        s->held = NULL;
        make_room(s, 0, false); /* the limit may be another by now */
        pthread_mutex_unlock(&s->lock);
    } else {
        int ret = waste_snapshot_load(hit->file, to, &err);
        good = ret == 0;
        if (!good)
            waste_prefix_lost(&s->options, &err);
        if (ret == -EBADMSG) /* or it would be found, and never written anew, from now on */
            unlink(waste_snapshot_path(hit->file));
        waste_snapshot_close(hit->file);
    }
    hit->entry = NULL;
    hit->file = NULL;
    return good;
}

/* ---- keeping ---- */

static struct waste_prefix_entry *copy(const struct waste_prefix *s,
                                       const struct waste_prefix_key *key, const uint32_t *ids,
                                       const struct waste_snapshot_place *from)
{
    const struct waste_snapshot_shape *shape = &s->options.shape;
    uint64_t layer = (uint64_t)key->position * shape->row_bytes;
    struct waste_prefix_entry *e = calloc(1, sizeof(*e));

    if (e == NULL)
        return NULL;
    e->key = *key;
    e->bytes = waste_prefix_bytes(shape, key->position);
    e->ids = malloc(key->position * sizeof(*ids));
    e->state.bank = malloc(shape->bank_bytes + 1);
    e->state.rows = malloc(shape->mla_layers * layer + 1);
    e->state.layer_stride = layer;
    if (e->ids == NULL || e->state.bank == NULL || e->state.rows == NULL) {
        free_entry(e);
        return NULL;
    }
    memcpy(e->ids, ids, key->position * sizeof(*ids));
    memcpy(e->state.bank, from->bank, shape->bank_bytes);
    copy_rows(shape, key->position, from, &e->state);
    return e;
}

/* What the next one will push out of memory goes to the disk meanwhile. */
static void prepare_room(struct waste_prefix *s, uint64_t bytes)
{
    struct waste_prefix_entry *oldest = s->newest;

    while (oldest->next != NULL)
        oldest = oldest->next;
    if (s->used + bytes > s->memory_bytes && s->options.dir != NULL && !oldest->on_disk)
        oldest->to_disk = true;
}

/* The entry of this very state. */
static struct waste_prefix_entry *kept(const struct waste_prefix *s, const uint32_t *ids,
                                       uint32_t position, bool lived)
{
    for (struct waste_prefix_entry *e = s->newest; e != NULL; e = e->next)
        if (e->key.position == position && e->key.lived == lived && is_of(e, ids))
            return e;
    return NULL;
}

void waste_prefix_keep(struct waste_prefix *s, const struct waste_prefix_state *state)
{
    struct waste_prefix_key key = {.fingerprint = s->options.shape.fingerprint,
                                   .hash = s->options.arithmetic,
                                   .position = state->position,
                                   .lived = state->lived};
    uint64_t bytes = waste_prefix_bytes(&s->options.shape, state->position);
    bool lasting = state->lasting && s->options.dir != NULL;

    for (uint32_t i = 0; i < state->position; i++)
        key.hash = waste_prefix_hash(key.hash, state->ids[i]);
    pthread_mutex_lock(&s->lock);
    struct waste_prefix_entry *e = kept(s, state->ids, state->position, state->lived);
    if (e != NULL) {
        touch(s, e);
    } else if (make_room(s, bytes, true) &&
               (e = copy(s, &key, state->ids, &state->place)) != NULL) {
        e->next = s->newest;
        s->newest = e;
        s->used += bytes;
        prepare_room(s, bytes);
    }
    if (e != NULL) {
        e->to_disk = e->to_disk || (lasting && !e->on_disk);
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    if (e == NULL && lasting)
        write_file(s, &key, state->ids, &state->place);
}
