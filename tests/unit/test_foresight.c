/* Prefetching within its bound: the account, and the cache that keeps it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reader/cache.h"
#include "reader/container.h"

static struct waste_model *model; /* layers 1 to 7 of 64 experts, 4 are chosen */
static uint64_t seed;

static uint32_t random_below(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)((seed >> 11) % n);
}

static const enum waste_outlook before = WASTE_OUTLOOK_BEFORE, after = WASTE_OUTLOOK_AFTER;

/* The demand of a layer: what it says about predictions from this outlook. */
static uint32_t judge(struct waste_foresight *f, uint64_t step, uint32_t layer,
                      enum waste_outlook outlook, const uint32_t *expert, uint32_t count,
                      uint8_t right[WASTE_FORESIGHT_RANKS])
{
    union {
        struct waste_want want;
        uint32_t room[64];
    } u = {.want = {.step = step, .layer = layer, .count = count}};
    memcpy(u.want.expert, expert, count * sizeof(*expert));
    return waste_foresight_judge(f, layer, outlook, &u.want, right);
}

/* ---- the account ---- */

static void nothing_is_read_before_it_is_paid_for(void **state)
{
    (void)state;
    struct waste_foresight f;
    assert_int_equal(waste_foresight_init(&f, 4), 0);
    assert_true(waste_foresight_risk(&f, 1, before, 0) == 1.0f);
    assert_false(waste_foresight_allows(&f, 0.01f));
    assert_true(waste_foresight_allows(&f, 0.0f));
    waste_foresight_count(&f, 1000, 1000);
    assert_true(waste_foresight_allows(&f, 0.45f)); /* a full account */
    assert_false(waste_foresight_allows(&f, 0.9f)); /* is not there to be wasted */
    waste_foresight_count(&f, 33, 1000);
    assert_false(waste_foresight_allows(&f, 0.45f)); /* a nearly empty one */
    assert_true(waste_foresight_allows(&f, 0.2f));
    waste_foresight_count(&f, 12, 1000); /* 4.5 % more than needed */
    assert_false(waste_foresight_allows(&f, 0.0f));
    waste_foresight_finish(&f);
}

static void open_prefetches_count_with_their_risk(void **state)
{
    (void)state;
    struct waste_foresight f;
    assert_int_equal(waste_foresight_init(&f, 4), 0);
    waste_foresight_count(&f, 1000, 1000);
    uint32_t open = 0;
    for (; waste_foresight_allows(&f, 0.45f); open++)
        waste_foresight_open(&f, 0.45f);
    assert_in_range(open, 60, 80); /* until 15 of the 43 are left */
    waste_foresight_close(&f, 0.45f, false);
    assert_true(waste_foresight_allows(&f, 0.45f));
    waste_foresight_open(&f, 0.45f);
    waste_foresight_close(&f, 0.45f, true); /* worse than expected, as nothing needed it */
    assert_false(waste_foresight_allows(&f, 0.45f));
    waste_foresight_count(&f, 0, 1001); /* but then something did */
    assert_true(waste_foresight_allows(&f, 0.45f));
    waste_foresight_finish(&f);
}

static void predict(struct waste_foresight *f, uint64_t step, uint32_t layer, bool absent)
{
    waste_foresight_predict(f, layer, before, step);
    for (uint32_t r = 0; r < 4; r++)
        waste_foresight_add(f, layer, before, 10 + r, absent);
}

static void precision_is_known_by_layer_and_rank(void **state)
{
    (void)state;
    struct waste_foresight f;
    uint8_t right[WASTE_FORESIGHT_RANKS];
    assert_int_equal(waste_foresight_init(&f, 4), 0);
    for (uint64_t n = 0; n < 400; n++) {
        /* layer 1: rank 0 always, rank 1 half of the time; layer 2: only rank 3 */
        predict(&f, n, 1, true);
        assert_int_equal(judge(&f, n, 1, before, (uint32_t[]){n % 2 ? 11 : 50, 10, 51}, 3, right),
                         4);
        assert_int_equal(right[0], 1);
        assert_int_equal(right[1], n % 2);
        predict(&f, n, 2, true);
        judge(&f, n, 2, before, (uint32_t[]){13}, 1, right);
        /* of experts that were in memory nothing is learned */
        predict(&f, n, 3, false);
        judge(&f, n, 3, before, (uint32_t[]){60}, 1, right);
        /* and of another step's demand neither */
        predict(&f, n, 1, true);
        assert_int_equal(judge(&f, n + 1, 1, before, (uint32_t[]){60}, 1, right), 0);
    }
    assert_true(waste_foresight_risk(&f, 1, before, 0) < 0.1f);
    assert_true(waste_foresight_risk(&f, 1, before, 1) > 0.4f &&
                waste_foresight_risk(&f, 1, before, 1) < 0.6f);
    assert_true(waste_foresight_risk(&f, 1, before, 3) > 0.9f);
    assert_true(waste_foresight_risk(&f, 2, before, 0) > 0.9f);
    assert_true(waste_foresight_risk(&f, 2, before, 3) < 0.1f);
    assert_true(waste_foresight_risk(&f, 3, before, 0) > 0.4f); /* as the rank is elsewhere */
    assert_true(waste_foresight_risk(&f, 3, before, 5000) == 1.0f);
    waste_foresight_finish(&f);
}

