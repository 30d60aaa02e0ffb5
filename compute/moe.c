/*
 * Feed-forward half-layers: dense, and mixture of experts.
 *
 * A MoE layer, one token:
 *
 *   1  norm; router rows, latent down, half of shared gate and up. Whoever finishes the router
 *      chooses the experts and posts the demand while the others go on.
 *   2  up: gate and up of the experts in memory, by slices of positions; then the other half of the
 *      shared experts'
 *   3  down: a slice of one expert's inner rows: partial sums joined, activation, product; then the
 *      shared experts'
 *      ... 2 and 3 again for experts that arrive later, as often as it takes
 *   4  sum: every expert's output, in selection order
 *   5  latent models: norm, latent up
 *
 * An expert's task takes tens of microseconds, one of the shared experts' three: they come last, so
 * that no worker is left with nothing to do while another has a long task to finish.
 *
 * Partial sums of an expert are kept a slice apart and joined in slice order, every expert has its
 * own, and slices depend on shapes only: so neither threads nor arrival change a bit.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "compute/forward_int.h"
#include "shm/inject.h"

enum {
    SUM_ROWS = 128,     /* rows of a task of the final sum; whole blocks of 64 */
    TASKS_A_THREAD = 8, /* wanted, where experts can be divided into groups */
};

/* x[rows] (whole blocks) = the sum of `count` partial vectors, `stride` apart, in order. */
static void join_slices(const struct waste_forward *f, float *x, const float *parts, uint32_t count,
                        size_t stride, uint32_t rows)
{
    memcpy(x, parts, rows * sizeof *x);
    for (uint32_t s = 1; s < count; s++)
        f->k->add(x, parts + s * stride, rows);
}

static uint32_t whole_blocks(uint32_t rows)
{
    return (rows + 63) / 64 * 64;
}

static const uint8_t *scales_of(const struct waste_forward *f, uint32_t place,
                                enum waste_matrix_kind kind, uint32_t row)
{
    uint32_t before = kind * f->cfg->expert_inner; /* gate, up: inner rows each */

    return f->experts.record[place] + f->env.shm.model->expert.scale_off + 2 * (before + row);
}

/* An expert's indices of gate, up or down, from position p of the first block of rows on. */
static const uint8_t *indices_of(const struct waste_forward *f, uint32_t place,
                                 enum waste_matrix_kind kind, uint32_t p)
{
    const struct waste_expert_format *e = &f->env.shm.model->expert;
    const uint32_t off[WASTE_KIND_COUNT] = {e->gate_off, e->up_off, e->down_off};

    return f->experts.record[place] + off[kind] + (size_t)p * 64 * e->index_bytes;
}

/* Partial sums of expert `place`: gate or up, and down. */
static float *up_acc(const struct waste_forward *f, uint32_t place, enum waste_matrix_kind kind,
                     uint32_t slice)
{
    const struct waste_slices *s = &f->up_slices;
    return f->up_acc + (((size_t)place * 2 + kind) * s->count + slice) * s->padded;
}

static float *down_acc(const struct waste_forward *f, uint32_t place, uint32_t slice)
{
    const struct waste_slices *s = &f->down_slices;
    return f->down_acc + ((size_t)place * s->count + slice) * s->padded;
}

/* The places in f->batch that group `group` of f->batch_groups works on. */
static void group_range(const struct waste_forward *f, uint32_t group, uint32_t *b0, uint32_t *b1)
{
    *b0 = (uint32_t)((uint64_t)f->batch_count * group / f->batch_groups);
    *b1 = (uint32_t)((uint64_t)f->batch_count * (group + 1) / f->batch_groups);
}

/* One slice of positions of gate or up, for a group of experts: they share the tables. */
static void up_task(struct waste_forward *f, struct waste_worker *wk, uint32_t task)
{
    const struct waste_slices *s = &f->up_slices;
    enum waste_matrix_kind kind = task % 2;
    uint32_t slice = task / 2 % s->count, b0, b1, fmt = f->env.shm.model->expert.fmt;
    uint32_t end = (slice + 1) * s->each < s->positions ? (slice + 1) * s->each : s->positions;
    const void *prep = waste_weights_prep(&f->weights, f->layer, kind);

    group_range(f, task / 2 / s->count, &b0, &b1);
    for (uint32_t b = b0; b < b1; b++)
        memset(up_acc(f, f->batch[b], kind, slice), 0, s->padded * sizeof(float));
    for (uint32_t p = slice * s->each; p < end; p += WASTE_VQ_BLOCK) {
        uint32_t n = end - p < WASTE_VQ_BLOCK ? end - p : WASTE_VQ_BLOCK;
        f->k->vq_tables[fmt](wk->tables, prep, f->z + (size_t)p * 8, n);
        for (uint32_t b = b0; b < b1; b++) {
            const uint8_t *next = b + 1 < b1 ? indices_of(f, f->batch[b + 1], kind, p)
                                             : indices_of(f, f->batch[b0], kind, p + n);
            f->k->vq_apply[fmt](up_acc(f, f->batch[b], kind, slice), wk->tables,
                                indices_of(f, f->batch[b], kind, 0), s->rows, s->positions, p, n,
                                next);
        }
    }
}

