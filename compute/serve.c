#include "compute/serve.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "shm/confine.h"
#include "shm/inject.h"

enum { IDLE_WAIT_MS = 100 };

/* One request, copied: nothing that is checked can change afterwards. */
struct work {
    uint64_t seq;
    uint32_t flags, prompt_end, max_tokens, eos_count, restore_position, restore_bank;
    struct waste_sampling how;
    uint32_t eos[WASTE_MAX_EOS];
    char error[WASTE_ERROR_TEXT];
};

static struct waste_stage *stage(const struct waste_server *s)
{
    return &s->shm->control->stage[WASTE_STAGE_COMPUTE];
}

static bool stopping(const struct waste_server *s)
{
    /* relaxed: only asks to stop */
    return atomic_load_explicit(&stage(s)->stop, memory_order_relaxed);
}

static uint64_t commit_word(const struct waste_server *s)
{
    /* acquire: what a predecessor committed; pairs with the release in commit() */
    return atomic_load_explicit(&s->session->commit, memory_order_acquire);
}

/* False when there is none. */
static bool next_request(const struct waste_server *s, struct work *w)
{
    const struct waste_request *r = &s->session->request;
    /* acquire: the request's fields and the log; pairs with the client's release */
    uint64_t seq = atomic_load_explicit(&r->seq, memory_order_acquire);

    /* relaxed: ours, or the supervisor's from before we were started */
    if (seq == atomic_load_explicit(&s->session->reply.seq, memory_order_relaxed))
        return false;
    *w = (struct work){
        .seq = seq,
        .flags = r->flags,
        .prompt_end = r->prompt_end,
        .max_tokens = r->max_tokens,
        .eos_count = r->eos_count,
        .restore_position = r->restore_position,
        .restore_bank = r->restore_bank,
        .how = {.temperature = r->temperature,
                .top_p = r->top_p,
                .top_k = r->top_k,
                .seed = r->seed},
    };
    memcpy(w->eos, r->eos, sizeof w->eos);
    return true;
}

static void reply(struct waste_server *s, const struct work *w, enum waste_reply_status status)
{
    struct waste_reply *r = &s->session->reply;

    r->status = status;
    memcpy(r->error, w->error, sizeof r->error);
    WASTE_POINT(REPLY_WRITTEN);
    /* release: status, error, log and logits; pairs with the client's acquire */
    atomic_store_explicit(&r->seq, w->seq, memory_order_release);
    WASTE_POINT(REPLIED);
    waste_bell_ring(&s->shm->control->client_bell);
}

#define REFUSE(w, ...) (snprintf((w)->error, sizeof(w)->error, __VA_ARGS__), false)

static bool acceptable(struct waste_server *s, struct work *w)
{
    const uint32_t *log = waste_session_log(s->header, s->session);
    uint32_t vocab = s->shm->model->config.vocab;

    if (!w->prompt_end)
        return REFUSE(w, "the prompt is empty");
    if (w->prompt_end > s->header->ctx)
        return REFUSE(w, "the prompt ends at token %u, but the context holds %u", w->prompt_end,
                      s->header->ctx);
    if (w->eos_count > WASTE_MAX_EOS)
        return REFUSE(w, "%u end tokens, at most %d are possible", w->eos_count, WASTE_MAX_EOS);
    if (!(w->how.temperature >= 0) || isinf(w->how.temperature))
        return REFUSE(w, "temperature %g is not a number from 0 on", (double)w->how.temperature);
    if (!(w->how.top_p > 0 && w->how.top_p <= 1))
        return REFUSE(w, "top-p %g is not above 0 and at most 1", (double)w->how.top_p);
    uint32_t position = waste_commit_position(commit_word(s)), end = w->prompt_end;
    if (w->flags & WASTE_REQ_ALL_LOGITS && position < end &&
        (w->max_tokens || position % waste_forward_chunk_most(&s->shm->control->options)))
        return REFUSE(w, "logits of all positions: not from %u on, and of a prompt alone",
                      position);
    if (w->flags & WASTE_REQ_RESTORE && position >= end)
        end = position + 1; /* a restored reply; below ctx, see begin_once() */
    for (uint32_t i = position; i < end; i++)
        if (log[i] >= vocab)
            return REFUSE(w, "token %u at position %u is not below the vocabulary's %u", log[i], i,
                          vocab);
    return true;
}

