/* Predictions: what is read for them, what they protect, and what became of it. */
#include "reader/cache_int.h"

/* ---- predicted slots ---- */

static void forget_prediction(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (s->state != WASTE_SLOT_READY || s->held) {
        s->predicted = 0;
        return;
    }
    waste_cache_displace(c, slot);
    s->predicted = 0;
    waste_cache_settle(c, slot);
}

void waste_cache_unlink_predicted(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    *(s->prev == NONE ? &c->first_predicted[s->layer] : &c->slot[s->prev].next) = s->next;
    if (s->next != NONE)
        c->slot[s->next].prev = s->prev;
    c->predicted--;
}

void waste_cache_link_predicted(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    uint32_t *first = &c->first_predicted[s->layer];
    s->prev = NONE;
    s->next = *first;
    if (s->next != NONE)
        c->slot[s->next].prev = slot;
    *first = slot;
    c->predicted++;
    while (c->predicted > c->predicted_limit)
        forget_prediction(c, waste_cache_last_predicted(c));
}

uint32_t waste_cache_last_predicted(const struct waste_cache *c)
{
    uint32_t layers = c->shm->model->config.layers;
    for (uint32_t back = 0; c->predicted > 0 && back < layers; back++) {
        uint32_t slot = c->first_predicted[(c->layer + layers - back) % layers];
        if (slot != NONE)
            return slot;
    }
    return NONE;
}

/* ---- what became of prefetches ---- */

void waste_cache_prefetch_wasted(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (!s->open)
        return;
    s->open = 0;
    waste_foresight_close(&c->foresight, s->risk, true);
    waste_count(c->shm->control, WASTE_C_PREFETCH_WASTED, 1);
}

void waste_cache_prefetch_dropped(struct waste_cache *c, uint32_t slot)
{
    if (c->slot[slot].open)
        waste_foresight_close(&c->foresight, c->slot[slot].risk, false);
    c->slot[slot].open = 0;
}

void waste_cache_prefetch_used(struct waste_cache *c, uint32_t slot)
{
    struct waste_cache_slot *s = &c->slot[slot];
    waste_count(c->shm->control, WASTE_C_PREFETCH_USED, 1);
    if (s->open)
        waste_foresight_close(&c->foresight, s->risk, true);
    s->open = s->prefetched = 0;
}

/* Predictions whose layer has come, or of another conversation (`all`). */
static void expire_layer(struct waste_cache *c, uint32_t layer, bool all)
{
    uint32_t next;
    for (uint32_t slot = c->first_predicted[layer]; slot != NONE; slot = next) {
        next = c->slot[slot].next;
        if (all || passed(c, c->slot[slot].for_step, layer)) {
            waste_cache_prefetch_wasted(c, slot);
            forget_prediction(c, slot);
        }
    }
}

void waste_cache_expire_predictions(struct waste_cache *c, uint64_t old_step, uint32_t old_layer)
{
    uint32_t layers = c->shm->model->config.layers;
    bool back = c->step < old_step || (c->step == old_step && c->layer < old_layer);
    bool near =
        !back && (c->step == old_step || (c->step == old_step + 1 && c->layer <= old_layer));
    uint32_t first = near ? old_layer + 1 : c->layer + 1;
    uint32_t count = near ? c->layer + (c->step > old_step ? layers : 0) - old_layer : layers;
    for (uint32_t i = 0; c->predicted > 0 && i < count; i++)
        expire_layer(c, (first + i) % layers, back);
}

void waste_cache_judge_predictions(struct waste_cache *c, const struct waste_want *want)
{
    struct waste_control *control = c->shm->control;
    uint8_t right[WASTE_FORESIGHT_RANKS];
    for (int o = 0; o < WASTE_OUTLOOK_COUNT; o++) {
        uint32_t ranks =
            waste_foresight_judge(&c->foresight, want->layer, (enum waste_outlook)o, want, right);
        for (uint32_t r = 0; r < ranks && r < WASTE_RANK_RECORDS; r++) {
            /* relaxed: statistics */
            atomic_fetch_add_explicit(&control->rank_predicted[o][r], 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&control->rank_right[o][r], right[r], memory_order_relaxed);
        }
    }
}

/* ---- predictions ---- */

/* An expert that is here, or on its way, and was predicted: keep it until its layer has come. (One
 * that is held is kept anyway, and on from there.) */
static void protect(struct waste_cache *c, uint32_t slot, uint64_t step)
{
    struct waste_cache_slot *s = &c->slot[slot];
    if (s->state == WASTE_SLOT_FAILED)
        return;
    if (s->state == WASTE_SLOT_READY)
        waste_cache_displace(c, slot);
    s->predicted = 1;
    s->for_step = step;
    if (s->state == WASTE_SLOT_READY)
        waste_cache_settle(c, slot);
}

/* Of the layer's wishes, all that are left will not be read. */
static void drop_wishes(struct waste_cache *c, struct waste_cache_wishes *w)
{
    waste_count(c->shm->control, WASTE_C_PREFETCH_DROPPED, w->left);
    c->wishing -= w->left > 0;
    w->left = 0;
}

