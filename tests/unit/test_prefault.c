/* Pages ahead of their use, and no more of them. */
#include "cm.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reader/prefault.h"
#include "shm/segment.h"

enum { SLOTS = 40, SLOT = 64 << 10 };

static int fd;
static struct waste_mapping map;
static struct waste_prefault p;

static uint32_t resident(void)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return (uint32_t)((uint64_t)st.st_blocks * 512 / SLOT);
}

/* It becomes that many, and stays. */
static void assert_settles_at(uint32_t slots)
{
    for (int i = 0; i < 60000 && resident() < slots; i++)
        usleep(1000);
    usleep(20000);
    assert_int_equal(resident(), slots);
}

static int create(void **state)
{
    (void)state;
    p = (struct waste_prefault){0};
    assert_int_equal(waste_segment_create(WASTE_SEG_CACHE, SLOTS * SLOT, &fd), 0);
    assert_int_equal(waste_segment_map(fd, WASTE_SEG_CACHE, true, &map), 0);
    return 0;
}

/* Also after a failure: no thread goes on in memory that is gone. */
static int destroy(void **state)
{
    (void)state;
    waste_prefault_stop(&p);
    waste_segment_unmap(&map);
    return close(fd);
}

static void it_keeps_its_distance(void **state)
{
    (void)state;
    memset(map.base, 7, SLOT);
    waste_prefault_start(&p, map.base, SLOT, SLOTS, 5, 0);
    assert_settles_at(5);
    waste_prefault_used(&p, 1); /* not worth a wake-up */
    assert_settles_at(5);
    waste_prefault_used(&p, 4);
    assert_settles_at(9);
    waste_prefault_used(&p, 8);
    assert_settles_at(13);
    for (uint32_t i = 0; i < SLOTS * SLOT; i++)
        assert_int_equal(((uint8_t *)map.base)[i], i < SLOT ? 7 : 0);
    waste_prefault_stop(&p);
    waste_prefault_stop(&p);
}

static void what_the_reader_filled_before_is_passed_over(void **state)
{
    (void)state;
    waste_prefault_start(&p, map.base, SLOT, SLOTS, 5, 0);
    assert_settles_at(5);
    waste_prefault_used(&p, 20); /* 5 to 19 have no pages: nobody else fills them in this test */
    assert_settles_at(10);
    waste_prefault_used(&p, SLOTS - 2);
    assert_settles_at(12);
    waste_prefault_used(&p, SLOTS);
    assert_settles_at(12);
    waste_prefault_used(&p, UINT64_MAX / 2);
    assert_settles_at(12);
    waste_prefault_stop(&p);
}

static void what_is_not_wanted_next_waits_until_it_is_quiet(void **state)
{
    (void)state;
    waste_prefault_start(&p, map.base, SLOT, SLOTS, 8, 3);
    assert_settles_at(8);
    waste_prefault_quiet(&p, false);
    waste_prefault_used(&p, 4); /* up to 7: there */
    assert_settles_at(8);
    waste_prefault_used(&p, 8); /* up to 11 */
    assert_settles_at(11);
    waste_prefault_quiet(&p, true); /* up to 16 */
    assert_settles_at(16);
    waste_prefault_quiet(&p, false);
    waste_prefault_quiet(&p, true);
    waste_prefault_used(&p, 12);
    assert_settles_at(20);
    waste_prefault_stop(&p);
    waste_prefault_quiet(&p, true);
}

/* What lies behind the last slot is not the cache's. */
static void it_goes_no_further_than_the_last_slot(void **state)
{
    (void)state;
    waste_prefault_start(&p, map.base, SLOT, SLOTS / 2, SLOTS, 1);
    assert_settles_at(SLOTS / 2);
    waste_prefault_used(&p, 5);
    waste_prefault_quiet(&p, false);
    waste_prefault_quiet(&p, true);
    assert_settles_at(SLOTS / 2);
    waste_prefault_stop(&p);
}

static void what_is_thrown_away_after_it_stopped_stays_away(void **state)
{
    (void)state;
    waste_prefault_start(&p, map.base, SLOT, SLOTS, 8, 0);
    assert_settles_at(8);
    waste_prefault_stop(&p);
    assert_int_equal(waste_segment_punch_mapped(map.base, 4 * SLOT), 0);
    waste_prefault_used(&p, 20);
    assert_settles_at(4);
}

static void it_ends_when_told_while_it_waits(void **state)
{
    (void)state;
    waste_prefault_start(&p, map.base, SLOT, SLOTS, 0, 0);
    usleep(5000);
    waste_prefault_stop(&p);
    assert_int_equal(resident(), 0);
    waste_prefault_stop(&(struct waste_prefault){0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_keeps_its_distance, create, destroy),
        cmocka_unit_test_setup_teardown(what_the_reader_filled_before_is_passed_over, create,
                                        destroy),
        cmocka_unit_test_setup_teardown(what_is_not_wanted_next_waits_until_it_is_quiet, create,
                                        destroy),
        cmocka_unit_test_setup_teardown(it_goes_no_further_than_the_last_slot, create, destroy),
        cmocka_unit_test_setup_teardown(what_is_thrown_away_after_it_stopped_stays_away, create,
                                        destroy),
        cmocka_unit_test_setup_teardown(it_ends_when_told_while_it_waits, create, destroy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
