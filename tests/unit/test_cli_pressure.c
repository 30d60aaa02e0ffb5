/* When the cache gives way: the judgement alone, with a machine of 32 GiB. */
#include "cm.h"

#include <stdio.h>

#include "cli/pressure.h"

#define GIB (UINT64_C(1) << 30)
#define SECOND INT64_C(1000000000)

enum { FLOOR = 16, MOST = 8192 }; /* slots of 2 MiB: 16 GiB */

static struct waste_pressure p;
static struct waste_pressure_reading now;

static void begin(void)
{
    waste_pressure_init(&p, 2 << 20, FLOOR, MOST);
    now = (struct waste_pressure_reading){.now_ns = 100 * SECOND, .total_bytes = 32 * GIB};
}

static uint32_t next(uint64_t left, uint64_t stall_us)
{
    now.now_ns += SECOND;
    now.left_bytes = left;
    now.stalls.us += stall_us;
    return waste_pressure_judge(&p, &now, MOST);
}

static void with_room_nothing_happens(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 100; i++)
        assert_int_equal(next(4 * GIB, 0), MOST);
}

static void it_gives_back_what_is_missing_at_once(void **state)
{
    (void)state;
    begin();
    next(4 * GIB, 0);
    /* 1 GiB is the reserve, 2 GiB the aim */
    assert_int_equal(next(1 * GIB, 0), MOST);
    uint32_t slots = next(GIB / 2, 0);
    assert_true((uint64_t)(MOST - slots) * (2 << 20) >= 3 * GIB / 2);
    assert_true((uint64_t)(MOST - slots) * (2 << 20) <= 2 * GIB);
}

static void never_under_the_floor(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 1000; i++)
        assert_true(next(0, 1000000) >= FLOOR);
    assert_int_equal(next(0, 0), FLOOR);
}

static void a_stage_killed_for_memory_counts_whatever_is_left(void **state)
{
    (void)state;
    begin();
    next(20 * GIB, 0);
    now.killed = true;
    uint32_t slots = next(20 * GIB, 0);
    assert_true(slots < MOST - MOST / 20);
    assert_true(next(20 * GIB, 0) < slots);
    now.killed = false;
    assert_int_equal(next(20 * GIB, 0), p.slots);
}

static void stalls_count_only_where_memory_is_short(void **state)
{
    (void)state;
    begin();
    next(4 * GIB, 0);
    assert_int_equal(next(20 * GIB, 900000), MOST); /* others thrash in a cgroup of their own */
    assert_int_equal(next(4 * GIB, 50000), MOST);   /* a twentieth of the time */
    assert_true(next(4 * GIB, 500000) < MOST);
    begin();
    now.stalls.us = 123456789; /* before we looked for the first time */
    assert_int_equal(next(4 * GIB, 0), MOST);
}

/* When another limit has become the tightest its file's count says nothing of the last second. */
static void stalls_of_two_files_are_not_compared(void **state)
{
    (void)state;
    begin();
    next(4 * GIB, 0);
    snprintf(now.stalls.path, sizeof(now.stalls.path), "/sys/fs/cgroup/a/memory.pressure");
    assert_int_equal(next(4 * GIB, 500000), MOST);
    assert_true(next(4 * GIB, 500000) < MOST);
}

static void counts_of_nonsense_are_survived(void **state)
{
    (void)state;
    begin();
    next(4 * GIB, 0);
    now.stalls.us = UINT64_MAX / 100 + 2; /* times a hundred that is next to nothing */
    uint32_t slots = next(4 * GIB, 0);
    assert_true(slots < MOST && slots >= MOST - MOST / 8);
    now.stalls.us = 0; /* backwards */
    assert_int_equal(next(4 * GIB, 0), slots);
}

static void it_grows_back_slowly_and_only_after_a_while(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 20; i++)
        next(8 * GIB, 0); /* what was before does not count */
    uint32_t low = next(0, 0), seconds = 0, last = low;
    assert_true(low < MOST);
    for (; p.slots < MOST && seconds < 1000; seconds++) {
        uint32_t slots = next(8 * GIB, 0);
        assert_true(slots >= last && slots - last <= MOST / 16 + 1);
        if (seconds < 10)
            assert_int_equal(slots, low);
        last = slots;
    }
    assert_true(seconds > 10 && seconds < 100);
    assert_int_equal(next(8 * GIB, 0), MOST);
}

static void it_does_not_swing(void **state)
{
    (void)state;
    begin();
    /* what the cache gives back is what is left; others take 17 GiB of the 32 */
    uint32_t slots = MOST, changes = 0;
    for (int i = 0; i < 300; i++) {
        uint64_t used = 17 * GIB + (uint64_t)slots * (2 << 20);
        uint32_t after = next(used < 32 * GIB ? 32 * GIB - used : 0, 0);
        changes += i > 60 && after != slots;
        slots = after;
    }
    assert_int_equal(changes, 0);
    assert_true(slots > MOST / 2);
}

static void a_smaller_budget_is_a_smaller_most(void **state)
{
    (void)state;
    begin();
    now.now_ns += SECOND;
    now.left_bytes = 8 * GIB;
    assert_int_equal(waste_pressure_judge(&p, &now, 100), 100);
    assert_int_equal(next(8 * GIB, 0), 100); /* and it takes its time to come back */
}

static void this_machine_can_be_read(void **state)
{
    (void)state;
    struct waste_pressure_reading r;
    assert_true(waste_pressure_read(&waste_machine_proc, &r));
    assert_true(r.total_bytes > 0 && r.left_bytes <= r.total_bytes && r.now_ns > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_room_nothing_happens),
        cmocka_unit_test(it_gives_back_what_is_missing_at_once),
        cmocka_unit_test(never_under_the_floor),
        cmocka_unit_test(a_stage_killed_for_memory_counts_whatever_is_left),
        cmocka_unit_test(stalls_count_only_where_memory_is_short),
        cmocka_unit_test(stalls_of_two_files_are_not_compared),
        cmocka_unit_test(counts_of_nonsense_are_survived),
        cmocka_unit_test(it_grows_back_slowly_and_only_after_a_while),
        cmocka_unit_test(it_does_not_swing),
        cmocka_unit_test(a_smaller_budget_is_a_smaller_most),
        cmocka_unit_test(this_machine_can_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
