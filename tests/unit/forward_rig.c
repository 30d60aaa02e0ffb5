#include "forward_rig.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cm.h"
#include "reader/trunk.h"

static uint32_t scramble(struct forward_rig *r, uint32_t below)
{
    r->seed = r->seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(r->seed >> 33) % below;
}

static struct waste_slot *slot_of(struct forward_rig *r, uint32_t layer, uint32_t expert)
{
    uint32_t n = r->shm.directory[layer * r->model->config.experts + expert];
    return n == WASTE_SLOT_NONE ? NULL : &r->shm.slot[n];
}

static uint32_t empty_slot(const struct forward_rig *r)
{
    uint32_t n = 0;
    while (n < r->shm.control->slot_count && r->shm.slot[n].word != 0)
        n++;
    return n;
}

/* A slot that may be taken, an empty one or the worst choice there is: what has come last. Its old
 * directory entry goes. */
static uint32_t claim_slot(struct forward_rig *r, uint64_t key)
{
    uint32_t empty = empty_slot(r);

    if (empty < r->shm.control->slot_count)
        r->hand = empty;
    for (;;) {
        uint32_t count = r->shm.control->slot_count, n = r->hand;
        r->hand = (n + count - 1) % count;
        struct waste_slot *slot = &r->shm.slot[n];
        uint64_t word = slot->word, old = slot->key;
        if ((r->held[n] && r->records - r->held[n] <= r->hold) ||
            !waste_slot_claim(slot, word, key))
            continue;
        if (waste_slot_state(word) != WASTE_SLOT_EMPTY) {
            _Atomic uint32_t *entry =
                &r->shm.directory[(old >> 32) * r->model->config.experts + (uint32_t)old];
            if (*entry == n)
                *entry = WASTE_SLOT_NONE;
        }
        r->hand = n;
        return n;
    }
}

