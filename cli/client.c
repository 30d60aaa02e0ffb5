#include "cli/client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/autosave.h"
#include "cli/supervisor_int.h"

#define LOOK_NS (WASTE_SECOND_NS / 10)
#define COUNTS_NS WASTE_SECOND_NS /* a reader that takes longer has other worries */

void waste_client_init(struct waste_client *c, struct waste_pipeline *p,
                       struct waste_supervisor *supervisor)
{
    *c = (struct waste_client){.p = p, .supervisor = supervisor};
}

void waste_client_reset(struct waste_client *c)
{
    /* a session that was never used is already what a reset would make of it */
    c->fresh = c->fresh || c->known > 0;
    c->known = 0;
    c->restore_position = 0;
}

void waste_client_replace(struct waste_client *c)
{
    if (c->autosave != NULL)
        waste_autosave_pause(c->autosave);
    c->fresh = true;
    c->known = 0;
    c->restore_position = 0;
}

void waste_client_restore(struct waste_client *c, uint32_t known, uint32_t position, uint32_t bank)
{
    c->fresh = false;
    c->known = known;
    c->restore_position = position;
    c->restore_bank = bank;
}

static bool is_cancelled(const struct waste_client *c)
{
    return c->cancelled != NULL && c->cancelled(c->cancelled_arg);
}

static uint32_t stage_state(const struct waste_client *c, enum waste_stage_id stage)
{
    /* acquire: pairs with the stage's release; RUNNING means it can be talked to */
    return atomic_load_explicit(&c->p->shm.control->stage[stage].state, memory_order_acquire);
}

int waste_client_wait_ready(struct waste_client *c,
                            void (*on_progress)(void *arg, uint64_t loaded, uint64_t total),
                            void *arg, struct waste_error *err)
{
    struct waste_control *control = c->p->shm.control;

    for (;;) {
        uint32_t seq = waste_bell_seq(&control->client_bell);
        int failure = waste_supervisor_failure(c->supervisor, err);
        if (failure != 0)
            return failure;
        if (is_cancelled(c))
            return -ECANCELED;
        /* acquire: pairs with the reader's release of a complete trunk */
        if (atomic_load_explicit(&control->trunk_ready, memory_order_acquire) != 0 &&
            stage_state(c, WASTE_STAGE_READER) == WASTE_STAGE_RUNNING &&
            stage_state(c, WASTE_STAGE_COMPUTE) == WASTE_STAGE_RUNNING)
            return 0;
        if (on_progress != NULL)
            on_progress(
                arg,
                atomic_load_explicit(&control->counter[WASTE_C_TRUNK_LOADED], memory_order_relaxed),
                c->p->model->trunk_bytes);
        waste_bell_wait(&control->client_bell, seq, LOOK_NS / 5, 0);
    }
}

/* Compute does not wait for the reader to hear of experts that are in memory, nor wake it; what is
 * counted of a request is whole when it has heard. */
static void wait_for_counts(struct waste_client *c)
{
    const struct timespec pause = {.tv_nsec = 50000};
    int64_t until = waste_now_ns() + COUNTS_NS;

    if (waste_ring_used(c->p->shm.demand) > 0)
        waste_pipeline_ring(c->p, WASTE_STAGE_READER);
    while (waste_ring_used(c->p->shm.demand) > 0 && waste_now_ns() < until)
        nanosleep(&pause, NULL);
}

static void snapshot(const struct waste_client *c, struct waste_outcome *o)
{
    const struct waste_control *control = c->p->shm.control;

    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        o->counter[i] =
            atomic_load_explicit(&control->counter[i], memory_order_relaxed) - o->counter[i];
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        o->restarts[i] = atomic_load_explicit(&control->stage[i].restarts, memory_order_relaxed) -
                         o->restarts[i];
}

