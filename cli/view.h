/*
 * What a running pipeline shows of itself, at one moment: a copy of the words of its control
 * segment and of what /proc says of its processes, and its JSON. Looking writes nothing and asks
 * nobody.
 */
#ifndef WASTE_CLI_VIEW_H
#define WASTE_CLI_VIEW_H

#include <jansson.h>

#include "cli/attach.h"
#include "cli/machine.h"
#include "cli/prefill.h"

struct waste_view_process {
    int32_t pid; /* 0: none runs */
    double cpu_seconds;
    struct waste_machine_rss memory;
};

struct waste_view_stage {
    struct waste_view_process process;
    uint32_t incarnation, restarts, state, activity, layer;
    uint64_t step;
    double heartbeat_age; /* seconds */
};

struct waste_view_drive {
    struct waste_drive_record info;
    uint64_t in_flight, reads, bytes, ns, bucket[WASTE_LATENCY_BUCKETS];
};

struct waste_view_layer {
    uint64_t tokens, ns, wait_ns, recent_ns, recent_wait_ns;
};

struct waste_view {
    const struct waste_attached *of;
    const char *model_dir; /* as valid UTF-8 */
    uint64_t token_bytes;  /* of weights that a token touches */

    int64_t when_ns;               /* CLOCK_MONOTONIC */
    struct waste_view_process own; /* waste-run */
    struct waste_view_stage stage[WASTE_STAGE_COUNT];
    bool prefilling; /* a prompt is being consumed: */
    struct waste_prefill prefill;
    uint64_t segment[WASTE_SEG_COUNT]; /* bytes in memory */
    uint64_t counter[WASTE_COUNTER_COUNT];
    uint64_t memory_bytes_per_s; /* 0: not measured */
    uint32_t drives;
    struct waste_view_drive drive[WASTE_DRIVE_RECORDS];
    uint32_t layers;
    struct waste_view_layer layer[WASTE_MAX_LAYERS];
};

/* An empty view of this pipeline, which must outlive it. NULL when out of memory. */
struct waste_view *waste_view_create(const struct waste_attached *a);
void waste_view_destroy(struct waste_view *v); /* NULL is fine */

/* Looks. Without `memory` what the processes take stays as it was: finding out walks their page
 * tables, which takes a while for tens of gigabytes. */
void waste_view_take(struct waste_view *v, bool memory);

/* What was lost or is not used, see losses.h. */
void waste_view_losses(const struct waste_view *v, void (*tell)(void *arg, const char *text),
                       void *arg);

/* What all processes take, pages they share counted once. */
uint64_t waste_view_pss(const struct waste_view *v);

/* What happened between two looks, or since the start of the counters. */
struct waste_rates {
    double seconds; /* between the looks; since the start: those of committed steps */
    double tok_per_s, prompt_tok_per_s; /* generated; consumed beyond these */
    double bytes_per_s;                 /* expert bytes read */
    double hit_share;                   /* of experts demanded, in memory; -1: none was demanded */
    double used_share, wasted_share;    /* of the prefetches read; -1: none was */
    double disk_share, memory_share;    /* of what the machine gives; -1: not measured */
    double cpu_share[WASTE_STAGE_COUNT], own_cpu_share; /* of one CPU; since the start: 0 */
    double phase[5]; /* of step time: experts, trunk, attention, waiting for experts, for a row */
    double step_seconds; /* a generated token's; 0: none was */
};
#define WASTE_RATES_PHASES(X)                                                                      \
    X("experts", EXPERTS_NS)                                                                       \
    X("trunk", TRUNK_NS)                                                                           \
    X("attention", ATTENTION_NS)                                                                   \
    X("wait_experts", EXPERT_WAIT_NS)                                                              \
    X("wait_embedding", EMBED_WAIT_NS)

/* `before` NULL: since the start. */
void waste_view_rates(const struct waste_view *before, const struct waste_view *now,
                      struct waste_rates *out);

/* Objects of `ps --json` and `stats --json`; "rates" of `top --json`. NULL when out of memory. */
json_t *waste_view_ps_json(const struct waste_view *v);
json_t *waste_view_stats_json(const struct waste_view *v);
json_t *waste_view_rates_json(const struct waste_rates *r);

/* Prometheus' text format, 0.0.4. 0 or an exit code. */
int waste_view_prometheus(const struct waste_view *v);

#endif