static void load(struct forward_rig *r, uint32_t layer, uint32_t expert)
{
    const struct waste_bank *bank = &waste_model_layer(r->model, layer)->bank;
    uint32_t bytes = r->model->expert.record_bytes;
    uint32_t n = claim_slot(r, waste_slot_key(layer, expert));
    struct waste_slot *slot = &r->shm.slot[n];

    r->held[n] = r->records;
    while (r->stall_at && r->loads >= r->stall_at && !r->stop)
        usleep(1000);
    r->loads++;
    char path[512];

    r->shm.directory[layer * r->model->config.experts + expert] = n;
    snprintf(path, sizeof path, "%s/%s", r->dir, bank->file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got =
        pread(fd, (char *)r->cache.base + (size_t)n * bytes, bytes, (off_t)expert * bytes);
    close(fd);
    if (got != (ssize_t)bytes || (layer == r->refuse_layer && expert == r->refuse_expert))
        waste_slot_fail(slot, WASTE_SLOT_BAD_CRC, 0);
    else
        waste_slot_publish(slot);
    waste_bell_ring(&r->shm.control->compute_bell);
}

static bool serve_demand(struct forward_rig *r)
{
    const struct waste_want *want = waste_ring_peek(r->shm.demand);
    if (!want || (r->when_waited &&
                  r->shm.control->stage[WASTE_STAGE_COMPUTE].activity != WASTE_ACT_WAIT_EXPERTS))
        return false;
    if (want->kind == WASTE_WANT_TURNS) {
        waste_ring_release(r->shm.demand);
        return true;
    }
    uint32_t layer = want->layer, count = want->count, expert[WASTE_MAX_TOP_K];
    memcpy(expert, want->expert, count * sizeof expert[0]);
    r->records++;
    r->hold = want->hold;
    uint32_t start = scramble(r, count);
    for (uint32_t i = 0; i < count; i++) { /* before a slot is taken: they are not to be victims */
        struct waste_slot *slot = slot_of(r, layer, expert[i]);
        if (slot && waste_slot_state(slot->word) == WASTE_SLOT_READY)
            r->held[slot - r->shm.slot] = r->records;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct waste_slot *slot = slot_of(r, layer, expert[(start + i) % count]);
        if (!slot || waste_slot_state(slot->word) != WASTE_SLOT_READY)
            load(r, layer, expert[(start + i) % count]);
    }
    waste_ring_release(r->shm.demand);
    return true;
}

static bool serve_embeddings(struct forward_rig *r)
{
    const struct waste_tensor *t = waste_model_tensor(r->model, r->model->tensor[WASTE_M_EMBED]);
    bool any = false;

    for (uint32_t i = 0; i < WASTE_EMBED_SLOTS; i++) {
        struct waste_embed_slot *slot = &r->shm.embed[i];
        uint64_t want = slot->want, token = (uint32_t)want - 1;
        uint8_t *row = r->shm.embed_data + i * r->shm.control->embed_row_bytes;
        if (want == slot->have)
            continue;
        bool good = pread(r->trunk_file, row, t->row_bytes,
                          (off_t)(t->file_off + token * t->row_bytes)) == (ssize_t)t->row_bytes &&
                    pread(r->trunk_file, row + t->row_bytes, t->groups * 2,
                          (off_t)(t->file_scale_off + token * t->groups * 2)) == t->groups * 2;
        slot->have = good ? want : want | WASTE_EMBED_FAILED;
        waste_bell_ring(&r->shm.control->compute_bell);
        any = true;
    }
    return any;
}

static void *reader_main(void *arg)
{
    struct forward_rig *r = arg;
    while (!r->stop) {
        uint32_t seen = waste_bell_seq(&r->shm.control->reader_bell);
        if (!((int)serve_demand(r) | (int)serve_embeddings(r)))
            waste_bell_wait(&r->shm.control->reader_bell, seen, 50000000, 0);
    }
    return NULL;
}

static void segment(struct forward_rig *r, enum waste_segment_id id, uint64_t bytes,
                    struct waste_mapping *map)
{
    assert_int_equal(waste_segment_create(id, bytes, &r->fd[id]), 0);
    if (map)
        assert_int_equal(waste_segment_map(r->fd[id], id, true, map), 0);
}

static bool go_on(void *ctx)
{
    return true;
}

static void make_segments(struct forward_rig *r, uint32_t slots,
                          const struct waste_options *options)
{
    uint64_t control = waste_control_bytes(r->model, slots);
    uint64_t session = waste_session_bytes(r->model, options->ctx, options->logit_rows);
    struct waste_error err;

    segment(r, WASTE_SEG_CONTROL, control, &r->control);
    segment(r, WASTE_SEG_SESSION, session, &r->session);
    segment(r, WASTE_SEG_CACHE, (uint64_t)slots * r->model->expert.record_bytes, &r->cache);
    segment(r, WASTE_SEG_TRUNK, r->model->trunk_bytes, NULL);
    waste_control_init(r->control.base, control, r->model, slots, options, 0, &r->shm);
    waste_session_init(r->session.base, session, r->model, options->ctx, options->logit_rows);
    if (waste_trunk_load(&r->shm, r->dir, r->fd[WASTE_SEG_TRUNK], go_on, NULL, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(waste_segment_map(r->fd[WASTE_SEG_TRUNK], WASTE_SEG_TRUNK, false, &r->trunk),
                     0);
}

static void create(struct forward_rig *r, const char *dir, uint32_t slots, const char *level,
                   struct waste_options options)
{
    struct waste_error err;
    char path[512];

    memset(r, 0, sizeof *r);
    r->dir = dir;
    r->seed = 1;
    r->refuse_layer = UINT32_MAX;
    if (waste_container_open(dir, &r->model, &err) < 0)
        fail_msg("%s", err.text);
    if (!slots)
        slots = r->model->config.experts * r->model->config.layers + 1;
    r->held = calloc(slots, sizeof *r->held);
    make_segments(r, slots, &options);
    r->env = (struct waste_forward_env){
        .shm = r->shm, .trunk = r->trunk.base, .cache = r->cache.base, .reader_event = -1};
    assert_int_equal(waste_session_attach(r->session.base, r->session.bytes, r->model,
                                          &r->env.session, &r->env.conversation),
                     0);
    assert_true(waste_kernels_init(&r->env.kernels, level));
    snprintf(path, sizeof path, "%s/trunk.bin", dir);
    r->trunk_file = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(r->trunk_file >= 0);
    assert_int_equal(waste_forward_create(&r->server.forward, &r->env), 0);
    assert_int_equal(waste_sampler_init(&r->server.sampler, r->model->config.vocab), 0);
    waste_forward_load(r->server.forward);
    r->server.shm = &r->shm;
    r->server.header = r->env.session;
    r->server.session = r->env.conversation;
    r->server.kernels = &r->env.kernels;
    assert_int_equal(pthread_create(&r->reader, NULL, reader_main, r), 0);
}

void forward_rig_create(struct forward_rig *r, const char *dir, uint32_t threads, uint32_t ctx,
                        uint32_t slots, const char *level)
{
    create(r, dir, slots, level,
           (struct waste_options){.threads = threads, .ctx = ctx, .logit_rows = 1});
}

void forward_rig_create_chunked(struct forward_rig *r, const char *dir, uint32_t threads,
                                uint32_t ctx, uint32_t slots, uint32_t chunk, uint32_t lookahead)
{
    create(r, dir, slots, NULL,
           (struct waste_options){.threads = threads,
                                  .ctx = ctx,
                                  .chunk = chunk,
                                  .lookahead = lookahead,
                                  .logit_rows = 1});
}

void forward_rig_create_scoring(struct forward_rig *r, const char *dir, uint32_t ctx,
                                uint32_t chunk, uint32_t logit_rows)
{
    create(
        r, dir, 0, NULL,
        (struct waste_options){.threads = 2, .ctx = ctx, .chunk = chunk, .logit_rows = logit_rows});
}

void forward_rig_destroy(struct forward_rig *r)
{
    if (r->serving)
        forward_rig_stop_serving(r);
    r->stop = true;
    waste_bell_ring(&r->shm.control->reader_bell);
    pthread_join(r->reader, NULL);
    waste_forward_destroy(r->server.forward);
    waste_sampler_finish(&r->server.sampler);
    waste_segment_unmap(&r->control);
    waste_segment_unmap(&r->session);
    waste_segment_unmap(&r->trunk);
    waste_segment_unmap(&r->cache);
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        close(r->fd[i]);
    close(r->trunk_file);
    free(r->held);
    free(r->model);
}

static void *serve_main(void *arg)
{
    waste_serve(arg);
    return NULL;
}

void forward_rig_serve(struct forward_rig *r)
{
    r->shm.control->stage[WASTE_STAGE_COMPUTE].stop = 0;
    assert_int_equal(pthread_create(&r->compute, NULL, serve_main, &r->server), 0);
    r->serving = true;
}

void forward_rig_stop_serving(struct forward_rig *r)
{
    r->shm.control->stage[WASTE_STAGE_COMPUTE].stop = 1;
    waste_bell_ring(&r->shm.control->compute_bell);
    pthread_join(r->compute, NULL);
    r->serving = false;
}

static void ring_request(struct forward_rig *r)
{
    atomic_fetch_add_explicit(&r->env.conversation->request.seq, 1, memory_order_release);
    waste_bell_ring(&r->shm.control->compute_bell);
}

void forward_rig_post(struct forward_rig *r, uint32_t at, const uint32_t *ids, uint32_t count,
                      uint32_t flags, uint32_t max_tokens)
{
    struct waste_request *q = &r->env.conversation->request;

    if (count)
        memcpy(waste_session_log(r->env.session, r->env.conversation) + at, ids,
               count * sizeof *ids);
    q->prompt_end = at + count;
    q->flags = flags;
    q->max_tokens = max_tokens;
    if (q->top_p == 0)
        q->top_p = 1;
    ring_request(r);
}

uint32_t forward_rig_take_logits(struct forward_rig *r, float *out, uint32_t most)
{
    struct waste_session *s = r->env.conversation;
    uint32_t vocab = r->model->config.vocab, chunk = r->shm.control->options.chunk;
    uint64_t seq = s->request.seq;
    uint32_t taken = waste_logits_position(s->request.logits_taken, seq);
    uint32_t ready =
        waste_logits_position(atomic_load_explicit(&s->logits_ready, memory_order_acquire), seq);

    for (; taken < ready && most > 0; taken++, most--)
        memcpy(out + (size_t)taken * vocab,
               waste_session_logits(r->env.session, s, r->model,
                                    waste_logits_row(taken, chunk, r->env.session->logit_rows)),
               vocab * sizeof *out);
    atomic_store_explicit(&s->request.logits_taken, waste_logits_word(seq, taken),
                          memory_order_release);
    waste_bell_ring(&r->shm.control->compute_bell);
    return taken;
}

void forward_rig_set_prompt_end(struct forward_rig *r, uint32_t prompt_end)
{
    r->env.conversation->request.prompt_end = prompt_end;
    ring_request(r);
}

uint32_t forward_rig_wait(struct forward_rig *r)
{
    const struct waste_session *s = r->env.conversation;

    for (;;) {
        uint32_t seen = waste_bell_seq(&r->shm.control->client_bell);
        if (atomic_load_explicit(&s->reply.seq, memory_order_acquire) == s->request.seq)
            return s->reply.status;
        waste_bell_wait(&r->shm.control->client_bell, seen, 100000000, 0);
    }
}

uint32_t forward_rig_request(struct forward_rig *r, uint32_t at, const uint32_t *ids,
                             uint32_t count, uint32_t flags, uint32_t max_tokens)
{
    forward_rig_post(r, at, ids, count, flags, max_tokens);
    return forward_rig_wait(r);
}

void forward_rig_forget(struct forward_rig *r, uint32_t layer, uint32_t expert)
{
    _Atomic uint32_t *entry = &r->shm.directory[layer * r->model->config.experts + expert];
    struct waste_slot *slot = &r->shm.slot[*entry];

    assert_true(waste_slot_empty(slot, slot->word));
    *entry = WASTE_SLOT_NONE;
}

const uint32_t *forward_rig_log(struct forward_rig *r)
{
    return waste_session_log(r->env.session, r->env.conversation);
}

const float *forward_rig_logits(struct forward_rig *r)
{
    return waste_session_logits(r->env.session, r->env.conversation, r->model, 0);
}

uint32_t forward_rig_position(struct forward_rig *r)
{
    return waste_commit_position(r->env.conversation->commit);
}
