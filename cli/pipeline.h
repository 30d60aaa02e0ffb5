/*
 * The four segments of a pipeline and what waste-run itself knows about them.
 *
 * Everything the supervisor relies on (model, sizes, slot count, pointers) is in this process's own
 * memory; shared memory is only written to, or read with nothing believed.
 */
#ifndef WASTE_CLI_PIPELINE_H
#define WASTE_CLI_PIPELINE_H

#include "cli/plan.h"
#include "compute/forward.h"
#include "reader/container.h"
#include "shm/control.h"
#include "shm/segment.h"
#include "shm/session.h"

struct waste_pipeline {
    const char *model_dir;
    const char *usage_dir, *usage_name; /* where the reader keeps what it learns; NULL: nowhere */
    const struct waste_model *model;    /* our copy, not the shared one */
    struct waste_plan plan;
    struct waste_options options;
    int fd[WASTE_SEG_COUNT];
    int reader_event; /* eventfd of the reader's bell */
    struct waste_mapping control_map, session_map;
    struct waste_shm shm;
    struct waste_session_header *header;
    struct waste_session *session;
    uint32_t want_stride, hidden_stride; /* of the rings, taken before any stage ran */
    /* of the session segment, taken before any stage ran */
    uint64_t log_off, logits_off, bank_off[2], latent_off, mla_layer_bytes;
};

/* Makes, maps and fills the segments. `model` and `model_dir` must outlive it. 0 or -errno with
 * err. */
int waste_pipeline_create(struct waste_pipeline *p, const char *model_dir,
                          const struct waste_model *model, const struct waste_plan *plan,
                          const struct waste_options *options, struct waste_error *err);
void waste_pipeline_finish(struct waste_pipeline *p);

static inline uint32_t *waste_pipeline_log(const struct waste_pipeline *p)
{
    return (uint32_t *)((char *)p->session_map.base + p->log_off);
}

/* Of a position of the last request, if it was asked for; [vocab]. */
static inline const float *waste_pipeline_logits(const struct waste_pipeline *p, uint32_t position)
{
    uint32_t row =
        waste_logits_row(position, waste_forward_chunk_most(&p->options), p->options.logit_rows);

    return (const float *)((const char *)p->session_map.base + p->logits_off) +
           (size_t)row * p->model->config.vocab;
}

/* How many slots the reader may use from now on, and what of that the budget allows. */
void waste_pipeline_set_slots(struct waste_pipeline *p, uint32_t slots, uint32_t budget_slots,
                              uint64_t budget_bytes);

/* Rings the bell of one stage / of everybody. */
void waste_pipeline_ring(struct waste_pipeline *p, enum waste_stage_id stage);
void waste_pipeline_ring_all(struct waste_pipeline *p);

#endif
