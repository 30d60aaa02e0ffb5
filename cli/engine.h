/*
 * What every command that runs a model does: open the container, its words and its markup; plan;
 * start the pipeline and wait for it; end it. Functions print their own one line on stderr and
 * return an exit code (0, 1, 2).
 */
#ifndef WASTE_CLI_ENGINE_H
#define WASTE_CLI_ENGINE_H

#include <jansson.h>

#include "cli/client.h"
#include "cli/markup.h"
#include "cli/options.h"
#include "cli/tokenizer.h"
#include "cli/topology.h"

enum {
    WASTE_CTX_DEFAULT = 4096,
    /* --chunk: so many that this many of its tokens go to an expert, on average, within limits. By
     * the model alone, so that what is generated does not depend on memory or threads. */
    WASTE_CHUNK_SHARE = 32,
    WASTE_CHUNK_LEAST = 256,
    WASTE_CHUNK_MOST = 2048,
    WASTE_LOGIT_ROWS = 64, /* logits of a chunk that are handed over at once */
};

/* What decides about a state's bits besides the model: results agree to 1e-4 without it. */
struct waste_arithmetic {
    const char *cpu; /* level of the kernels; WASTE_CPU */
    uint32_t chunk;  /* --chunk */
};

struct waste_engine {
    const struct waste_args *args;
    const char *dir;
    struct waste_model *model;
    struct waste_tokenizer *tokenizer; /* NULL: the container has none and none is needed */
    struct waste_markup *markup;
    struct waste_machine_memory memory;
    struct waste_topology topology;
    struct waste_machine_quota quota;
    uint32_t threads; /* of compute */
    enum waste_threads_by threads_by;
    struct waste_plan plan;
    struct waste_programs programs;
    struct waste_pipeline pipeline;
    struct waste_supervisor *supervisor;
    struct waste_client client;
    struct waste_prefill_line progress;
    struct waste_prefix *prefix; /* --prefix-cache; NULL: off */
    bool lived;                  /* the conversation's state is, see prefix.h */
    bool foreign;                /* other arithmetic has computed it: it is for no other */
    bool has_pipeline, was_ready;
    uint64_t told[WASTE_STAGE_COUNT]; /* lines of each stage's log that were looked through */
    char usage_dir[4096], usage_name[32];
};

/* Container, tokenizer, markup. With `words_optional` a container without tokenizer.model will do.
 */
int waste_engine_load(struct waste_engine *e, const struct waste_args *args, bool words_optional);

/*
 * The context: --ctx, or 4096, or more when the prompt and what is to be generated need it; never
 * more than the model's own limit. Refuses a prompt that does not fit, and ids out of range.
 */
int waste_engine_fit(const struct waste_engine *e, const uint32_t *ids, size_t count,
                     uint32_t generate, uint32_t *out_ctx);

/* Looks at the CPUs and chooses compute's threads, as --threads and --cpus say. */
int waste_engine_look(struct waste_engine *e);

/* How many threads, and why: "2 cores of 2 CPUs", "CPU quota of /sys/fs/cgroup/x; ..." */
const char *waste_engine_threads_text(const struct waste_engine *e, char *text, size_t size);
/* The same, added to an object. */
void waste_engine_threads_json(const struct waste_engine *e, json_t *object);

/* Does the budget's sums for `ctx` positions. */
int waste_engine_plan(struct waste_engine *e, uint32_t ctx);

/* Plans, starts the stages, waits until they serve. */
int waste_engine_start(struct waste_engine *e, uint32_t ctx);

void waste_engine_finish(struct waste_engine *e);

/* What compute will compute with. */
struct waste_arithmetic waste_engine_arithmetic(const struct waste_engine *e);

/* The sampling that the options ask for, end tokens included. */
void waste_engine_sampling(const struct waste_engine *e, struct waste_sampling *out);

/* The end tokens alone. */
void waste_engine_ends(const struct waste_engine *e, struct waste_sampling *out);

/* Does a reply begin with thinking? --think, else as the model's format has it. */
bool waste_engine_thinks(const struct waste_engine *e);

/* One line on stderr. Returns code. */
int waste_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
