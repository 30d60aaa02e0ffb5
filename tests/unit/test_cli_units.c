/* Numbers on the command line. */
#include "cm.h"

#include <errno.h>
#include <stdlib.h>

#include "options/units.h"

static void sizes_have_binary_units(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"1k", 1024},
        {"1K", 1024},
        {"46G", UINT64_C(46) * 1073741824},
        {"512M", UINT64_C(512) * 1048576},
        {"1.5GiB", UINT64_C(1610612736)},
        {"1.5 GiB", UINT64_C(1610612736)},
        {"2gb", UINT64_C(2147483648)},
        {"3T", UINT64_C(3298534883328)},
        {"1P", UINT64_C(1125899906842624)},
        {"17b", 17},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t bytes = 1;
        assert_int_equal(waste_units_parse_size(good[i].text, &bytes), 0);
        assert_int_equal(bytes, good[i].bytes);
    }
}

static void what_is_no_size_leaves_the_result_alone(void **state)
{
    static const char *const bad[] = {"",    "G",      "-1",   "12Q", "1.2.3", "1e3",
                                      "4 6", "46Gi b", "0x10", "nan", "1GiBs", "."};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t bytes = 7;
        assert_int_equal(waste_units_parse_size(bad[i], &bytes), -EINVAL);
        assert_int_equal(bytes, 7);
    }
    uint64_t bytes = 7;
    assert_int_equal(waste_units_parse_size("9000000P", &bytes), -ERANGE);
    assert_int_equal(bytes, 7);
}

static void whole_numbers_have_no_sign(void **state)
{
    uint64_t v = 7;
    (void)state;
    assert_int_equal(waste_units_parse_u64("18446744073709551615", &v), 0);
    assert_true(v == UINT64_MAX);
    assert_int_equal(waste_units_parse_u64("18446744073709551616", &v), -ERANGE);
    assert_int_equal(waste_units_parse_u64("-1", &v), -EINVAL);
    assert_int_equal(waste_units_parse_u64("+1", &v), -EINVAL);
    assert_int_equal(waste_units_parse_u64(" 1", &v), -EINVAL);
    assert_int_equal(waste_units_parse_u64("1x", &v), -EINVAL);
    assert_int_equal(waste_units_parse_u64("", &v), -EINVAL);
}

static void floats_are_finite_and_decimal(void **state)
{
    double v = 7;
    (void)state;
    assert_int_equal(waste_units_parse_float("1e-6", &v), 0);
    assert_true(v == 1e-6);
    assert_int_equal(waste_units_parse_float("-0.5", &v), 0);
    assert_true(v == -0.5);
    assert_int_equal(waste_units_parse_float("nan", &v), -EINVAL);
    assert_int_equal(waste_units_parse_float("inf", &v), -EINVAL);
    assert_int_equal(waste_units_parse_float("0x1p3", &v), -EINVAL);
    assert_int_equal(waste_units_parse_float("1e999", &v), -ERANGE);
    assert_int_equal(waste_units_parse_float("", &v), -EINVAL);
    assert_true(v == -0.5);
}

static void cpu_lists_become_masks(void **state)
{
    uint64_t mask[2] = {1, 1};
    (void)state;
    assert_int_equal(waste_units_parse_cpus("0-3,8,64-65,127", mask, 2), 0);
    assert_true(mask[0] == 0x10f);
    assert_true(mask[1] == (UINT64_C(1) << 63 | 3));
    assert_int_equal(waste_units_parse_cpus("128", mask, 2), -ERANGE);
    assert_int_equal(waste_units_parse_cpus("3-1", mask, 2), -EINVAL);
    assert_int_equal(waste_units_parse_cpus("1,", mask, 2), -EINVAL);
    assert_int_equal(waste_units_parse_cpus("1-", mask, 2), -EINVAL);
    assert_int_equal(waste_units_parse_cpus("", mask, 2), -EINVAL);
    assert_int_equal(waste_units_parse_cpus("zero", mask, 2), -EINVAL);
    assert_true(mask[0] == 0x10f);
}

static void sizes_read_well(void **state)
{
    char buf[24];
    (void)state;
    assert_string_equal(waste_units_format_size(900, buf, sizeof(buf)), "900 B");
    assert_string_equal(waste_units_format_size(1536, buf, sizeof(buf)), "1.50 KiB");
    assert_string_equal(waste_units_format_size(UINT64_C(46) << 30, buf, sizeof(buf)), "46.0 GiB");
    assert_string_equal(waste_units_format_size(UINT64_MAX, buf, sizeof(buf)), "16384 PiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_have_binary_units),
        cmocka_unit_test(what_is_no_size_leaves_the_result_alone),
        cmocka_unit_test(whole_numbers_have_no_sign),
        cmocka_unit_test(floats_are_finite_and_decimal),
        cmocka_unit_test(cpu_lists_become_masks),
        cmocka_unit_test(sizes_read_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