void waste_cache_prefetch(struct waste_cache *c, const struct waste_want *want)
{
    enum waste_outlook outlook = (enum waste_outlook)want->outlook;
    struct waste_cache_wishes *w = &c->wishes[want->layer];
    bool late = passed(c, want->step, want->layer);
    waste_foresight_predict(&c->foresight, want->layer, outlook, want->step);
    for (uint32_t i = 0; i < want->count; i++) {
        uint32_t slot = c->slot_of[key_index(c, want->layer, want->expert[i])];
        waste_foresight_add(&c->foresight, want->layer, outlook, want->expert[i], slot == NONE);
        if (slot != NONE && !late)
            protect(c, slot, want->step);
    }
    if (late) {
        waste_count(c->shm->control, WASTE_C_PREFETCH_DROPPED, want->count);
        return;
    }
    /* what an earlier one, less precise, would still have read is forgotten */
    drop_wishes(c, w);
    *w = (struct waste_cache_wishes){want->step, outlook, 0, want->count};
    c->wishing++;
}

/* The layer's next wish that is worth a read; NONE: none is. */
static uint32_t next_wish(struct waste_cache *c, uint32_t layer, float *risk)
{
    struct waste_cache_wishes *w = &c->wishes[layer];
    for (; w->left > 0; w->rank++, w->left--) {
        uint32_t expert = waste_foresight_expert(&c->foresight, layer, w->outlook, w->rank);
        if (expert == NONE || passed(c, w->step, layer)) {
            drop_wishes(c, w);
            return NONE;
        }
        uint32_t slot = c->slot_of[key_index(c, layer, expert)];
        *risk = waste_foresight_risk(&c->foresight, layer, w->outlook, w->rank);
        if (slot == NONE && waste_foresight_allows(&c->foresight, *risk))
            return expert;
        if (slot != NONE)
            protect(c, slot, w->step);
        waste_count(c->shm->control,
                    slot == NONE ? WASTE_C_PREFETCH_WITHHELD : WASTE_C_PREFETCH_DROPPED, 1);
        if (w->left == 1)
            c->wishing--;
    }
    return NONE;
}

/* Reads for one layer's wishes. False: no more can begin now. */
static bool plan_layer(struct waste_cache *c, uint32_t layer, struct waste_cache_read *out,
                       uint32_t room, uint32_t *n)
{
    struct waste_cache_wishes *w = &c->wishes[layer];
    uint32_t expert;
    float risk;
    while ((expert = next_wish(c, layer, &risk)) != NONE) {
        if (*n == room || c->prefetch_reading >= c->prefetch_limit ||
            c->prefetch_begun >= waste_foresight_width(&c->foresight, layer, w->outlook))
            return false;
        uint32_t slot = waste_cache_take(c, layer, expert, false);
        if (slot == NONE) {
            drop_wishes(c, w);
            return false;
        }
        w->rank++;
        if (--w->left == 0)
            c->wishing--;
        struct waste_cache_slot *s = &c->slot[slot];
        s->prefetched = s->predicted = s->open = 1;
        s->risk = risk;
        s->for_step = w->step;
        waste_foresight_open(&c->foresight, risk);
        c->prefetch_reading++;
        c->prefetch_begun++;
        waste_count(c->shm->control, WASTE_C_PREFETCHED, 1);
        out[(*n)++] = (struct waste_cache_read){slot, layer, expert, false};
    }
    return true;
}

uint32_t waste_cache_plan_prefetch(struct waste_cache *c, struct waste_cache_read *out,
                                   uint32_t room)
{
    uint32_t layers = c->shm->model->config.layers, n = 0;
    for (uint32_t i = 1; c->wishing > 0 && i <= layers; i++)
        if (!plan_layer(c, (c->layer + i) % layers, out, room, &n))
            break;
    return n;
}

enum waste_cache_prefetch_state waste_cache_prefetch_state(const struct waste_cache *c,
                                                           uint32_t slot)
{
    const struct waste_cache_slot *s = &c->slot[slot];
    if (s->state != WASTE_SLOT_READING)
        return WASTE_CACHE_PREFETCH_OVER;
    if (s->held && s->counted)
        return WASTE_CACHE_PREFETCH_DEMANDED;
    if (s->held || !s->prefetched)
        return WASTE_CACHE_PREFETCH_AHEAD; /* foreseen, warming, or demand of a record before */
    return passed(c, s->for_step, s->layer) ? WASTE_CACHE_PREFETCH_PASSED
                                            : WASTE_CACHE_PREFETCH_AHEAD;
}

void waste_cache_cancelled(struct waste_cache *c, uint32_t slot)
{
    waste_count(c->shm->control, WASTE_C_PREFETCH_CANCELLED, 1);
    c->prefetch_reading--;
    waste_cache_give_up(c, slot); /* READING -> EMPTY: no byte of it was asked for */
}