static void precision_is_known_by_outlook(void **state)
{
    (void)state;
    struct waste_foresight f;
    uint8_t right[WASTE_FORESIGHT_RANKS];
    assert_int_equal(waste_foresight_init(&f, 4), 0);
    for (uint64_t n = 0; n < 400; n++) {
        predict(&f, n, 1, true); /* before: wrong at rank 0, after: right */
        waste_foresight_predict(&f, 1, after, n);
        waste_foresight_add(&f, 1, after, 20, true);
        assert_int_equal(waste_foresight_expert(&f, 1, before, 3), 13);
        assert_int_equal(waste_foresight_expert(&f, 1, before, 4), UINT32_MAX);
        assert_int_equal(waste_foresight_expert(&f, 1, after, 0), 20);
        assert_int_equal(judge(&f, n, 1, before, (uint32_t[]){20, 11}, 2, right), 4);
        assert_int_equal(right[0], 0);
        assert_int_equal(right[1], 1);
        assert_int_equal(judge(&f, n, 1, after, (uint32_t[]){20, 11}, 2, right), 1);
        assert_int_equal(right[0], 1);
    }
    assert_true(waste_foresight_risk(&f, 1, before, 0) > 0.9f);
    assert_true(waste_foresight_risk(&f, 1, before, 1) < 0.1f);
    assert_true(waste_foresight_risk(&f, 1, after, 0) < 0.1f);
    assert_true(waste_foresight_risk(&f, 1, after, 1) == 1.0f);
    waste_foresight_finish(&f);
}

/* ---- the width ---- */

static void what_fits_into_the_idle_time_is_read(void **state)
{
    (void)state;
    struct waste_foresight f;
    assert_int_equal(waste_foresight_init(&f, 4), 0);
    assert_int_equal(waste_foresight_width(&f, 1, before), UINT32_MAX);
    for (uint64_t n = 0; n < 200; n++) {
        waste_foresight_read_took(&f, n % 2 ? 900 : 1100); /* 1000 on average */
        /* layer 1: idle for 1500 until the second prediction comes, for 4700 until the demand */
        predict(&f, n, 1, true);
        waste_foresight_window(&f, 1, n, 1500);
        waste_foresight_predict(&f, 1, after, n);
        waste_foresight_add(&f, 1, after, 20, true);
        waste_foresight_window(&f, 1, n, 4700);
        /* layer 2: never idle; layer 3: no second prediction */
        predict(&f, n, 2, true);
        waste_foresight_window(&f, 2, n, 0);
        predict(&f, n, 3, true);
        waste_foresight_window(&f, 3, n, 2300);
    }
    assert_int_equal(waste_foresight_width(&f, 1, before), 2);
    assert_int_equal(waste_foresight_width(&f, 1, after), 5);
    assert_int_equal(waste_foresight_width(&f, 2, before), 0);
    assert_int_equal(waste_foresight_width(&f, 3, before), 3);
    assert_int_equal(waste_foresight_width(&f, 3, after), UINT32_MAX);
    /* a window without a prediction says nothing about predictions */
    for (uint64_t n = 0; n < 100; n++)
        waste_foresight_window(&f, 1, 1000 + n, 0);
    assert_int_equal(waste_foresight_width(&f, 1, after), 5);
    /* a drive that became slower */
    for (uint64_t n = 0; n < 100; n++)
        waste_foresight_read_took(&f, 4000);
    assert_int_equal(waste_foresight_width(&f, 1, after), 2);
    waste_foresight_finish(&f);
}

/* ---- the cache that keeps the account ---- */

struct run {
    struct waste_shm shm;
    struct waste_cache cache;
    void *base;
    uint64_t reads;
};

static uint64_t counter(const struct run *r, enum waste_counter id)
{
    return atomic_load(&r->shm.control->counter[id]);
}

static void pump(struct run *r)
{
    struct waste_cache_read read[64];
    uint32_t n;
    while ((n = waste_cache_plan(&r->cache, read, 64)) > 0) {
        r->reads += n;
        for (uint32_t i = 0; i < n; i++)
            waste_cache_ready(&r->cache, read[i].slot);
    }
}

