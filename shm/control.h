/*
 * The control segment: header, options, stage records, bells, counters, rings, slot descriptors,
 * expert directory, model.
 *
 * waste-run lays it out and fills it before any stage starts, and stores `ready` last. A stage
 * attaches with waste_control_attach(), which says "not there yet", "wrong version" or hands out
 * checked pointers. Every word has one writer, named beside it.
 */
#ifndef WASTE_SHM_CONTROL_H
#define WASTE_SHM_CONTROL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/bell.h"
#include "shm/habit.h"
#include "shm/log.h"
#include "shm/meter.h"
#include "shm/model.h"
#include "shm/ring.h"
#include "shm/slot.h"
#include "shm/timeline.h"

#define WASTE_CONTROL_MAGIC UINT64_C(0x316c727463747377) /* "wstctrl1" */

/* Stages: X(ID, program). The supervisor starts them in this order. */
#define WASTE_STAGES(X)                                                                            \
    X(READER, "reader")                                                                            \
    X(COMPUTE, "compute")                                                                          \
    X(ROUTER, "router")

#define WASTE_X(id, name) WASTE_STAGE_##id,
enum waste_stage_id { WASTE_STAGES(WASTE_X) WASTE_STAGE_COUNT };
#undef WASTE_X
extern const char *const waste_stage_name[WASTE_STAGE_COUNT];

enum waste_stage_state {
    WASTE_STAGE_OFF = 0,  /* not running (supervisor writes this one, after reaping) */
    WASTE_STAGE_STARTING, /* attached, not serving yet */
    WASTE_STAGE_LOADING,  /* reader: trunk; progress in the counters */
    WASTE_STAGE_RUNNING,
    WASTE_STAGE_STOPPING,
    WASTE_STAGE_STATE_COUNT,
};
extern const char *const waste_stage_state_name[WASTE_STAGE_STATE_COUNT];

/* What a stage does at this moment, for `ps`, `stats` and hang reports: X(ID, text). */
#define WASTE_ACTIVITIES(X)                                                                        \
    X(NONE, "-")                                                                                   \
    X(IDLE, "waiting for a request")                                                               \
    X(COMPUTING, "computing")                                                                      \
    X(WAIT_TRUNK, "waiting for the trunk")                                                         \
    X(WAIT_EXPERTS, "waiting for experts")                                                         \
    X(WAIT_EMBED, "waiting for an embedding row")                                                  \
    X(WAIT_CLIENT, "waiting for logits to be read")                                                \
    X(WAIT_WORK, "waiting for work")                                                               \
    X(READING, "reading")                                                                          \
    X(LOADING, "loading the trunk")                                                                \
    X(PREDICTING, "predicting")

#define WASTE_X(id, text) WASTE_ACT_##id,
enum waste_activity { WASTE_ACTIVITIES(WASTE_X) WASTE_ACT_COUNT };
#undef WASTE_X
extern const char *const waste_activity_name[WASTE_ACT_COUNT];

struct waste_stage {
    /* supervisor */
    _Alignas(64) _Atomic uint32_t
        incarnation;     /* 1 for the first process; +1 a restart, before it starts */
    _Atomic int32_t pid; /* 0 when none runs */
    _Atomic uint32_t restarts;
    _Atomic uint32_t stop;       /* 1: finish what must be finished, exit 0 */
    _Atomic uint32_t exec_error; /* errno of a program that could not be run; written by the child
                                    that was to become it */
    uint32_t pad0[11];
    /* the stage */
    _Alignas(64) _Atomic uint32_t state; /* enum waste_stage_state */
    _Atomic uint32_t activity;           /* enum waste_activity */
    _Atomic uint64_t
        heartbeat_ns;        /* CLOCK_MONOTONIC at the last sign of life; at least every 200 ms */
    _Atomic uint64_t step;   /* compute: token position being computed */
    _Atomic uint32_t layer;  /* layer at work */
    _Atomic uint32_t tokens; /* compute: from `step` on, at work in one go */
    /* compute, of the request at work: where and when its prompt began to be consumed, where it
     * ends */
    _Atomic uint64_t prompt_ns;
    _Atomic uint32_t prompt_begin, prompt_end;
    uint32_t pad1[4];
};
_Static_assert(sizeof(struct waste_stage) == 128, "a stage record is two cache lines");

