/* What a user is told of the logs: each loss once, in order, whatever else is said. */
#include "cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/losses.h"

enum { LOGS = 2 };

static struct waste_log *make(void)
{
    struct waste_log *log = aligned_alloc(64, LOGS * sizeof(*log));

    assert_non_null(log);
    memset(log, 0, LOGS * sizeof(*log));
    return log;
}

static void add(void *text, const char *line)
{
    strcat(strcat(text, line), ";");
}

static void expect(const struct waste_log *log, uint64_t next[LOGS], const char *expected)
{
    char told[4096] = "";

    waste_losses_each(log, LOGS, next, add, told);
    assert_string_equal(told, expected);
}

static void losses_are_told_and_nothing_else(void **state)
{
    struct waste_log *log = make();
    uint64_t next[LOGS] = {0};

    expect(log, next, "");
    waste_log_write(&log[1], WASTE_LOG_LOSS, "c");
    waste_log_write(&log[0], WASTE_LOG_INFO, "info");
    waste_log_write(&log[0], WASTE_LOG_LOSS, "a");
    waste_log_write(&log[0], WASTE_LOG_WARNING, "warning");
    waste_log_write(&log[0], WASTE_LOG_ERROR, "error");
    waste_log_write(&log[0], WASTE_LOG_LOSS, "b");
    expect(log, next, "a;b;c;");
    free(log);
}

static void each_is_told_once(void **state)
{
    struct waste_log *log = make();
    uint64_t next[LOGS] = {0}, from_the_start[LOGS] = {0};

    waste_log_write(&log[0], WASTE_LOG_LOSS, "a");
    waste_log_write(&log[0], WASTE_LOG_LOSS, "a");
    expect(log, next, "a;");
    expect(log, next, "");
    /* a stage that was started again finds what its predecessor found */
    waste_log_write(&log[0], WASTE_LOG_LOSS, "b");
    waste_log_write(&log[0], WASTE_LOG_LOSS, "a");
    expect(log, next, "b;");
    expect(log, from_the_start, "a;b;");
    free(log);
}

static void what_was_overwritten_is_passed_over(void **state)
{
    struct waste_log *log = make();
    uint64_t next[LOGS] = {0};

    waste_log_write(&log[0], WASTE_LOG_LOSS, "gone");
    waste_log_write(&log[0], WASTE_LOG_LOSS, "there");
    for (int i = 1; i < WASTE_LOG_LINES; i++)
        waste_log_write(&log[0], WASTE_LOG_INFO, "another");
    expect(log, next, "there;");
    free(log);
}

/* Any process that shares the segment may write there. */
static void a_log_of_nonsense_is_survived(void **state)
{
    struct waste_log *log = make();
    uint64_t next[LOGS] = {0};

    memset(log, 0xff, LOGS * sizeof(*log));
    expect(log, next, "");
    memset(log, 0, LOGS * sizeof(*log));
    memset(next, 0, sizeof(next));
    waste_log_write(&log[0], WASTE_LOG_LOSS, "a");
    atomic_store(&log[0].next, UINT64_C(1) << 60);
    expect(log, next, "");
    free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_told_and_nothing_else),
        cmocka_unit_test(each_is_told_once),
        cmocka_unit_test(what_was_overwritten_is_passed_over),
        cmocka_unit_test(a_log_of_nonsense_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
