#include "cli/autosave.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/background.h"
#include "cli/state.h"
#include "cli/supervisor_int.h"

#define LOOK_NS (WASTE_SECOND_NS / 10)
enum { EVERY = 64, PACE = 32000000, BUFFER_BYTES = 3 << 20 /* of zstd and the file */ };

/* What the client's thread has said. */
struct said {
    uint64_t turn; /* +1 each time; 0: nothing, or nothing to save now */
    uint32_t epoch;
    bool resting;
    uint32_t known; /* resting: tokens in the log; else prompt_end */
    bool generates;
};

struct waste_autosave {
    struct waste_pipeline *p;
    struct waste_supervisor *supervisor;
    struct waste_snapshot_shape shape;
    char path[PATH_MAX];
    uint32_t step; /* tokens from one save to the next */
    bool paced;    /* and no more than PACE bytes a second */
    void (*warn)(const char *text);
    pthread_t thread;

    pthread_mutex_t lock; /* of the following */
    pthread_cond_t quiet; /* `reading` became false */
    struct said said;
    uint64_t turns;
    char *text, *next_text; /* of what was said; of what will be */
    size_t text_bytes, next_bytes;
    bool reading, quit;
    uint32_t saved_position;

    /* the thread's own */
    char *bank;
    uint64_t saved_turn, tried_turn;
    uint32_t tried_position;
    int64_t next_ns; /* paced: not before */
    bool keep_old, warned;
    int error; /* of the newest try */
};

static uint64_t commit_word(const struct waste_autosave *a)
{
    /* acquire: log entries up to it are valid; pairs with compute's release */
    return atomic_load_explicit(&a->p->session->commit, memory_order_acquire);
}

/* Tokens that are known at a position; UINT32_MAX: not of what was said. */
static uint32_t known_at(const struct waste_autosave *a, const struct said *said, uint32_t position)
{
    if (said->resting || !said->generates)
        return position <= said->known ? said->known : UINT32_MAX;
    if (position < said->known)
        return said->known;
    return position < a->p->options.ctx ? position + 1 : UINT32_MAX;
}

static void report(struct waste_autosave *a, const struct waste_error *err)
{
    struct waste_control *control = a->p->shm.control;
    char text[WASTE_ERROR_TEXT];

    waste_count(control, WASTE_C_SESSION_SAVE_FAILURES, 1);
    if (a->warned)
        return;
    a->warned = true;
    snprintf(text, sizeof(text), "%.400s; the conversation goes on, what was saved stays",
             err->text);
    waste_supervisor_note(a->supervisor, WASTE_LOG_LOSS, text);
    a->warn(text);
}

static double state_bytes(const struct waste_autosave *a, uint32_t position)
{
    return (double)a->shape.bank_bytes +
           (double)a->shape.mla_layers * a->shape.row_bytes * position;
}

/* One consistent copy and its way to the disk. False: compute was faster, or the client has said
 * something else meanwhile; look again. */
static bool save(struct waste_autosave *a, const struct said *said, char *text, size_t text_bytes)
{
    const uint32_t *log = waste_pipeline_log(a->p);
    struct waste_snapshot snapshot = {.text = text, .text_bytes = text_bytes};
    struct waste_error err;
    uint64_t commit;

    if (!waste_state_take(a->p, a->bank, &commit) || waste_commit_epoch(commit) != said->epoch)
        return false;
    snapshot.position = said->resting && said->known == 0 ? 0 : waste_commit_position(commit);
    snapshot.count = known_at(a, said, snapshot.position);
    if (snapshot.count == UINT32_MAX)
        return false;
    uint32_t *ids = malloc((snapshot.count + 1) * sizeof(*ids));
    if (ids != NULL)
        memcpy(ids, log, snapshot.count * sizeof(*ids));
    pthread_mutex_lock(&a->lock);
    bool same = a->said.turn == said->turn;
    pthread_mutex_unlock(&a->lock);
    if (!same) {
        free(ids);
        return false;
    }
    snapshot.ids = ids;
    waste_state_place(a->p, 0, &snapshot.state);
    snapshot.state.bank = a->bank;
    a->error = ids != NULL ? waste_snapshot_write(a->path, &a->shape, &snapshot, a->keep_old, &err)
                           : waste_error_set(&err, -ENOMEM, "out of memory for %s", a->path);
    a->tried_turn = said->turn;
    a->tried_position = snapshot.position;
    if (a->paced) /* floats hardly compress */
        a->next_ns = waste_now_ns() + (int64_t)(state_bytes(a, snapshot.position) / PACE * 1e9);
    if (a->error == 0) {
        a->keep_old = true;
        a->warned = false;
        a->saved_turn = said->turn;
        waste_count(a->p->shm.control, WASTE_C_SESSION_SAVES, 1);
        pthread_mutex_lock(&a->lock);
        a->saved_position = snapshot.position;
        pthread_mutex_unlock(&a->lock);
    } else {
        report(a, &err);
    }
    free(ids);
    return true;
}

