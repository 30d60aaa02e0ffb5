/* Meters of drives and layers (shm/meter.h). */

#include "tests/unit/cm.h"

#include <string.h>

#include "shm/meter.h"

static void a_bucket_holds_what_is_not_over_its_bound(void **state)
{
    uint64_t bound = 16384;

    assert_int_equal(waste_latency_bucket(0), 0);
    assert_int_equal(waste_latency_bucket(1), 0);
    for (unsigned k = 0; k + 1 < 17; k++, bound *= 2) {
        assert_int_equal(waste_latency_bucket(bound), k);
        assert_int_equal(waste_latency_bucket(bound + 1), k + 1);
    }
    assert_int_equal(waste_latency_bucket(UINT64_MAX), 16);
}

static void every_read_is_in_one_bucket(void **state)
{
    struct waste_drive_meter m;
    uint64_t in_buckets = 0;

    memset(&m, 0, sizeof(m));
    for (uint64_t ns = 1; ns < UINT64_C(1) << 40; ns *= 3)
        waste_drive_meter_end(&m, ns, 512);
    waste_drive_meter_end(&m, 5, 0);
    for (unsigned k = 0; k < WASTE_LATENCY_BUCKETS; k++)
        in_buckets += m.bucket[k];
    assert_int_equal(m.reads, 27);
    assert_int_equal(in_buckets, 27);
    assert_int_equal(m.bytes, 26 * 512);
    /* 3^0 + ... + 3^25, and 5 */
    assert_int_equal(m.ns, (UINT64_C(2541865828329) - 1) / 2 + 5);
}

static void an_average_follows_what_came_last(void **state)
{
    struct waste_layer_meter m;

    memset(&m, 0, sizeof(m));
    waste_layer_meter_add(&m, 4, 4000000, 400000);
    assert_int_equal(m.recent_ns, 1000000);
    assert_int_equal(m.recent_wait_ns, 100000);
    waste_layer_meter_add(&m, 1, 1000000, 100000);
    assert_int_equal(m.recent_ns, 1000000);
    for (int i = 0; i < 60; i++)
        waste_layer_meter_add(&m, 1, 3000000, 0);
    assert_in_range(m.recent_ns, 2990000, 3000000);
    assert_in_range(m.recent_wait_ns, 0, 100);
    assert_int_equal(m.tokens, 65);
    assert_int_equal(m.ns, 5000000 + 60 * UINT64_C(3000000));
    assert_int_equal(m.wait_ns, 500000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_holds_what_is_not_over_its_bound),
        cmocka_unit_test(every_read_is_in_one_bucket),
        cmocka_unit_test(an_average_follows_what_came_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