/* Counters: X(ID, json name, Prometheus name, writer stage, help). Written with relaxed adds by
 * that stage only; only ever grow, or are gauges. A Prometheus name ends with _total if it is no
 * gauge; one with _seconds is of a counter in nanoseconds. */
#define WASTE_COUNTERS(X)                                                                          \
    X(TRUNK_BYTES_READ, "trunk_bytes_read", "trunk_read_bytes_total", READER,                      \
      "trunk bytes read from disk since the pipeline started")                                     \
    X(TRUNK_LOADED, "trunk_loaded_bytes", "trunk_loaded_bytes", READER,                            \
      "trunk bytes in memory (gauge)")                                                             \
    X(TRUNK_HUGE, "trunk_huge_bytes", "trunk_huge_bytes", READER,                                  \
      "of those, in huge pages (gauge)")                                                           \
    X(DEMAND_RECORDS, "demand_records", "demand_records_total", READER,                            \
      "layers whose demand was taken")                                                             \
    X(HITS, "hits", "expert_hits_total", READER, "experts demanded that were in memory")           \
    X(MISSES, "misses", "expert_misses_total", READER,                                             \
      "experts demanded that had to be read or were still being read")                             \
    X(BYTES_READ, "bytes_read", "expert_read_bytes_total", READER,                                 \
      "expert bytes read, prefetch included")                                                      \
    X(READS, "reads", "expert_reads_total", READER, "expert records read")                         \
    X(READ_RETRIES, "read_retries", "read_retries_total", READER,                                  \
      "reads tried again after an error or a bad checksum")                                        \
    X(READ_FAILURES, "read_failures", "read_failures_total", READER, "expert records given up")    \
    X(PREFETCHED, "prefetched", "prefetched_total", READER,                                        \
      "experts read because they were predicted")                                                  \
    X(PREFETCH_USED, "prefetch_used", "prefetch_used_total", READER,                               \
      "of those, demanded before they were evicted")                                               \
    X(PREFETCH_DROPPED, "prefetch_dropped", "prefetch_dropped_total", READER,                      \
      "predictions not read: passed, resident or no room")                                         \
    X(PREFETCH_CANCELLED, "prefetch_cancelled", "prefetch_cancelled_total", READER,                \
      "predictions taken back: their layer was over before their read began")                      \
    X(PREFETCH_WASTED, "prefetch_wasted", "prefetch_wasted_total", READER,                         \
      "of those, not demanded when their layer came")                                              \
    X(PREFETCH_WITHHELD, "prefetch_withheld", "prefetch_withheld_total", READER,                   \
      "predictions not read because too many like them were wrong")                                \
    X(DRIVES_IDLE_NS, "drives_idle_ns", "drives_idle_seconds_total", READER,                       \
      "nanoseconds between layers in which there was no demand to read")                           \
    X(WARMED, "warmed", "warmed_total", READER,                                                    \
      "experts read at the start because earlier runs used them")                                  \
    X(CACHE_SHRUNK, "cache_shrunk", "cache_shrunk_slots_total", READER,                            \
      "slots given back because the budget became smaller")                                        \
    X(EVICTIONS, "evictions", "evictions_total", READER, "READY slots given to another expert")    \
    X(EMBED_ROWS, "embed_rows", "embedding_rows_total", READER, "embedding rows read")             \
    X(TOKENS, "tokens", "tokens_total", COMPUTE, "tokens committed, prompt included")              \
    X(GENERATED, "generated", "generated_tokens_total", COMPUTE, "tokens generated")               \
    X(STEP_NS, "step_ns", "step_seconds_total", COMPUTE, "nanoseconds spent in committed steps")   \
    X(DECODE_NS, "decode_ns", "decode_seconds_total", COMPUTE,                                     \
      "of those, in steps that generated a token")                                                 \
    X(EXPERT_WAIT_NS, "expert_wait_ns", "expert_wait_seconds_total", COMPUTE,                      \
      "of those, waiting for experts")                                                             \
    X(EXPERT_WAIT_BYTES, "expert_wait_bytes", "expert_wait_read_bytes_total", COMPUTE,             \
      "expert bytes read while it waited for experts")                                             \
    X(EMBED_WAIT_NS, "embed_wait_ns", "embedding_wait_seconds_total", COMPUTE,                     \
      "of those, waiting for an embedding row")                                                    \
    X(EXPERTS_NS, "experts_ns", "experts_seconds_total", COMPUTE,                                  \
      "of those, routed and shared experts")                                                       \
    X(TRUNK_NS, "trunk_ns", "trunk_seconds_total", COMPUTE, "of those, trunk products")            \
    X(ATTENTION_NS, "attention_ns", "attention_seconds_total", COMPUTE,                            \
      "of those, attention but its trunk products")                                                \
    X(SHARED_NS, "shared_ns", "shared_seconds_total", COMPUTE,                                     \
      "of those, two workers or more at it")                                                       \
    X(PHASES, "phases", "phases_total", COMPUTE, "phases that workers ran together")               \
    X(HIDDEN_DROPPED, "hidden_dropped", "hidden_dropped_total", COMPUTE,                           \
      "hidden states the router was too busy to take")                                             \
    X(PREDICTIONS, "predictions", "predictions_total", ROUTER, "prefetch records posted")          \
    X(REUSED_TOKENS, "reused_tokens", "reused_tokens_total", COUNT,                                \
      "positions whose state was put back, not computed")                                          \
    X(SESSION_SAVES, "session_saves", "session_saves_total", COUNT,                                \
      "writes of the conversation to its --session file")                                          \
    X(SESSION_SAVE_FAILURES, "session_save_failures", "session_save_failures_total", COUNT,        \
      "times that did not work out")