/* Rows [r0, r0 + n) of gate or up of one expert. */
static void finish_up(struct waste_forward *f, struct waste_worker *wk, float *y, uint32_t place,
                      enum waste_matrix_kind kind, uint32_t r0, uint32_t n)
{
    const struct waste_slices *s = &f->up_slices;

    join_slices(f, wk->slice, up_acc(f, place, kind, 0) + r0, s->count, s->padded, whole_blocks(n));
    f->k->vq_finish(y, wk->slice, scales_of(f, place, kind, r0), n);
}

/* One slice of an expert's inner rows: what phase 2 left of them, activated, times down. */
static void down_task(struct waste_forward *f, struct waste_worker *wk, uint32_t task)
{
    const struct waste_slices *s = &f->down_slices;
    uint32_t place = f->batch[task / s->count], slice = task % s->count;
    uint32_t p0 = slice * s->each, fmt = f->env.shm.model->expert.fmt;
    uint32_t end = p0 + s->each < s->positions ? p0 + s->each : s->positions;
    uint32_t rows = (end - p0) * 8, room = whole_blocks(s->each * 8);
    float *gate = wk->slice + room, *up = gate + room, *h = up + room;
    float *acc = down_acc(f, place, slice);
    const void *prep = waste_weights_prep(&f->weights, f->layer, WASTE_KIND_DOWN);

    finish_up(f, wk, gate, place, WASTE_KIND_GATE, p0 * 8, rows);
    finish_up(f, wk, up, place, WASTE_KIND_UP, p0 * 8, rows);
    f->k->glu(h, gate, up, rows, &f->act);
    memset(acc, 0, s->padded * sizeof *acc);
    for (uint32_t p = p0; p < end; p += WASTE_VQ_BLOCK) {
        uint32_t n = end - p < WASTE_VQ_BLOCK ? end - p : WASTE_VQ_BLOCK;
        f->k->vq_tables[fmt](wk->tables, prep, h + (size_t)(p - p0) * 8, n);
        f->k->vq_apply[fmt](acc, wk->tables, indices_of(f, place, WASTE_KIND_DOWN, 0), s->rows,
                            s->positions, p, n, NULL);
    }
}

/* running += routed (+ shared), rows [r0, r1) */
static void add_to_running(struct waste_forward *f, float *routed, uint32_t r0, uint32_t r1)
{
    if (f->cfg->shared_experts)
        f->k->add(routed + r0, f->ffn_out + r0, r1 - r0);
    f->k->add(f->running + r0, routed + r0, r1 - r0);
}

/* SUM_ROWS rows of the weighted sum. */
static void sum_task(struct waste_forward *f, struct waste_worker *wk, uint32_t task)
{
    const struct waste_slices *s = &f->down_slices;
    uint32_t r0 = task * SUM_ROWS, n = s->rows - r0 < SUM_ROWS ? s->rows - r0 : SUM_ROWS;
    float *y = wk->slice + SUM_ROWS;

    memset(f->routed + r0, 0, n * sizeof *f->routed);
    for (uint32_t i = 0; i < f->experts.count; i++) {
        join_slices(f, wk->slice, down_acc(f, i, 0) + r0, s->count, s->padded, whole_blocks(n));
        f->k->vq_finish(y, wk->slice, scales_of(f, i, WASTE_KIND_DOWN, r0), n);
        f->k->axpy(f->routed + r0, f->experts.weight[i], y, n);
    }
    if (!f->cfg->latent)
        add_to_running(f, f->routed, r0, r0 + n);
}

/* What comes after the experts' tasks of a phase: the shared experts', products of x from task
 * `from` on. */
static void shared_tasks(struct waste_forward *f, uint32_t worker, uint32_t task, const float *x,
                         uint32_t from)
{
    struct waste_worker *wk = &f->worker[worker];
    uint32_t r0, r1;

    f->k->prepare(wk->xp, x, f->product[0].w->cols);
    do
        waste_products_task(f, x, wk->xp, from + task - f->expert_tasks, &r0, &r1);
    while (waste_team_claim(f->team, worker, &task));
}

