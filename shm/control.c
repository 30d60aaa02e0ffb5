/*
 * The layout is a function of the model and the slot count alone. init writes what that function
 * gives into the header; attach computes it again from the model it finds (checked first) and
 * accepts the header only if every field is the same. So no offset from shared memory is ever used.
 */
#include "shm/control.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#define WASTE_X(id, name) [WASTE_STAGE_##id] = name,
const char *const waste_stage_name[WASTE_STAGE_COUNT] = {WASTE_STAGES(WASTE_X)};
#undef WASTE_X

const char *const waste_stage_state_name[WASTE_STAGE_STATE_COUNT] = {
    [WASTE_STAGE_OFF] = "off",           [WASTE_STAGE_STARTING] = "starting",
    [WASTE_STAGE_LOADING] = "loading",   [WASTE_STAGE_RUNNING] = "running",
    [WASTE_STAGE_STOPPING] = "stopping",
};

#define WASTE_X(id, text) [WASTE_ACT_##id] = text,
const char *const waste_activity_name[WASTE_ACT_COUNT] = {WASTE_ACTIVITIES(WASTE_X)};
#undef WASTE_X

#define WASTE_X(id, json, prometheus, stage, text)                                                 \
    [WASTE_C_##                                                                                    \
        id] = {.name = json, .metric = prometheus, .help = text, .writer = WASTE_STAGE_##stage},
const struct waste_counter_info waste_counter_info[WASTE_COUNTER_COUNT] = {WASTE_COUNTERS(WASTE_X)};
#undef WASTE_X

/* The model comes right behind the fixed part, so that attach finds it without trusting anything;
 * the tables that stages write come after it. */
enum { MODEL_OFF = (sizeof(struct waste_control) + 63) / 64 * 64 };

_Static_assert(offsetof(struct waste_control, ready) == 12, "magic, version, ready");
_Static_assert(sizeof(struct waste_stage) % 64 == 0 && sizeof(struct waste_bell) % 64 == 0 &&
                   offsetof(struct waste_control, reader_bell) % 64 == 0 &&
                   offsetof(struct waste_control, stage) % 64 == 0 &&
                   offsetof(struct waste_control, counter) % 64 == 0 &&
                   offsetof(struct waste_control, log) % 64 == 0,
               "writers do not share cache lines");
_Static_assert(sizeof(struct waste_want) == 32 && sizeof(struct waste_hidden) == 16,
               "records are shared between processes");
_Static_assert(sizeof(struct waste_embed_slot) == 64, "an embedding slot is one cache line");

struct layout {
    uint64_t embed_slot_off, embed_data_off, slot_off, directory_off, demand_off, prefetch_off,
        hidden_off, layer_meter_off, habit_off, bytes;
    uint64_t slot_bytes, embed_row_bytes;
    uint32_t want_stride, hidden_stride;
};

static uint64_t align64(uint64_t v)
{
    return (v + 63) & ~UINT64_C(63);
}

static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t off = *end;

    *end = align64(off + bytes);
    return off;
}

/* Nothing here overflows for a model that passed waste_model_check: every term is below 2^50. */
static struct layout plan(const struct waste_model *model, uint32_t slot_count)
{
    const struct waste_config *c = &model->config;
    const struct waste_tensor *embed = waste_model_tensor(model, model->tensor[WASTE_M_EMBED]);
    uint32_t ids = c->top_k > WASTE_WANT_MIN ? c->top_k : WASTE_WANT_MIN;
    uint64_t end = MODEL_OFF;
    struct layout l = {.slot_bytes = model->expert.record_bytes, .embed_row_bytes = 64};

    if (model->tensor[WASTE_M_EMBED] != 0)
        l.embed_row_bytes = align64(embed->row_bytes + UINT64_C(2) * embed->groups + 64);
    l.want_stride = (uint32_t)align64(sizeof(struct waste_want) + UINT64_C(4) * ids);
    l.hidden_stride = (uint32_t)align64(sizeof(struct waste_hidden) + UINT64_C(4) * c->hidden);
    place(&end, model->bytes);
    l.demand_off = place(&end, waste_ring_bytes(WASTE_DEMAND_RING, l.want_stride));
    l.prefetch_off = place(&end, waste_ring_bytes(WASTE_PREFETCH_RING, l.want_stride));
    l.hidden_off = place(&end, waste_ring_bytes(WASTE_HIDDEN_RING, l.hidden_stride));
    l.layer_meter_off = place(&end, c->layers * sizeof(struct waste_layer_meter));
    l.habit_off = place(&end, waste_habit_notes_bytes(c->layers, c->experts, c->top_k));
    l.embed_slot_off = place(&end, WASTE_EMBED_SLOTS * sizeof(struct waste_embed_slot));
    l.embed_data_off = place(&end, WASTE_EMBED_SLOTS * l.embed_row_bytes);
    l.slot_off = place(&end, (uint64_t)slot_count * sizeof(struct waste_slot));
    l.directory_off = place(&end, UINT64_C(4) * c->layers * c->experts);
    l.bytes = end;
    return l;
}

uint64_t waste_control_bytes(const struct waste_model *model, uint32_t slot_count)
{
    return plan(model, slot_count).bytes;
}

static void *at(void *base, uint64_t off)
{
    return (char *)base + off;
}

static void point(void *base, const struct layout *l, struct waste_shm *out)
{
    out->control = base;
    out->model = at(base, MODEL_OFF);
    out->slot = at(base, l->slot_off);
    out->directory = at(base, l->directory_off);
    out->demand = at(base, l->demand_off);
    out->prefetch = at(base, l->prefetch_off);
    out->hidden = at(base, l->hidden_off);
    out->layer_meter = at(base, l->layer_meter_off);
    out->habit = at(base, l->habit_off);
    out->embed = at(base, l->embed_slot_off);
    out->embed_data = at(base, l->embed_data_off);
}