/* A new conversation, or one that was put back; once a request: the epoch remembers which request
 * began it. False: what is to be put back cannot be. */
static bool begin_once(struct waste_server *s, struct work *w)
{
    bool restore = w->flags & WASTE_REQ_RESTORE;
    uint32_t position = restore ? w->restore_position : 0, bank = restore ? w->restore_bank : 0;

    if (!(w->flags & (WASTE_REQ_RESET | WASTE_REQ_RESTORE)) ||
        waste_commit_epoch(commit_word(s)) == (uint32_t)w->seq)
        return true;
    if (restore && (position == 0 || position >= s->header->ctx || bank > 1))
        return REFUSE(w, "cannot restore position %u of bank %u in a context of %u", position, bank,
                      s->header->ctx);
    /* release: pairs with a client's acquire */
    atomic_store_explicit(&s->session->commit, waste_commit_word((uint32_t)w->seq, position, bank),
                          memory_order_release);
    return true;
}

static bool is_end(const struct work *w, uint32_t token)
{
    for (uint32_t i = 0; i < w->eos_count; i++)
        if (w->eos[i] == token)
            return true;
    return false;
}

/* Whether the request is over at `position`, or has no room to go on. */
static enum waste_reply_status ending(const struct waste_server *s, const struct work *w,
                                      uint32_t position)
{
    const uint32_t *log = waste_session_log(s->header, s->session);
    uint32_t generated = position >= w->prompt_end ? position - w->prompt_end + 1 : 0;
    bool samples = w->max_tokens && position + 1 >= w->prompt_end;

    if (!w->max_tokens && position >= w->prompt_end)
        return WASTE_REPLY_LENGTH;
    if (generated && !(w->flags & WASTE_REQ_IGNORE_EOS) && is_end(w, log[position]))
        return WASTE_REPLY_EOS;
    if (generated && generated >= w->max_tokens)
        return WASTE_REPLY_LENGTH;
    if (position >= s->header->ctx || (samples && position + 1 >= s->header->ctx))
        return WASTE_REPLY_CONTEXT;
    return WASTE_REPLY_NONE;
}

/* Everything of the step that consumed log[position .. position + count) becomes valid here, in one
 * store. */
static void commit(struct waste_server *s, uint64_t word, uint32_t count)
{
    uint32_t position = waste_commit_position(word), bank = waste_commit_bank(word);

    /* release: log, bank and latent rows; pairs with the acquire of clients and of a successor */
    atomic_store_explicit(&s->session->commit,
                          waste_commit_word(waste_commit_epoch(word), position + count, 1 - bank),
                          memory_order_release);
    WASTE_POINT(COMMITTED);
    waste_bell_ring(&s->shm->control->client_bell);
    WASTE_POINT(COMMIT_RUNG);
}

/* False: the logits of a position are no numbers. */
static bool is_finite(const struct waste_server *s, struct work *w, uint32_t position,
                   const float *logits)
{
    uint32_t vocab = s->shm->model->config.vocab, bad = waste_sampler_first_bad(logits, vocab);

    if (bad < vocab)
        return REFUSE(w, "non-finite logit of token %u at position %u, in lm_head after layer %u",
                      bad, position, s->shm->model->config.layers - 1);
    return true;
}

/* Draws log[position + 1]. False: the logits are no numbers. */
static bool sample(struct waste_server *s, struct work *w, uint32_t position, const float *logits)
{
    uint32_t *log = waste_session_log(s->header, s->session);

    if (!is_finite(s, w, position, logits))
        return false;
    if (!w->max_tokens)
        return true;
    uint32_t token =
        waste_sampler_draw(&s->sampler, s->kernels, logits, &w->how, (uint64_t)position + 1);
    WASTE_POINT(SAMPLED);
    log[position + 1] = token;
    WASTE_POINT(TOKEN_LOGGED);
    /* not committed yet, but a redone step draws the same: the row may be on its way already */
    waste_forward_want(s->forward, position + 1, &log[position + 1], 1);
    return true;
}

