/*
 * The whole model on the demo container against the PyTorch reference (tests/data/), and what must
 * not change a single bit of it. Then requests as clients post them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cm.h"
#include "forward_rig.h"

static const char *const levels[] = {"c", "avx2", "avx512", "vnni", "zen4", "neon"};
static json_t *cases;

static int load_cases(void **state)
{
    json_error_t error;
    cases = json_load_file(WASTE_TEST_DATA "/demo_expected.json", 0, &error);
    return cases ? 0 : -1;
}

static int free_cases(void **state)
{
    json_decref(cases);
    return 0;
}

static uint32_t *ids_of(const json_t *c, const char *key, uint32_t *count)
{
    const json_t *list = json_object_get(c, key);
    uint32_t *ids;

    *count = (uint32_t)json_array_size(list);
    ids = malloc(*count * sizeof *ids);
    for (uint32_t i = 0; i < *count; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

/* |got - expected| / |expected| */
static double distance(const float *got, const json_t *expected)
{
    double d2 = 0, e2 = 0;

    for (size_t i = 0; i < json_array_size(expected); i++) {
        double e = json_number_value(json_array_get(expected, i));
        d2 += (got[i] - e) * (got[i] - e);
        e2 += e * e;
    }
    return sqrt(d2 / e2);
}

static void check_case(struct forward_rig *r, const json_t *c, bool *had_logits)
{
    const json_t *expected = json_object_get(c, "logits");
    uint32_t count, n, flags = WASTE_REQ_RESET | WASTE_REQ_IGNORE_EOS;
    uint32_t *ids = ids_of(c, "ids", &count), *greedy = ids_of(c, "greedy", &n);

    if (expected) {
        assert_int_equal(forward_rig_request(r, 0, ids, count, flags | WASTE_REQ_LOGITS, 0),
                         WASTE_REPLY_LENGTH);
        assert_int_equal(forward_rig_position(r), count);
        assert_true(distance(forward_rig_logits(r), expected) <= 1e-5);
        *had_logits = true;
    }
    assert_int_equal(forward_rig_request(r, 0, ids, count, flags, n), WASTE_REPLY_LENGTH);
    assert_memory_equal(forward_rig_log(r) + count, greedy, n * sizeof *greedy);
    free(ids);
    free(greedy);
}

static void test_the_answers_are_those_of_the_reference(void **state)
{
    struct forward_rig r;
    bool had_logits = false;

    forward_rig_create(&r, WASTE_DEMO_MODEL, 2, 256, 0, NULL);
    forward_rig_serve(&r);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(&r, json_array_get(cases, i), &had_logits);
    assert_true(had_logits);
    forward_rig_destroy(&r);
}

static void test_every_kernel_level_agrees(void **state)
{
    struct waste_kernels k;

    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        struct forward_rig r;
        bool had_logits = false;
        if (!waste_kernels_init(&k, levels[i]))
            continue;
        forward_rig_create(&r, WASTE_DEMO_MODEL, 1, 256, 0, levels[i]);
        forward_rig_serve(&r);
        check_case(&r, json_array_get(cases, 0), &had_logits);
        assert_true(had_logits);
        forward_rig_destroy(&r);
    }
}

/* Everything a run leaves: ids, last logits, and the state it would go on from. */
struct result {
    uint32_t ids[24];
    float *logits;
    size_t vocab;
    char *bank;
    size_t bank_bytes;
};

static void keep(struct forward_rig *r, uint32_t prompt, struct result *out)
{
    const struct waste_session *s = r->env.conversation;
    uint32_t bank = waste_commit_bank(s->commit);

    memcpy(out->ids, forward_rig_log(r) + prompt, sizeof out->ids);
    out->vocab = r->model->config.vocab;
    out->logits = malloc(out->vocab * sizeof(float));
    memcpy(out->logits, forward_rig_logits(r), out->vocab * sizeof(float));
    out->bank_bytes = r->model->config.kda_layers * r->env.session->kda_layer_bytes;
    out->bank = malloc(out->bank_bytes);
    memcpy(out->bank, (char *)r->env.session + s->bank_off[bank], out->bank_bytes);
}

