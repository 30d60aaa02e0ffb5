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

static void create(void)
{
    assert_int_equal(waste_segment_create(WASTE_SEG_CACHE, SLOTS * SLOT, &fd), 0);
    assert_int_equal(waste_segment_map(fd, WASTE_SEG_CACHE, true, &map), 0);
}

static void destroy(void)
{
    waste_segment_unmap(&map);
    close(fd);
}

static void it_keeps_its_distance(void **state)
{
    (void)state;
    struct waste_prefault p = {0};
    create();
    memset(map.base, 7, SLOT);
    waste_prefault_start(&p, map.base, SLOT, SLOTS, 5);
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
    destroy();
}

static void what_the_reader_filled_before_is_passed_over(void **state)
{
    (void)state;
    struct waste_prefault p = {0};
    create();
    waste_prefault_start(&p, map.base, SLOT, SLOTS, 5);
    assert_settles_at(5);
    waste_prefault_used(&p, 20); /* 5 to 19 have no pages: nobody else fills them in this test */
    assert_settles_at(10);
    waste_prefault_used(&p, 1000);
    assert_settles_at(15);
    waste_prefault_used(&p, UINT64_MAX / 2);
    assert_settles_at(15);
    waste_prefault_stop(&p);
    destroy();
}

static void what_is_thrown_away_after_it_stopped_stays_away(void **state)
{
    (void)state;
    struct waste_prefault p = {0};
    create();
    waste_prefault_start(&p, map.base, SLOT, SLOTS, 8);
    assert_settles_at(8);
    waste_prefault_stop(&p);
    assert_int_equal(waste_segment_punch_mapped(map.base, 4 * SLOT), 0);
    waste_prefault_used(&p, 20);
    assert_settles_at(4);
    destroy();
}

static void it_ends_when_told_while_it_waits(void **state)
{
    (void)state;
    struct waste_prefault p = {0};
    create();
    waste_prefault_start(&p, map.base, SLOT, SLOTS, 0);
    usleep(5000);
    waste_prefault_stop(&p);
    assert_int_equal(resident(), 0);
    waste_prefault_stop(&(struct waste_prefault){0});
    destroy();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_keeps_its_distance),
        cmocka_unit_test(what_the_reader_filled_before_is_passed_over),
        cmocka_unit_test(what_is_thrown_away_after_it_stopped_stays_away),
        cmocka_unit_test(it_ends_when_told_while_it_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