#define WASTE_X(id, name, metric, stage, help) WASTE_C_##id,
enum waste_counter { WASTE_COUNTERS(WASTE_X) WASTE_COUNTER_COUNT };
#undef WASTE_X
struct waste_counter_info {
    const char *name, *metric, *help;
    enum waste_stage_id writer; /* WASTE_STAGE_COUNT: waste-run */
};
extern const struct waste_counter_info waste_counter_info[WASTE_COUNTER_COUNT];

enum waste_io_mode { WASTE_IO_AUTO, WASTE_IO_URING, WASTE_IO_PREAD };

/* A drive that banks lie on, as the reader found it. */
struct waste_drive_record {
    uint64_t dev;
    uint64_t bytes_per_s; /* measured at that depth when the reader started; 0: not measured */
    uint32_t depth;       /* reads in the kernel at most */
    uint32_t files, direct_files;
    char name[36];
};
_Static_assert(sizeof(struct waste_drive_record) == 64, "no padding between processes");
enum { WASTE_DRIVE_RECORDS = 16, WASTE_RANK_RECORDS = 16 };

/* Options every stage needs; waste-run, before ready. */
struct waste_options {
    uint32_t threads;   /* compute workers, >= 1 */
    uint32_t io;        /* enum waste_io_mode */
    uint32_t verify;    /* 1: check every record's crc32 */
    uint32_t lookahead; /* experts a layer the router predicts; 0 = off */
    uint32_t ctx;       /* token positions the session segment holds */
    uint32_t chunk;     /* tokens of a prompt computed in one go at most; 0, 1: one by one */
    uint32_t io_direct; /* 1: O_DIRECT must be granted for every bank */
    uint32_t io_depth;  /* reads in the kernel a drive; 0: as measured */
    uint32_t mlock;     /* 1: what is mapped stays in memory */
    uint32_t timeline;  /* 1: events are noted */
    uint32_t logit_rows; /* that the session segment holds */
    uint64_t
        cpus[16]; /* bit mask of CPUs for compute's workers; all zero = the inherited affinity */
};