/* Whether there is something to save; `all`: whatever is not saved yet. */
static bool is_due(const struct waste_autosave *a, const struct said *said, bool all)
{
    uint64_t commit = commit_word(a);
    uint32_t position = waste_commit_position(commit);

    if (said->turn == 0 || waste_commit_epoch(commit) != said->epoch)
        return false;
    if (all)
        return a->saved_turn != said->turn || (!said->resting && a->saved_position != position);
    if (said->resting)
        return a->tried_turn != said->turn;
    if (a->paced && waste_now_ns() < a->next_ns)
        return false;
    return position > 0 &&
           (position < a->tried_position || position - a->tried_position >= a->step);
}

/* Takes a look, and saves if it is time. False: it was time, and it did not work out. */
static bool look(struct waste_autosave *a, bool all)
{
    char *text = NULL;
    bool done = true;

    pthread_mutex_lock(&a->lock);
    struct said said = a->said;
    bool due = is_due(a, &said, all);
    size_t bytes = a->text_bytes;
    if (due) {
        text = malloc(bytes + 1);
        a->reading = true;
        if (text != NULL && bytes > 0)
            memcpy(text, a->text, bytes);
    }
    pthread_mutex_unlock(&a->lock);
    if (!due)
        return true;
    if (text != NULL)
        done = save(a, &said, text, bytes);
    free(text);
    pthread_mutex_lock(&a->lock);
    a->reading = false;
    pthread_cond_broadcast(&a->quiet);
    pthread_mutex_unlock(&a->lock);
    return done;
}

static void *run(void *arg)
{
    struct waste_autosave *a = arg;
    struct waste_bell *bell = &a->p->shm.control->client_bell;

    waste_background_nice();
    for (;;) {
        uint32_t seq = waste_bell_seq(bell);
        bool done = look(a, false);

        pthread_mutex_lock(&a->lock);
        bool quit = a->quit;
        pthread_mutex_unlock(&a->lock);
        if (quit)
            break;
        if (done) /* else a new commit has come: the moment after it is the best one */
            waste_bell_wait(bell, seq, LOOK_NS, 0);
    }
    look(a, true); /* no request runs: nothing can interfere */
    return NULL;
}

uint64_t waste_autosave_bytes(const struct waste_model *model)
{
    return waste_session_bank_bytes(model) + BUFFER_BYTES;
}

static void destroy(struct waste_autosave *a)
{
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->quiet);
    free(a->text);
    free(a->next_text);
    free(a->bank);
    free(a);
}

int waste_autosave_start(struct waste_pipeline *p, struct waste_supervisor *supervisor,
                         const char *path, uint32_t every, bool keep_old,
                         void (*warn)(const char *text), struct waste_autosave **out,
                         struct waste_error *err)
{
    struct waste_autosave *a = calloc(1, sizeof(*a));
    int ret;

    if (a == NULL)
        return waste_error_set(err, -ENOMEM, "out of memory");
    a->p = p;
    a->supervisor = supervisor;
    a->paced = every == 0;
    a->step = a->paced ? EVERY / 2 : every > 1 ? every / 2 : 1;
    a->keep_old = keep_old;
    a->warn = warn;
    snprintf(a->path, sizeof(a->path), "%s", path);
    waste_state_shape(p->model, &a->shape);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->quiet, NULL);
    a->bank = malloc(a->shape.bank_bytes + 1);
    ret = a->bank != NULL ? waste_background_start(&a->thread, run, a) : -ENOMEM;
    if (ret < 0) {
        destroy(a);
        return waste_error_set(err, ret, "cannot save %s in the background: %s", path,
                               strerror(-ret));
    }
    *out = a;
    return 0;
}

void waste_autosave_describe(struct waste_autosave *a, char *text, size_t bytes)
{
    pthread_mutex_lock(&a->lock);
    free(a->next_text);
    a->next_text = text;
    a->next_bytes = bytes;
    pthread_mutex_unlock(&a->lock);
}

static void say(struct waste_autosave *a, const struct said *said)
{
    pthread_mutex_lock(&a->lock);
    a->said = *said;
    a->said.turn = ++a->turns;
    if (a->next_text != NULL) {
        free(a->text);
        a->text = a->next_text;
        a->text_bytes = a->next_bytes;
        a->next_text = NULL;
    }
    pthread_mutex_unlock(&a->lock);
}

void waste_autosave_begin(struct waste_autosave *a, uint32_t epoch, uint32_t prompt_end,
                          bool generates)
{
    say(a, &(struct said){.epoch = epoch, .known = prompt_end, .generates = generates});
}

void waste_autosave_rest(struct waste_autosave *a, uint32_t epoch, uint32_t known)
{
    say(a, &(struct said){.epoch = epoch, .known = known, .resting = true});
    waste_bell_ring(&a->p->shm.control->client_bell);
}

void waste_autosave_pause(struct waste_autosave *a)
{
    pthread_mutex_lock(&a->lock);
    a->said.turn = 0;
    while (a->reading)
        pthread_cond_wait(&a->quiet, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

uint32_t waste_autosave_saved(struct waste_autosave *a)
{
    pthread_mutex_lock(&a->lock);
    uint32_t saved = a->saved_position;
    pthread_mutex_unlock(&a->lock);
    return saved;
}

int waste_autosave_finish(struct waste_autosave *a)
{
    int ret;

    if (a == NULL)
        return 0;
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_mutex_unlock(&a->lock);
    waste_bell_ring(&a->p->shm.control->client_bell);
    pthread_join(a->thread, NULL);
    ret = a->error;
    destroy(a);
    return ret;
}
