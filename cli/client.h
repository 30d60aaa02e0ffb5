/*
 * One client of a pipeline's session: posts requests, reads the token log as it is committed.
 *
 * The client keeps count of what the log holds, so that a next request appends its own tokens only.
 * One thread.
 */
#ifndef WASTE_CLI_CLIENT_H
#define WASTE_CLI_CLIENT_H

#include "cli/pipeline.h"
#include "cli/prefill.h"
#include "cli/supervisor.h"

struct waste_sampling {
    double temp, top_p;
    uint32_t top_k;
    uint64_t seed;
    uint32_t eos[WASTE_MAX_EOS], eos_count;
    bool ignore_eos;
};

struct waste_client {
    struct waste_pipeline *p;
    struct waste_supervisor *supervisor;
    /* True when the user wants an end; asked again and again. */
    bool (*cancelled)(void *arg);
    void *cancelled_arg;

    struct waste_prefill_line *progress; /* of prompts that take a while; NULL: none is wanted */
    struct waste_autosave *autosave;     /* is told of requests; may be NULL */

    uint32_t known;                          /* tokens in the log */
    bool fresh;                              /* the next request starts a new conversation */
    uint32_t restore_position, restore_bank; /* the next request puts this back; 0: nothing */
};

struct waste_request_spec {
    const uint32_t *ids; /* appended to what is known; none: go on from there */
    uint32_t count;
    uint32_t
        ahead; /* of a prompt in parts: tokens behind these, of which the log is told already */
    uint32_t max_tokens;
    bool want_logits; /* of the last position */
    /* The logits [vocab] of every position, in order; `arg` first. Of a prompt that begins a
     * conversation, nothing is generated. Nonzero cancels the request. May be NULL. */
    int (*on_logits)(void *arg, uint32_t position, const float *logits);
    const struct waste_sampling *sampling; /* NULL: nothing is sampled (max_tokens 0) */
    /* A generated token, in order; `arg` first. Nonzero cancels the request. May be NULL. */
    int (*on_token)(void *arg, uint32_t id);
    void *arg;
};

struct waste_outcome {
    enum waste_reply_status status;
    uint32_t prompt_tokens; /* of this request */
    uint32_t tokens;        /* generated */
    uint32_t reused;        /* positions whose state was put back instead of computed */
    uint32_t resumed;       /* of the tokens generated, those that were there before */
    double prefill_seconds, decode_seconds;
    uint64_t counter[WASTE_COUNTER_COUNT]; /* what they grew by */
    uint32_t restarts[WASTE_STAGE_COUNT];
};

void waste_client_init(struct waste_client *c, struct waste_pipeline *p,
                       struct waste_supervisor *supervisor);

/*
 * Waits until the reader has the trunk and compute runs. on_progress (may be NULL) is called ten
 * times a second with bytes loaded and in all. 0; 1 or 2 (an exit code) with err; -ECANCELED.
 */
int waste_client_wait_ready(struct waste_client *c,
                            void (*on_progress)(void *arg, uint64_t loaded, uint64_t total),
                            void *arg, struct waste_error *err);

/* Runs one request to its end. 0, or an exit code (1 or 2) with err; *out is filled either way. */
int waste_client_request(struct waste_client *c, const struct waste_request_spec *spec,
                         struct waste_outcome *out, struct waste_error *err);

/* The next request starts from nothing. */
void waste_client_reset(struct waste_client *c);

/*
 * The segment's state is about to be written to: no request runs, and nothing of it is kept. A
 * reset or a waste_client_restore must follow.
 */
void waste_client_replace(struct waste_client *c);

/*
 * The next request goes on from a state that was put into `bank` and the rows [0, position), with
 * `known` tokens in the log. With position >= known, the log has what was generated up to
 * log[position]: it is part of the next request's reply, passed on like the rest.
 */
void waste_client_restore(struct waste_client *c, uint32_t known, uint32_t position, uint32_t bank);

/* Tokens a second while decoding; 0 if fewer than two were computed. */
double waste_outcome_rate(const struct waste_outcome *o);

#endif
