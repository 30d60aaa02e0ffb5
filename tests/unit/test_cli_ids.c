/* Lists of token ids, as --ids and files have them. */
#include "cm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ids_text.h"

/* With the NUL that it may count on, and nothing behind it. */
static int parse(const char *text, size_t bytes, struct waste_ids *ids, struct waste_error *err)
{
    char *copy = malloc(bytes + 1);

    assert_non_null(copy);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    int rc = waste_ids_parse(copy, bytes, ids, err);
    free(copy);
    return rc;
}

static void a_list_may_be_written_in_many_ways(void **state)
{
    static const char *const ways[] = {
        "7,0,4294967295",   "7, 0, 4294967295",         "7 0 4294967295",   " 7\n0\n4294967295\n",
        "[7,0,4294967295]", "[ 7 0 , 4294967295 ]\r\n", "7 ,0\t4294967295", "007,00,00004294967295",
    };
    struct waste_ids ids = {0};
    struct waste_error err;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        ids.count = 0;
        assert_int_equal(parse(ways[i], strlen(ways[i]), &ids, &err), 0);
        assert_int_equal(ids.count, 3);
        assert_true(ids.id[0] == 7 && ids.id[1] == 0 && ids.id[2] == UINT32_MAX);
    }
    /* appended to what is there */
    assert_int_equal(parse("5", 1, &ids, &err), 0);
    assert_int_equal(ids.count, 4);
    assert_int_equal(ids.id[3], 5);
    waste_ids_finish(&ids);
}

static void a_list_may_be_empty(void **state)
{
    static const char *const ways[] = {"", " ", "\n", "[]", " [ ] "};
    struct waste_ids ids = {0};
    struct waste_error err;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        assert_int_equal(parse(ways[i], strlen(ways[i]), &ids, &err), 0);
    assert_int_equal(waste_ids_parse(NULL, 0, &ids, &err), 0);
    assert_int_equal(ids.count, 0);
    waste_ids_finish(&ids);
}

static void what_is_no_id_is_named(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {",", "not a token id: ,"},
        {",1", "not a token id: ,"},
        {"1,,2", "not a token id: ,"},
        {"1 , , 2", "not a token id: ,"},
        {"1,", "ends too early"},
        {"[1,2", "ends too early"},
        {"[", "ends too early"},
        {"[1,]", "not a token id: ]"},
        {"1]", "not a token id: ]"},
        {"[1] 2", "not a token id: 2"},
        {"[[1]]", "not a token id: [1]]"},
        {"1 x 2", "not a token id: x"},
        {"1;2", "not a token id: 1;2"},
        {"-1", "not a token id: -1"},
        {"+1", "not a token id: +1"},
        {"1.5", "not a token id: 1.5"},
        {"0x10", "not a token id: 0x10"},
        {"4294967296", "not a token id: 4294967296"},
        {"99999999999999999999999", "not a token id: 99999999999999999999999"},
    };
    struct waste_ids ids = {0};
    struct waste_error err;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse(bad[i].text, strlen(bad[i].text), &ids, &err), -EINVAL);
        const char *said = strstr(err.text, bad[i].says);
        assert_non_null(said);
        assert_string_equal(said, bad[i].says); /* and nothing behind it */
    }
    assert_int_equal(parse("1,2\0x", 5, &ids, &err), -EINVAL);
    assert_non_null(strstr(err.text, "zero byte"));
    waste_ids_finish(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_may_be_written_in_many_ways),
        cmocka_unit_test(a_list_may_be_empty),
        cmocka_unit_test(what_is_no_id_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
