/*
 * Prompts in chunks: the same model as token by token, and the same bits whatever the threads, the
 * slots, what is foreseen, the arrivals, or a compute that stops in between.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cm.h"
#include "forward_rig.h"

enum { GENERATED = 8, CTX = 256 };

/* What a prompt leaves. */
struct result {
    uint32_t ids[GENERATED], vocab;
    float *logits; /* of the prompt's last token */
    char *bank;    /* the state after it */
    size_t bank_bytes;
};

struct setting {
    uint32_t threads, slots, chunk, lookahead, stops;
};

static uint32_t prompt[200], prompt_count;

/* The reference's first prompt, over and over. */
static int load_prompt(void **state)
{
    json_error_t error;
    json_t *cases = json_load_file(WASTE_TEST_DATA "/demo_expected.json", 0, &error);
    const json_t *ids = json_object_get(json_array_get(cases, 0), "ids");
    size_t n = json_array_size(ids);

    prompt_count = n ? 200 : 0;
    for (uint32_t i = 0; i < prompt_count; i++)
        prompt[i] = (uint32_t)json_integer_value(json_array_get(ids, i % n));
    json_decref(cases);
    return prompt_count ? 0 : -1;
}

static void take(struct forward_rig *r, struct result *out)
{
    const struct waste_session *s = r->env.conversation;

    out->vocab = r->model->config.vocab;
    out->logits = malloc(out->vocab * sizeof(float));
    memcpy(out->logits, forward_rig_logits(r), out->vocab * sizeof(float));
    out->bank_bytes = r->model->config.kda_layers * r->env.session->kda_layer_bytes;
    out->bank = malloc(out->bank_bytes);
    memcpy(out->bank, (char *)r->env.session + s->bank_off[waste_commit_bank(s->commit)],
           out->bank_bytes);
}

static void drop(struct result *r)
{
    free(r->logits);
    free(r->bank);
}

/* Stops compute at some moment of the prompt, and starts another. */
static void stop_somewhere(struct forward_rig *r, uint32_t loads)
{
    const struct waste_session *s = r->env.conversation;

    while (r->loads < loads && s->reply.seq != s->request.seq)
        ;
    forward_rig_stop_serving(r);
    forward_rig_serve(r);
}

static void run(const struct setting *how, struct result *out)
{
    struct forward_rig r;

    forward_rig_create_chunked(&r, WASTE_DEMO_MODEL, how->threads, CTX, how->slots, how->chunk,
                               how->lookahead);
    forward_rig_serve(&r);
    forward_rig_post(&r, 0, prompt, prompt_count, WASTE_REQ_RESET | WASTE_REQ_LOGITS, 0);
    for (uint32_t i = 1; i <= how->stops; i++)
        stop_somewhere(&r, 37 * i);
    assert_int_equal(forward_rig_wait(&r), WASTE_REPLY_LENGTH);
    assert_int_equal(forward_rig_position(&r), prompt_count);
    take(&r, out);
    forward_rig_request(&r, 0, prompt, prompt_count, WASTE_REQ_RESET | WASTE_REQ_IGNORE_EOS,
                        GENERATED);
    memcpy(out->ids, forward_rig_log(&r) + prompt_count, sizeof out->ids);
    for (uint32_t i = 0; i < r.shm.control->slot_count; i++)
        assert_int_equal(waste_slot_pins(r.shm.slot[i].word), 0);
    forward_rig_destroy(&r);
}

static double distance(const float *got, const float *want, size_t n)
{
    double d2 = 0, w2 = 0;

    for (size_t i = 0; i < n; i++) {
        d2 += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w2 += (double)want[i] * want[i];
    }
    return sqrt(d2 / w2);
}

static void test_chunks_of_any_size_agree_with_token_by_token(void **state)
{
    const uint32_t sizes[] = {2, 3, 7, 16, 17, 64, 100, 199, 200, 256};
    struct result one, other;

    run(&(struct setting){2, 0, 1, 0, 0}, &one);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        run(&(struct setting){2, 0, sizes[i], 4, 0}, &other);
        assert_true(distance(other.logits, one.logits, one.vocab) <= 1e-5);
        assert_true(distance((const float *)other.bank, (const float *)one.bank,
                             one.bank_bytes / sizeof(float)) <= 1e-5);
        assert_memory_equal(other.ids, one.ids, sizeof one.ids);
        drop(&other);
    }
    drop(&one);
}

/* Logits of all positions, taken a few at a time; compute ends `stops` times on the way. */
static float *score(uint32_t chunk, uint32_t rows, uint32_t stops, uint32_t *vocab)
{
    struct forward_rig r;
    uint32_t taken = 0, next = prompt_count / (stops + 1);

    forward_rig_create_scoring(&r, WASTE_DEMO_MODEL, CTX, chunk, rows);
    *vocab = r.model->config.vocab;
    float *out = calloc((size_t)prompt_count * *vocab, sizeof *out);
    assert_non_null(out);
    forward_rig_serve(&r);
    forward_rig_post(&r, 0, prompt, prompt_count, WASTE_REQ_RESET | WASTE_REQ_ALL_LOGITS, 0);
    while (taken < prompt_count) {
        taken = forward_rig_take_logits(&r, out, 5);
        if (stops > 0 && taken >= next) {
            next += prompt_count / (stops + 1);
            forward_rig_stop_serving(&r);
            forward_rig_serve(&r);
        }
        usleep(100);
    }
    assert_int_equal(forward_rig_wait(&r), WASTE_REPLY_LENGTH);
    assert_int_equal(forward_rig_position(&r), prompt_count);
    forward_rig_destroy(&r);
    return out;
}

