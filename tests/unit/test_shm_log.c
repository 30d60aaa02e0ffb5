#include "tests/unit/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/log.h"

static struct waste_log *make(void)
{
    struct waste_log *log = aligned_alloc(64, sizeof(*log));

    assert_non_null(log);
    memset(log, 0, sizeof(*log));
    return log;
}

static void expect(struct waste_log *log, uint64_t number, const char *text)
{
    struct waste_log_line line;

    assert_int_equal(waste_log_read(log, number, &line), 1);
    assert_string_equal(line.text, text);
    assert_int_equal(line.length, strlen(text));
    assert_int_equal(atomic_load(&line.seq), number + 1);
}

static int status(struct waste_log *log, uint64_t number)
{
    struct waste_log_line line = {.length = 777};
    int ret = waste_log_read(log, number, &line);

    if (ret != 1)
        assert_int_equal(line.length, 777); /* untouched */
    return ret;
}

static void lines_are_read_back_with_level_and_time(void **state)
{
    struct waste_log *log = make();
    struct waste_log_line line;

    assert_int_equal(status(log, 0), 0);
    waste_log_write(log, WASTE_LOG_ERROR, "cannot read %s: layer %d", "experts-L3.bin", 3);
    waste_log_write(log, WASTE_LOG_INFO, "second");
    expect(log, 0, "cannot read experts-L3.bin: layer 3");
    expect(log, 1, "second");
    assert_int_equal(waste_log_read(log, 0, &line), 1);
    assert_int_equal(line.level, WASTE_LOG_ERROR);
    assert_true(line.time_ns / 1000000000 + 5 > (uint64_t)time(NULL));
    assert_int_equal(status(log, 2), 0);
    assert_int_equal(atomic_load(&log->next), 2);
    free(log);
}

static void old_lines_make_room_and_say_so(void **state)
{
    struct waste_log *log = make();
    char text[32];

    for (int i = 0; i < 150; i++)
        waste_log_write(log, WASTE_LOG_INFO, "line %d", i);
    for (int i = 0; i < 150; i++) {
        snprintf(text, sizeof(text), "line %d", i);
        if (i < 150 - WASTE_LOG_LINES)
            assert_int_equal(status(log, (uint64_t)i), -1);
        else
            expect(log, (uint64_t)i, text);
    }
    assert_int_equal(status(log, 150), 0);
    assert_int_equal(status(log, 149 + WASTE_LOG_LINES), 0);
    free(log);
}

static void a_shorter_line_leaves_nothing_of_the_longer_one_before(void **state)
{
    struct waste_log *log = make();

    for (int i = 0; i < WASTE_LOG_LINES; i++)
        waste_log_write(log, WASTE_LOG_INFO, "a much longer line than the next");
    waste_log_write(log, WASTE_LOG_INFO, "x");
    expect(log, WASTE_LOG_LINES, "x");
    free(log);
}

static void long_text_is_cut_at_a_whole_character(void **state)
{
    static const char *const chars[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};

    for (size_t c = 0; c < 4; c++)
        for (int lead = 0; lead < 4; lead++) {
            struct waste_log *log = make();
            struct waste_log_line line;
            char text[2048] = "";
            size_t width = strlen(chars[c]), want = (size_t)lead;

            memset(text, '.', (size_t)lead);
            while (strlen(text) < 1000)
                strcat(text, chars[c]);
            while (want + width <= WASTE_LOG_TEXT - 1)
                want += width;
            waste_log_write(log, WASTE_LOG_INFO, "%s", text);
            assert_int_equal(waste_log_read(log, 0, &line), 1);
            assert_int_equal(line.length, want);
            assert_memory_equal(line.text, text, want);
            assert_int_equal(line.text[want], 0);
            free(log);
        }
}

