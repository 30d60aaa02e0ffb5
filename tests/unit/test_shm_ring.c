#include "tests/unit/cm.h"

#include <stdlib.h>
#include <string.h>

#include "shm/ring.h"

enum { CAPACITY = 8, STRIDE = 24 };

static struct waste_ring *make(void)
{
    size_t bytes = waste_ring_bytes(CAPACITY, STRIDE);
    struct waste_ring *ring = aligned_alloc(64, bytes);

    assert_non_null(ring);
    memset(ring, 0, bytes);
    waste_ring_init(ring, CAPACITY, STRIDE);
    return ring;
}

static void set(struct waste_ring *ring, uint64_t head, uint64_t tail)
{
    atomic_store(&ring->head, head);
    atomic_store(&ring->tail, tail);
}

static bool put(struct waste_ring *ring, uint64_t value)
{
    uint64_t *record = waste_ring_claim(ring);

    if (!record)
        return false;
    for (int i = 0; i < STRIDE / 8; i++)
        record[i] = value + (uint64_t)i;
    waste_ring_publish(ring);
    return true;
}

static void take(struct waste_ring *ring, uint64_t value)
{
    const uint64_t *record = waste_ring_peek(ring);

    assert_non_null(record);
    for (int i = 0; i < STRIDE / 8; i++)
        assert_int_equal(record[i], value + (uint64_t)i);
    waste_ring_release(ring);
}

static void a_ring_takes_header_plus_records_in_whole_cache_lines(void **state)
{
    assert_int_equal(waste_ring_bytes(8, 24), 192 + 192);
    assert_int_equal(waste_ring_bytes(1, 8), 192 + 64);
    assert_int_equal(waste_ring_bytes(64, 320), 192 + 20480);
    assert_int_equal(waste_ring_bytes(1u << 31, 1u << 31), 192 + (UINT64_C(1) << 62));
    assert_int_equal(waste_ring_bytes(0, 8), 0);
    assert_int_equal(waste_ring_bytes(3, 8), 0);
    assert_int_equal(waste_ring_bytes(8, 0), 0);
    assert_int_equal(waste_ring_bytes(8, 12), 0);
}

static void records_come_out_in_the_order_they_went_in(void **state)
{
    struct waste_ring *ring = make();

    assert_null(waste_ring_peek(ring));
    for (uint64_t round = 0; round < 100; round++) {
        uint64_t n = round % CAPACITY + 1;

        for (uint64_t i = 0; i < n; i++)
            assert_true(put(ring, round * 1000 + i));
        assert_int_equal(waste_ring_used(ring), n);
        for (uint64_t i = 0; i < n; i++)
            take(ring, round * 1000 + i);
        assert_null(waste_ring_peek(ring));
    }
    free(ring);
}

static void a_full_ring_refuses_and_loses_nothing(void **state)
{
    struct waste_ring *ring = make();

    for (uint64_t i = 0; i < CAPACITY; i++)
        assert_true(put(ring, i * 10));
    assert_false(put(ring, 999));
    take(ring, 0);
    assert_true(put(ring, CAPACITY * 10));
    assert_false(put(ring, 999));
    for (uint64_t i = 1; i <= CAPACITY; i++)
        take(ring, i * 10);
    free(ring);
}

static void a_claimed_record_is_nobodys_until_it_is_published(void **state)
{
    struct waste_ring *ring = make();
    uint64_t *record = waste_ring_claim(ring);

    record[0] = 77; /* and the producer dies here; its successor claims the same place */
    assert_null(waste_ring_peek(ring));
    assert_ptr_equal(waste_ring_claim(ring), record);
    assert_true(put(ring, 5));
    assert_ptr_equal(waste_ring_peek(ring), record); /* peeked, consumer dies, successor peeks */
    take(ring, 5);
    free(ring);
}

static void no_record_touches_its_neighbour_or_the_end(void **state)
{
    size_t bytes = waste_ring_bytes(CAPACITY, STRIDE);
    struct waste_ring *ring = make();

    for (uint64_t i = 0; i < CAPACITY; i++) {
        unsigned char *record = waste_ring_claim(ring);

        assert_ptr_equal(record, (unsigned char *)ring + 192 + i * STRIDE);
        assert_true(record + STRIDE <= (unsigned char *)ring + bytes);
        memset(record, (int)i, STRIDE);
        waste_ring_publish(ring);
    }
    for (size_t i = 0; i < CAPACITY * STRIDE; i++)
        assert_int_equal(((unsigned char *)(ring + 1))[i], i / STRIDE);
    free(ring);
}

