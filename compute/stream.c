#include "compute/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "compute/batch.h"
#include "compute/experts.h"
#include "shm/inject.h"

/* How long the reader may leave an expert untouched after taking its record before it is posted
 * again. */
#define REPOST_NS INT64_C(1000000000)

enum {
    SURE_LEAST = 4,    /* tokens that foresee an expert, to make it worth a read */
    WRONG_SHARE = 100, /* one foreseen in vain of so many is too often */
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

size_t waste_stream_bytes(uint32_t experts)
{
    return align64(experts * sizeof(struct waste_stream_expert)) +
           align64(experts * sizeof(uint32_t)) + align64(experts) +
           WASTE_STREAM_RECORDS * sizeof(struct waste_stream_record);
}

void waste_stream_init(struct waste_stream *s, const struct waste_shm *shm, const uint8_t *cache,
                       int reader_event, void *memory)
{
    uint32_t experts = shm->model->config.experts;
    char *at = memory;

    *s = (struct waste_stream){
        .shm = shm,
        .cache = cache,
        .reader_event = reader_event,
        .floor = waste_model_floor_slots(shm->model),
        .ahead_layer = UINT32_MAX,
        .sure = SURE_LEAST,
    };
    s->expert = (void *)at;
    at += align64(experts * sizeof *s->expert);
    s->ahead = (void *)at;
    at += align64(experts * sizeof *s->ahead);
    s->mark = (void *)at;
    at += align64(experts);
    s->record = (void *)at;
}

/* ---- records ---- */

static struct waste_stream_record *record(struct waste_stream *s, uint64_t number)
{
    return &s->record[number % WASTE_STREAM_RECORDS];
}

/* The oldest records that have nothing left do not count any more. */
static void retire(struct waste_stream *s)
{
    while (s->oldest < s->posted && record(s, s->oldest)->left == 0)
        s->held -= record(s, s->oldest++)->count;
}

/* Slots that may be asked for at once. */
static uint32_t slots(const struct waste_stream *s)
{
    const struct waste_control *c = s->shm->control;
    /* relaxed, both: gauges. A budget that shrinks meanwhile takes effect as experts are done */
    uint32_t used = atomic_load_explicit(&c->slots_in_use, memory_order_relaxed);
    uint32_t wanted = atomic_load_explicit(&c->slots_wanted, memory_order_relaxed);
    uint32_t n = used && used < c->slot_count ? used : c->slot_count;

    n = wanted && wanted < n ? wanted : n;
    return n < s->floor ? s->floor : n;
}

static bool has_room(const struct waste_stream *s, uint32_t count)
{
    return s->held + count <= slots(s);
}

/* False while the ring is full, or too many records count. */
static bool post(struct waste_stream *s, enum waste_want_kind kind, uint32_t layer,
                 const uint32_t *id, uint32_t count)
{
    struct waste_want *want;

    if (s->posted - s->oldest == WASTE_STREAM_RECORDS)
        return false;
    want = waste_ring_claim(s->shm->demand);
    if (!want)
        return false;
    *want = (struct waste_want){
        .step = s->step,
        .layer = layer,
        .count = count,
        .kind = kind,
        .hold = (uint32_t)(s->posted - s->oldest),
    };
    memcpy(want->expert, id, count * sizeof *id);
    WASTE_POINT(DEMAND_WRITTEN);
    waste_ring_publish(s->shm->demand);
    WASTE_POINT(DEMAND_POSTED);
    if (kind == WASTE_WANT_TURNS)
        return true;
    *record(s, s->posted) = (struct waste_stream_record){
        .count = count,
        .left = count,
        .ahead = kind == WASTE_WANT_AHEAD,
        /* relaxed: our own cursor */
        .mark = atomic_load_explicit(&s->shm->demand->head, memory_order_relaxed),
    };
    s->posted++;
    s->held += count;
    s->posted_ns = now_ns();
    return true;
}

/* ---- what is posted ---- */

static void wake_reader(const struct waste_stream *s)
{
    waste_bell_ring_fd(&s->shm->control->reader_bell, s->reader_event);
}

/* What was foreseen is over: this layer's own records have taken its place. */
static void end_ahead(struct waste_stream *s)
{
    for (uint64_t n = s->oldest; n < s->posted; n++)
        if (record(s, n)->ahead)
            record(s, n)->left = 0;
    s->ahead_count = s->ahead_next = 0;
    retire(s);
}

/* The next record of the layer at hand. False: no room now, or nothing left. */
static bool post_layer(struct waste_stream *s)
{
    uint32_t id[WASTE_MAX_TOP_K], place[WASTE_MAX_TOP_K], n = 0, i;
    uint32_t most = s->shm->model->config.top_k;
    bool renewed = false;

    while (s->next < s->count && s->expert[s->next].state != WASTE_STREAM_WAITING)
        s->next++;
    for (i = s->next; i < s->count && n < most; i++) {
        const struct waste_stream_expert *e = &s->expert[i];
        if (e->state != WASTE_STREAM_WAITING)
            continue;
        if (n && e->renewed != renewed)
            break;
        renewed = e->renewed;
        place[n] = i;
        id[n++] = e->id;
    }
    if (!renewed && s->ahead_layer == s->layer)
        end_ahead(s);
    if (!n || !(renewed || has_room(s, n)) || !post(s, WASTE_WANT_CHUNK, s->layer, id, n))
        return false;
    for (i = 0; i < n; i++) {
        s->expert[place[i]].state = WASTE_STREAM_POSTED;
        s->expert[place[i]].record = s->posted - 1;
    }
    return true;
}

/* The next record of what is foreseen, when the layer itself has nothing more to post. */
static bool post_ahead(struct waste_stream *s)
{
    uint32_t n = s->ahead_count - s->ahead_next, most = s->shm->model->config.top_k;

    n = n < most ? n : most;
    if (s->next < s->count || !n || s->ahead_layer == s->layer || !has_room(s, n) ||
        !post(s, WASTE_WANT_AHEAD, s->ahead_layer, s->ahead + s->ahead_next, n))
        return false;
    s->ahead_next += n;
    return true;
}

static void post_all(struct waste_stream *s)
{
    bool any = false;

    while (post_layer(s) || post_ahead(s))
        any = true;
    if (any)
        wake_reader(s);
}

/* Nothing that was posted counts any more; what is not taken is posted anew. */
static void start_over(struct waste_stream *s)
{
    s->oldest = s->posted;
    s->held = 0;
    s->next = s->ahead_next = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        s->expert[i].renewed = false;
        if (s->expert[i].state == WASTE_STREAM_POSTED)
            s->expert[i].state = WASTE_STREAM_WAITING;
    }
}