/*
 * Demand (compute -> reader) and prefetch (router -> reader). The ring's stride fits max(top_k,
 * WASTE_WANT_MIN) ids (waste_want_capacity); the taker checks every field.
 *
 * A step posts one demand record a layer: its token's choice. A chunk of a prompt posts the
 * distinct experts of a layer as several records, each at most top_k experts, and then the next
 * layer's as it foresees them. Experts stay in memory until a record says that theirs is not needed
 * any more: `hold` counts the records before this one that still are. So whoever posts decides how
 * much of the cache it has at once; it never holds more than there are slots (compute/stream.h).
 */
enum waste_want_kind {
    WASTE_WANT_STEP,  /* the choice of one token */
    WASTE_WANT_CHUNK, /* experts that tokens of a chunk have chosen */
    WASTE_WANT_AHEAD, /* experts that they will choose, most likely, in a later layer */
    WASTE_WANT_TURNS, /* only to learn from: choices of the chunk's last tokens, top_k each, the
                         oldest first; counts for no `hold` */
    WASTE_WANT_KINDS,
};
enum { WASTE_WANT_MIN = 64 };
struct waste_want {
    uint64_t step; /* token position, a chunk's last; a reader drops prefetches older than the
                      newest demand (step, layer) */
    uint32_t layer;
    uint32_t count;
    uint32_t session;
    uint32_t outlook;  /* prefetch: enum waste_outlook; demand: 0 */
    uint32_t kind;     /* demand: enum waste_want_kind; prefetch: 0 */
    uint32_t hold;     /* demand: records before this one whose experts stay; prefetch: 0 */
    uint32_t expert[]; /* count ids, resident or not; a step's in selection order; prefetch: best
                          first */
};

/* From where a layer's experts are predicted, X(ID, json name, help): what the layer before has
 * before its routed experts, or, later and more precise, after them. */
#define WASTE_OUTLOOKS(X)                                                                          \
    X(BEFORE, "before_moe", "before the MoE")                                                      \
    X(AFTER, "after_moe", "after the MoE")

#define WASTE_X(id, name, help) WASTE_OUTLOOK_##id,
enum waste_outlook { WASTE_OUTLOOKS(WASTE_X) WASTE_OUTLOOK_COUNT };
#undef WASTE_X

/* Hidden state (compute -> router). */
struct waste_hidden {
    uint64_t step;
    uint32_t layer;
    uint32_t attention; /* 1: x is the input of the layer's attention; 0: of its FFN, and what its
                           shared experts added, as the next MoE layer's FFN mixes it */
    float x[];          /* [hidden], before the norm */
};

/*
 * Embedding rows. `want` is written by compute, `have` by the reader; slot = position %
 * WASTE_EMBED_SLOTS. The reader serves every slot whose want differs from have (ignoring
 * WASTE_EMBED_FAILED), so nothing is lost when either dies. Tag: position << 32 | token + 1 (0 =
 * nothing); have carries WASTE_EMBED_FAILED when the row could not be read. Compute sets want to 0
 * when it has seen that; the reader then forgets the failure, so that it is tried again if wanted
 * again.
 *
 * Compute may change its mind (a cancelled request) and want the row again that is still there
 * while the reader, which saw the other tag, overwrites it, or died while it did. So the reader
 * takes `have` back and starts a new turn before it touches the row (waste_embed_begin), and
 * compute looks whether it is still the same turn after it has used the row (waste_embed_still).
 */
enum { WASTE_EMBED_SLOTS = 64 };
#define WASTE_EMBED_FAILED (UINT64_C(1) << 31)
struct waste_embed_slot {
    _Alignas(64) _Atomic uint64_t want;
    _Atomic uint64_t have; /* release after the row's bytes; pairs with compute's acquire */
    _Atomic uint64_t turn; /* reader: +1 before it touches the row */
    uint64_t pad[5];
};