static void post(struct waste_client *c, const struct waste_request_spec *spec, uint32_t epoch)
{
    struct waste_request *r = &c->p->session->request;
    const struct waste_sampling *s = spec->sampling;
    uint32_t flags = 0;

    if (spec->count > 0)
        memcpy(waste_pipeline_log(c->p) + c->known, spec->ids,
               ((size_t)spec->count + spec->ahead) * sizeof(uint32_t));
    c->known += spec->count;
    if (c->restore_position > 0)
        flags |= WASTE_REQ_RESTORE;
    else if (c->fresh)
        flags |= WASTE_REQ_RESET;
    if (spec->want_logits)
        flags |= WASTE_REQ_LOGITS;
    if (spec->on_logits != NULL)
        flags |= WASTE_REQ_ALL_LOGITS;
    if (s != NULL && s->ignore_eos)
        flags |= WASTE_REQ_IGNORE_EOS;
    /* relaxed and plain: published by seq below */
    atomic_store_explicit(&r->cancel, 0, memory_order_relaxed);
    r->flags = flags;
    r->prompt_end = c->known;
    r->max_tokens = spec->max_tokens;
    r->top_k = s != NULL ? s->top_k : 0;
    r->temperature = s != NULL ? (float)s->temp : 0;
    r->top_p = s != NULL ? (float)s->top_p : 1;
    r->seed = s != NULL ? s->seed : 0;
    r->eos_count = s != NULL ? s->eos_count : 0;
    if (s != NULL)
        memcpy(r->eos, s->eos, sizeof(r->eos));
    r->restore_position = c->restore_position;
    r->restore_bank = c->restore_bank;
    if (c->autosave != NULL)
        waste_autosave_begin(c->autosave, epoch, c->known + spec->ahead, spec->max_tokens > 0);
    /* release: pairs with compute's acquire; the request and its tokens are whole */
    atomic_fetch_add_explicit(&r->seq, 1, memory_order_release);
    waste_pipeline_ring(c->p, WASTE_STAGE_COMPUTE);
    waste_supervisor_wake(c->supervisor);
}

/* What is followed while a request runs. */
struct follow {
    uint64_t seq;
    uint32_t epoch;    /* of the conversation */
    uint32_t seen;     /* log entries passed on */
    uint32_t restored; /* position that was put back */
    uint32_t taken;    /* positions whose logits were passed on */
    bool stopped;      /* on_token or on_logits wants no more */
};

/* Passes on what has been committed since. */
static void deliver(struct waste_client *c, const struct waste_request_spec *spec, struct follow *f,
                    struct waste_outcome *out, double *first)
{
    /* acquire: pairs with compute's release of the commit; log entries up to it are valid */
    uint64_t commit = atomic_load_explicit(&c->p->session->commit, memory_order_acquire);
    const uint32_t *log = waste_pipeline_log(c->p);

    if (waste_commit_epoch(commit) != f->epoch)
        return; /* not this conversation yet */
    uint32_t position = waste_commit_position(commit);
    uint32_t prompt_end = c->p->session->request.prompt_end;
    uint32_t known = position >= prompt_end ? position + 1 : 0;
    if (spec->max_tokens == 0)
        return;
    if (known > prompt_end + spec->max_tokens)
        known = prompt_end + spec->max_tokens;
    while (f->seen < known && f->seen < c->p->options.ctx) {
        out->tokens++;
        if (f->restored > 0 && f->seen <= f->restored)
            out->resumed++;
        else if (out->tokens - out->resumed == 1)
            *first = (double)waste_now_ns() / 1e9;
        uint32_t id = log[f->seen++];
        if (spec->on_token != NULL && !f->stopped && spec->on_token(spec->arg, id) != 0)
            f->stopped = true;
    }
    if (f->seen > c->known)
        c->known = f->seen;
}

/* Passes on the logits that are ready, and tells compute that their rows are free. */
static void take_logits(struct waste_client *c, const struct waste_request_spec *spec,
                        struct follow *f)
{
    struct waste_session *s = c->p->session;
    /* acquire: the rows; pairs with compute's release */
    uint64_t word = atomic_load_explicit(&s->logits_ready, memory_order_acquire);
    uint32_t ready = waste_logits_position(word, f->seq);