static void assert_same(const struct result *a, const struct result *b)
{
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    assert_memory_equal(a->logits, b->logits, a->vocab * sizeof(float));
    assert_memory_equal(a->bank, b->bank, a->bank_bytes);
}

static void drop(struct result *r)
{
    free(r->logits);
    free(r->bank);
}

/* Stops compute and starts it again; its successor goes on from the commit. */
static void restart(struct forward_rig *r, uint32_t at)
{
    const struct waste_session *s = r->env.conversation;
    uint32_t before, after;

    while (forward_rig_position(r) < at)
        ;
    forward_rig_stop_serving(r);
    before = forward_rig_position(r);
    forward_rig_serve(r);
    do {
        after = forward_rig_position(r);
        assert_true(after >= before);
    } while (after == before && s->reply.seq != s->request.seq);
}

/* `stops`: compute is stopped and started again that many times on the way. */
static void run(uint32_t threads, uint32_t slots, uint32_t stops, struct result *out)
{
    uint32_t count, flags = WASTE_REQ_RESET | WASTE_REQ_IGNORE_EOS | WASTE_REQ_LOGITS;
    uint32_t *ids = ids_of(json_array_get(cases, 0), "ids", &count);
    uint32_t n = sizeof out->ids / sizeof out->ids[0];
    struct forward_rig r;

    forward_rig_create(&r, WASTE_DEMO_MODEL, threads, 128, slots, NULL);
    r.env.conversation->request.temperature = 0.7f;
    r.env.conversation->request.seed = 11;
    forward_rig_serve(&r);
    if (stops) {
        forward_rig_post(&r, 0, ids, count, flags, n);
        for (uint32_t i = 1; i <= stops; i++)
            restart(&r, i * (count + n) / (stops + 1));
        assert_int_equal(forward_rig_wait(&r), WASTE_REPLY_LENGTH);
    } else {
        assert_int_equal(forward_rig_request(&r, 0, ids, count, flags, n), WASTE_REPLY_LENGTH);
    }
    keep(&r, count, out);
    forward_rig_destroy(&r);
    free(ids);
}

static void test_nothing_changes_a_bit(void **state)
{
    struct result base, other;
    const struct {
        uint32_t threads, slots, stops;
    } runs[] = {
        {1, 0, 0}, {5, 0, 0},  {2, 8, 0}, /* 8 slots: two top_k, everything is read again */
        {5, 8, 0}, {2, 11, 0}, {2, 0, 7}, {3, 9, 5},
    };

    run(2, 0, 0, &base);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        run(runs[i].threads, runs[i].slots, runs[i].stops, &other);
        assert_same(&base, &other);
        drop(&other);
    }
    drop(&base);
}

static void test_a_conversation_goes_on_where_it_was(void **state)
{
    struct forward_rig r;
    uint32_t count, vocab, *ids = ids_of(json_array_get(cases, 1), "ids", &count);
    float *whole;

    forward_rig_create(&r, WASTE_DEMO_MODEL, 2, 128, 0, NULL);
    forward_rig_serve(&r);
    vocab = r.model->config.vocab;
    whole = malloc(vocab * sizeof *whole);
    forward_rig_request(&r, 0, ids, count, WASTE_REQ_RESET | WASTE_REQ_LOGITS, 0);
    memcpy(whole, forward_rig_logits(&r), vocab * sizeof *whole);
    forward_rig_request(&r, 0, ids, 7, WASTE_REQ_RESET, 0);
    assert_int_equal(forward_rig_position(&r), 7);
    forward_rig_request(&r, 7, ids + 7, count - 7, WASTE_REQ_LOGITS, 0);
    assert_int_equal(forward_rig_position(&r), count);
    assert_memory_equal(whole, forward_rig_logits(&r), vocab * sizeof *whole);
    free(whole);
    free(ids);
    forward_rig_destroy(&r);
}

/* A conversation's state outside of its segment. */
struct kept {
    char *bank, *rows;
    size_t bank_bytes, row_bytes; /* of all KDA layers; of one position in one MLA layer */
    uint32_t position;
};

