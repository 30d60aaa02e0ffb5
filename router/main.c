/*
 * waste-router: the stage that predicts. Started by waste-run with its segments as inherited
 * descriptors. Exit 0: told to stop; 2: the configuration is bad, starting again would not help;
 * anything else: start me again.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "router/predict.h"
#include "shm/confine.h"
#include "shm/control.h"
#include "shm/cpus.h"
#include "shm/inject.h"
#include "shm/segment.h"

enum { EXIT_AGAIN = 1, EXIT_CONFIGURATION = 2 };
enum { HEARTBEAT_NS = 100 * 1000 * 1000 };

struct router {
    struct waste_shm shm;
    struct waste_stage *stage;
    struct waste_predictor predictor;
    struct waste_hidden *hidden; /* a private copy of the record at work */
};

/* Before there is a log: to stderr, which is waste-run's. */
static int refuse(const char *what, int rc)
{
    fprintf(stderr, "waste-router: %s: %s\n", what, strerror(-rc));
    return EXIT_CONFIGURATION;
}

/* Our parent's death is ours. It may have died before prctl. */
static bool orphaned(const struct waste_control *control)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return getppid() != control->supervisor_pid;
}

static void set_state(struct router *r, enum waste_stage_state state)
{
    /* release: pairs with the acquire of whoever waits for RUNNING */
    atomic_store_explicit(&r->stage->state, state, memory_order_release);
}

static bool stopping(const struct router *r)
{
    /* acquire: pairs with the supervisor's release; it rings our bell after it */
    return atomic_load_explicit(&r->stage->stop, memory_order_acquire) != 0;
}

/* False: told to stop first. */
static bool wait_for_trunk(struct router *r)
{
    struct waste_control *c = r->shm.control;

    while (!stopping(r)) {
        uint32_t seq = waste_bell_seq(&c->router_bell);

        /* acquire: pairs with the reader's release after the last byte */
        if (atomic_load_explicit(&c->trunk_ready, memory_order_acquire) != 0)
            return true;
        waste_stage_mark(r->stage, WASTE_ACT_WAIT_TRUNK, -1);
        waste_bell_wait(&c->router_bell, seq, HEARTBEAT_NS, 0);
    }
    return false;
}

/* Was this the same place in the model? Several tokens of a prompt may be there. */
static bool same_place(const struct waste_hidden *a, const struct waste_hidden *b)
{
    return a->layer == b->layer && a->attention == b->attention;
}

/*
 * The next hidden state worth a prediction, copied: compute may be ahead of us by several layers,
 * and what it has passed nobody wants. Several records of one place (a prompt's tokens) all count.
 */
static bool take_hidden(struct router *r)
{
    const struct waste_control *c = r->shm.control;
    const struct waste_hidden *oldest;

    while ((oldest = waste_ring_peek(r->shm.hidden)) != NULL) {
        const struct waste_hidden *next;

        memcpy(r->hidden, oldest, c->hidden_stride);
        WASTE_POINT(HIDDEN_TAKEN);
        waste_ring_release(r->shm.hidden);
        WASTE_POINT(HIDDEN_RELEASED);
        next = waste_ring_peek(r->shm.hidden);
        if (next == NULL || same_place(next, r->hidden))
            return true;
    }
    return false;
}

/* What MoE layer `layer` would make of the state at hand. */
static void predict(struct router *r, uint32_t layer, enum waste_outlook outlook)
{
    struct waste_control *c = r->shm.control;
    struct waste_predictor *p = &r->predictor;
    struct waste_want *want;

    waste_stage_mark(r->stage, WASTE_ACT_PREDICTING, (int)layer);
    want = waste_ring_claim(r->shm.prefetch);
    if (want == NULL) /* the reader is behind, or dead: it would drop this one anyway */
        return;
    waste_timeline_note(c, WASTE_MOMENT_PREDICT, r->hidden->step, layer, (uint32_t)outlook + 1);
    if (!waste_predict(p, layer, r->hidden->x, want->expert))
        return;
    waste_timeline_note(c, WASTE_MOMENT_PREDICTED, r->hidden->step, layer, p->count);
    want->step = r->hidden->step;
    want->layer = layer;
    want->count = p->count;
    want->session = 0;
    want->outlook = outlook;
    want->kind = want->hold = 0;
    waste_count(c, WASTE_C_PREDICTIONS, 1); /* before anybody sees it and what it is counted in */
    WASTE_POINT(PREDICT_WRITTEN);
    waste_ring_publish(r->shm.prefetch);
    WASTE_POINT(PREDICT_POSTED);
    waste_bell_ring_fd(&c->reader_bell, WASTE_FD_READER_EVENT);
}