static void text_that_just_fits_is_not_cut(void **state)
{
    struct waste_log *log = make();
    char text[WASTE_LOG_TEXT];

    memset(text, 'x', sizeof(text));
    memcpy(text + WASTE_LOG_TEXT - 3, "\xc3\xa9", 3);
    waste_log_write(log, WASTE_LOG_INFO, "%s", text);
    expect(log, 0, text);
    free(log);
}

static void a_line_stays_one_line(void **state)
{
    struct waste_log *log = make();

    waste_log_write(log, WASTE_LOG_INFO, "a\nb\tc\x1b[31m\x7f \xc3\xa9");
    expect(log, 0, "a b c [31m  \xc3\xa9");
    waste_log_write(log, WASTE_LOG_INFO, "%s", "");
    expect(log, 1, "");
    free(log);
}

/* The writer died inside line 70: its place is torn, line 6 that was there is gone. */
static void a_torn_line_is_not_shown_and_is_written_again(void **state)
{
    struct waste_log *log = make();

    for (int i = 0; i < 70; i++)
        waste_log_write(log, WASTE_LOG_INFO, "line %d", i);
    atomic_store(&log->line[70 % WASTE_LOG_LINES].seq, 0);
    strcpy(log->line[70 % WASTE_LOG_LINES].text, "half a li");
    assert_int_equal(status(log, 6), -1);
    assert_int_equal(status(log, 70), 0);
    waste_log_write(log, WASTE_LOG_INFO, "from the successor");
    expect(log, 70, "from the successor");
    assert_int_equal(status(log, 6), -1);
    free(log);
}

/* The writer died after finishing line 2 and before counting it. */
static void a_finished_line_that_was_not_counted_is_kept(void **state)
{
    struct waste_log *log = make();

    for (int i = 0; i < 3; i++)
        waste_log_write(log, WASTE_LOG_INFO, "line %d", i);
    atomic_store(&log->next, 2);
    expect(log, 2, "line 2");
    waste_log_write(log, WASTE_LOG_INFO, "from the successor");
    expect(log, 2, "line 2");
    expect(log, 3, "from the successor");
    assert_int_equal(atomic_load(&log->next), 4);
    free(log);
}

static void a_counted_line_that_is_torn_counts_as_gone(void **state)
{
    struct waste_log *log = make();

    waste_log_write(log, WASTE_LOG_INFO, "line");
    atomic_store(&log->line[0].seq, 0);
    assert_int_equal(status(log, 0), -1);
    free(log);
}

static void garbage_in_the_log_gives_a_bounded_text(void **state)
{
    struct waste_log *log = make();
    struct waste_log_line line;

    memset(log->line[5].text, 'z', WASTE_LOG_TEXT);
    log->line[5].length = UINT32_MAX;
    atomic_store(&log->line[5].seq, 6);
    assert_int_equal(waste_log_read(log, 5, &line), 1);
    assert_int_equal(line.length, WASTE_LOG_TEXT - 1);
    assert_int_equal(strlen(line.text), WASTE_LOG_TEXT - 1);
    atomic_store(&log->next, UINT64_MAX - 1);
    waste_log_write(log, WASTE_LOG_INFO, "insane count");
    expect(log, UINT64_MAX - 1, "insane count");
    free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_read_back_with_level_and_time),
        cmocka_unit_test(old_lines_make_room_and_say_so),
        cmocka_unit_test(a_shorter_line_leaves_nothing_of_the_longer_one_before),
        cmocka_unit_test(long_text_is_cut_at_a_whole_character),
        cmocka_unit_test(text_that_just_fits_is_not_cut),
        cmocka_unit_test(a_line_stays_one_line),
        cmocka_unit_test(a_torn_line_is_not_shown_and_is_written_again),
        cmocka_unit_test(a_finished_line_that_was_not_counted_is_kept),
        cmocka_unit_test(a_counted_line_that_is_torn_counts_as_gone),
        cmocka_unit_test(garbage_in_the_log_gives_a_bounded_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