/* Tokens of the step at `position`: as much of the prompt as a chunk holds, or one. It depends on
 * the position alone, so a step that is done again is the same. */
static uint32_t step_tokens(const struct waste_server *s, const struct work *w, uint32_t position)
{
    uint32_t most = waste_forward_chunk_most(&s->shm->control->options);
    uint32_t left = position < w->prompt_end ? w->prompt_end - position : 1;

    return left < most ? left : most;
}

/* Consumes log[position .. position + count). logits of the last, or NULL. */
static int forward(struct waste_server *s, uint64_t word, uint32_t count, float *logits)
{
    const uint32_t *log = waste_session_log(s->header, s->session);
    uint32_t position = waste_commit_position(word), bank = waste_commit_bank(word);

    if (count > 1) {
        WASTE_POINT(PROMPT_CHUNK);
        return waste_forward_chunk(s->forward, position, bank, log + position, count, logits);
    }
    return waste_forward_step(s->forward, position, bank, log[position], logits);
}

/* Where the logits of a position are put. */
static float *logits_at(const struct waste_server *s, uint32_t position)
{
    uint32_t chunk = waste_forward_chunk_most(&s->shm->control->options);

    return waste_session_logits(s->header, s->session, s->shm->model,
                                waste_logits_row(position, chunk, s->header->logit_rows));
}

/* ---- WASTE_REQ_ALL_LOGITS ---- */

static uint32_t ready_position(const struct waste_server *s, const struct work *w)
{
    /* relaxed: ours, or a dead predecessor's */
    return waste_logits_position(
        atomic_load_explicit(&s->session->logits_ready, memory_order_relaxed), w->seq);
}

/* Until the client has the logits of all positions before this one. */
static int wait_taken(struct waste_server *s, const struct work *w, uint32_t position)
{
    struct waste_bell *bell = &s->shm->control->compute_bell;

    for (;;) {
        uint32_t seen = waste_bell_seq(bell);
        /* acquire: the client has read the rows; pairs with its release */
        uint64_t taken =
            atomic_load_explicit(&s->session->request.logits_taken, memory_order_acquire);
        if (waste_logits_position(taken, w->seq) >= position)
            return 0;
        int err = waste_forward_pause(s->forward);
        if (err)
            return err;
        waste_bell_wait(bell, seen, IDLE_WAIT_MS * INT64_C(1000000), 0);
    }
}

/* Rows of [position, position + count) are written. False: a logit is no number. */
static bool hand_over(struct waste_server *s, struct work *w, uint32_t position, uint32_t count)
{
    uint32_t vocab = s->shm->model->config.vocab;

    for (uint32_t i = 0; i < count; i++)
        if (!is_finite(s, w, position + i, logits_at(s, position) + (size_t)i * vocab))
            return false;
    /* release: the rows; pairs with the client's acquire */
    atomic_store_explicit(&s->session->logits_ready, waste_logits_word(w->seq, position + count),
                          memory_order_release);
    waste_bell_ring(&s->shm->control->client_bell);
    return true;
}

/* The chunk at `position` was computed: its logits, a group of rows at a time. What a predecessor
 * handed over is not written again, since it may be being read. */
static int hand_over_chunk(struct waste_server *s, struct work *w, uint32_t position,
                           uint32_t count)
{
    uint32_t rows = s->header->logit_rows, n;
    int err = waste_forward_finish(s->forward);

    for (uint32_t i = 0; i < count && !err; i += n) {
        n = count - i < rows ? count - i : rows;
        if (ready_position(s, w) >= position + i + n)
            continue;
        err = wait_taken(s, w, position + i);
        if (!err)
            err = waste_forward_logits(s->forward, i, n, logits_at(s, position + i));
        if (!err && !hand_over(s, w, position + i, n))
            err = -EDOM;
    }
    return err;
}

/* As forward(), with the logits of every position handed over. */
static int forward_all(struct waste_server *s, struct work *w, uint64_t word, uint32_t count)
{
    uint32_t position = waste_commit_position(word);
    bool again = ready_position(s, w) >= position + count;
    int err = count > 1 ? 0 : wait_taken(s, w, again ? 0 : position);

    if (!err)
        err = forward(s, word, count, count > 1 || again ? NULL : logits_at(s, position));
    if (!err && count > 1)
        return hand_over_chunk(s, w, position, count);
    return !err && !again && !hand_over(s, w, position, 1) ? -EDOM : err;
}