static void up_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    uint32_t task;

    while (waste_team_claim(f->team, worker, &task)) {
        if (task >= f->expert_tasks) {
            shared_tasks(f, worker, task, f->ffn_x, f->shared_from);
            return;
        }
        up_task(f, &f->worker[worker], task);
    }
}

static void down_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    uint32_t task;

    while (waste_team_claim(f->team, worker, &task)) {
        if (task >= f->expert_tasks) {
            shared_tasks(f, worker, task, f->ffn_h, 0);
            return;
        }
        down_task(f, &f->worker[worker], task);
    }
}

static void sum_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    uint32_t task;

    while (waste_team_claim(f->team, worker, &task))
        sum_task(f, &f->worker[worker], task);
}

static void latent_up_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_worker *wk = &f->worker[worker];
    const float *y = f->routed;
    uint32_t task, r0, r1;

    if (!waste_team_claim(f->team, worker, &task))
        return;
    if (f->cfg->latent_norm) {
        waste_rms_norm(f, wk->norm, y, &f->w->m[WASTE_T_LATENT_NORM], f->cfg->expert_width);
        y = wk->norm;
    }
    f->k->prepare(wk->xp, y, f->cfg->expert_width);
    do {
        waste_products_task(f, y, wk->xp, task, &r0, &r1);
        add_to_running(f, f->latent_out, r0, r1);
    } while (waste_team_claim(f->team, worker, &task));
}

void waste_choose(const struct waste_forward *f, uint32_t *id, float *weight, const float *logits,
                  float *scratch)
{
    const struct waste_config *c = f->cfg;
    float sum = 0;

    waste_top_k(id, weight, logits, waste_weights_vector(&f->w->m[WASTE_T_ROUTER_BIAS]), c->experts,
                c->top_k, scratch);
    for (uint32_t i = 0; i < c->top_k; i++)
        sum += weight[i];
    for (uint32_t i = 0; i < c->top_k; i++)
        weight[i] = (c->renormalize ? weight[i] / (sum + 1e-20f) : weight[i]) * c->routed_scale;
}

/* The router's scores are complete: choose, weigh, demand. */
static void choose(struct waste_forward *f)
{
    const struct waste_config *c = f->cfg;
    struct waste_experts *e = &f->experts;

    for (uint32_t i = 0; i < c->experts; i++)
        f->router_bad |= !isfinite(f->router[i]);
    if (f->router_bad)
        return;
    waste_choose(f, e->id, e->weight, f->router, f->router_scratch);
    waste_timeline_note(f->env.shm.control, WASTE_MOMENT_DEMAND, f->position, f->layer, c->top_k);
    waste_experts_demand(e, c->top_k);
}

/* What the shared experts read, and without a latent the others: worker 0's business, who always
 * takes part. */
static void share_input(struct waste_forward *f)
{
    if (f->w->layer->is_moe)
        memcpy(f->ffn_x, f->worker[0].norm, f->cfg->hidden * sizeof *f->ffn_x);
}

static void input_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_worker *wk = &f->worker[worker];
    uint32_t task, r0, r1;
    bool claimed = waste_team_claim(f->team, worker, &task);

    if (!claimed && worker)
        return;
    waste_residual_input(f, worker);
    if (!worker)
        share_input(f);
    waste_hint(f, worker);
    for (; claimed; claimed = waste_team_claim(f->team, worker, &task)) {
        uint32_t product = waste_products_task(f, wk->norm, wk->xp, task, &r0, &r1);
        /* acq_rel: the last one sees the scores of all the others */
        if (product == 0 && f->w->layer->is_moe &&
            atomic_fetch_sub_explicit(&f->router_left, 1, memory_order_acq_rel) == 1)
            choose(f);
    }
    waste_hint_close(f, worker);
}

static void ffn_input(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    f->input = (struct waste_input){&m[WASTE_T_MLP_RES_NORM], &m[WASTE_T_MLP_RES_PROJ],
                                    &m[WASTE_T_POST_NORM]};
}

static void dense_down_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_worker *wk = &f->worker[worker];
    uint32_t task, r0, r1;

    if (!waste_team_claim(f->team, worker, &task))
        return;
    f->k->prepare(wk->xp, f->ffn_h, f->product[0].w->cols);
    do {
        waste_products_task(f, f->ffn_h, wk->xp, task, &r0, &r1);
        f->k->add(f->running + r0, f->ffn_out + r0, r1 - r0);
    } while (waste_team_claim(f->team, worker, &task));
}

