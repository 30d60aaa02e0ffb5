/*
 * The session segment: conversations, their token logs and the model state that belongs to them.
 *
 * A step is a transaction. With commit word (position p, bank b) the state of p consumed tokens is
 * in bank b and in the latent rows [0, p). A step consumes n tokens, log[p .. p + n): one, or a
 * chunk of the prompt. It reads bank b, writes bank 1-b and latent rows [p, p + n), then (if p + n
 * is past the prompt) appends the sampled token as log[p + n], and publishes all of it with ONE
 * release store of the commit word (p + n, 1-b). A compute that dies anywhere leaves the last
 * commit whole; its successor redoes the step. There is no other sampler state: the random number
 * of log index i is a hash of (seed, i).
 *
 * A restore puts a conversation's state back: while no request runs, the client writes the log, one
 * bank and the latent rows [0, restore_position), and posts a request with WASTE_REQ_RESTORE that
 * names position and bank. Compute commits them, once a request; what was the conversation before
 * is gone from the client's first store on, so only a restore or a reset may follow.
 *
 * Logits of every position (WASTE_REQ_ALL_LOGITS; nothing is generated, and the request begins at a
 * multiple of the chunk) are handed over while the request runs, in the rows of the logits area: of
 * position p, row p % chunk % logit_rows. Compute writes a group of rows, those of a chunk up to
 * its next multiple of logit_rows, when all before the group have been taken, and then says so
 * (logits_ready); the client reads them and says so (logits_taken), and drains the last of them
 * after the reply. A step that is done again writes nothing that was ready before.
 *
 * Token log: [0, prompt_end) is the client's, written before it posts the request; log[i] for i >=
 * prompt_end is compute's, valid once position >= i. So tokens known = max(prompt_end, position +
 * 1) while a request generates.
 */
#ifndef WASTE_SHM_SESSION_H
#define WASTE_SHM_SESSION_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/model.h"

#define WASTE_SESSION_MAGIC UINT64_C(0x316e73737a747377) /* "wstzssn1" */
enum { WASTE_SESSION_VERSION = 3, WASTE_ERROR_TEXT = 480 };

/*
 * Commit word: bits 0-30 position, 31 bank, 32-63 epoch: the low bits of the `seq` of the request
 * that last reset or restored the conversation, 0 before any did. So the reset of a request happens
 * once, even if compute dies in the middle of it, and the client knows the epoch its request will
 * have.
 */
static inline uint32_t waste_commit_position(uint64_t word)
{
    return (uint32_t)word & 0x7fffffffu;
}
static inline uint32_t waste_commit_bank(uint64_t word)
{
    return (uint32_t)word >> 31;
}
static inline uint32_t waste_commit_epoch(uint64_t word)
{
    return (uint32_t)(word >> 32);
}
static inline uint64_t waste_commit_word(uint32_t epoch, uint32_t position, uint32_t bank)
{
    return (uint64_t)epoch << 32 | (uint64_t)(bank & 1) << 31 | position;
}

enum waste_request_flag {
    WASTE_REQ_RESET = 1, /* start from position 0 and a zero state (log and prompt_end are the new
                            conversation's) */
    WASTE_REQ_IGNORE_EOS = 2, /* go on past end tokens */
    WASTE_REQ_LOGITS = 4,  /* leave the logits of the last computed position in the logits area, in
                              its row */
    WASTE_REQ_RESTORE = 8, /* go on from restore_position in restore_bank. Where that is prompt_end
                              or more, log[prompt_end .. restore_position] is the client's too:
                              generated earlier, and part of this request's reply */
    WASTE_REQ_ALL_LOGITS = 16, /* hand over the logits of every position */
};

enum waste_reply_status {
    WASTE_REPLY_NONE = 0,
    WASTE_REPLY_LENGTH,    /* max_tokens generated */
    WASTE_REPLY_EOS,       /* an end token was generated (it is in the log) */
    WASTE_REPLY_CANCELLED, /* the client asked */
    WASTE_REPLY_CONTEXT,   /* the context is full */
    WASTE_REPLY_ERROR,     /* see error[] */
};

