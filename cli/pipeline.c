#include "cli/pipeline.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "options/units.h"

/* Above the numbers the stages want theirs at, so that dup2 in a child never hits another of ours.
 */
enum { FIRST_FD = 20 };

static int move_up(int *fd)
{
    int high = fcntl(*fd, F_DUPFD_CLOEXEC, FIRST_FD);

    if (high < 0) /* EINVAL: the limit is below FIRST_FD */
        return errno == EINVAL ? -EMFILE : -errno;
    close(*fd);
    *fd = high;
    return 0;
}

static int create_segments(struct waste_pipeline *p, struct waste_error *err)
{
    const uint64_t bytes[WASTE_SEG_COUNT] = {
        [WASTE_SEG_CONTROL] = p->plan.control_bytes,
        [WASTE_SEG_TRUNK] = p->plan.trunk_bytes,
        /* sparse: memory only where a slot is used */
        [WASTE_SEG_CACHE] = (uint64_t)p->plan.room_slots * p->model->expert.record_bytes,
        [WASTE_SEG_SESSION] = p->plan.session_bytes,
    };

    for (int s = 0; s < WASTE_SEG_COUNT; s++) {
        int rc = waste_segment_create((enum waste_segment_id)s, bytes[s], &p->fd[s]);
        if (rc == 0)
            rc = move_up(&p->fd[s]);
        if (rc != 0)
            return waste_error_set(err, rc, "cannot make the %s segment of %" PRIu64 " bytes: %s",
                                   waste_segment_name[s], bytes[s], strerror(-rc));
    }
    p->reader_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->reader_event < 0)
        return waste_error_set(err, -errno, "cannot make an eventfd: %s", strerror(errno));
    int rc = move_up(&p->reader_event);
    return rc == 0 ? 0 : waste_error_set(err, rc, "cannot move a descriptor: %s", strerror(-rc));
}

/* Ours; the reader locks the cache, compute the trunk. */
static int lock_segments(struct waste_pipeline *p, struct waste_error *err)
{
    uint64_t bytes = p->plan.control_bytes + p->plan.session_bytes, most;
    struct rlimit limit = {0};
    char need[24], have[24];

    int rc = waste_segment_lock(&p->control_map, false);
    if (rc == 0)
        rc = waste_segment_lock(&p->session_map, false);
    getrlimit(RLIMIT_MEMLOCK, &limit);
    most = limit.rlim_cur;
    return rc == 0
               ? 0
               : waste_error_set(err, rc,
                                 "option --mlock: cannot lock %s of control and session: %s "
                                 "(ulimit -l is %s)",
                                 waste_units_format_size(bytes, need, sizeof(need)), strerror(-rc),
                                 waste_units_format_size(most, have, sizeof(have)));
}

static int map_segments(struct waste_pipeline *p, struct waste_error *err)
{
    int rc = waste_segment_map(p->fd[WASTE_SEG_CONTROL], WASTE_SEG_CONTROL, true, &p->control_map);

    if (rc == 0)
        rc = waste_segment_map(p->fd[WASTE_SEG_SESSION], WASTE_SEG_SESSION, true, &p->session_map);
    if (rc != 0)
        return waste_error_set(err, rc, "cannot map a segment: %s", strerror(-rc));
    /*
     * Take the memory of the session now: a conversation that started must not fail half way.
     * Kernels before 5.14 do not know the advice; they pay as they go.
     */
    if (madvise(p->session_map.base, p->session_map.bytes, MADV_POPULATE_WRITE) != 0 &&
        errno != EINVAL)
        return waste_error_set(err, -errno, "cannot get %zu bytes for the session: %s",
                               p->session_map.bytes, strerror(errno));
    return p->options.mlock ? lock_segments(p, err) : 0;
}

int waste_pipeline_create(struct waste_pipeline *p, const char *model_dir,
                          const struct waste_model *model, const struct waste_plan *plan,
                          const struct waste_options *options, struct waste_error *err)
{
    *p = (struct waste_pipeline){
        .model_dir = model_dir,
        .model = model,
        .plan = *plan,
        .options = *options,
        .fd = {-1, -1, -1, -1},
        .reader_event = -1,
    };

    if (p->plan.room_slots < plan->slots)
        p->plan.room_slots = plan->slots;
    int rc = create_segments(p, err);
    if (rc == 0)
        rc = map_segments(p, err);
    if (rc != 0) {
        waste_pipeline_finish(p);
        return rc;
    }
    waste_session_init(p->session_map.base, p->session_map.bytes, model, options->ctx,
                       options->logit_rows);
    waste_control_init(p->control_map.base, p->control_map.bytes, model, p->plan.room_slots,
                       options, getpid(), &p->shm);
    rc = waste_session_attach(p->session_map.base, p->session_map.bytes, model, &p->header,
                              &p->session);
    if (rc != 0) {
        waste_pipeline_finish(p);
        return waste_error_set(err, rc, "cannot lay out a session of %u tokens: %s", options->ctx,
                               strerror(-rc));
    }
    waste_pipeline_set_slots(p, plan->slots, plan->slots, plan->total_bytes);
    p->want_stride = p->shm.control->want_stride;
    p->hidden_stride = p->shm.control->hidden_stride;
    p->log_off = p->session->log_off;
    p->logits_off = p->session->logits_off;
    p->bank_off[0] = p->session->bank_off[0];
    p->bank_off[1] = p->session->bank_off[1];
    p->latent_off = p->session->latent_off;
    p->mla_layer_bytes = p->header->mla_layer_bytes;
    return 0;
}

void waste_pipeline_set_slots(struct waste_pipeline *p, uint32_t slots, uint32_t budget_slots,
                              uint64_t budget_bytes)
{
    struct waste_control *c = p->shm.control;

    /* relaxed: a wish the reader follows step by step, and figures for people */
    atomic_store_explicit(&c->slots_budget, budget_slots, memory_order_relaxed);
    atomic_store_explicit(&c->budget_bytes, budget_bytes, memory_order_relaxed);
    atomic_store_explicit(&c->slots_wanted, slots, memory_order_relaxed);
    waste_pipeline_ring(p, WASTE_STAGE_READER);
}

void waste_pipeline_finish(struct waste_pipeline *p)
{
    waste_segment_unmap(&p->control_map);
    waste_segment_unmap(&p->session_map);
    for (int s = 0; s < WASTE_SEG_COUNT; s++) {
        if (p->fd[s] >= 0)
            close(p->fd[s]);
        p->fd[s] = -1;
    }
    if (p->reader_event >= 0)
        close(p->reader_event);
    p->reader_event = -1;
}

void waste_pipeline_ring(struct waste_pipeline *p, enum waste_stage_id stage)
{
    struct waste_control *c = p->shm.control;

    switch (stage) {
    case WASTE_STAGE_READER:
        waste_bell_ring_fd(&c->reader_bell, p->reader_event);
        break;
    case WASTE_STAGE_COMPUTE:
        waste_bell_ring(&c->compute_bell);
        break;
    case WASTE_STAGE_ROUTER:
        waste_bell_ring(&c->router_bell);
        break;
    case WASTE_STAGE_COUNT:
        break;
    }
}

void waste_pipeline_ring_all(struct waste_pipeline *p)
{
    for (int s = 0; s < WASTE_STAGE_COUNT; s++)
        waste_pipeline_ring(p, (enum waste_stage_id)s);
    waste_bell_ring(&p->shm.control->client_bell);
}
