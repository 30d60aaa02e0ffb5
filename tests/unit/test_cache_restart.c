/* A cache that a dead reader left behind. */
#include "cache_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void too_few_slots_are_refused(void **state)
{
    (void)state;
    struct rig r;
    create_shared(&r, 2 * top_k - 1);
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), -22);
    free(r.base);
}

/* Every state of a slot with every key and every directory entry a death can leave, and more. */
static void a_restart_makes_sense_of_every_state_left_behind(void **state)
{
    (void)state;
    static const uint64_t words[] = {
        0,           1,           2,           3,           4,      7,
        2 | 3 << 16, 1 | 1 << 16, 0 | 1 << 16, 3 | 1 << 16, 0x8002, UINT64_C(0xffffffffffffffff)};
    enum { WORDS = sizeof(words) / sizeof(words[0]) };
    const uint64_t keys[] = {waste_slot_key(1, 5),  waste_slot_key(1, 6), waste_slot_key(0, 5),
                             waste_slot_key(1, 64), waste_slot_key(8, 0), UINT64_MAX};
    const uint32_t entries[] = {0, 1, WASTE_SLOT_NONE, 8, UINT32_MAX - 1};
    struct rig r;
    create_shared(&r, 8);
    for (uint32_t a = 0; a < WORDS; a++)
        for (uint32_t b = 0; b < WORDS; b++)
            for (uint32_t k = 0; k < 6; k++)
                for (uint32_t e = 0; e < 5; e++) {
                    memset(r.shm.slot, 0, 8 * sizeof(*r.shm.slot));
                    for (uint32_t i = 0; i < 8 * experts; i++)
                        atomic_store(&r.shm.directory[i], WASTE_SLOT_NONE);
                    atomic_store(&r.shm.slot[0].word, words[a] | UINT64_C(9) << 32);
                    atomic_store(&r.shm.slot[0].key, keys[0]);
                    atomic_store(&r.shm.slot[1].word, words[b] | UINT64_C(7) << 32);
                    atomic_store(&r.shm.slot[1].key, keys[k]);
                    atomic_store(&r.shm.directory[experts + 5], entries[e]);
                    atomic_store(&r.shm.directory[experts + 6], entries[4 - e]);
                    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
                    assert_consistent(&r);
                    bool one = words[b] == 2 || words[b] == (2 | 3 << 16);
                    bool zero = words[a] == 2 || words[a] == (2 | 3 << 16);
                    assert_int_equal(r.repair.kept, (zero || (one && k == 0)) + (one && k == 1));
                    assert_int_equal(ready(&r, 1, 6), one && k == 1);
                    assert_int_equal(ready(&r, 1, 5), zero || (one && k == 0));
                    /* and it works (pins that are left allow for six slots still) */
                    demand(&r, 3, (uint32_t[]){1, 2, 3, 4}, 4);
                    plan(&r, 64);
                    assert_int_equal(r.reading_count, 4);
                    finish_reads(&r);
                    assert_consistent(&r);
                    waste_cache_finish(&r.cache);
                }
    free(r.base);
}

/* Runs on, forgets its own memory at any point, and takes over from shared memory alone. */
static void a_restart_at_any_point_keeps_every_ready_expert(void **state)
{
    (void)state;
    struct rig r;
    uint32_t expert[64], guess[16];
    create(&r, 24, 8);
    for (uint32_t n = 0; n < 2000; n++) {
        r.step = n / 7;
        pick(expert, top_k);
        pick(guess, 16);
        demand(&r, 1 + n % 7, expert, top_k);
        plan(&r, random_below(6));
        prefetch(&r, r.step + 1, 1 + n % 7, guess, 16);
        plan(&r, random_below(10));
        for (uint32_t i = r.reading_count; i-- > 0;) {
            uint32_t what = random_below(4), slot = r.reading[i].slot;
            if (what == 0)
                continue;
            take_reading(&r, i);
            if (what == 1)
                waste_cache_failed(&r.cache, slot, WASTE_SLOT_EIO, 5);
            else
                waste_cache_ready(&r.cache, slot);
        }
        while (random_below(10) && waste_cache_wanting(&r.cache)) {
            plan(&r, 64);
            finish_reads(&r);
        }
        if (random_below(3) && !waste_cache_wanting(&r.cache))
            continue;
        uint32_t kept = 0, reading = 0;
        for (uint32_t s = 0; s < 24; s++) {
            kept += waste_slot_state(word(&r, s)) == WASTE_SLOT_READY;
            reading += waste_slot_state(word(&r, s)) == WASTE_SLOT_READING;
        }
        uint64_t records = r.cache.records;
        waste_cache_finish(&r.cache);
        r.reading_count = 0;
        assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
        assert_int_equal(r.repair.kept, kept);
        assert_int_equal(r.repair.punched, reading);
        assert_true(r.cache.records <= records);
        assert_consistent(&r);
    }
    destroy(&r);
}

