/*
 * Points at which a test can make a process die, stop or dawdle. Compiled in by the meson option
 * `inject` only; without it a point is nothing at all.
 *
 * The environment says what happens:
 *
 *     WASTE_INJECT=stage:point:action[:hit[:incarnations]],...
 *
 *     stage         reader, compute, router or waste-run
 *     point         a name below, or "any": all points count together
 *     action        kill, segv, bus, abort, stop, exit=CODE, delay=MS, open (see inject.c)
 *     hit           at the n-th time the process comes by (default 1), or * for every time
 *     incarnations  of the stage: K, K-L or * (default 1)
 *
 * A rule that makes no sense ends the process with exit code 2 and one line.
 */
#ifndef WASTE_SHM_INJECT_H
#define WASTE_SHM_INJECT_H

/* X(ID, name): the point lies right behind what it is named after. tests/crash reads this table. */
#define WASTE_INJECT_POINTS(X)                                                                     \
    /* every stage: start-up */                                                                    \
    X(START_ATTACHED, "start_attached")                                                            \
    X(START_REPAIRED, "start_repaired")                                                            \
    X(START_READY, "start_ready") /* before RUNNING */                                             \
    X(START_RUNNING, "start_running")                                                              \
    /* every stage: bells and log */                                                               \
    X(BELL_SEQ, "bell_seq") /* before the wake-up */                                               \
    X(LOG_BODY, "log_body") /* before the line's number */                                         \
    /* reader: requests */                                                                         \
    X(DEMAND_TAKEN, "demand_taken")                                                                \
    X(DEMAND_ACTED, "demand_acted")                                                                \
    X(DEMAND_RELEASED, "demand_released")                                                          \
    X(PREFETCH_TAKEN, "prefetch_taken")                                                            \
    X(PREFETCH_RELEASED, "prefetch_released")                                                      \
    /* reader: a slot */                                                                           \
    X(SLOT_WORD, "slot_word") /* READING, the key still the old one */                             \
    X(SLOT_CLAIMED, "slot_claimed")                                                                \
    X(SLOT_EVICTED, "slot_evicted") /* the old expert's directory entry is gone */                 \
    X(SLOT_LISTED, "slot_listed")                                                                  \
    X(READ_SUBMITTED, "read_submitted")                                                            \
    X(READ_DONE, "read_done")                                                                      \
    X(READ_CHECKED, "read_checked")                                                                \
    X(SLOT_READY, "slot_ready")                                                                    \
    X(SLOT_REASON, "slot_reason")     /* error and detail, before FAILED */                        \
    X(SLOT_UNLISTED, "slot_unlisted") /* on the way from FAILED to EMPTY */                        \
    /* reader: embedding rows */                                                                   \
    X(EMBED_BEGUN, "embed_begun")                                                                  \
    X(EMBED_READ, "embed_read")                                                                    \
    X(EMBED_SERVED, "embed_served")                                                                \
    /* reader: the trunk */                                                                        \
    X(TRUNK_PIECE, "trunk_piece")                                                                  \
    X(TRUNK_TENSOR, "trunk_tensor")                                                                \
    X(TRUNK_TENSORS, "trunk_tensors")                                                              \
    X(TRUNK_CODEBOOKS, "trunk_codebooks")                                                          \
    X(TRUNK_SEALED, "trunk_sealed")                                                                \
    X(TRUNK_ANNOUNCED, "trunk_announced")                                                          \
    /* reader: taking over a cache */                                                              \
    X(REBUILD_SLOT, "rebuild_slot")                                                                \
    X(REBUILD_DIRECTORY, "rebuild_directory") /* before it is corrected */                         \
    /* compute: a request, a prompt, a token */                                                    \
    X(REQUEST_TAKEN, "request_taken")                                                              \
    X(REQUEST_RESET, "request_reset")                                                              \
    X(PROMPT_TOKEN, "prompt_token") /* before its step */                                          \
    X(PROMPT_CHUNK, "prompt_chunk") /* before it */                                                \
    X(CHUNK_PHASE, "chunk_phase")   /* each of a layer's */                                        \
    X(CHUNK_LAYER, "chunk_layer")                                                                  \
    X(EMBED_WANTED, "embed_wanted") /* before the bell */                                          \
    X(EMBED_USED, "embed_used")                                                                    \
    X(PHASE, "phase") /* each of a layer's */                                                      \
    X(DEMAND_WRITTEN, "demand_written")                                                            \
    X(DEMAND_POSTED, "demand_posted")                                                              \
    X(EXPERT_PINNED, "expert_pinned")                                                              \
    X(EXPERT_UNPINNED, "expert_unpinned")                                                          \
    X(HIDDEN_WRITTEN, "hidden_written")                                                            \
    X(HIDDEN_POSTED, "hidden_posted")                                                              \
    X(SAMPLED, "sampled")                                                                          \
    X(TOKEN_LOGGED, "token_logged")                                                                \
    X(COMMITTED, "committed")                                                                      \
    X(COMMIT_RUNG, "commit_rung")                                                                  \
    X(REQUEST_OVER, "request_over")                                                                \
    X(REPLY_WRITTEN, "reply_written")                                                              \
    X(REPLIED, "replied")                                                                          \
    /* router: its mailboxes */                                                                    \
    X(HIDDEN_TAKEN, "hidden_taken")                                                                \
    X(HIDDEN_RELEASED, "hidden_released")                                                          \
    X(PREDICT_WRITTEN, "predict_written")                                                          \
    X(PREDICT_POSTED, "predict_posted")                                                            \
    /* waste-run: a death */                                                                       \
    X(RUN_REAPED, "run_reaped")                                                                    \
    X(RUN_PUNCHED, "run_punched") /* a slot, before it is EMPTY */                                 \
    X(RUN_REPAIRED, "run_repaired")                                                                \
    X(RUN_STARTED, "run_started")                                                                  \
    /* saving: a file of a conversation, by waste-run */                                           \
    X(SAVE_BEGUN, "save_begun")                                                                    \
    X(SAVE_WRITTEN, "save_written")                                                                \
    X(SAVE_FLUSHED, "save_flushed")                                                                \
    X(SAVE_LINKED, "save_linked") /* the older one has its name */                                 \
    X(SAVE_RENAMED, "save_renamed")

#define WASTE_X(id, name) WASTE_INJECT_##id,
enum waste_inject_point { WASTE_INJECT_POINTS(WASTE_X) WASTE_INJECT_COUNT };
#undef WASTE_X

#ifdef WASTE_INJECT

struct waste_control;

/* Before the first point. `stage` is enum waste_stage_id, WASTE_STAGE_COUNT for waste-run. */
void waste_inject_init(struct waste_control *control, int stage);
void waste_inject_at(enum waste_inject_point point);

#define WASTE_POINT(id) waste_inject_at(WASTE_INJECT_##id)
#else
#define waste_inject_init(control, stage) ((void)0)
#define WASTE_POINT(id) ((void)0)
#endif

#endif
