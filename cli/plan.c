#include "cli/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "compute/forward.h"
#include "options/units.h"
#include "shm/session.h"

static uint64_t round_page(uint64_t bytes)
{
    return (bytes + 4095) & ~UINT64_C(4095);
}

static uint32_t min_u32(uint64_t a, uint64_t b)
{
    uint64_t least = a < b ? a : b;

    return least < UINT32_MAX - 1 ? (uint32_t)least : UINT32_MAX - 1;
}

/* The descriptors are made for all slots that may ever be used. */
static uint64_t control_bytes(const struct waste_plan *p, const struct waste_model *model,
                              uint32_t slots)
{
    return round_page(waste_control_bytes(model, slots > p->room_slots ? slots : p->room_slots));
}

/* All that `slots` slots need, with the control segment. */
static uint64_t total_with(const struct waste_plan *p, const struct waste_model *model,
                           uint32_t slots)
{
    uint64_t total = control_bytes(p, model, slots) + p->trunk_bytes + p->session_bytes +
                     p->own_bytes + p->prefix_bytes + (uint64_t)slots * model->expert.record_bytes;

    for (int s = 0; s < WASTE_STAGE_COUNT; s++)
        total += p->stage_bytes[s];
    return total;
}

/* The most slots that stay within `bytes`; the floor is known to fit. */
static uint32_t slots_within(const struct waste_plan *p, const struct waste_model *model,
                             uint64_t bytes)
{
    uint32_t low = p->floor_slots, high = p->expert_slots;

    while (low < high) {
        uint32_t mid = low + (high - low + 1) / 2;
        if (total_with(p, model, mid) <= bytes)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* More than this is never registered with the kernel one by one: reader/io_uring.c. */
enum { ROOM_MOST = 16384 };

/* What this machine could ever hold. */
static uint32_t room(const struct waste_plan_input *in, const struct waste_plan *p)
{
    const struct waste_machine_memory *m = in->memory;
    uint64_t bytes = m->total_bytes < m->limit_bytes ? m->total_bytes : m->limit_bytes;
    uint32_t slots = min_u32(bytes / in->model->expert.record_bytes, p->expert_slots);

    if (in->options->mlock)
        return 0; /* locked memory is counted by addresses: no more than is used */
    return slots < ROOM_MOST ? slots : ROOM_MOST;
}

int waste_plan_parse_budget(const char *text, uint64_t *bytes)
{
    if (strcmp(text, "max") == 0) {
        *bytes = WASTE_BUDGET_MAX;
        return 0;
    }
    return waste_units_parse_size(text, bytes);
}

/* floor + 3, 2, 1 working sets and what kept states wish for, the largest that is allowed; or the
 * floor alone. */
static uint64_t default_budget(struct waste_plan *p, const struct waste_model *model)
{
    p->prefix_bytes = p->prefix_wish;
    for (uint32_t sets = 3; sets > 0; sets--) {
        uint32_t slots =
            min_u32(p->floor_slots + (uint64_t)sets * p->working_set_slots, p->expert_slots);
        uint64_t total = total_with(p, model, slots);
        if (total <= p->allowed_bytes)
            return total;
    }
    p->prefix_bytes = 0;
    return p->floor_bytes;
}

/* What smaller chunks would save, as an end of a sentence; nothing if there are none. */
static const char *chunk_hint(const struct waste_plan *p, char *out, size_t bytes)
{
    char size[24];

    out[0] = '\0';
    if (p->chunk > 1)
        snprintf(out, bytes, "; %s of it are for chunks of %u tokens (--chunk)",
                 waste_units_format_size(p->chunk_bytes, size, sizeof(size)), p->chunk);
    return out;
}

static int refuse_floor(const struct waste_plan *p, uint64_t budget_bytes, struct waste_error *err)
{
    char a[24], b[24], hint[80];

    return waste_error_set(
        err, -EINVAL,
        "budget %s is under the floor of this model: --budget %" PRIu64 "K (%s) would do%s",
        waste_units_format_size(budget_bytes, a, sizeof(a)), (p->floor_bytes + 1023) / 1024,
        waste_units_format_size(p->floor_bytes, b, sizeof(b)), chunk_hint(p, hint, sizeof(hint)));
}

static int check_budget(const struct waste_plan *p, const struct waste_machine_memory *memory,
                        struct waste_error *err)
{
    char a[24], b[24], hint[80];

    bool sized = p->budget_given && !p->budget_max;

    if (sized && p->budget_bytes < p->floor_bytes)
        return refuse_floor(p, p->budget_bytes, err);
    if (!sized && (p->budget_bytes > p->allowed_bytes || p->budget_bytes < p->floor_bytes))
        return waste_error_set(err, -EINVAL,
                               "not enough memory: this model needs %s, 7/8 of what is free is %s "
                               "(--budget %" PRIu64 "K tries anyway)%s",
                               waste_units_format_size(p->floor_bytes, a, sizeof(a)),
                               waste_units_format_size(p->allowed_bytes, b, sizeof(b)),
                               (p->floor_bytes + 1023) / 1024, chunk_hint(p, hint, sizeof(hint)));
    if (p->total_bytes > memory->limit_bytes)
        return waste_error_set(err, -EINVAL, "budget %s is over the memory limit of %s set in %s%s",
                               waste_units_format_size(p->total_bytes, a, sizeof(a)),
                               waste_units_format_size(memory->limit_bytes, b, sizeof(b)),
                               memory->limit_path, chunk_hint(p, hint, sizeof(hint)));
    return 0;
}

/* Program, libraries, stacks and heap of processes that have done some work, measured: see
 * cli/README.md. Compute knows its own. */
enum { READER_BYTES = 2 << 20, ROUTER_BYTES = 3 << 19, OWN_BYTES = 5 << 19, PLANNED_THREADS = 8 };

static uint64_t compute_bytes(const struct waste_plan_input *in, uint32_t chunk)
{
    struct waste_options options = *in->options;

    options.chunk = chunk;
    /* a few threads more or less do not move the floor */
    if (options.threads < PLANNED_THREADS)
        options.threads = PLANNED_THREADS;
    return waste_compute_private_bytes(in->model, &options);
}

static uint64_t stage_bytes(const struct waste_plan_input *in, enum waste_stage_id stage)
{
    const struct waste_config *config = &in->model->config;

    switch (stage) {
    case WASTE_STAGE_READER:
        return READER_BYTES + (uint64_t)config->layers * config->experts * 8; /* its usage table */
    case WASTE_STAGE_COMPUTE:
        return compute_bytes(in, in->options->chunk);
    case WASTE_STAGE_ROUTER:
        return in->options->lookahead > 0 ? ROUTER_BYTES + (uint64_t)config->hidden * 16 : 0;
    case WASTE_STAGE_COUNT:
        break;
    }
    return 0;
}

/* Of a budget that was given and is not under the floor, kept states get what is over, or else a
 * share of the cache that is above the floor. */
static void make_prefix_room(struct waste_plan *p, const struct waste_model *model)
{
    uint64_t over = p->budget_bytes > p->total_bytes ? p->budget_bytes - p->total_bytes : 0;
    uint64_t share = (uint64_t)(p->slots - p->floor_slots) * model->expert.record_bytes / 8;
    uint64_t most = over > share ? over : share;

    p->prefix_bytes = p->prefix_wish < most ? p->prefix_wish : most;
    p->slots = slots_within(p, model, p->budget_bytes);
    p->total_bytes = total_with(p, model, p->slots);
}

int waste_plan_make(const struct waste_plan_input *in, struct waste_plan *out,
                    struct waste_error *err)
{
    const struct waste_model *model = in->model;
    uint32_t layers = waste_model_moe_layers(model);
    struct waste_plan p = {
        .trunk_bytes = round_page(model->trunk_bytes),
        .session_bytes =
            round_page(waste_session_bytes(model, in->options->ctx, in->options->logit_rows)),
        .own_bytes = in->own_bytes,
        .prefix_wish = in->prefix_bytes,
        .allowed_bytes = in->memory->allowed_bytes / 8 * 7,
        .budget_given = in->budget_bytes != 0,
        .budget_max = in->budget_bytes == WASTE_BUDGET_MAX,
    };

    for (int s = 0; s < WASTE_STAGE_COUNT; s++)
        p.stage_bytes[s] = stage_bytes(in, (enum waste_stage_id)s);
    p.chunk = waste_forward_chunk_most(in->options);
    p.chunk_bytes = p.stage_bytes[WASTE_STAGE_COMPUTE] - compute_bytes(in, 1);
    p.expert_slots = min_u32((uint64_t)layers * model->config.experts, UINT32_MAX);
    p.working_set_slots = min_u32((uint64_t)layers * model->config.top_k, p.expert_slots);
    p.floor_slots = waste_model_floor_slots(model);
    p.room_slots = room(in, &p);
    p.floor_bytes = total_with(&p, model, p.floor_slots);
    p.budget_bytes = !p.budget_given ? default_budget(&p, model)
                     : p.budget_max  ? p.allowed_bytes
                                     : in->budget_bytes;

    p.slots = p.floor_slots;
    if (p.budget_bytes >= p.floor_bytes)
        p.slots = slots_within(&p, model, p.budget_bytes);
    p.total_bytes = total_with(&p, model, p.slots);
    if (p.budget_given && p.budget_bytes >= p.floor_bytes)
        make_prefix_room(&p, model);
    p.control_bytes = control_bytes(&p, model, p.slots);
    if (p.room_slots < p.slots)
        p.room_slots = p.slots;
    p.cache_bytes = (uint64_t)p.slots * model->expert.record_bytes;
    int rc = check_budget(&p, in->memory, err);
    if (rc == 0)
        *out = p;
    return rc;
}

int waste_plan_change(struct waste_plan *p, const struct waste_model *model, uint64_t budget_bytes,
                      struct waste_error *err)
{
    struct waste_plan q = *p;

    if (budget_bytes < q.floor_bytes)
        return refuse_floor(&q, budget_bytes, err);
    if (q.expert_slots > q.room_slots)
        q.expert_slots = q.room_slots;
    q.budget_bytes = budget_bytes;
    q.prefix_bytes = 0;
    q.slots = slots_within(&q, model, budget_bytes);
    q.total_bytes = total_with(&q, model, q.slots);
    make_prefix_room(&q, model);
    p->budget_bytes = budget_bytes;
    p->prefix_bytes = q.prefix_bytes;
    p->slots = q.slots;
    p->total_bytes = q.total_bytes;
    p->cache_bytes = (uint64_t)q.slots * model->expert.record_bytes;
    return 0;
}

uint64_t waste_plan_own_bytes(const struct waste_model *model, uint64_t tokenizer_file_bytes)
{
    /* ranks and their hash take a little less than twice their base64 text */
    return OWN_BYTES + model->bytes + 2 * tokenizer_file_bytes;
}
