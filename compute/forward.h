/*
 * The forward pass: one token through the whole model, on a team of workers.
 *
 * Start reading at waste_forward_step() in forward.c. A step reads bank b of the session's state
 * and writes bank 1 - b and the latent rows of its position; it changes nothing that the last
 * commit refers to, so it may be abandoned anywhere.
 */
#ifndef WASTE_COMPUTE_FORWARD_H
#define WASTE_COMPUTE_FORWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/kernels.h"
#include "shm/control.h"
#include "shm/session.h"

/* What the pass works on; all of it outlives the forward object. */
struct waste_forward_env {
    struct waste_shm shm;
    struct waste_session_header *session;
    struct waste_session *conversation;
    const uint8_t *trunk, *cache;
    struct waste_kernels kernels;
    int reader_event; /* eventfd of the reader's bell, or -1 */
};

struct waste_forward;

/* Threads, CPUs and ctx come from the control segment's options. Everything a step needs is
 * allocated here. 0, -ENOMEM, -EINVAL (threads or CPUs), -EAGAIN (no threads). */
int waste_forward_create(struct waste_forward **out, const struct waste_forward_env *env);
void waste_forward_destroy(struct waste_forward *f);

/* Prepares the codebooks and measures memory; once, when the trunk is loaded. */
void waste_forward_load(struct waste_forward *f);

/* Asks the reader for the embedding rows of token[count], to be consumed from `position` on: as
 * many as there are slots. `position` is the one about to be computed, or the one after it. */
void waste_forward_want(struct waste_forward *f, uint32_t position, const uint32_t *token,
                        uint32_t count);

/*
 * Computes the step that consumes `token` (below vocab) at `position` (below ctx). logits [vocab]
 * or NULL when nobody needs them.
 *
 * 0; -ECANCELED (the request's cancel word); -ESHUTDOWN (the stage is to stop); -EIO (an expert
 * could not be read) or -EDOM (a value that is no finite number), with waste_forward_error().
 */
int waste_forward_step(struct waste_forward *f, uint32_t position, uint32_t bank, uint32_t token,
                       float *logits);

/*
 * The same for `count` tokens, 2 to waste_forward_chunk_most() of them, that follow one another
 * from `position` on, as one step: it reads bank b and writes bank 1 - b and the latent rows of all
 * their positions. logits: of the last one. A request that is cancelled is noticed between two
 * phases of a layer. See compute/chunk.h.
 */
int waste_forward_chunk(struct waste_forward *f, uint32_t position, uint32_t bank,
                        const uint32_t *token, uint32_t count, float *logits);

/*
 * Logits of the chunk just computed (waste_forward_chunk with NULL for them), any number of runs of
 * tokens: first the input of lm_head for all of them, then of tokens [first, first + count), first
 * a multiple of WASTE_TILE, to rows of logits. 0 or as waste_forward_step().
 */
int waste_forward_finish(struct waste_forward *f);
int waste_forward_logits(struct waste_forward *f, uint32_t first, uint32_t count, float *logits);

/* Life sign of one who waits for the client, and whether to go on: 0, -ECANCELED or -ESHUTDOWN. */
int waste_forward_pause(struct waste_forward *f);

/* One line: what failed, in which layer, expert or file. */
const char *waste_forward_error(const struct waste_forward *f);

/* Adds the last step's seconds by phase to the counters; for committed steps. */
void waste_forward_count(struct waste_forward *f);

/* Tokens of a chunk at most, by the options: 1 when there are none. */
uint32_t waste_forward_chunk_most(const struct waste_options *options);

/* An honest estimate of the private memory the compute process takes: heap, stacks and the program
 * itself. */
uint64_t waste_compute_private_bytes(const struct waste_model *model,
                                     const struct waste_options *options);

/* CLOCK_MONOTONIC. */
int64_t waste_forward_now_ns(void);

#endif
