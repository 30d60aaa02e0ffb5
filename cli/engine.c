#include "cli/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/autosave.h"
#include "cli/losses.h"
#include "cli/prefix.h"
#include "cli/signals.h"
#include "cli/state.h"
#include "cli/supervisor_int.h"
#include "compute/kernels.h"
#include "options/units.h"
#include "reader/integrity.h"

/* States that the memory is asked for, and the tokens of each. */
enum { PREFIX_STATES = 4, PREFIX_POSITIONS = 1024 };
#define PROGRESS_AFTER_NS (2 * WASTE_SECOND_NS) /* a load that takes longer is shown */

int waste_fail(int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("waste-run: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

/* A container may have no words at all, if the command can do without; half of them is damage. */
static int open_words(struct waste_engine *e, bool optional, struct waste_error *err)
{
    char specials[PATH_MAX];

    int rc = waste_tokenizer_open_model(e->dir, &e->model->config, &e->tokenizer, err);
    snprintf(specials, sizeof(specials), "%s/specials.json", e->dir);
    if (rc == -ENOENT && optional && access(specials, F_OK) != 0)
        return 0;
    if (rc == 0)
        rc = waste_markup_open(e->dir, e->tokenizer, e->args->raw, &e->markup, err);
    uint32_t think = e->args->think;
    if (rc == 0 && (think == WASTE_THINK_SHOW || think == WASTE_THINK_HIDE) &&
        !waste_markup_can_think(e->markup))
        return waste_error_set(err, -EINVAL,
                               "option --think: this model's chat format has no thinking");
    return rc;
}

bool waste_engine_thinks(const struct waste_engine *e)
{
    return e->args->think == WASTE_THINK_DEFAULT ? waste_markup_thinks(e->markup)
                                                 : e->args->think != WASTE_THINK_OFF;
}

int waste_engine_load(struct waste_engine *e, const struct waste_args *args, bool words_optional)
{
    struct waste_error err;

    *e = (struct waste_engine){.args = args, .dir = args->line.positional[0]};
    if (!args->no_verify && waste_integrity_check_texts(e->dir, &err) != 0)
        return waste_fail(2, "%s", err.text);
    if (waste_container_open(e->dir, &e->model, &err) != 0)
        return waste_fail(2, "%s", err.text);
    int rc = open_words(e, words_optional, &err);
    malloc_trim(0); /* parsing took more than what is left of it */
    return rc == 0 ? 0 : waste_fail(2, "%s", err.text);
}

int waste_engine_fit(const struct waste_engine *e, const uint32_t *ids, size_t count,
                     uint32_t generate, uint32_t *out_ctx)
{
    const struct waste_config *config = &e->model->config;
    uint64_t most = config->max_context > 0 ? config->max_context : INT32_MAX;
    uint64_t ctx = e->args->ctx;

    for (size_t i = 0; i < count; i++)
        if (ids[i] >= config->vocab)
            return waste_fail(2, "token id %u is outside the vocabulary of %u", ids[i],
                              config->vocab);
    if (ctx > most)
        return waste_fail(
            2, "option --ctx: %" PRIu64 " is more than the model's %" PRIu64 " positions", ctx,
            most);
    if (ctx == 0) {
        uint64_t need = count + (uint64_t)generate;
        ctx = need > WASTE_CTX_DEFAULT ? (need + 255) / 256 * 256 : WASTE_CTX_DEFAULT;
        if (ctx > most)
            ctx = most;
    }
    uint64_t room = ctx - (generate > 0); /* one position is for what is generated */
    if (count > room)
        return waste_fail(2,
                          "the prompt has %zu tokens and the context holds %" PRIu64
                          ": at most %" PRIu64 " (--ctx)",
                          count, ctx, room);
    *out_ctx = (uint32_t)ctx;
    return 0;
}

static uint32_t default_chunk(const struct waste_config *c)
{
    uint64_t tokens = c->top_k > 0 ? (uint64_t)WASTE_CHUNK_SHARE * c->experts / c->top_k : 0;

    return tokens < WASTE_CHUNK_LEAST  ? WASTE_CHUNK_LEAST
           : tokens > WASTE_CHUNK_MOST ? WASTE_CHUNK_MOST
                                       : (uint32_t)tokens;
}

/* Commands that look at the logits of every position. */
static bool scores_all(const struct waste_args *a)
{
    return a->line.command == WASTE_CMD_EVAL && (a->all || a->perplexity_path != NULL);
}

struct waste_arithmetic waste_engine_arithmetic(const struct waste_engine *e)
{
    struct waste_kernels kernels = {.level = ""}; /* of no level: refused in waste_engine_look */

    waste_kernels_init(&kernels, getenv("WASTE_CPU"));
    return (struct waste_arithmetic){
        .cpu = kernels.level,
        .chunk = e->args->chunk > 0 ? e->args->chunk : default_chunk(&e->model->config),
    };
}

static void fill_options(const struct waste_engine *e, uint32_t ctx, struct waste_options *out)
{
    const struct waste_args *a = e->args;
    uint32_t chunk = waste_engine_arithmetic(e).chunk;

    *out = (struct waste_options){
        .io_depth = a->depth,
        .mlock = a->mlock,
        .timeline = a->timeline,
        .verify = !a->no_verify,
        .lookahead =
            a->lookahead == WASTE_LOOKAHEAD_DEFAULT ? e->model->config.top_k : a->lookahead,
        .ctx = ctx,
        .chunk = chunk < ctx ? chunk : ctx,
        .logit_rows = scores_all(a) ? WASTE_LOGIT_ROWS : 1,
    };
    bool direct;
    out->io = waste_options_io(a->io, &direct);
    out->io_direct = direct;
    waste_topology_choose(&e->topology, a, e->quota.cpus, &out->threads, out->cpus);
}

static uint64_t tokenizer_file_bytes(const struct waste_engine *e)
{
    char path[PATH_MAX];
    struct stat st;

    snprintf(path, sizeof(path), "%s/tokenizer.model", e->dir);
    return e->tokenizer != NULL && stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Only what ends with a conversation has use for the states of one. */
static bool keeps_prefixes(const struct waste_args *a)
{
    return a->prefix_bytes > 0 && a->line.command != WASTE_CMD_BENCH && !scores_all(a);
}

/* A few states of some length, if that is allowed. */
static uint64_t prefix_wish(const struct waste_engine *e)
{
    struct waste_snapshot_shape shape;

    if (!keeps_prefixes(e->args))
        return 0;
    waste_state_shape(e->model, &shape);
    uint64_t wish = PREFIX_STATES * waste_prefix_bytes(&shape, PREFIX_POSITIONS);
    return wish < e->args->prefix_bytes ? wish : e->args->prefix_bytes;
}

static int check_level(void)
{
    const char *level = getenv("WASTE_CPU");
    struct waste_kernels kernels;
    char levels[64];

    if (waste_kernels_init(&kernels, level))
        return 0;
    return waste_fail(2, "WASTE_CPU: '%.32s' is no level of this processor; it has %s", level,
                      waste_kernels_levels(levels, sizeof(levels)));
}

int waste_engine_look(struct waste_engine *e)
{
    uint64_t allowed[WASTE_CPU_WORDS], mask[WASTE_CPU_WORDS];

    uint32_t foreign = waste_machine_foreign_cpu(e->args->cpus, WASTE_CPU_WORDS);
    if (foreign != UINT32_MAX)
        return waste_fail(2, "option --cpus: CPU %u is none that this process may use", foreign);
    int rc = check_level();
    if (rc != 0)
        return rc;
    waste_topology_allowed(allowed);
    waste_topology_read("/sys/devices", allowed, &e->topology);
    waste_machine_quota(&waste_machine_proc, &e->quota);
    e->threads_by = waste_topology_choose(&e->topology, e->args, e->quota.cpus, &e->threads, mask);
    return 0;
}

const char *waste_engine_threads_text(const struct waste_engine *e, char *text, size_t size)
{
    char topology[128];

    waste_topology_text(&e->topology, topology, sizeof(topology));
    if (e->threads_by == WASTE_THREADS_CORES)
        snprintf(text, size, "%s", topology);
    else if (e->threads_by == WASTE_THREADS_QUOTA)
        snprintf(text, size, "CPU quota of %s; %s", e->quota.path, topology);
    else
        snprintf(text, size, "as %s says; %s", waste_threads_by_name[e->threads_by], topology);
    return text;
}

void waste_engine_threads_json(const struct waste_engine *e, json_t *object)
{
    const struct waste_topology *t = &e->topology;
    bool limited = e->quota.cpus != UINT32_MAX;

    json_t *more =
        json_pack("{s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "threads",
                  (json_int_t)e->threads, "threads_by", waste_threads_by_name[e->threads_by],
                  "cpus", (json_int_t)t->cpus, "cores", (json_int_t)t->cores, "second_threads",
                  (json_int_t)t->siblings, "efficiency_cores", (json_int_t)t->efficiency,
                  "l3_domains", (json_int_t)t->l3_domains, "memory_nodes", (json_int_t)t->nodes,
                  "cpu_quota", limited ? json_integer((json_int_t)e->quota.cpus) : json_null(),
                  "cpu_quota_path", limited ? json_string(e->quota.path) : json_null());

    if (more != NULL)
        json_object_update(object, more);
    json_decref(more);
}

int waste_engine_plan(struct waste_engine *e, uint32_t ctx)
{
    struct waste_options options;
    struct waste_error err;

    int rc = waste_engine_look(e);
    if (rc != 0)
        return rc;
    if (waste_machine_memory(&waste_machine_proc, &e->memory) != 0)
        return waste_fail(1, "cannot read /proc/meminfo: is /proc mounted?");
    fill_options(e, ctx, &options);
    struct waste_plan_input in = {
        .model = e->model,
        .options = &options,
        .budget_bytes = e->args->budget_bytes,
        .own_bytes = waste_plan_own_bytes(e->model, tokenizer_file_bytes(e)) +
                     (e->args->session_path != NULL ? waste_autosave_bytes(e->model) : 0),
        .prefix_bytes = prefix_wish(e),
        .memory = &e->memory,
    };
    if (waste_plan_make(&in, &e->plan, &err) != 0)
        return waste_fail(2, "%s", err.text);
    return 0;
}

struct progress {
    int64_t start_ns;
    bool shown, wanted;
};

static void show_progress(void *arg, uint64_t loaded, uint64_t total)
{
    struct progress *p = arg;
    char a[24], b[24];

    if (!p->wanted || waste_now_ns() - p->start_ns < PROGRESS_AFTER_NS)
        return;
    fprintf(stderr, "\rloading the trunk: %s of %s, %.0f %%  ",
            waste_units_format_size(loaded, a, sizeof(a)),
            waste_units_format_size(total, b, sizeof(b)), 100.0 * (double)loaded / (double)total);
    p->shown = true;
}

static bool ended(void *arg)
{
    (void)arg;
    return waste_signals_ended();
}

static void on_stop(void *arg)
{
    (void)arg;
    waste_signals_raise();
}

static void warn(const char *text)
{
    fprintf(stderr, "waste-run: warning: %s\n", text);
}

static void tell_loss(void *arg, const char *text)
{
    (void)arg;
    warn(text);
}

/* What the stages have said since. Our own log's we said when they went there. */
static void tell_losses(struct waste_engine *e)
{
    waste_losses_each(e->pipeline.shm.control->log, WASTE_STAGE_COUNT, e->told, tell_loss, NULL);
}

static int wait_ready(struct waste_engine *e)
{
    struct progress progress = {
        .start_ns = waste_now_ns(),
        .wanted = !e->args->quiet && isatty(STDERR_FILENO),
    };
    struct waste_error err;

    int rc = waste_client_wait_ready(&e->client, show_progress, &progress, &err);
    if (progress.shown)
        fputs("\r\033[K", stderr);
    if (rc == -ECANCELED)
        return waste_fail(1, "ended before the pipeline was ready");
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    e->was_ready = true;
    tell_losses(e);
    return 0;
}

/* --usage, else: runs remember, measurements do not. */
static enum waste_usage_place usage_place(const struct waste_args *a)
{
    if (a->usage != WASTE_USAGE_DEFAULT)
        return (enum waste_usage_place)a->usage;
    return a->line.command == WASTE_CMD_RUN || a->line.command == WASTE_CMD_CHAT ? WASTE_USAGE_CACHE
                                                                                 : WASTE_USAGE_OFF;
}

/* The user's cache directory for us, made if it is not there. False: there is none. */
static bool cache_dir(char *out, size_t room)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool xdg = cache != NULL && cache[0] == '/';

    if (!xdg && (home == NULL || home[0] != '/'))
        return false;
    snprintf(out, room, xdg ? "%s" : "%s/.cache", xdg ? cache : home);
    mkdir(out, 0700);
    if ((size_t)snprintf(out, room, xdg ? "%s/waste" : "%s/.cache/waste", xdg ? cache : home) >=
        room)
        return false;
    mkdir(out, 0700);
    return true;
}

/* Where the reader keeps what it learns about this model. A directory that cannot be made or
 * written to is the reader's to say. */
static void place_usage(struct waste_engine *e)
{
    enum waste_usage_place place = usage_place(e->args);

    if (place == WASTE_USAGE_OFF)
        return;
    if (place == WASTE_USAGE_MODEL) {
        e->pipeline.usage_dir = e->dir;
        e->pipeline.usage_name = "usage.waste";
    } else if (cache_dir(e->usage_dir, sizeof(e->usage_dir))) {
        snprintf(e->usage_name, sizeof(e->usage_name), "%016" PRIx64 ".usage",
                 e->model->fingerprint);
        e->pipeline.usage_dir = e->usage_dir;
        e->pipeline.usage_name = e->usage_name;
    }
}

/* Where it was asked for and cannot be. Unasked, nobody misses it. */
static void check_usage(const struct waste_engine *e)
{
    const char *dir = e->pipeline.usage_dir;
    char text[PATH_MAX + 128];

    if (e->args->usage == WASTE_USAGE_DEFAULT || usage_place(e->args) == WASTE_USAGE_OFF)
        return;
    if (dir == NULL) {
        warn("option --usage: nothing that is learned is kept: neither XDG_CACHE_HOME nor HOME "
             "is set");
    } else if (faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS) != 0) {
        snprintf(text, sizeof(text), "option --usage: nothing that is learned is kept: %s: %s", dir,
                 strerror(errno));
        warn(text);
    }
}

/* From any thread that keeps or finds states. */
static void note(void *arg, enum waste_log_level level, const char *text)
{
    waste_supervisor_note(arg, level, text);
    if (level == WASTE_LOG_LOSS)
        warn(text);
}

/* Of the program too: another version may compute otherwise. */
static uint64_t hash_arithmetic(const struct waste_engine *e)
{
    struct waste_arithmetic a = waste_engine_arithmetic(e);
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    char text[64];

    int n = snprintf(text, sizeof(text), "%s %s %" PRIu32, WASTE_VERSION, a.cpu, a.chunk);
    for (int i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3;
    return hash;
}

static int open_prefix(struct waste_engine *e)
{
    char dir[sizeof(e->usage_dir) + 16];
    struct waste_error err;
    struct waste_prefix_options options = {
        .arithmetic = hash_arithmetic(e),
        .memory_bytes = e->plan.prefix_bytes,
        .disk_bytes = e->args->prefix_bytes,
        .note = note,
        .arg = e->supervisor,
    };

    if (!keeps_prefixes(e->args))
        return 0;
    waste_state_shape(e->model, &options.shape);
    if (cache_dir(dir, sizeof(e->usage_dir))) {
        strcat(dir, "/prefix");
        mkdir(dir, 0700);
        options.dir = dir;
    }
    if (waste_prefix_create(&options, &e->prefix, &err) != 0)
        return waste_fail(1, "%s", err.text);
    waste_supervisor_keeps(e->supervisor, e->prefix);
    return 0;
}

int waste_engine_start(struct waste_engine *e, uint32_t ctx)
{
    struct waste_options options;
    struct waste_error err;

    int rc = waste_engine_plan(e, ctx);
    if (rc != 0)
        return rc;
    if (waste_spawn_find(&e->programs, &err) != 0)
        return waste_fail(2, "%s", err.text);
    if (e->plan.total_bytes > e->memory.available_bytes && !e->args->quiet)
        warn("the plan takes more memory than is free: expect paging");
    waste_topology_interleave(&e->topology); /* before the segments and the stages are made */
    fill_options(e, ctx, &options);
    if (waste_pipeline_create(&e->pipeline, e->dir, e->model, &e->plan, &options, &err) != 0)
        return waste_fail(1, "%s", err.text);
    e->has_pipeline = true;
    place_usage(e);
    check_usage(e);
    waste_signals_install();
    struct waste_supervisor_options how = {
        .hang_seconds = e->args->hang_seconds,
        .hang_loading_seconds = e->args->hang_seconds * 6,
        .no_router = options.lookahead == 0,
        .on_stop = on_stop,
        .warn = e->args->quiet ? NULL : warn,
    };
    if (waste_supervisor_start(&e->pipeline, &e->programs, &how, &e->supervisor, &err) != 0)
        return waste_fail(1, "%s", err.text);
    waste_client_init(&e->client, &e->pipeline, e->supervisor);
    e->client.cancelled = ended;
    e->client.progress = e->args->quiet ? NULL : &e->progress;
    rc = open_prefix(e);
    return rc == 0 ? wait_ready(e) : rc;
}

void waste_engine_finish(struct waste_engine *e)
{
    if (e->prefix != NULL)
        waste_supervisor_keeps(e->supervisor, NULL);
    waste_prefix_destroy(e->prefix);
    waste_supervisor_stop(e->supervisor);
    if (e->was_ready)
        tell_losses(e); /* what could not be kept at the end, too */
    if (e->has_pipeline)
        waste_pipeline_finish(&e->pipeline);
    waste_markup_destroy(e->markup);
    waste_tokenizer_destroy(e->tokenizer);
    free(e->model);
}

void waste_engine_sampling(const struct waste_engine *e, struct waste_sampling *out)
{
    const struct waste_args *a = e->args;

    *out = (struct waste_sampling){
        .temp = a->temp,
        .top_p = a->top_p,
        .top_k = a->top_k,
        .seed = a->seed,
        .ignore_eos = a->ignore_eos,
    };
    if (!a->seed_given && getrandom(&out->seed, sizeof(out->seed), 0) != sizeof(out->seed))
        out->seed = (uint64_t)waste_now_ns();
    waste_engine_ends(e, out);
}

void waste_engine_ends(const struct waste_engine *e, struct waste_sampling *out)
{
    const struct waste_config *config = &e->model->config;

    if (e->markup != NULL) {
        out->eos_count = waste_markup_eos(e->markup, config, out->eos);
    } else {
        memcpy(out->eos, config->eos, sizeof(out->eos));
        out->eos_count = config->eos_count;
    }
}
