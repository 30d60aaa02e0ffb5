/* Sizes and offsets that two processes agree on, written out as numbers: a change here is a change
 * of WASTE_CONTROL_VERSION or WASTE_SESSION_VERSION. */

#include "tests/unit/cm.h"

#include "shm/control.h"
#include "shm/session.h"

static void words_sit_where_the_other_process_looks(void **state)
{
    assert_int_equal(offsetof(struct waste_ring, head), 0);
    assert_int_equal(offsetof(struct waste_ring, tail), 64);
    assert_int_equal(offsetof(struct waste_ring, capacity), 128);
    assert_int_equal(sizeof(struct waste_ring), 192);
    assert_int_equal(offsetof(struct waste_slot, key), 8);
    assert_int_equal(sizeof(struct waste_slot), 64);
    assert_int_equal(offsetof(struct waste_bell, waiters), 4);
    assert_int_equal(offsetof(struct waste_bell, armed), 8);
    assert_int_equal(sizeof(struct waste_stage), 128);
    assert_int_equal(offsetof(struct waste_stage, state), 64);
    assert_int_equal(offsetof(struct waste_control, ready), 12);
    assert_int_equal(sizeof(struct waste_log_line), 504);
    assert_int_equal(sizeof(struct waste_log), 64 + 64 * 504);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_sit_where_the_other_process_looks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
