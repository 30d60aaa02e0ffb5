/*
 * As in control.c: the layout is a function of the model and ctx, computed again and compared at
 * attach; what a stage uses afterwards are offsets that were found equal to its own.
 */
#include "shm/session.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

_Static_assert(sizeof(struct waste_request) == 128 && sizeof(struct waste_reply) == 512,
               "request and reply are shared between processes");
_Static_assert(offsetof(struct waste_session, request) == 64 &&
                   offsetof(struct waste_session, reply) == 192 &&
                   offsetof(struct waste_session, log_off) == 704,
               "a session is shared between processes");
_Static_assert(sizeof(struct waste_session_header) == 64, "the header is one cache line");

struct layout {
    struct waste_session_header header;
    uint64_t log_off, logits_off, bank_off[2], latent_off;
};

/* Sums that remember an overflow: dimensions come from a manifest, and ctx from a user. */
struct sum {
    uint64_t end;
    bool overflow;
};

static uint64_t mul(struct sum *s, uint64_t a, uint64_t b)
{
    uint64_t r;

    if (__builtin_mul_overflow(a, b, &r))
        s->overflow = true;
    return r;
}

static uint64_t align_up(struct sum *s, uint64_t v, uint64_t to)
{
    uint64_t r;

    if (__builtin_add_overflow(v, to - 1, &r))
        s->overflow = true;
    return r & ~(to - 1);
}

static uint64_t place(struct sum *s, uint64_t bytes, uint64_t align)
{
    uint64_t off = align_up(s, s->end, align);

    if (__builtin_add_overflow(off, bytes, &s->end))
        s->overflow = true;
    return off;
}

static bool plan(const struct waste_model *model, uint32_t ctx, uint32_t logit_rows,
                 struct layout *l)
{
    const struct waste_config *c = &model->config;
    struct sum s = {0};
    uint64_t heads_dim = mul(&s, c->kda_heads, c->kda_dim), history, layer;

    if (ctx < 1 || ctx > INT32_MAX || logit_rows < 1 || (c->kda_layers > 0 && c->conv_width < 1))
        return false;
    memset(l, 0, sizeof(*l));
    l->header.magic = WASTE_SESSION_MAGIC;
    l->header.version = WASTE_SESSION_VERSION;
    l->header.session_count = 1;
    l->header.ctx = ctx;
    l->header.logit_rows = logit_rows;
    if (c->kda_layers > 0) {
        history = mul(&s, mul(&s, 12, c->conv_width - 1), heads_dim);
        l->header.kda_conv_off = align_up(&s, mul(&s, mul(&s, 4, heads_dim), c->kda_dim), 64);
        layer = l->header.kda_conv_off;
        if (__builtin_add_overflow(layer, history, &layer))
            return false;
        l->header.kda_layer_bytes = align_up(&s, layer, 64);
    }
    l->header.mla_layer_bytes =
        align_up(&s, mul(&s, mul(&s, 4, ctx), (uint64_t)c->kv_lora + c->rope_dim), 64);

    place(&s, sizeof(struct waste_session_header), 64);
    l->header.session_off = place(&s, sizeof(struct waste_session), 64);
    l->log_off = place(&s, mul(&s, 4, ctx), 64);
    l->logits_off = place(&s, mul(&s, mul(&s, 4, c->vocab), logit_rows), 64);
    for (int b = 0; b < 2; b++)
        l->bank_off[b] = place(&s, mul(&s, c->kda_layers, l->header.kda_layer_bytes), 4096);
    l->latent_off = place(&s, mul(&s, c->mla_layers, l->header.mla_layer_bytes), 4096);
    l->header.bytes = align_up(&s, s.end, 4096);
    return !s.overflow;
}

uint64_t waste_session_bytes(const struct waste_model *model, uint32_t ctx, uint32_t logit_rows)
{
    struct layout l;

    return plan(model, ctx, logit_rows, &l) ? l.header.bytes : 0;
}

uint64_t waste_session_bank_bytes(const struct waste_model *model)
{
    struct layout l;

    return plan(model, 1, 1, &l) ? model->config.kda_layers * l.header.kda_layer_bytes : 0;
}

void waste_session_init(void *base, uint64_t bytes, const struct waste_model *model, uint32_t ctx,
                        uint32_t logit_rows)
{
    struct waste_session_header *h = base;
    struct waste_session *s;
    struct layout l;
    bool fits = plan(model, ctx, logit_rows, &l) && l.header.bytes <= bytes;

    assert(fits);
    if (!fits)
        return;
    s = (struct waste_session *)((char *)base + l.header.session_off);
    s->log_off = l.log_off;
    s->logits_off = l.logits_off;
    s->bank_off[0] = l.bank_off[0];
    s->bank_off[1] = l.bank_off[1];
    s->latent_off = l.latent_off;
    *h = l.header;
}

int waste_session_attach(void *base, uint64_t bytes, const struct waste_model *model,
                         struct waste_session_header **header, struct waste_session **session)
{
    struct waste_session_header *h = base;
    struct waste_session *s;
    struct layout l;

    if (bytes < sizeof(*h) || h->magic != WASTE_SESSION_MAGIC ||
        h->version != WASTE_SESSION_VERSION)
        return -EPROTO;
    if (!plan(model, h->ctx, h->logit_rows, &l) || l.header.bytes > bytes ||
        memcmp(h, &l.header, sizeof(l.header)) != 0)
        return -EINVAL;
    s = (struct waste_session *)((char *)base + l.header.session_off);
    if (s->log_off != l.log_off || s->logits_off != l.logits_off ||
        s->bank_off[0] != l.bank_off[0] || s->bank_off[1] != l.bank_off[1] ||
        s->latent_off != l.latent_off)
        return -EINVAL;
    *header = h;
    *session = s;
    return 0;
}