/* A dead reader's read may still land in it. */
static void a_slot_that_cannot_be_punched_is_not_used(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 12, 8);
    const uint32_t a[] = {0, 1, 2, 3}, b[] = {4, 5, 6, 7}, c[] = {8, 9, 10, 11};
    demand(&r, 1, a, 4);
    plan(&r, 64);
    assert_int_equal(r.reading_count, 4);
    waste_cache_finish(&r.cache);
    r.reading_count = 0;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC); /* nothing can be punched out of it */
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, fd, &r.repair), 0);
    assert_int_equal(r.repair.lost, 4);
    assert_int_equal(r.repair.punched, 0);
    for (uint32_t round = 0; round < 3; round++) {
        const uint32_t *record = round % 2 ? c : b;
        demand(&r, 1, record, 4);
        plan(&r, 64);
        assert_false(waste_cache_wanting(&r.cache));
        finish_reads(&r);
    }
    uint32_t reading = 0;
    for (uint32_t s = 0; s < 12; s++)
        reading += waste_slot_state(word(&r, s)) == WASTE_SLOT_READING;
    assert_int_equal(reading, 4);
    /* one more lost, and two records do not fit any more */
    demand(&r, 1, a, 4);
    plan(&r, 64);
    waste_cache_finish(&r.cache);
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, fd, &r.repair), -EINVAL);
    close(fd);
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
    assert_int_equal(r.repair.lost, 0);
    destroy(&r);
}

static void recency_survives_a_restart(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 8, 8);
    const uint32_t a[] = {0, 1, 2, 3}, b[] = {4, 5, 6, 7}, c[] = {8, 9, 10, 11};
    demand(&r, 1, b, 4); /* b is younger in the end, though its slots come first */
    plan(&r, 64);
    finish_reads(&r);
    demand(&r, 1, a, 4);
    plan(&r, 64);
    finish_reads(&r);
    demand(&r, 1, b, 4);
    waste_cache_finish(&r.cache);
    assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
    assert_int_equal(r.repair.kept, 8);
    demand(&r, 1, c, 4);
    plan(&r, 64);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(ready(&r, 1, b[i]));
        assert_int_equal(directory(&r, 1, a[i]), WASTE_SLOT_NONE);
    }
    destroy(&r);
}

/* Tokens with a habit, the same in every call. Misses from token `from` on. */
static uint32_t run(struct rig *r, uint32_t tokens, uint32_t from, uint32_t restart_at)
{
    uint64_t before = 0;
    seed = 88172645463325252u;
    for (uint32_t n = 0; n < tokens; n++) {
        if (n == restart_at) {
            waste_cache_finish(&r->cache);
            assert_int_equal(waste_cache_init(&r->cache, &r->shm, 8, -1, &r->repair), 0);
        }
        if (n == from)
            before = counter(r, WASTE_C_MISSES);
        r->step = n;
        for (uint32_t layer = 1; layer <= 7; layer++) {
            uint32_t expert[4];
            for (uint32_t i = 0; i < 4; i++)
                expert[i] = i * 16 + random_below(1 + random_below(16));
            demand(r, layer, expert, 4);
            plan(r, 64);
            finish_reads(r);
        }
    }
    return (uint32_t)(counter(r, WASTE_C_MISSES) - before);
}

static void what_was_learned_survives_a_restart(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 56, 8);
    uint32_t whole = run(&r, 300, 200, UINT32_MAX);
    destroy(&r);
    create(&r, 56, 8);
    uint32_t restarted = run(&r, 300, 200, 200);
    float chance = waste_habit_chances(&r.cache.policy.habit, 1)[1];
    waste_cache_recall(&r.cache, 1, 1, 1.0f); /* a file of an earlier run says something else */
    assert_true(waste_habit_chances(&r.cache.policy.habit, 1)[1] == chance);
    destroy(&r);
    assert_true(whole > 0);
    assert_int_equal(restarted, whole);
}

static void notes_that_were_written_over_do_no_harm(void **state)
{
    (void)state;
    struct rig r;
    create(&r, 56, 8);
    run(&r, 100, 0, UINT32_MAX);
    uint8_t *notes = (uint8_t *)r.shm.habit;
    uint64_t bytes = waste_habit_notes_bytes(model->config.layers, experts, top_k);
    uint64_t random = 88172645463325252u;
    for (uint32_t n = 0; n < 40; n++) {
        waste_cache_finish(&r.cache);
        for (uint64_t i = sizeof(uint32_t); i < bytes; i++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            if (n < 20 || random % 64 == 0)
                notes[i] = (uint8_t)(n % 20 == 0 ? 0xff : random >> 40);
        }
        assert_int_equal(waste_cache_init(&r.cache, &r.shm, 8, -1, &r.repair), 0);
        for (uint32_t key = 0; key < model->config.layers * experts; key++) {
            float chance = waste_habit_chances(&r.cache.policy.habit, 0)[key];
            assert_true(chance >= 0 && chance <= 1);
        }
        run(&r, 20, 0, UINT32_MAX);
        assert_consistent(&r);
    }
    destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_few_slots_are_refused),
        cmocka_unit_test(a_restart_makes_sense_of_every_state_left_behind),
        cmocka_unit_test(a_restart_at_any_point_keeps_every_ready_expert),
        cmocka_unit_test(a_slot_that_cannot_be_punched_is_not_used),
        cmocka_unit_test(recency_survives_a_restart),
        cmocka_unit_test(what_was_learned_survives_a_restart),
        cmocka_unit_test(notes_that_were_written_over_do_no_harm),
    };
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down);
}