static char *rows_at(struct forward_rig *r, uint32_t layer)
{
    return (char *)r->env.session + r->env.conversation->latent_off +
           layer * r->env.session->mla_layer_bytes;
}

static void take_out(struct forward_rig *r, struct kept *k)
{
    const struct waste_config *c = &r->model->config;
    uint64_t word = r->env.conversation->commit;

    k->position = waste_commit_position(word);
    k->bank_bytes = c->kda_layers * r->env.session->kda_layer_bytes;
    k->row_bytes = (size_t)4 * (c->kv_lora + c->rope_dim) * k->position;
    k->bank = malloc(k->bank_bytes);
    k->rows = malloc(k->row_bytes * c->mla_layers);
    memcpy(k->bank, (char *)r->env.session + r->env.conversation->bank_off[waste_commit_bank(word)],
           k->bank_bytes);
    for (uint32_t i = 0; i < c->mla_layers; i++)
        memcpy(k->rows + i * k->row_bytes, rows_at(r, i), k->row_bytes);
}

static void put_back(struct forward_rig *r, const struct kept *k, uint32_t bank)
{
    memcpy((char *)r->env.session + r->env.conversation->bank_off[bank], k->bank, k->bank_bytes);
    for (uint32_t i = 0; i < r->model->config.mla_layers; i++)
        memcpy(rows_at(r, i), k->rows + i * k->row_bytes, k->row_bytes);
    r->env.conversation->request.restore_position = k->position;
    r->env.conversation->request.restore_bank = bank;
}

static void test_a_conversation_that_was_put_back_goes_on_as_if_nothing_had_been(void **state)
{
    struct forward_rig r;
    struct kept k;
    uint32_t count, n, *ids = ids_of(json_array_get(cases, 0), "ids", &count);
    uint32_t *greedy = ids_of(json_array_get(cases, 0), "greedy", &n), log[128] = {0};
    const uint32_t other[] = {5, 6, 7, 8, 9};

    forward_rig_create(&r, WASTE_DEMO_MODEL, 2, 128, 0, NULL);
    forward_rig_serve(&r);
    /* all of the prompt and three tokens of the reply; the third is not consumed */
    forward_rig_request(&r, 0, ids, count, WASTE_REQ_RESET, 3);
    take_out(&r, &k);
    memcpy(log, forward_rig_log(&r), (count + 3) * sizeof *log);
    for (uint32_t bank = 0; bank < 2; bank++) {
        forward_rig_request(&r, 0, other, 5, WASTE_REQ_RESET, 2 + bank);
        put_back(&r, &k, bank);
        forward_rig_post(&r, 0, log, count + 3, WASTE_REQ_RESTORE | WASTE_REQ_IGNORE_EOS, n - 3);
        assert_int_equal(forward_rig_wait(&r), WASTE_REPLY_LENGTH);
        assert_int_equal(forward_rig_position(&r), count + n - 1);
        assert_memory_equal(forward_rig_log(&r) + count, greedy, n * sizeof *greedy);
        /* the same as one reply that was cut off */
        forward_rig_request(&r, 0, other, 5, WASTE_REQ_RESET, 2);
        put_back(&r, &k, bank);
        memcpy(waste_session_log(r.env.session, r.env.conversation), log,
               (count + 3) * sizeof *log);
        forward_rig_post(&r, count, NULL, 0, WASTE_REQ_RESTORE | WASTE_REQ_IGNORE_EOS, n);
        assert_int_equal(forward_rig_wait(&r), WASTE_REPLY_LENGTH);
        assert_int_equal(forward_rig_position(&r), count + n - 1);
        assert_memory_equal(forward_rig_log(&r) + count, greedy, n * sizeof *greedy);
    }
    free(k.bank);
    free(k.rows);
    free(ids);
    free(greedy);
    forward_rig_destroy(&r);
}