/* Written by the client while no request of the session is running; `seq` last (release). */
struct waste_request {
    _Alignas(64) _Atomic uint64_t seq; /* +1 a request; running while it differs from reply.seq */
    _Atomic uint32_t cancel;           /* client: stop after the step at hand */
    uint32_t flags;                    /* enum waste_request_flag */
    uint32_t prompt_end;               /* tokens in the log when generation starts */
    uint32_t max_tokens;               /* to generate; 0: only consume the prompt */
    uint32_t top_k;                    /* 0 = off */
    float temperature;                 /* 0 = greedy (lowest id wins a tie) */
    float top_p;                       /* 1 = off */
    uint32_t eos_count;
    uint64_t seed;
    uint32_t eos[WASTE_MAX_EOS];
    uint32_t restore_position, restore_bank; /* WASTE_REQ_RESTORE: 1 to ctx - 1; 0 or 1 */
    _Atomic uint64_t logits_taken; /* client: positions whose logits it has, waste_logits_word() */
};

/* Written by compute, or by the supervisor when compute is dead and not started again; `seq` last
 * (release). */
struct waste_reply {
    _Alignas(64) _Atomic uint64_t seq; /* = request.seq when that request is over */
    uint32_t status;                   /* enum waste_reply_status */
    uint32_t pad;
    char error[WASTE_ERROR_TEXT]; /* WASTE_REPLY_ERROR: one line naming layer, expert or file */
};

struct waste_session {
    _Alignas(64) _Atomic uint64_t commit; /* compute */
    _Atomic uint64_t logits_ready;        /* compute: positions whose logits were handed over */
    uint64_t pad[6];
    struct waste_request request;
    struct waste_reply reply;
    uint64_t log_off;     /* _Atomic-free uint32_t token[ctx], ordered by the words above */
    uint64_t logits_off;  /* float [logit_rows][vocab]; compute, valid when the reply of a
                             WASTE_REQ_LOGITS request is there, or as logits_ready says */
    uint64_t bank_off[2]; /* KDA state: per KDA layer S [heads][dim keys][dim values], then q, k, v
                             conv history */
    uint64_t latent_off;  /* per MLA layer [ctx][kv_lora + rope_dim] f32 */
};

struct waste_session_header {
    uint64_t magic;
    uint32_t version;
    uint32_t session_count; /* 1 today */
    uint64_t bytes;
    uint32_t ctx;
    uint32_t logit_rows; /* of the logits area; 1, or a multiple of 16 */
    /* per-layer strides inside a bank and the latent area, in bytes (multiples of 64) */
    uint64_t kda_layer_bytes; /* S plus the three histories */
    uint64_t kda_conv_off; /* of the histories, from the layer's start: q, k, v, each [conv_width -
                              1][heads * dim] */
    uint64_t mla_layer_bytes;
    uint64_t session_off; /* struct waste_session [session_count] */
};

/* Bytes of a segment for one session of ctx positions (1 to 2^31 - 1) and rows of logits (1 or
 * more); 0 if that overflows. */
uint64_t waste_session_bytes(const struct waste_model *model, uint32_t ctx, uint32_t logit_rows);

/* Bytes of one bank; 0 if there are no KDA layers. */
uint64_t waste_session_bank_bytes(const struct waste_model *model);

/* waste-run, on a zero-filled mapping. */
void waste_session_init(void *base, uint64_t bytes, const struct waste_model *model, uint32_t ctx,
                        uint32_t logit_rows);

/* 0, -EPROTO (not ours), -EINVAL (a section out of bounds, or not this model's shape). The outputs
 * are untouched on failure. */
int waste_session_attach(void *base, uint64_t bytes, const struct waste_model *model,
                         struct waste_session_header **header, struct waste_session **session);

static inline uint32_t *waste_session_log(const struct waste_session_header *h,
                                          const struct waste_session *s)
{
    return (uint32_t *)((char *)h + s->log_off);
}
static inline uint32_t waste_logits_row(uint32_t position, uint32_t chunk, uint32_t logit_rows)
{
    return position % chunk % logit_rows;
}
static inline float *waste_session_logits(const struct waste_session_header *h,
                                          const struct waste_session *s,
                                          const struct waste_model *model, uint32_t row)
{
    return (float *)((char *)h + s->logits_off) + (size_t)row * model->config.vocab;
}

/* Positions [0, position) of the request `seq`, for logits_ready and logits_taken; a word of
 * another request says 0. */
static inline uint64_t waste_logits_word(uint64_t seq, uint32_t position)
{
    return seq << 32 | position;
}
static inline uint32_t waste_logits_position(uint64_t word, uint64_t seq)
{
    return (uint32_t)(word >> 32) == (uint32_t)seq ? (uint32_t)word : 0;
}

#endif