/* Reader, before the first byte of another row. */
static inline void waste_embed_begin(struct waste_embed_slot *slot)
{
    /* relaxed: carried by the turn; who has seen the new turn sees at most this 0 */
    atomic_store_explicit(&slot->have, 0, memory_order_relaxed);
    /* release: pairs with the acquire in waste_embed_look. acquire: pairs with the release in
     * waste_embed_still; who was told that the row still stands has read it before it is
     * overwritten */
    atomic_fetch_add_explicit(&slot->turn, 1, memory_order_acq_rel);
}

/* Compute, before it reads the row: what is there, and the turn to give to waste_embed_still(). */
static inline uint64_t waste_embed_look(const struct waste_embed_slot *slot, uint64_t *turn)
{
    /* acquire: pairs with waste_embed_begin; keeps the load of `have` behind this one */
    *turn = atomic_load_explicit(&slot->turn, memory_order_acquire);
    /* acquire: the row's bytes; pairs with the reader's release */
    return atomic_load_explicit(&slot->have, memory_order_acquire);
}

/*
 * Compute, after its last look at the row: false if it may have been torn. `have` would not do for
 * this, since the reader may have read another row and then the same one again. A read-modify-write
 * that changes nothing, so that it stands before or behind the reader's.
 */
static inline bool waste_embed_still(struct waste_embed_slot *slot, uint64_t turn)
{
    /* release: pairs with the acquire in waste_embed_begin */
    return atomic_fetch_add_explicit(&slot->turn, 0, memory_order_acq_rel) == turn;
}

static inline uint64_t waste_embed_tag(uint32_t position, uint32_t token)
{
    return (uint64_t)position << 32 | (token + 1);
}

struct waste_control {
    uint64_t magic;
    uint32_t version;
    _Atomic uint32_t ready; /* 1, stored last by waste-run (release) */
    uint64_t bytes;
    int32_t supervisor_pid;
    uint32_t slot_count;
    uint64_t slot_bytes;      /* stride of slots in the cache segment */
    uint64_t embed_row_bytes; /* stride of rows at embed_data_off: the payload (row_bytes), right
                                 behind it the f16 scales, then 64 spare bytes or more */
    uint64_t embed_slot_off, embed_data_off;
    uint64_t slot_off, directory_off, demand_off, prefetch_off, hidden_off, layer_meter_off,
        habit_off, model_off;
    uint32_t want_stride, hidden_stride; /* of the rings */
    _Atomic uint32_t trunk_tensors;      /* reader: tensors (table order) whose bytes are complete;
                                            survives its death */
    _Atomic uint32_t trunk_ready;        /* reader: trunk complete and sealed (release) */
    _Atomic uint32_t io_in_use;          /* reader: enum waste_io_mode it settled on */
    _Atomic uint32_t io_direct;          /* reader: 1: all banks are read past the page cache */
    _Atomic uint32_t drive_count;        /* reader: release after drive[]; 0: not known yet */
    _Atomic uint32_t slots_wanted;       /* supervisor: slots the cache may use; 0: all */
    _Atomic uint32_t slots_in_use;       /* reader: slots it does use */
    _Atomic uint32_t slots_budget;       /* supervisor: slots_wanted but for memory pressure */
    _Atomic uint32_t pressure_shrinks;   /* supervisor: how often the machine wanted memory back */
    _Atomic uint64_t budget_bytes;       /* supervisor: for people */
    _Atomic uint64_t memory_bytes_per_s; /* compute: what its threads read from the trunk in a
                                            second; 0: not measured */
    struct waste_drive_record drive[WASTE_DRIVE_RECORDS];
    struct waste_drive_meter drive_meter[WASTE_DRIVE_RECORDS]; /* reader; of drive[] */
    /* reader: predictions whose layer's demand came, by rank, the likeliest first; of those, right
     */
    _Atomic uint64_t rank_predicted[WASTE_OUTLOOK_COUNT][WASTE_RANK_RECORDS];
    _Atomic uint64_t rank_right[WASTE_OUTLOOK_COUNT][WASTE_RANK_RECORDS];
    struct waste_options options;
    struct waste_bell reader_bell;  /* rung by compute, router, supervisor; carries the eventfd */
    struct waste_bell compute_bell; /* rung by reader, client, supervisor */
    struct waste_bell router_bell;  /* rung by compute, supervisor */
    struct waste_bell
        client_bell; /* rung by compute (commit, reply), supervisor (stage died, gave up) */
    struct waste_stage stage[WASTE_STAGE_COUNT];
    _Alignas(64) _Atomic uint64_t counter[WASTE_COUNTER_COUNT];
    struct waste_log log[WASTE_STAGE_COUNT + 1]; /* the last one is waste-run's */
    struct waste_timeline timeline;              /* any stage */
};