static void test_logits_of_every_position(void **state)
{
    /* chunk, rows, stops: rows in a chunk, more than it, one alone; the last chunk of one token */
    const uint32_t cases[][3] = {{64, 16, 0},  {64, 64, 3},  {7, 64, 5},
                                 {100, 48, 4}, {256, 32, 7}, {prompt_count - 1, 16, 1}};
    uint32_t vocab;
    float *one = score(1, 1, 0, &vocab);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float *all = score(cases[i][0], cases[i][1], cases[i][2], &vocab);
        for (uint32_t p = 0; p < prompt_count; p++)
            if (!(distance(all + (size_t)p * vocab, one + (size_t)p * vocab, vocab) <= 1e-5))
                fail_msg("chunk %u, rows %u: position %u", cases[i][0], cases[i][1], p);
        free(all);
    }
    free(one);
}

static void test_logits_of_every_position_begin_a_chunk(void **state)
{
    struct forward_rig r;

    forward_rig_create_scoring(&r, WASTE_DEMO_MODEL, CTX, 16, 16);
    forward_rig_serve(&r);
    forward_rig_request(&r, 0, prompt, 7, WASTE_REQ_RESET, 0);
    assert_int_equal(forward_rig_request(&r, 7, prompt, 20, WASTE_REQ_ALL_LOGITS, 0),
                     WASTE_REPLY_ERROR);
    assert_int_equal(
        forward_rig_request(&r, 0, prompt, 20, WASTE_REQ_RESET | WASTE_REQ_ALL_LOGITS, 3),
        WASTE_REPLY_ERROR);
    forward_rig_destroy(&r);
}

static void test_nothing_else_changes_a_bit(void **state)
{
    const struct setting others[] = {
        {1, 0, 64, 0, 0},  {5, 0, 64, 4, 0},  {2, 8, 64, 0, 0}, /* 8 slots: two top_k */
        {2, 8, 64, 4, 0},  {3, 11, 64, 4, 0}, {2, 40, 64, 4, 0},
        {2, 90, 64, 4, 0}, {2, 40, 64, 4, 6}, {3, 8, 64, 4, 6},
    };
    struct result base, other;

    run(&(struct setting){2, 0, 64, 0, 0}, &base);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        run(&others[i], &other);
        assert_memory_equal(other.logits, base.logits, base.vocab * sizeof(float));
        assert_memory_equal(other.bank, base.bank, base.bank_bytes);
        assert_memory_equal(other.ids, base.ids, sizeof base.ids);
        drop(&other);
    }
    drop(&base);
}

/* A small cache, but room for the window: what a chunk needs is read once. */
static void test_an_expert_is_read_once_a_chunk(void **state)
{
    const uint32_t slots[] = {8, 24, 60};

    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        struct forward_rig r;
        uint32_t layers = 0;
        forward_rig_create_chunked(&r, WASTE_DEMO_MODEL, 2, CTX, slots[i], 200, 4);
        for (uint32_t l = 0; l < r.model->config.layers; l++)
            layers += waste_model_layer(r.model, l)->is_moe;
        forward_rig_serve(&r);
        assert_int_equal(forward_rig_request(&r, 0, prompt, prompt_count, WASTE_REQ_RESET, 0),
                         WASTE_REPLY_LENGTH);
        /* there are no more experts than that, and some are foreseen in vain */
        assert_true(r.loads <= layers * r.model->config.experts * 102 / 100);
        forward_rig_destroy(&r);
    }
}

static void test_a_conversation_goes_on_in_chunks(void **state)
{
    struct result whole, parts;
    struct forward_rig r;

    run(&(struct setting){2, 0, 256, 4, 0}, &whole);
    forward_rig_create_chunked(&r, WASTE_DEMO_MODEL, 2, CTX, 0, 256, 4);
    forward_rig_serve(&r);
    /* one token, fewer than the convolution looks back, and more */
    forward_rig_request(&r, 0, prompt, 1, WASTE_REQ_RESET, 0);
    forward_rig_request(&r, 1, prompt + 1, 2, 0, 0);
    forward_rig_request(&r, 3, prompt + 3, 150, 0, 0);
    forward_rig_request(&r, 153, prompt + 153, prompt_count - 153, WASTE_REQ_LOGITS, 0);
    take(&r, &parts);
    assert_true(distance(parts.logits, whole.logits, whole.vocab) <= 1e-5);
    assert_true(distance((const float *)parts.bank, (const float *)whole.bank,
                         whole.bank_bytes / sizeof(float)) <= 1e-5);
    forward_rig_destroy(&r);
    drop(&whole);
    drop(&parts);
}