/* What can be told from the state at hand. The record is compute's word, and may be nonsense. */
static void predict_next(struct router *r)
{
    const struct waste_predictor *p = &r->predictor;
    const struct waste_hidden *h = r->hidden;
    uint32_t next;

    if (h->attention != 0) {
        if (waste_predictor_is_moe(p, h->layer))
            predict(r, h->layer, WASTE_OUTLOOK_AFTER);
        return;
    }
    next = waste_predictor_next(p, h->layer);
    if (next != UINT32_MAX)
        predict(r, next, WASTE_OUTLOOK_BEFORE);
}

static void serve(struct router *r)
{
    struct waste_control *c = r->shm.control;

    while (!stopping(r)) {
        uint32_t seq = waste_bell_seq(&c->router_bell);

        if (take_hidden(r)) {
            if (c->options.lookahead > 0)
                predict_next(r);
            continue;
        }
        waste_confine_report(WASTE_STAGE_ROUTER, &c->log[WASTE_STAGE_ROUTER]);
        waste_stage_mark(r->stage, WASTE_ACT_WAIT_WORK, -1);
        /* no spinning: a layer is longer than that, and a worker may wait for this CPU */
        waste_bell_wait(&c->router_bell, seq, HEARTBEAT_NS, 0);
    }
}

/* What a predecessor left: cursors that make no sense, and hidden states of a step long past. */
static void repair(struct router *r)
{
    waste_ring_repair(r->shm.hidden, WASTE_RING_CONSUMER);
    waste_ring_repair(r->shm.prefetch, WASTE_RING_PRODUCER);
}

static int run(struct router *r)
{
    struct waste_control *c = r->shm.control;
    struct waste_log *log = &c->log[WASTE_STAGE_ROUTER];
    struct waste_mapping trunk = {0};
    int rc;

    set_state(r, WASTE_STAGE_STARTING);
    waste_stage_mark(r->stage, WASTE_ACT_NONE, -1);
    repair(r);
    WASTE_POINT(START_REPAIRED);
    r->hidden = malloc(c->hidden_stride);
    if (r->hidden == NULL)
        return EXIT_AGAIN;
    if (!wait_for_trunk(r))
        return 0;
    rc = waste_segment_map(WASTE_FD_SEGMENT_BASE + WASTE_SEG_TRUNK, WASTE_SEG_TRUNK, false, &trunk);
    if (rc < 0)
        return refuse("trunk segment", rc);
    if (trunk.bytes < r->shm.model->trunk_bytes)
        return refuse("trunk segment", -EINVAL);
    rc = waste_predictor_init(&r->predictor, r->shm.model, trunk.base,
                              c->options.lookahead > 0 ? c->options.lookahead : 1,
                              waste_want_capacity(c));
    if (rc < 0) {
        waste_log_write(log, WASTE_LOG_ERROR, "router: cannot predict with this model: %s",
                        strerror(-rc));
        return rc == -ENOMEM ? EXIT_AGAIN : EXIT_CONFIGURATION;
    }
    waste_cpus_leave_first(c->options.threads, c->options.cpus);
    waste_cpus_prompt();
    waste_confine(WASTE_STAGE_ROUTER, -1, log);
    WASTE_POINT(START_READY);
    set_state(r, WASTE_STAGE_RUNNING);
    WASTE_POINT(START_RUNNING);
    waste_bell_ring(&c->client_bell);
    serve(r);
    waste_predictor_finish(&r->predictor);
    waste_segment_unmap(&trunk);
    return 0;
}

int main(void)
{
    struct waste_mapping control;
    struct router r = {0};
    int rc = waste_segment_map(WASTE_FD_SEGMENT_BASE + WASTE_SEG_CONTROL, WASTE_SEG_CONTROL, true,
                               &control);

    if (rc == 0)
        rc = waste_control_attach(control.base, control.bytes, &r.shm);
    if (rc < 0)
        return refuse("control segment", rc);
    r.stage = &r.shm.control->stage[WASTE_STAGE_ROUTER];
    waste_inject_init(r.shm.control, WASTE_STAGE_ROUTER);
    WASTE_POINT(START_ATTACHED);
    if (orphaned(r.shm.control))
        return EXIT_AGAIN;
    rc = run(&r);
    free(r.hidden);
    set_state(&r, WASTE_STAGE_STOPPING);
    return rc;
}