static void test_what_cannot_be_put_back_is_refused(void **state)
{
    const struct {
        uint32_t position, bank, bad_at;
        const char *why;
    } wrong[] = {
        {0, 0, 99, "position 0"}, {16, 1, 99, "position 16"},      {UINT32_MAX, 0, 99, "restore"},
        {3, 2, 99, "bank 2"},     {6, 0, 6, "1344 at position 6"}, {2, 0, 3, "1344 at position 3"},
    };
    struct forward_rig r;

    forward_rig_create(&r, WASTE_DEMO_MODEL, 1, 16, 0, NULL);
    forward_rig_serve(&r);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint32_t *log = waste_session_log(r.env.session, r.env.conversation);
        for (uint32_t t = 0; t < 16; t++)
            log[t] = t == wrong[i].bad_at ? 1344 : t;
        r.env.conversation->request.restore_position = wrong[i].position;
        r.env.conversation->request.restore_bank = wrong[i].bank;
        forward_rig_post(&r, 4, NULL, 0, WASTE_REQ_RESTORE, 2);
        assert_int_equal(forward_rig_wait(&r), WASTE_REPLY_ERROR);
        if (!strstr(r.env.conversation->reply.error, wrong[i].why))
            fail_msg("\"%s\" does not say \"%s\"", r.env.conversation->reply.error, wrong[i].why);
    }
    forward_rig_destroy(&r);
}

static void test_generation_ends_when_it_should(void **state)
{
    struct forward_rig r;
    struct waste_request *q;
    uint32_t count, n, *ids = ids_of(json_array_get(cases, 0), "ids", &count);
    uint32_t *greedy = ids_of(json_array_get(cases, 0), "greedy", &n);

    forward_rig_create(&r, WASTE_DEMO_MODEL, 2, count + 4, 0, NULL);
    q = &r.env.conversation->request;
    forward_rig_serve(&r);
    /* four more positions: four tokens fit, a fifth does not */
    assert_int_equal(forward_rig_request(&r, 0, ids, count, WASTE_REQ_RESET, 100),
                     WASTE_REPLY_CONTEXT);
    assert_int_equal(forward_rig_position(&r), count + 3);
    assert_memory_equal(forward_rig_log(&r) + count, greedy, 4 * sizeof *greedy);
    /* a full context has room for nothing */
    assert_int_equal(forward_rig_request(&r, count + 4, NULL, 0, 0, 1), WASTE_REPLY_CONTEXT);
    q->eos_count = 2;
    q->eos[0] = greedy[2];
    q->eos[1] = 1;
    assert_int_equal(forward_rig_request(&r, 0, ids, count, WASTE_REQ_RESET, 100), WASTE_REPLY_EOS);
    assert_int_equal(forward_rig_position(&r), count + 2);
    assert_int_equal(forward_rig_log(&r)[count + 2], greedy[2]);
    /* an end token inside the prompt ends nothing, and the last one allowed says so */
    q->eos[1] = ids[3];
    assert_int_equal(forward_rig_request(&r, 0, ids, count, WASTE_REQ_RESET, 3), WASTE_REPLY_EOS);
    assert_int_equal(forward_rig_request(&r, 0, ids, count, WASTE_REQ_RESET, 2),
                     WASTE_REPLY_LENGTH);
    free(ids);
    free(greedy);
    forward_rig_destroy(&r);
}

static void refused(struct forward_rig *r, const uint32_t *ids, uint32_t count, const char *why)
{
    const struct waste_reply *reply = &r->env.conversation->reply;

    assert_int_equal(forward_rig_request(r, 0, ids, count, WASTE_REQ_RESET, 2), WASTE_REPLY_ERROR);
    if (!strstr(reply->error, why))
        fail_msg("\"%s\" does not say \"%s\"", reply->error, why);
    assert_null(strchr(reply->error, '\n'));
}