enum { WASTE_DEMAND_RING = 64, WASTE_PREFETCH_RING = 64, WASTE_HIDDEN_RING = 8 };

/* The layout's number, and what tells two builds apart whose tables differ: counters and sizes. */
enum {
    WASTE_CONTROL_VERSION =
        2 << 28 | WASTE_COUNTER_COUNT << 16 | (sizeof(struct waste_control) / 64 & 0xffff),
};

/* Checked pointers into a mapped control segment. Plain process-local memory. */
struct waste_shm {
    struct waste_control *control;
    const struct waste_model *model;
    struct waste_slot *slot; /* [slot_count] */
    _Atomic uint32_t
        *directory; /* slot_of[layer * experts + expert], WASTE_SLOT_NONE = none; reader */
    struct waste_ring *demand;             /* of struct waste_want, compute -> reader */
    struct waste_ring *prefetch;           /* of struct waste_want, router -> reader */
    struct waste_ring *hidden;             /* of struct waste_hidden, compute -> router */
    struct waste_embed_slot *embed;        /* [WASTE_EMBED_SLOTS] */
    struct waste_layer_meter *layer_meter; /* [layers]; compute */
    struct waste_habit_notes *habit;       /* reader */
    uint8_t *embed_data;                   /* [WASTE_EMBED_SLOTS][embed_row_bytes]; reader */
};

/* Expert ids a record of the demand and prefetch rings has room for. */
static inline uint32_t waste_want_capacity(const struct waste_control *c)
{
    return (c->want_stride - (uint32_t)sizeof(struct waste_want)) / 4;
}

/* Bytes the control segment needs for this model and slot count. */
uint64_t waste_control_bytes(const struct waste_model *model, uint32_t slot_count);

/* waste-run: lays out a zero-filled mapping of that size, copies the model, stores ready last.
 * `model` has passed waste_model_check, slot_count is 1 to 2^31, options->threads and ctx >= 1. */
void waste_control_init(void *base, uint64_t bytes, const struct waste_model *model,
                        uint32_t slot_count, const struct waste_options *options,
                        int32_t supervisor_pid, struct waste_shm *out);

/*
 * A stage or an observer: checks magic, version, ready, the model (waste_model_check), the ring
 * geometries, and that every offset and size is exactly what the model and slot count give. 0;
 * -EAGAIN not ready yet; -EPROTO not ours or another version; -EINVAL a field is not what it must
 * be. *out is untouched on failure. Ring cursors are not judged: their owner calls
 * waste_ring_repair. Works on a read-only mapping (observers); pointers must then only be read
 * through.
 */
int waste_control_attach(void *base, uint64_t bytes, struct waste_shm *out);

/* The caller's life sign: stores activity and heartbeat. `layer` < 0 leaves the layer alone. */
void waste_stage_mark(struct waste_stage *stage, enum waste_activity activity, int layer);

static inline void waste_count(struct waste_control *c, enum waste_counter id, uint64_t add)
{
    /* relaxed: a statistic with one writer; nobody derives an order from it */
    atomic_fetch_add_explicit(&c->counter[id], add, memory_order_relaxed);
}

#endif
