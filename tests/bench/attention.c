/*
 * What attention costs a decoded token by the length of its context, KDA and MLA layers apart.
 *
 *     attention MODEL [THREADS]
 *
 * MODEL needs few layers: `waste-fetch synth --shape kimi-linear-48b --layers 4`. The context is
 * not computed: its states and latents are random numbers, which cost what others do. Times are of
 * a layer's whole attention half, norm and trunk products included, by the timeline that compute
 * notes; the best of some steps. The limits of the machine are one read of the latents, as compute
 * measures memory, and the multiply-adds of the absorbed heads at the kernel level's full rate.
 */
#include <stdio.h>
#include <stdlib.h>

#include "shm/timeline.h"
#include "tests/unit/cm.h"
#include "tests/unit/forward_rig.h"

enum { STEPS = 24, SLOTS = 64, LONGEST = 32768, LENGTHS = 6 };

static uint32_t length_of(int i)
{
    return UINT32_C(1024) << i;
}

static void fill(void *to, uint64_t bytes)
{
    float *x = to;
    uint64_t state = 1;

    for (uint64_t i = 0; i < bytes / sizeof *x; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        x[i] = (float)(int32_t)(state >> 32) / 2147483648.0f;
    }
}

/* Milliseconds from the first to the second event of a layer in this step. */
static double between(const struct waste_timeline *t, uint64_t step, uint32_t layer,
                      enum waste_moment first, enum waste_moment second)
{
    uint64_t from = 0, to = 0;

    for (uint32_t i = 0; i < WASTE_TIMELINE_EVENTS; i++) {
        const struct waste_timeline_event *e = &t->ring[i];
        if (e->step != step || e->layer != layer)
            continue;
        if (e->event == first && e->ns > from)
            from = e->ns;
        if (e->event == second && e->ns > to)
            to = e->ns;
    }
    return from && to > from ? (double)(to - from) / 1e6 : 1e30;
}

/* Of each layer at the end of a context, the best of some steps. */
static void steps(struct forward_rig *r, uint32_t context, double *ms)
{
    uint32_t layers = r->model->config.layers, position = context - 1;

    for (uint32_t l = 0; l < layers; l++)
        ms[l] = 1e30;
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t token = 1000 + i;
        waste_forward_want(r->server.forward, position, &token, 1);
        if (waste_forward_step(r->server.forward, position, 0, token, NULL)) {
            fprintf(stderr, "attention: %s\n", waste_forward_error(r->server.forward));
            exit(1);
        }
        for (uint32_t l = 0; l < layers; l++) {
            double took = between(&r->shm.control->timeline, position, l, WASTE_MOMENT_ATTENTION,
                                  WASTE_MOMENT_FFN);
            ms[l] = took < ms[l] ? took : ms[l];
        }
    }
}

/* The mean of the layers of a kind; of a dense layer no time is noted. */
static double mean(const struct waste_model *model, const double *ms, bool kda)
{
    double sum = 0;
    uint32_t count = 0;

    for (uint32_t l = 0; l < model->config.layers; l++)
        if (waste_model_layer(model, l)->is_kda == kda && ms[l] < 1e30) {
            sum += ms[l];
            count++;
        }
    return count ? sum / count : 0;
}

static double multiply_adds_a_second(const struct waste_kernels *k, uint32_t threads)
{
    float sink[WASTE_TILE];
    double best = 0;

    for (int pass = 0; pass < 5; pass++) {
        int64_t start = waste_forward_now_ns();
        double done = (double)k->multiply_adds(sink, 1 << 26);
        double rate = done * 1e9 / (double)(waste_forward_now_ns() - start);
        best = rate > best ? rate : best;
    }
    return best * threads;
}

static void print_row(struct forward_rig *r, uint32_t context, double macs_per_s)
{
    const struct waste_config *cfg = &r->model->config;
    double ms[WASTE_MAX_LAYERS];
    double bytes = (double)context * (cfg->kv_lora + cfg->rope_dim) * sizeof(float);
    double macs = (double)context * cfg->mla_heads * (2 * cfg->kv_lora + cfg->rope_dim);

    steps(r, context, ms);
    printf("%8u %10.3f %10.3f %14.3f %18.3f\n", context, mean(r->model, ms, true),
           mean(r->model, ms, false), 1e3 * bytes / (double)r->shm.control->memory_bytes_per_s,
           1e3 * macs / macs_per_s);
}

int main(int argc, char **argv)
{
    struct forward_rig r;
    uint32_t threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 2;

    if (argc < 2 || threads == 0) {
        fprintf(stderr, "usage: attention MODEL [THREADS]\n");
        return 2;
    }
    forward_rig_create(&r, argv[1], threads, LONGEST + 1, SLOTS, getenv("WASTE_CPU"));
    r.shm.control->options.timeline = 1;
    fill((char *)r.env.session + r.env.conversation->bank_off[0],
         r.model->config.kda_layers * r.env.session->kda_layer_bytes);
    fill((char *)r.env.session + r.env.conversation->latent_off,
         r.model->config.mla_layers * r.env.session->mla_layer_bytes);
    printf("%8s %10s %10s %14s %18s\n", "context", "KDA, ms", "MLA, ms", "latents' read",
           "its multiply-adds");
    double rate = multiply_adds_a_second(&r.env.kernels, threads);
    for (int i = 0; i < LENGTHS; i++)
        print_row(&r, length_of(i), rate);
    forward_rig_destroy(&r);
    return 0;
}