static void assert_no_pins(struct forward_rig *r)
{
    for (uint32_t i = 0; i < r->shm.control->slot_count; i++)
        assert_int_equal(waste_slot_pins(r->shm.slot[i].word), 0);
}

static void test_an_expert_that_cannot_be_read_ends_the_request_only(void **state)
{
    struct forward_rig r;
    struct result one, other;
    const struct waste_reply *reply;
    uint32_t expert;

    run(&(struct setting){2, 0, 200, 4, 0}, &one);
    forward_rig_create_chunked(&r, WASTE_DEMO_MODEL, 2, CTX, 0, 200, 4);
    reply = &r.env.conversation->reply;
    forward_rig_serve(&r);
    forward_rig_request(&r, 0, prompt, prompt_count, WASTE_REQ_RESET, 0);
    for (expert = 0; r.shm.directory[3 * 64 + expert] == WASTE_SLOT_NONE; expert++)
        ;
    forward_rig_forget(&r, 3, expert);
    r.refuse_layer = 3;
    r.refuse_expert = expert;
    assert_int_equal(forward_rig_request(&r, 0, prompt, prompt_count, WASTE_REQ_RESET, 0),
                     WASTE_REPLY_ERROR);
    char why[100];
    snprintf(why, sizeof why, "experts-L3.bin: layer 3 expert %u: checksum", expert);
    assert_non_null(strstr(reply->error, why));
    assert_int_equal(forward_rig_position(&r), 0);
    assert_no_pins(&r);
    r.refuse_layer = UINT32_MAX;
    assert_int_equal(
        forward_rig_request(&r, 0, prompt, prompt_count, WASTE_REQ_RESET | WASTE_REQ_LOGITS, 0),
        WASTE_REPLY_LENGTH);
    take(&r, &other);
    assert_memory_equal(one.logits, other.logits, one.vocab * sizeof(float));
    forward_rig_destroy(&r);
    drop(&one);
    drop(&other);
}

static void test_a_value_that_is_no_number_is_found_with_its_place(void **state)
{
    struct forward_rig r;
    const uint32_t f32_nan = 0x7fc00000;

    forward_rig_create_chunked(&r, WASTE_DEMO_MODEL, 2, CTX, 0, 64, 4);
    forward_rig_serve(&r);
    forward_rig_request(&r, 0, prompt, 7, WASTE_REQ_RESET, 0);
    memcpy((char *)r.env.session +
               r.env.conversation->bank_off[waste_commit_bank(r.env.conversation->commit)] +
               2 * r.env.session->kda_layer_bytes + 400,
           &f32_nan, 4);
    assert_int_equal(forward_rig_request(&r, 7, prompt + 7, 40, 0, 1), WASTE_REPLY_ERROR);
    assert_non_null(strstr(r.env.conversation->reply.error,
                           "non-finite value in layer 2 (attention) at position 7"));
    assert_int_equal(forward_rig_position(&r), 7);
    assert_no_pins(&r);
    assert_int_equal(forward_rig_request(&r, 0, prompt, 60, WASTE_REQ_RESET, 1),
                     WASTE_REPLY_LENGTH);
    forward_rig_destroy(&r);
}

static void test_cancel_ends_a_chunk_in_the_middle(void **state)
{
    struct forward_rig r;

    forward_rig_create_chunked(&r, WASTE_DEMO_MODEL, 1, CTX, 8, 256, 4);
    r.stall_at = 70; /* in the second layer with experts */
    forward_rig_serve(&r);
    forward_rig_post(&r, 0, prompt, prompt_count, WASTE_REQ_RESET, 0);
    while (r.loads < 70)
        ;
    r.env.conversation->request.cancel = 1;
    assert_int_equal(forward_rig_wait(&r), WASTE_REPLY_CANCELLED);
    assert_int_equal(forward_rig_position(&r), 0);
    assert_no_pins(&r);
    r.env.conversation->request.cancel = 0;
    r.stall_at = 0;
    assert_int_equal(forward_rig_request(&r, 0, prompt, prompt_count, WASTE_REQ_RESET, 0),
                     WASTE_REPLY_LENGTH);
    forward_rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_of_any_size_agree_with_token_by_token),
        cmocka_unit_test(test_logits_of_every_position),
        cmocka_unit_test(test_logits_of_every_position_begin_a_chunk),
        cmocka_unit_test(test_nothing_else_changes_a_bit),
        cmocka_unit_test(test_an_expert_is_read_once_a_chunk),
        cmocka_unit_test(test_a_conversation_goes_on_in_chunks),
        cmocka_unit_test(test_an_expert_that_cannot_be_read_ends_the_request_only),
        cmocka_unit_test(test_a_value_that_is_no_number_is_found_with_its_place),
        cmocka_unit_test(test_cancel_ends_a_chunk_in_the_middle),
    };
    return cmocka_run_group_tests(tests, load_prompt, NULL);
}
