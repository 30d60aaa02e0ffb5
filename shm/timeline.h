/*
 * The timeline: what each stage did when, for `waste-run bench --timeline`. A ring of the newest
 * events in the control segment; any stage and thread writes, waste-run looks when the stages are
 * idle. Costs one look at an option where it is not asked for.
 */
#ifndef WASTE_SHM_TIMELINE_H
#define WASTE_SHM_TIMELINE_H

#include <stdatomic.h>
#include <stdint.h>

enum { WASTE_TIMELINE_EVENTS = 4096 };

/* X(ID, stage, text): %u in the text is the event's number */
#define WASTE_MOMENTS(X)                                                                           \
    X(ATTENTION, COMPUTE, "attention begins")                                                      \
    X(FFN, COMPUTE, "norm, router, shared experts begin")                                          \
    X(DEMAND, COMPUTE, "%u experts demanded")                                                      \
    X(BATCH, COMPUTE, "%u experts are here: computed")                                             \
    X(WAIT, COMPUTE, "waits for %u experts")                                                       \
    X(DONE, COMPUTE, "layer done")                                                                 \
    X(PREDICT, ROUTER, "prediction %u begins")                                                     \
    X(PREDICTED, ROUTER, "%u experts predicted")                                                   \
    X(TAKEN, READER, "demand taken: %u to be read")                                                \
    X(READ, READER, "expert %u: read")                                                             \
    X(PREFETCH, READER, "expert %u: read ahead")                                                   \
    X(ARRIVED, READER, "expert %u: here")                                                          \
    X(READY, READER, "expert %u: checked, ready")

#define WASTE_X(id, stage, text) WASTE_MOMENT_##id,
enum waste_moment { WASTE_MOMENTS(WASTE_X) WASTE_MOMENT_COUNT };
#undef WASTE_X

struct waste_timeline_event {
    _Atomic uint64_t ns; /* CLOCK_MONOTONIC; stored last (release) */
    uint32_t event, layer, number, pad;
    uint64_t step;
};

struct waste_timeline {
    _Alignas(64) _Atomic uint64_t count; /* events so far */
    uint64_t pad[7];
    struct waste_timeline_event ring[WASTE_TIMELINE_EVENTS];
};

struct waste_control;

/* An event of this layer of this step. Does nothing unless options.timeline. */
void waste_timeline_note(struct waste_control *c, enum waste_moment event, uint64_t step,
                         uint32_t layer, uint32_t number);

#endif
