/*
 * What the router process predicts from: the inputs of half-layers.
 *
 * Waking it must cost next to nothing, or predictions do not pay on a drive that answers in 100 us.
 * So a MoE layer gives its hint as it begins to wait for experts, when nobody has anything else to
 * do and the shared experts' part of its output is known. What attention or a dense FFN reads is
 * given by another worker than 0: reader and router stay away from worker 0's CPU, and a wake-up on
 * one's own CPU takes 2 us, on another one 10.
 */
#include <string.h>

#include "compute/forward_int.h"
#include "shm/inject.h"
#include "shm/log.h"

static bool is_moe(const struct waste_forward *f, uint32_t layer)
{
    return waste_model_layer(f->env.shm.model, layer)->is_moe;
}

/* Where less is read, predicting costs the workers more time than it saves. */
#define WORTH_READS 0.125f

static uint64_t reads(const struct waste_forward *f)
{
    /* relaxed: a statistic. Reads for predictions count: else what works would seem to be needless
     */
    return atomic_load_explicit(&f->env.shm.control->counter[WASTE_C_READS], memory_order_relaxed);
}

void waste_hint_begin(struct waste_forward *f)
{
    f->reads_seen = reads(f);
    f->recent_reads = 1;
    f->moe_layers = waste_model_moe_layers(f->env.shm.model);
}

bool waste_hint_reads(const struct waste_forward *f)
{
    return f->recent_reads >= WORTH_READS;
}

/* A layer waits longer than this: what predictions cost, some 50 us a layer and what the router
 * takes from a worker's CPU, is nothing beside one read that is saved. No need to try. */
#define WORTH_ANYWAY_NS 2e6f

static bool is_tried(const struct waste_forward *f)
{
    return f->recent_wait_ns < WORTH_ANYWAY_NS;
}

static void try_step(struct waste_forward *f, int64_t ns)
{
    struct waste_log *log = &f->env.shm.control->log[WASTE_STAGE_COMPUTE];
    bool before = !f->hint_trial.worse;
    const int64_t *median = f->hint_trial.median;

    if (!waste_trial_step(&f->hint_trial, ns) || before == !f->hint_trial.worse)
        return;
    waste_log_write(
        log, WASTE_LOG_INFO, "predictions %s: a step takes %.3g ms with them, %.3g without",
        before ? "do not pay" : "pay again", (double)median[0] / 1e6, (double)median[1] / 1e6);
}

void waste_hint_step(struct waste_forward *f, uint32_t tokens, int64_t ns)
{
    uint64_t now = reads(f);
    float turns = (float)f->moe_layers * (float)tokens;

    if (f->env.shm.control->options.lookahead && waste_hint_reads(f) && is_tried(f) && tokens == 1)
        try_step(f, ns);
    if (f->moe_layers) {
        f->recent_reads += ((float)(now - f->reads_seen) / turns - f->recent_reads) / 8;
        f->recent_wait_ns += ((float)f->expert_wait_ns / turns - f->recent_wait_ns) / 8;
    }
    f->reads_seen = now;
}

/* The second prediction of a layer saves a few percent of the time that is waited for it, and wakes
 * two processes: where little is waited it only costs. */
#define WORTH_NS 500000

static bool is_worth_it(const struct waste_forward *f, bool attention)
{
    const struct waste_layer_meter *m = &f->env.shm.layer_meter[f->layer];

    /* relaxed: our own number */
    return !attention || atomic_load_explicit(&m->recent_wait_ns, memory_order_relaxed) > WORTH_NS;
}

/* The next layer whose experts could be told; config.layers: there is none. */
static uint32_t next_moe(const struct waste_forward *f, bool attention)
{
    uint32_t layer = f->layer + !attention;

    if (attention)
        return is_moe(f, layer) ? layer : f->cfg->layers;
    while (layer < f->cfg->layers && !is_moe(f, layer))
        layer++;
    return layer;
}

static bool is_wanted(const struct waste_forward *f, bool attention)
{
    return f->env.shm.control->options.lookahead && waste_hint_reads(f) &&
           (!is_tried(f) || waste_trial_on(&f->hint_trial)) && is_worth_it(f, attention);
}

void waste_hint_offer(struct waste_forward *f, bool attention)
{
    f->hint_layer = is_wanted(f, attention) ? next_moe(f, attention) : f->cfg->layers;
    f->hint_attention = attention;
    /* relaxed: the opening of the phase publishes it with the rest */
    atomic_store_explicit(&f->hint_open, f->hint_layer < f->cfg->layers, memory_order_relaxed);
}

/* Who comes first has the hint to give. */
static bool take_hint(struct waste_forward *f)
{
    /* relaxed, both: nothing is read that another worker of this phase has written */
    return atomic_load_explicit(&f->hint_open, memory_order_relaxed) &&
           atomic_exchange_explicit(&f->hint_open, false, memory_order_relaxed);
}

static void give(struct waste_forward *f, uint32_t worker)
{
    struct waste_control *c = f->env.shm.control;
    struct waste_hidden *h = waste_ring_claim(f->env.shm.hidden);

    if (!h) {
        waste_count(c, WASTE_C_HIDDEN_DROPPED, 1);
        return;
    }
    h->step = f->position;
    h->layer = f->layer;
    h->attention = f->hint_attention;
    memcpy(h->x, waste_residual_preview(f, worker, f->hint_layer), f->cfg->hidden * sizeof h->x[0]);
    WASTE_POINT(HIDDEN_WRITTEN);
    waste_ring_publish(f->env.shm.hidden);
    WASTE_POINT(HIDDEN_POSTED);
    waste_bell_ring(&c->router_bell);
}

void waste_hint(struct waste_forward *f, uint32_t worker)
{
    if ((worker || waste_team_threads(f->team) == 1) && take_hint(f))
        give(f, worker);
}

void waste_hint_wait(struct waste_forward *f)
{
    uint32_t n = f->cfg->hidden;
    float *running = f->worker[0].norm;

    waste_hint_offer(f, false);
    if (!take_hint(f))
        return;
    memcpy(running, f->running, n * sizeof *running);
    if (f->cfg->shared_experts)
        f->k->add(f->running, f->ffn_out, n);
    give(f, 0);
    memcpy(f->running, running, n * sizeof *running);
}

void waste_hint_close(struct waste_forward *f, uint32_t worker)
{
    if (!worker && take_hint(f))
        give(f, worker);
}
