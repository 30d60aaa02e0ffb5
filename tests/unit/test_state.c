/* Copies of a state beside a compute that never waits. */
#include "tests/unit/cm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cli/state.h"
#include "tests/unit/fake_model.h"

enum { CTX = 64, COPIES = 3000 };

struct world {
    struct fake_model fake;
    struct waste_pipeline p;
    _Atomic bool stop;
    uint64_t bytes;
};

/* Steps as compute makes them: bank b is read, bank 1 - b filled with the new position, and then
 * one store says so. Some steps are slow, most are quicker than any copy. */
static void *compute(void *arg)
{
    struct world *w = arg;
    uint64_t word = waste_commit_word(1, 0, 0);
    unsigned random = 1;

    while (!atomic_load_explicit(&w->stop, memory_order_relaxed)) {
        uint32_t position = waste_commit_position(word) + 1, bank = 1 - waste_commit_bank(word);
        struct waste_snapshot_place to;

        random = random * 1664525 + 1013904223;
        if (random >> 29 == 0)
            sched_yield();
        waste_state_place(&w->p, bank, &to);
        memset(to.bank, (int)(position % 251), w->bytes);
        word = waste_commit_word(1, position, bank);
        atomic_store_explicit(&w->p.session->commit, word, memory_order_release);
        for (volatile unsigned spin = random >> 18; spin > 0; spin--)
            ;
    }
    return NULL;
}

static void a_copy_is_of_one_commit(void **state)
{
    struct world w = {0};
    pthread_t thread;
    unsigned whole = 0, torn = 0;

    fake_model_init(&w.fake);
    w.fake.model.config.kda_heads = 8; /* a copy takes as long as a step or two */
    w.fake.model.config.kda_dim = 64;
    uint64_t segment = waste_session_bytes(&w.fake.model, CTX, 1);
    void *base = aligned_alloc(4096, segment);
    assert_non_null(base);
    memset(base, 0, segment);
    waste_session_init(base, segment, &w.fake.model, CTX, 1);
    assert_int_equal(waste_session_attach(base, segment, &w.fake.model, &w.p.header, &w.p.session),
                     0);
    w.p.model = &w.fake.model;
    w.p.session_map.base = base;
    w.p.bank_off[0] = w.p.session->bank_off[0];
    w.p.bank_off[1] = w.p.session->bank_off[1];
    w.bytes = waste_session_bank_bytes(&w.fake.model);
    assert_true(w.bytes >= 1000 && w.bytes <= w.p.bank_off[1] - w.p.bank_off[0]);
    char *copy = malloc(w.bytes);

    assert_int_equal(pthread_create(&thread, NULL, compute, &w), 0);
    while (whole < COPIES || torn == 0) { /* without one nothing was tested */
        uint64_t commit;
        if (!waste_state_take(&w.p, copy, &commit)) {
            torn++;
            continue;
        }
        unsigned char want = (unsigned char)(waste_commit_position(commit) % 251);
        for (uint64_t i = 0; i < w.bytes; i++)
            if ((unsigned char)copy[i] != want)
                fail_msg("byte %zu of position %u: %u", (size_t)i, waste_commit_position(commit),
                         (unsigned char)copy[i]);
        whole++;
    }
    atomic_store_explicit(&w.stop, true, memory_order_relaxed);
    pthread_join(thread, NULL);
    print_message("%u copies whole, %u taken again\n", whole, torn);
    free(copy);
    free(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_copy_is_of_one_commit)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