static void test_requests_out_of_bounds_are_refused(void **state)
{
    struct forward_rig r;
    struct waste_request *q;
    uint32_t ids[] = {5, 6, 1344, 7}, good[] = {5, 6, 7};

    forward_rig_create(&r, WASTE_DEMO_MODEL, 1, 16, 0, NULL);
    q = &r.env.conversation->request;
    forward_rig_serve(&r);
    refused(&r, ids, 4, "token 1344 at position 2");
    refused(&r, good, 0, "empty");
    q->temperature = -1;
    refused(&r, good, 3, "temperature -1");
    q->temperature = NAN;
    refused(&r, good, 3, "temperature");
    q->temperature = 1;
    q->top_p = -0.5f;
    refused(&r, good, 3, "top-p -0.5");
    q->top_p = NAN;
    refused(&r, good, 3, "top-p");
    q->top_p = 1;
    q->eos_count = 17;
    refused(&r, good, 3, "17 end tokens");
    q->eos_count = 0;
    forward_rig_set_prompt_end(&r, 17);
    assert_int_equal(forward_rig_wait(&r), WASTE_REPLY_ERROR);
    assert_non_null(strstr(r.env.conversation->reply.error, "17, but the context holds 16"));
    assert_int_equal(forward_rig_request(&r, 0, good, 3, WASTE_REQ_RESET, 2), WASTE_REPLY_LENGTH);
    forward_rig_destroy(&r);
}

static void test_cancel_ends_a_request_between_tokens(void **state)
{
    struct forward_rig r;
    uint32_t ids[200], before;

    for (uint32_t i = 0; i < 200; i++)
        ids[i] = 100 + i;
    forward_rig_create(&r, WASTE_DEMO_MODEL, 1, 1024, 0, NULL);
    forward_rig_serve(&r);
    forward_rig_post(&r, 0, ids, 200, WASTE_REQ_RESET | WASTE_REQ_IGNORE_EOS, 800);
    while (forward_rig_position(&r) < 20)
        ;
    r.env.conversation->request.cancel = 1;
    assert_int_equal(forward_rig_wait(&r), WASTE_REPLY_CANCELLED);
    before = forward_rig_position(&r);
    assert_true(before >= 20 && before < 999);
    r.env.conversation->request.cancel = 0;
    assert_int_equal(forward_rig_request(&r, before, ids, 3, 0, 1), WASTE_REPLY_LENGTH);
    forward_rig_destroy(&r);
}

static void test_an_expert_that_cannot_be_read_ends_the_request_only(void **state)
{
    struct forward_rig r;
    uint32_t ids[] = {1283, 265, 279, 61, 34, 294, 34, 1285}, expert;

    forward_rig_create(&r, WASTE_DEMO_MODEL, 2, 64, 0, NULL);
    forward_rig_serve(&r);
    assert_int_equal(forward_rig_request(&r, 0, ids, 8, WASTE_REQ_RESET, 1), WASTE_REPLY_LENGTH);
    /* one that this prompt uses in layer 3 */
    for (expert = 0; r.shm.directory[3 * 64 + expert] == WASTE_SLOT_NONE; expert++)
        ;
    forward_rig_forget(&r, 3, expert);
    r.refuse_layer = 3;
    r.refuse_expert = expert;
    char why[100];
    snprintf(why, sizeof why, "experts-L3.bin: layer 3 expert %u: checksum", expert);
    refused(&r, ids, 8, why);
    for (uint32_t i = 0; i < r.shm.control->slot_count; i++)
        assert_int_equal(waste_slot_pins(r.shm.slot[i].word), 0);
    r.refuse_layer = UINT32_MAX;
    assert_int_equal(forward_rig_request(&r, 0, ids, 8, WASTE_REQ_RESET, 1), WASTE_REPLY_LENGTH);
    forward_rig_destroy(&r);
}

/* What the router would be told about `tokens` tokens. */
static uint64_t hints_of(struct forward_rig *r, uint32_t tokens)
{
    static const uint32_t ids[] = {1283, 265, 279, 61};
    uint64_t hints;

    forward_rig_request(r, 0, ids, 4, WASTE_REQ_RESET | WASTE_REQ_IGNORE_EOS, tokens);
    for (hints = 0; waste_ring_peek(r->shm.hidden); hints++)
        waste_ring_release(r->shm.hidden);
    return hints;
}