static bool options_ok(const struct waste_options *o)
{
    return o->threads >= 1 && o->threads <= 4096 && o->io <= WASTE_IO_PREAD && o->verify <= 1 &&
           o->io_direct <= 1 && o->mlock <= 1 && o->timeline <= 1 && o->ctx >= 1 && o->ctx <= INT32_MAX;
}

void waste_control_init(void *base, uint64_t bytes, const struct waste_model *model,
                        uint32_t slot_count, const struct waste_options *options,
                        int32_t supervisor_pid, struct waste_shm *out)
{
    struct waste_control *c = base;
    struct layout l = plan(model, slot_count);
    uint64_t entries = (uint64_t)model->config.layers * model->config.experts;

    assert(bytes >= l.bytes && slot_count >= 1 && slot_count <= 1u << 31 && options_ok(options));
    c->magic = WASTE_CONTROL_MAGIC;
    c->version = WASTE_CONTROL_VERSION;
    c->bytes = l.bytes;
    c->supervisor_pid = supervisor_pid;
    c->slot_count = slot_count;
    c->slot_bytes = l.slot_bytes;
    c->embed_row_bytes = l.embed_row_bytes;
    c->embed_slot_off = l.embed_slot_off;
    c->embed_data_off = l.embed_data_off;
    c->slot_off = l.slot_off;
    c->directory_off = l.directory_off;
    c->demand_off = l.demand_off;
    c->prefetch_off = l.prefetch_off;
    c->hidden_off = l.hidden_off;
    c->layer_meter_off = l.layer_meter_off;
    c->habit_off = l.habit_off;
    c->model_off = MODEL_OFF;
    c->want_stride = l.want_stride;
    c->hidden_stride = l.hidden_stride;
    c->options = *options;
    memcpy(at(base, MODEL_OFF), model, model->bytes);
    point(base, &l, out);
    waste_ring_init(out->demand, WASTE_DEMAND_RING, l.want_stride);
    waste_ring_init(out->prefetch, WASTE_PREFETCH_RING, l.want_stride);
    waste_ring_init(out->hidden, WASTE_HIDDEN_RING, l.hidden_stride);
    for (uint64_t i = 0; i < entries; i++)
        /* relaxed: published by ready */
        atomic_store_explicit(&out->directory[i], WASTE_SLOT_NONE, memory_order_relaxed);
    /* release: pairs with the acquire in waste_control_attach; all of the above is there */
    atomic_store_explicit(&c->ready, 1, memory_order_release);
}

/* Every field of the header that the layout determines. */
static bool header_ok(const struct waste_control *c, const struct layout *l)
{
    return c->bytes == l->bytes && c->slot_bytes == l->slot_bytes &&
           c->embed_row_bytes == l->embed_row_bytes && c->embed_slot_off == l->embed_slot_off &&
           c->embed_data_off == l->embed_data_off && c->slot_off == l->slot_off &&
           c->directory_off == l->directory_off && c->demand_off == l->demand_off &&
           c->prefetch_off == l->prefetch_off && c->hidden_off == l->hidden_off &&
           c->layer_meter_off == l->layer_meter_off && c->habit_off == l->habit_off &&
           c->want_stride == l->want_stride && c->hidden_stride == l->hidden_stride;
}

static bool ring_is(const struct waste_ring *ring, uint32_t capacity, uint32_t stride)
{
    return ring->capacity == capacity && ring->stride == stride;
}

int waste_control_attach(void *base, uint64_t bytes, struct waste_shm *out)
{
    struct waste_control *c = base;
    struct waste_shm shm;
    struct layout l;
    uint32_t ready, slot_count;

    if (bytes < MODEL_OFF)
        return -EPROTO;
    /* acquire: pairs with the release store at the end of waste_control_init */
    ready = atomic_load_explicit(&c->ready, memory_order_acquire);
    if (ready == 0)
        return -EAGAIN;
    if (c->magic != WASTE_CONTROL_MAGIC || c->version != WASTE_CONTROL_VERSION || ready != 1)
        return -EPROTO;
    slot_count = c->slot_count;
    if (c->model_off != MODEL_OFF || slot_count == 0 || slot_count > 1u << 31 ||
        c->supervisor_pid < 1 || !options_ok(&c->options) ||
        waste_model_check(at(base, MODEL_OFF), bytes - MODEL_OFF) < 0)
        return -EINVAL;
    l = plan(at(base, MODEL_OFF), slot_count);
    if (l.bytes > bytes || !header_ok(c, &l))
        return -EINVAL;
    point(base, &l, &shm);
    if (!ring_is(shm.demand, WASTE_DEMAND_RING, l.want_stride) ||
        !ring_is(shm.prefetch, WASTE_PREFETCH_RING, l.want_stride) ||
        !ring_is(shm.hidden, WASTE_HIDDEN_RING, l.hidden_stride))
        return -EINVAL;
    *out = shm;
    return 0;
}

void waste_stage_mark(struct waste_stage *stage, enum waste_activity activity, int layer)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    /* relaxed, all three: for people and for the supervisor's clock; nothing is published by them
     */
    atomic_store_explicit(&stage->activity, activity, memory_order_relaxed);
    if (layer >= 0)
        atomic_store_explicit(&stage->layer, (uint32_t)layer, memory_order_relaxed);
    atomic_store_explicit(&stage->heartbeat_ns,
                          (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec,
                          memory_order_relaxed);
}
