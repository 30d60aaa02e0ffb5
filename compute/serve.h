/*
 * Requests and their tokens: reads the session's request, steps the model, samples, commits,
 * replies. The transaction is described in shm/session.h.
 */
#ifndef WASTE_COMPUTE_SERVE_H
#define WASTE_COMPUTE_SERVE_H

#include "compute/forward.h"
#include "compute/sampler.h"

struct waste_server {
    struct waste_shm *shm;
    struct waste_session_header *header;
    struct waste_session *session;
    struct waste_forward *forward;
    const struct waste_kernels *kernels;
    struct waste_sampler sampler;
};

/* Serves requests until the stage is told to stop. A request cut off by a stop stays open for the
 * successor, as one cut off by death does. */
void waste_serve(struct waste_server *s);

#endif