static void test_nothing_is_predicted_where_nothing_is_read(void **state)
{
    struct forward_rig r;

    forward_rig_create_chunked(&r, WASTE_DEMO_MODEL, 2, 256, 0, 1, 4);
    forward_rig_serve(&r);
    assert_true(hints_of(&r, 1) > 0); /* nobody knows yet */
    hints_of(&r, 40);
    assert_int_equal(hints_of(&r, 8), 0);
    waste_count(r.shm.control, WASTE_C_READS, 100);
    assert_true(hints_of(&r, 8) > 0);
    hints_of(&r, 80);
    assert_int_equal(hints_of(&r, 8), 0);
    forward_rig_destroy(&r);
}

/* 8 layers, the first one dense; nothing comes after the last. */
enum { HINTS = 7, HIDDEN = 256 };

/* The hints of a first token, computed by so many threads, one behind the other. Every expert is
 * waited for. */
static uint32_t first_hints(uint32_t threads, uint8_t *out, uint32_t *stride)
{
    static const uint32_t id = 1283;
    const struct waste_hidden *h;
    struct forward_rig r;
    uint32_t count;

    forward_rig_create_chunked(&r, WASTE_DEMO_MODEL, threads, 256, 0, 1, 4);
    atomic_store(&r.when_waited, true);
    forward_rig_serve(&r);
    forward_rig_request(&r, 0, &id, 1, WASTE_REQ_RESET | WASTE_REQ_IGNORE_EOS, 1);
    *stride = r.shm.control->hidden_stride;
    for (count = 0; (h = waste_ring_peek(r.shm.hidden)); count++) {
        memcpy(out + count * *stride, h, *stride);
        waste_ring_release(r.shm.hidden);
    }
    assert_int_equal(r.shm.control->counter[WASTE_C_HIDDEN_DROPPED], 0);
    forward_rig_destroy(&r);
    return count;
}

/* Whoever of the workers gives it. */
static void test_each_layer_gives_one_hint_with_any_number_of_threads(void **state)
{
    static uint8_t alone[WASTE_HIDDEN_RING][8192], team[WASTE_HIDDEN_RING][8192];
    uint32_t stride;

    assert_int_equal(first_hints(1, alone[0], &stride), HINTS);
    for (uint32_t layer = 0; layer < HINTS; layer++)
        assert_int_equal(((struct waste_hidden *)(alone[0] + layer * stride))->layer, layer);
    for (uint32_t threads = 2; threads < 5; threads++) {
        assert_int_equal(first_hints(threads, team[0], &stride), HINTS);
        assert_memory_equal(team[0], alone[0], HINTS * stride);
    }
}

/*
 * data/hints_demo.bin, by the PyTorch reference in double precision, is for each of these layers
 * what the next one's mix before its FFN makes of the blocks and of the running sum before this
 * layer's FFN, and, but for the dense one, its shared experts' output. Without that they differ by
 * 9 to 97 percent.
 */
static void test_a_hint_knows_what_the_shared_experts_added(void **state)
{
    static uint8_t hints[WASTE_HIDDEN_RING][8192];
    static float expected[HINTS][HIDDEN];
    FILE *f = fopen(WASTE_TEST_DATA "/hints_demo.bin", "rb");
    uint32_t stride;

    assert_non_null(f);
    assert_int_equal(fread(expected, sizeof expected, 1, f), 1);
    fclose(f);
    assert_int_equal(first_hints(2, hints[0], &stride), HINTS);
    for (uint32_t layer = 0; layer < HINTS; layer++) {
        const struct waste_hidden *h = (const struct waste_hidden *)(hints[0] + layer * stride);
        double d2 = 0, e2 = 0;
        for (uint32_t i = 0; i < HIDDEN; i++) {
            double d = h->x[i] - expected[layer][i];
            d2 += d * d;
            e2 += expected[layer][i] * expected[layer][i];
        }
        assert_true(sqrt(d2 / e2) <= 1e-5);
    }
}