    if (ready <= f->taken || ready > c->known)
        return;
    for (; f->taken < ready; f->taken++)
        if (!f->stopped &&
            spec->on_logits(spec->arg, f->taken, waste_pipeline_logits(c->p, f->taken)) != 0)
            f->stopped = true;
    /* release: compute writes the rows again */
    atomic_store_explicit(&s->request.logits_taken, waste_logits_word(f->seq, ready),
                          memory_order_release);
    waste_pipeline_ring(c->p, WASTE_STAGE_COMPUTE);
}

/* The end of a request in words. */
static int conclude(struct waste_client *c, struct waste_outcome *out, struct waste_error *err)
{
    const struct waste_reply *reply = &c->p->session->reply;

    out->status = (enum waste_reply_status)reply->status;
    if (out->status != WASTE_REPLY_ERROR)
        return 0;
    int failure = waste_supervisor_failure(c->supervisor, err);
    if (failure == 2)
        return failure;
    waste_error_set(err, 0, "%.*s", (int)sizeof(reply->error) - 1, reply->error);
    return 1;
}

int waste_client_request(struct waste_client *c, const struct waste_request_spec *spec,
                         struct waste_outcome *out, struct waste_error *err)
{
    struct waste_control *control = c->p->shm.control;
    struct waste_session *session = c->p->session;
    double first = 0, start = (double)waste_now_ns() / 1e9;
    /* relaxed: no request runs, so nothing moves it; seq is our own */
    uint64_t commit = atomic_load_explicit(&session->commit, memory_order_relaxed);
    struct follow f = {.seq =
                           1 + atomic_load_explicit(&session->request.seq, memory_order_relaxed)};

    *out = (struct waste_outcome){.prompt_tokens = spec->count, .reused = c->restore_position};
    uint64_t tokens = (uint64_t)spec->count + spec->ahead;
    /* one position is for what is generated */
    if (c->known + tokens == 0 || tokens + (spec->max_tokens > 0) > c->p->options.ctx - c->known)
        return waste_error_set(err, 2,
                               "%" PRIu64 " tokens do not fit: the context holds %u, %u are taken",
                               tokens, c->p->options.ctx, c->known);
    snapshot(c, out);
    /* a reset or a restore marks the conversation, see shm/session.h */
    f.epoch = c->fresh || c->restore_position > 0 ? (uint32_t)f.seq : waste_commit_epoch(commit);
    post(c, spec, f.epoch);
    f.restored = c->restore_position;
    c->fresh = false;
    c->restore_position = 0;
    f.seen = c->known;
    for (;;) {
        uint32_t bell = waste_bell_seq(&control->client_bell);
        /* acquire: pairs with the release of a reply; the last commit came before it */
        bool over = atomic_load_explicit(&session->reply.seq, memory_order_acquire) == f.seq;
        deliver(c, spec, &f, out, &first);
        if (spec->on_logits != NULL)
            take_logits(c, spec, &f);
        if (over)
            break;
        if (c->progress != NULL && out->tokens == 0)
            waste_prefill_line_show(c->progress, &c->p->shm, spec->count, spec->ahead);
        if (is_cancelled(c) || f.stopped) {
            atomic_store_explicit(&session->request.cancel, 1, memory_order_release);
            waste_pipeline_ring(c->p, WASTE_STAGE_COMPUTE);
        }
        waste_bell_wait(&control->client_bell, bell, LOOK_NS, 0);
    }
    if (c->progress != NULL && (spec->ahead == 0 || session->reply.status != WASTE_REPLY_LENGTH))
        waste_prefill_line_end(c->progress);
    double end = (double)waste_now_ns() / 1e9;
    bool computed = out->tokens > out->resumed;
    out->prefill_seconds = (computed ? first : end) - start;
    out->decode_seconds = computed ? end - first : 0;
    wait_for_counts(c);
    snapshot(c, out);
    return conclude(c, out, err);
}

double waste_outcome_rate(const struct waste_outcome *o)
{
    uint32_t computed = o->tokens - o->resumed;

    return computed > 1 && o->decode_seconds > 0 ? (computed - 1) / o->decode_seconds : 0;
}