int waste_dense(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;

    ffn_input(f);
    waste_hint_offer(f, false);
    waste_products_begin(f);
    waste_products_add_glu(f, &m[WASTE_T_FFN_GATE], &m[WASTE_T_FFN_UP]);
    waste_forward_run(f, WASTE_PHASE_TRUNK, input_phase, f->product_tasks);
    if (f->bad)
        return waste_forward_bad(f, "attention");
    waste_products_begin(f);
    waste_products_add(f, &m[WASTE_T_FFN_DOWN], f->ffn_out);
    waste_forward_run(f, WASTE_PHASE_TRUNK, dense_down_phase, f->product_tasks);
    return 0;
}

static int take_experts(struct waste_forward *f, uint32_t *count)
{
    int err = waste_experts_take(&f->experts, f->batch, &f->batch_count, f->error, sizeof f->error);

    *count = f->batch_count;
    return err;
}

/* Nothing left to compute. */
static int wait_for_experts(struct waste_forward *f)
{
    uint32_t count;

    waste_timeline_note(f->env.shm.control, WASTE_MOMENT_WAIT, f->position, f->layer,
                        f->experts.missing);
    return waste_forward_wait(f, take_experts, &count);
}

/* Phases 2 and 3 for the experts in f->batch and, `shared`, for the shared ones. */
static void run_batch(struct waste_forward *f, bool shared)
{
    const struct waste_matrix *m = f->w->m;
    uint32_t tasks = 2 * f->up_slices.count;
    uint32_t wanted = (TASKS_A_THREAD * waste_team_threads(f->team) + tasks - 1) / tasks;

    waste_timeline_note(f->env.shm.control, WASTE_MOMENT_BATCH, f->position, f->layer,
                        f->batch_count);
    f->batch_groups = wanted < f->batch_count ? wanted : f->batch_count;
    f->expert_tasks = tasks * f->batch_groups;
    waste_forward_run_single(f, WASTE_PHASE_EXPERTS, up_phase,
                             f->expert_tasks + (shared ? f->product_tasks - f->shared_from : 0));

    f->expert_tasks = f->batch_count * f->down_slices.count;
    waste_products_begin(f);
    if (shared)
        waste_products_add(f, &m[WASTE_T_SHARED_DOWN], f->ffn_out);
    waste_forward_run(f, WASTE_PHASE_EXPERTS, down_phase, f->expert_tasks + f->product_tasks);
}

static int run_experts(struct waste_forward *f)
{
    uint32_t count;
    int err = take_experts(f, &count);

    if (!err)
        run_batch(f, f->cfg->shared_experts);
    if (f->experts.missing && !err)
        waste_hint_wait(f);
    while (f->experts.missing && !err) {
        err = wait_for_experts(f);
        if (!err)
            run_batch(f, false);
    }
    return err;
}

static void choose_phase(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;

    waste_timeline_note(f->env.shm.control, WASTE_MOMENT_FFN, f->position, f->layer, 0);
    waste_experts_begin(&f->experts, f->position, f->layer);
    ffn_input(f);
    waste_products_begin(f);
    waste_products_add(f, &m[WASTE_T_ROUTER], f->router); /* product 0: see input_phase */
    if (f->cfg->latent)
        waste_products_add(f, &m[WASTE_T_LATENT_DOWN], f->z);
    f->shared_from = f->product_tasks;
    if (f->cfg->shared_experts)
        waste_products_add_glu(f, &m[WASTE_T_SHARED_GATE], &m[WASTE_T_SHARED_UP]);
    f->shared_from += (f->product_tasks - f->shared_from) / 2;
    f->router_bad = false;
    atomic_store_explicit(&f->router_left, f->product[0].tasks, memory_order_relaxed);
    waste_forward_run(f, WASTE_PHASE_TRUNK, input_phase, f->shared_from);
}

int waste_moe(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    int err;

    choose_phase(f);
    if (f->bad || f->router_bad) {
        err = waste_forward_bad(f, f->bad ? "attention" : "router");
        goto out;
    }
    err = run_experts(f);
    if (err)
        goto out;
    waste_forward_run(f, WASTE_PHASE_EXPERTS, sum_phase,
                      (f->down_slices.rows + SUM_ROWS - 1) / SUM_ROWS);
    if (f->cfg->latent) {
        waste_products_begin(f);
        waste_products_add(f, &m[WASTE_T_LATENT_UP], f->latent_out);
        waste_forward_run(f, WASTE_PHASE_TRUNK, latent_up_phase, f->product_tasks);
    }
out:
    waste_experts_release(&f->experts);
    return err;
}