static void valid_knows_sane_cursors_and_the_expected_geometry(void **state)
{
    static const struct {
        uint64_t head, tail;
        bool valid;
    } t[] = {
        {0, 0, true},
        {CAPACITY, 0, true},
        {CAPACITY + 1, 0, false},
        {5, 5, true},
        {5, 6, false},
        {0, 1, false},
        {UINT64_C(1) << 40, (UINT64_C(1) << 40) - CAPACITY, true},
        {UINT64_MAX, 0, false},
        {0, UINT64_MAX - CAPACITY, false},
        {UINT64_MAX, UINT64_MAX - 3, true},
    };
    struct waste_ring *ring = make();

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        set(ring, t[i].head, t[i].tail);
        assert_int_equal(waste_ring_valid(ring, CAPACITY, STRIDE), t[i].valid);
    }
    set(ring, 3, 1);
    assert_false(waste_ring_valid(ring, CAPACITY * 2, STRIDE));
    assert_false(waste_ring_valid(ring, CAPACITY, STRIDE + 8));
    ring->capacity = 7;
    assert_false(waste_ring_valid(ring, 7, STRIDE));
    assert_false(waste_ring_valid(ring, CAPACITY, STRIDE));
    free(ring);
}

static const uint64_t insane[][2] = {
    /* head, tail */
    {CAPACITY + 1, 0}, {4, 5},         {0, UINT64_MAX / 2}, {UINT64_MAX / 2, 0},
    {UINT64_MAX, 0},   {100, 100 - 9}, {1, 1u << 20},       {UINT64_C(1) << 63, 1},
};

static void an_insane_ring_gives_both_ends_null(void **state)
{
    struct waste_ring *ring = make();

    for (size_t i = 0; i < sizeof(insane) / sizeof(insane[0]); i++) {
        set(ring, insane[i][0], insane[i][1]);
        assert_null(waste_ring_claim(ring));
        assert_null(waste_ring_peek(ring));
    }
    free(ring);
}

static void repair_moves_only_the_callers_cursor_and_the_ring_works_again(void **state)
{
    struct waste_ring *ring = make();

    for (size_t i = 0; i < sizeof(insane) / sizeof(insane[0]); i++)
        for (int end = WASTE_RING_PRODUCER; end <= WASTE_RING_CONSUMER; end++) {
            set(ring, insane[i][0], insane[i][1]);
            assert_true(waste_ring_repair(ring, (enum waste_ring_end)end));
            assert_true(waste_ring_valid(ring, CAPACITY, STRIDE));
            if (end == WASTE_RING_PRODUCER)
                assert_int_equal(atomic_load(&ring->tail), insane[i][1]);
            else
                assert_int_equal(atomic_load(&ring->head), insane[i][0]);
            assert_int_equal(waste_ring_used(ring), 0);
            assert_false(waste_ring_repair(ring, (enum waste_ring_end)end));
            for (uint64_t k = 0; k < 2 * CAPACITY; k++) {
                assert_true(put(ring, k));
                take(ring, k);
            }
        }
    free(ring);
}

static void repair_leaves_a_sane_ring_and_its_records_alone(void **state)
{
    struct waste_ring *ring = make();

    put(ring, 10);
    put(ring, 20);
    assert_false(waste_ring_repair(ring, WASTE_RING_PRODUCER));
    assert_false(waste_ring_repair(ring, WASTE_RING_CONSUMER));
    take(ring, 10);
    take(ring, 20);
    free(ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_takes_header_plus_records_in_whole_cache_lines),
        cmocka_unit_test(records_come_out_in_the_order_they_went_in),
        cmocka_unit_test(a_full_ring_refuses_and_loses_nothing),
        cmocka_unit_test(a_claimed_record_is_nobodys_until_it_is_published),
        cmocka_unit_test(no_record_touches_its_neighbour_or_the_end),
        cmocka_unit_test(valid_knows_sane_cursors_and_the_expected_geometry),
        cmocka_unit_test(an_insane_ring_gives_both_ends_null),
        cmocka_unit_test(repair_moves_only_the_callers_cursor_and_the_ring_works_again),
        cmocka_unit_test(repair_leaves_a_sane_ring_and_its_records_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