static void test_who_does_not_wait_gives_no_hint(void **state)
{
    static const uint32_t id = 1283;
    const struct waste_hidden *h;
    struct forward_rig r;

    forward_rig_create_chunked(&r, WASTE_DEMO_MODEL, 2, 256, 0, 1, 4);
    forward_rig_serve(&r);
    for (int again = 0; again < 2; again++) {
        while (waste_ring_peek(r.shm.hidden))
            waste_ring_release(r.shm.hidden);
        forward_rig_request(&r, 0, &id, 1, WASTE_REQ_RESET | WASTE_REQ_IGNORE_EOS, 1);
    }
    /* all experts were there. What attention reads is another matter, of the waits before. */
    for (; (h = waste_ring_peek(r.shm.hidden)); waste_ring_release(r.shm.hidden))
        assert_true(h->attention || h->layer == 0);
    forward_rig_destroy(&r);
}

static void test_values_that_are_no_numbers_end_the_request(void **state)
{
    struct forward_rig r;
    uint32_t ids[] = {1283, 265, 279, 61, 34, 294, 34, 1285};
    const uint32_t f32_nan = 0x7fc00000;
    const uint16_t f16_inf = 0x7c00;

    forward_rig_create(&r, WASTE_DEMO_MODEL, 2, 64, 0, NULL);
    forward_rig_serve(&r);
    forward_rig_request(&r, 0, ids, 7, WASTE_REQ_RESET, 0);
    /* the state of the third layer's first head */
    memcpy((char *)r.env.session +
               r.env.conversation->bank_off[waste_commit_bank(r.env.conversation->commit)] +
               2 * r.env.session->kda_layer_bytes + 400,
           &f32_nan, 4);
    assert_int_equal(forward_rig_request(&r, 7, ids + 7, 1, 0, 1), WASTE_REPLY_ERROR);
    assert_non_null(strstr(r.env.conversation->reply.error, "non-finite"));
    assert_non_null(strstr(r.env.conversation->reply.error, "layer 2 (attention)"));
    assert_int_equal(forward_rig_position(&r), 7);
    assert_int_equal(forward_rig_request(&r, 0, ids, 8, WASTE_REQ_RESET, 1), WASTE_REPLY_LENGTH);
    /* the scales of layer 5's experts */
    for (uint32_t e = 0; e < 64; e++) {
        uint32_t slot = r.shm.directory[5 * 64 + e];
        if (slot != WASTE_SLOT_NONE)
            memcpy((char *)r.cache.base + (size_t)slot * r.shm.control->slot_bytes +
                       r.model->expert.scale_off + 2 * 2 * 64 + 6,
                   &f16_inf, 2);
    }
    assert_int_equal(forward_rig_request(&r, 0, ids, 8, WASTE_REQ_RESET, 1), WASTE_REPLY_ERROR);
    assert_non_null(strstr(r.env.conversation->reply.error, "non-finite"));
    assert_non_null(strstr(r.env.conversation->reply.error, "layer 5 (ffn)"));
    forward_rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_answers_are_those_of_the_reference),
        cmocka_unit_test(test_every_kernel_level_agrees),
        cmocka_unit_test(test_nothing_changes_a_bit),
        cmocka_unit_test(test_a_conversation_goes_on_where_it_was),
        cmocka_unit_test(test_a_conversation_that_was_put_back_goes_on_as_if_nothing_had_been),
        cmocka_unit_test(test_what_cannot_be_put_back_is_refused),
        cmocka_unit_test(test_generation_ends_when_it_should),
        cmocka_unit_test(test_requests_out_of_bounds_are_refused),
        cmocka_unit_test(test_cancel_ends_a_request_between_tokens),
        cmocka_unit_test(test_an_expert_that_cannot_be_read_ends_the_request_only),
        cmocka_unit_test(test_nothing_is_predicted_where_nothing_is_read),
        cmocka_unit_test(test_each_layer_gives_one_hint_with_any_number_of_threads),
        cmocka_unit_test(test_a_hint_knows_what_the_shared_experts_added),
        cmocka_unit_test(test_who_does_not_wait_gives_no_hint),
        cmocka_unit_test(test_values_that_are_no_numbers_end_the_request),
    };
    return cmocka_run_group_tests(tests, load_cases, free_cases);
}