/* One step: 0, or what waste_forward_step() says, or -EDOM with w->error. */
static int step(struct waste_server *s, struct work *w, uint64_t word)
{
    uint32_t position = waste_commit_position(word), count = step_tokens(s, w, position);
    uint32_t end = position + count;
    const uint32_t *log = waste_session_log(s->header, s->session);
    bool last = end >= w->prompt_end; /* of the prompt, or generated */
    bool all = w->flags & WASTE_REQ_ALL_LOGITS;
    bool needed = !all && last && (w->max_tokens || (w->flags & WASTE_REQ_LOGITS));
    float *logits = needed ? logits_at(s, end - 1) : NULL;
    int64_t start = waste_forward_now_ns();
    struct waste_control *c = s->shm->control;
    int err;

    if (!last)
        WASTE_POINT(PROMPT_TOKEN);
    waste_forward_want(s->forward, position, log + position,
                       last ? count : w->prompt_end - position);
    err = all ? forward_all(s, w, word, count) : forward(s, word, count, logits);
    if ((err == -EIO || err == -EDOM) && !w->error[0])
        snprintf(w->error, sizeof w->error, "%s", waste_forward_error(s->forward));
    if (err)
        return err;
    if (logits && !sample(s, w, end - 1, logits))
        return -EDOM;
    commit(s, word, count);
    waste_forward_count(s->forward);
    waste_count(c, WASTE_C_TOKENS, count);
    waste_count(c, WASTE_C_GENERATED, last && w->max_tokens);
    uint64_t took = (uint64_t)(waste_forward_now_ns() - start);
    waste_count(c, WASTE_C_STEP_NS, took);
    waste_count(c, WASTE_C_DECODE_NS, count == 1 && last && w->max_tokens ? took : 0);
    return 0;
}

/* For people: how far the prompt is, and since when. */
static void announce_prompt(struct waste_server *s, const struct work *w)
{
    struct waste_stage *c = stage(s);

    /* relaxed, all: nobody derives anything from two of them together */
    atomic_store_explicit(&c->prompt_begin, waste_commit_position(commit_word(s)),
                          memory_order_relaxed);
    atomic_store_explicit(&c->prompt_ns, (uint64_t)waste_forward_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&c->prompt_end, w->prompt_end, memory_order_relaxed);
}

static void serve_request(struct waste_server *s, struct work *w)
{
    WASTE_POINT(REQUEST_TAKEN);
    bool begun = begin_once(s, w);
    WASTE_POINT(REQUEST_RESET);
    if (!begun || !acceptable(s, w)) {
        reply(s, w, WASTE_REPLY_ERROR);
        return;
    }
    announce_prompt(s, w);
    for (;;) {
        uint64_t word = commit_word(s);
        enum waste_reply_status status = ending(s, w, waste_commit_position(word));
        if (status != WASTE_REPLY_NONE) {
            WASTE_POINT(REQUEST_OVER);
            reply(s, w, status);
            return;
        }
        int err = step(s, w, word);
        waste_confine_report(WASTE_STAGE_COMPUTE, &s->shm->control->log[WASTE_STAGE_COMPUTE]);
        if (err == -ESHUTDOWN)
            return;
        if (err) {
            reply(s, w, err == -ECANCELED ? WASTE_REPLY_CANCELLED : WASTE_REPLY_ERROR);
            return;
        }
    }
}

void waste_serve(struct waste_server *s)
{
    struct waste_bell *bell = &s->shm->control->compute_bell;
    struct work w;

    while (!stopping(s)) {
        uint32_t seen = waste_bell_seq(bell); /* before the look: a ring in between is not lost */
        if (next_request(s, &w)) {
            serve_request(s, &w);
            continue;
        }
        waste_stage_mark(stage(s), WASTE_ACT_IDLE, -1);
        waste_bell_wait(bell, seen, IDLE_WAIT_MS * INT64_C(1000000), 0);
    }
}