/* A reader that was started again knows nothing of what another took. */
static void look_at_reader(struct waste_stream *s)
{
    /* acquire: pairs with the supervisor's store before it starts a reader */
    uint32_t now = atomic_load_explicit(&s->shm->control->stage[WASTE_STAGE_READER].incarnation,
                                        memory_order_acquire);
    if (now != s->incarnation)
        start_over(s);
    s->incarnation = now;
}

/* ---- a layer ---- */

static int by_posting(const void *a, const void *b)
{
    const struct waste_stream_expert *x = a, *y = b;

    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Was what was foreseen for this layer right? Those that were have a place in the cache already. */
static void renew(struct waste_stream *s)
{
    uint32_t experts = s->shm->model->config.experts, right = 0;

    memset(s->mark, 0, experts);
    for (uint32_t i = 0; i < s->ahead_next; i++)
        s->mark[s->ahead[i]] = 1;
    for (uint32_t i = 0; i < s->count; i++) {
        s->expert[i].renewed = s->mark[s->expert[i].id];
        right += s->expert[i].renewed;
    }
    if ((s->ahead_next - right) * WRONG_SHARE > s->ahead_next && s->sure < UINT32_MAX / 2)
        s->sure *= 2;
    else if (s->sure > SURE_LEAST)
        s->sure--;
}

void waste_stream_begin(struct waste_stream *s, uint64_t step, uint32_t layer, uint32_t count)
{
    enum { RENEWED, READY, ABSENT }; /* `state` while sorting: the order of posting */

    s->step = step;
    s->layer = layer;
    s->count = s->left = count;
    s->next = 0;
    for (uint32_t i = 0; i < count; i++)
        s->expert[i].state = WASTE_STREAM_WAITING;
    look_at_reader(s);
    if (s->ahead_layer == layer)
        renew(s);
    for (uint32_t i = 0; i < count; i++) {
        struct waste_stream_expert *e = &s->expert[i];
        e->renewed &= s->ahead_layer == layer;
        e->state = e->renewed                                  ? RENEWED
                   : waste_experts_ready(s->shm, layer, e->id) ? READY
                                                               : ABSENT;
    }
    qsort(s->expert, count, sizeof *s->expert, by_posting);
    for (uint32_t i = 0; i < count; i++)
        s->expert[i].state = WASTE_STREAM_WAITING;
}

void waste_stream_foresee(struct waste_stream *s, uint32_t layer, const uint32_t *tokens)
{
    const struct waste_model *m = s->shm->model;

    if (s->ahead_layer == s->layer) {
        /* the records of this layer come first: they end what was foreseen for it */
        while (s->next < s->count && s->expert[s->next].renewed && post_layer(s))
            ;
        for (uint32_t i = s->next; i < s->count; i++) /* the ring is full: no claim to a slot */
            s->expert[i].renewed &= s->expert[i].state != WASTE_STREAM_WAITING;
        end_ahead(s);
    }
    s->ahead_layer = layer;
    s->ahead_count = s->ahead_next = 0;
    for (int ready = 1; ready >= 0; ready--)
        for (uint32_t e = 0; e < m->config.experts; e++)
            if (tokens[e] >= s->sure && waste_experts_ready(s->shm, layer, e) == ready)
                s->ahead[s->ahead_count++] = e;
}

void waste_stream_learn(struct waste_stream *s, const uint32_t *ids, uint32_t count)
{
    uint32_t top_k = s->shm->model->config.top_k;
    uint32_t most = waste_want_capacity(s->shm->control) / top_k;

    for (uint32_t i = 0; i < count; i += most) {
        uint32_t n = count - i < most ? count - i : most;
        post(s, WASTE_WANT_TURNS, s->layer, ids + (size_t)i * top_k, n * top_k);
    }
}

/* ---- arrivals ---- */

const uint8_t *waste_stream_data(const struct waste_stream *s, uint32_t place)
{
    return s->cache + s->expert[place].slot * s->shm->control->slot_bytes;
}

/* 1: pinned; 0: not there; -EIO. *untouched: the reader has nothing for it. */
static int take(struct waste_stream *s, struct waste_stream_expert *e, bool *untouched, char *text,
                size_t text_bytes)
{
    /* acquire: a FAILED slot answers a record only once the reader has taken it, so this comes
     * before the look at the word; pairs with waste_ring_release */
    uint64_t tail = atomic_load_explicit(&s->shm->demand->tail, memory_order_acquire);
    bool taken = tail >= record(s, e->record)->mark;
    uint32_t number;
    struct waste_slot *slot = waste_experts_find(s->shm, s->layer, e->id, &number);

    if (!slot) {
        *untouched |= taken;
        return 0;
    }
    if (waste_slot_pin(slot, waste_slot_key(s->layer, e->id))) {
        WASTE_POINT(EXPERT_PINNED);
        e->state = WASTE_STREAM_TAKEN;
        e->slot = number;
        return 1;
    }
    /* acquire: error and detail; pairs with waste_slot_fail */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if (waste_slot_state(word) == WASTE_SLOT_FAILED && taken &&
        waste_experts_find(s->shm, s->layer, e->id, &number) == slot)
        return waste_experts_failed(s->shm, s->layer, e->id, slot, text, text_bytes);
    *untouched |= taken && waste_slot_state(word) == WASTE_SLOT_EMPTY;
    return 0;
}

/* All posted records were taken, and yet an expert is neither there nor on its way. */
static bool lost(const struct waste_stream *s, bool untouched)
{
    return untouched && waste_ring_used(s->shm->demand) == 0 && now_ns() - s->posted_ns > REPOST_NS;
}

int waste_stream_take(struct waste_stream *s, uint32_t room, uint32_t *place, uint32_t *count,
                      char *text, size_t text_bytes)
{
    bool untouched = false;
    uint32_t n = 0;

    look_at_reader(s);
    post_all(s);
    for (uint32_t i = 0; i < s->count && room; i++) {
        struct waste_stream_expert *e = &s->expert[i];
        if (e->state != WASTE_STREAM_POSTED || (n && waste_batch_tiles(e->tokens) > room))
            continue;
        int rc = take(s, e, &untouched, text, text_bytes);
        if (rc < 0)
            return rc;
        if (rc == 0)
            continue;
        place[n++] = i;
        room = waste_batch_tiles(e->tokens) < room ? room - waste_batch_tiles(e->tokens) : 0;
    }
    *count = n;
    if (!n && lost(s, untouched)) {
        start_over(s);
        post_all(s);
    }
    return 0;
}

void waste_stream_done(struct waste_stream *s, uint32_t place)
{
    struct waste_stream_expert *e = &s->expert[place];

    waste_slot_unpin(&s->shm->slot[e->slot]);
    WASTE_POINT(EXPERT_UNPINNED);
    e->state = WASTE_STREAM_DONE;
    s->left--;
    record(s, e->record)->left--;
    retire(s);
}

void waste_stream_end(struct waste_stream *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->expert[i].state == WASTE_STREAM_TAKEN) {
            waste_slot_unpin(&s->shm->slot[s->expert[i].slot]);
            WASTE_POINT(EXPERT_UNPINNED);
        }
    s->count = s->left = 0;
    s->ahead_layer = UINT32_MAX;
    start_over(s);
}