/* Tokens that choose with a habit; a router that is right with this probability, less so at later
 * ranks. Reads in all. */
static uint64_t simulate(uint32_t slots, uint32_t percent, bool prefetch, struct run *r)
{
    const struct waste_options options = {.threads = 1, .ctx = 64};
    struct waste_cache_repair repair;
    uint64_t bytes = waste_control_bytes(model, slots);
    union {
        struct waste_want want;
        uint32_t room[64];
    } u, guess;
    memset(r, 0, sizeof(*r));
    r->base = aligned_alloc(64, bytes);
    memset(r->base, 0, bytes);
    waste_control_init(r->base, bytes, model, slots, &options, 1, &r->shm);
    assert_int_equal(waste_cache_init(&r->cache, &r->shm, 8, -1, &repair), 0);
    seed = 88172645463325252u;
    for (uint64_t step = 0; step < 300; step++)
        for (uint32_t layer = 1; layer <= 7; layer++) {
            u.want = (struct waste_want){.step = step, .layer = layer, .count = 4};
            guess.want = (struct waste_want){.step = step, .layer = layer, .count = 8};
            for (uint32_t i = 0; i < 4; i++)
                u.want.expert[i] = i * 16 + random_below(1 + random_below(16));
            for (uint32_t i = 0; i < 8; i++) {
                bool right = random_below(100) < percent && i < 4;
                guess.want.expert[i] = right ? u.want.expert[i] : random_below(64);
            }
            if (prefetch)
                waste_cache_prefetch(&r->cache, &guess.want);
            pump(r);
            waste_cache_demand(&r->cache, &u.want);
            pump(r);
        }
    return r->reads;
}

static void done(struct run *r)
{
    waste_cache_finish(&r->cache);
    free(r->base);
}

static void prefetching_reads_little_more_at_any_size_and_precision(void **state)
{
    (void)state;
    static const uint32_t slots[] = {8, 14, 28, 56, 112, 300};
    static const uint32_t percent[] = {0, 50, 90, 100};
    struct run r;
    for (uint32_t s = 0; s < 6; s++)
        for (uint32_t p = 0; p < 4; p++) {
            uint64_t without = simulate(slots[s], percent[p], false, &r);
            done(&r);
            uint64_t with = simulate(slots[s], percent[p], true, &r);
            uint64_t read = counter(&r, WASTE_C_PREFETCHED);
            uint64_t used = counter(&r, WASTE_C_PREFETCH_USED);
            uint64_t wasted = counter(&r, WASTE_C_PREFETCH_WASTED);
            printf(
                "%u slots, %u %% right: %llu -> %llu reads, %llu ahead, %llu used, %llu wasted\n",
                slots[s], percent[p], (unsigned long long)without, (unsigned long long)with,
                (unsigned long long)read, (unsigned long long)used, (unsigned long long)wasted);
            /* what it would have been, but for the order of equals */
            assert_in_range(r.cache.ghost.reads, without - without / 200, without + without / 200);
            assert_true(with <= without + without / 20);
            assert_true(used <= read);
            if (slots[s] == 8)
                assert_int_equal(read, 0);
            else if (percent[p] == 100 && slots[s] <= 112)
                assert_true(used > without / 4); /* a sure router hides many reads */
            done(&r);
        }
}

static void ranks_are_counted_for_people(void **state)
{
    (void)state;
    struct run r;
    simulate(28, 100, true, &r);
    for (uint32_t k = 0; k < 4; k++) {
        assert_int_equal(atomic_load(&r.shm.control->rank_predicted[before][k]), 2100);
        assert_int_equal(atomic_load(&r.shm.control->rank_right[before][k]), 2100);
    }
    assert_int_equal(atomic_load(&r.shm.control->rank_predicted[before][7]), 2100);
    assert_true(atomic_load(&r.shm.control->rank_right[before][7]) < 1000);
    assert_int_equal(atomic_load(&r.shm.control->rank_predicted[before][8]), 0);
    done(&r);
}

int main(void)
{
    struct waste_error err;
    if (waste_container_open(WASTE_DEMO_MODEL, &model, &err) < 0) {
        printf("%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_read_before_it_is_paid_for),
        cmocka_unit_test(open_prefetches_count_with_their_risk),
        cmocka_unit_test(precision_is_known_by_layer_and_rank),
        cmocka_unit_test(precision_is_known_by_outlook),
        cmocka_unit_test(what_fits_into_the_idle_time_is_read),
        cmocka_unit_test(prefetching_reads_little_more_at_any_size_and_precision),
        cmocka_unit_test(ranks_are_counted_for_people),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(model);
    return rc;
}
