/*
 * A forward pass in one process, for tests: the segments waste-run would make, and a thread that
 * stands in for the reader with plain reads. It serves slots in a scrambled order, so that experts
 * arrive as they like, and keeps those of records that still count.
 */
#ifndef WASTE_TESTS_FORWARD_RIG_H
#define WASTE_TESTS_FORWARD_RIG_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "compute/forward.h"
#include "compute/serve.h"
#include "reader/container.h"
#include "shm/segment.h"

struct forward_rig {
    const char *dir;
    struct waste_model *model;
    struct waste_shm shm;
    struct waste_mapping control, session, trunk, cache;
    int fd[WASTE_SEG_COUNT], trunk_file;
    struct waste_forward_env env;
    struct waste_server server;
    pthread_t reader, compute;
    bool serving;
    _Atomic bool stop;
    _Atomic uint32_t refuse_layer, refuse_expert; /* this record FAILs, UINT32_MAX: none */
    uint32_t hand; /* where the next slot is looked for: backwards, the newest first */
    uint64_t *held, records, hold; /* [slots] newest record that asked for it; records before the
                                      newest that count */
    _Atomic uint32_t stall_at;     /* so many loads, and no more until it is 0 again; 0: never */
    _Atomic uint32_t loads;        /* records read */
    _Atomic bool when_waited;      /* nothing is read before compute waits for it */
    uint64_t seed;
};

/* level: as WASTE_CPU, or NULL. slots 0: room for every expert. Fails the test on any error. */
void forward_rig_create(struct forward_rig *r, const char *dir, uint32_t threads, uint32_t ctx,
                        uint32_t slots, const char *level);
/* The same, with prompts in chunks and the next layer's experts foreseen. */
void forward_rig_create_chunked(struct forward_rig *r, const char *dir, uint32_t threads,
                                uint32_t ctx, uint32_t slots, uint32_t chunk, uint32_t lookahead);
/* The same, with rows for the logits of every position. */
void forward_rig_create_scoring(struct forward_rig *r, const char *dir, uint32_t ctx,
                                uint32_t chunk, uint32_t logit_rows);
void forward_rig_destroy(struct forward_rig *r);

/* Runs waste_serve() in a thread of its own. */
void forward_rig_serve(struct forward_rig *r);
/* Ends that thread as a polite stop does. */
void forward_rig_stop_serving(struct forward_rig *r);

/* Puts count tokens at log[at...] and posts a request whose prompt ends there. */
void forward_rig_post(struct forward_rig *r, uint32_t at, const uint32_t *ids, uint32_t count,
                      uint32_t flags, uint32_t max_tokens);
/* WASTE_REQ_ALL_LOGITS: copies what is ready, at most so many, to out[position][vocab], and says
 * so. Returns how many positions have been taken. */
uint32_t forward_rig_take_logits(struct forward_rig *r, float *out, uint32_t most);
/* Posts the last request again with another prompt_end, whatever the log holds. */
void forward_rig_set_prompt_end(struct forward_rig *r, uint32_t prompt_end);
/* Waits for the reply and returns its status. */
uint32_t forward_rig_wait(struct forward_rig *r);
/* Both. */
uint32_t forward_rig_request(struct forward_rig *r, uint32_t at, const uint32_t *ids,
                             uint32_t count, uint32_t flags, uint32_t max_tokens);

/* Takes an expert out of the cache; nothing may be running. */
void forward_rig_forget(struct forward_rig *r, uint32_t layer, uint32_t expert);

const uint32_t *forward_rig_log(struct forward_rig *r);
const float *forward_rig_logits(struct forward_rig *r);
uint32_t forward_rig_position(struct forward_rig *r);

#endif
