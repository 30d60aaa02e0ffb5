/* The command line as a whole: what is taken, what is refused and with which words. */
#include "cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/plan.h"
#include "shm/control.h"

/* Parses `line`, split at blanks. The error text is in `said`. */
static char said[1024];

static int parse(struct waste_args *args, const char *line)
{
    static char words[512];
    char *argv[32] = {(char *)"waste-run"};
    int argc = 1;
    FILE *err = fmemopen(said, sizeof(said), "w");

    snprintf(words, sizeof(words), "%s", line);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    said[0] = '\0';
    int rc = waste_args_parse(args, argc, argv, err);
    fclose(err);
    return rc;
}

static void a_model_alone_means_run(void **state)
{
    struct waste_args a;
    (void)state;
    assert_int_equal(parse(&a, "some.waste hello"), 0);
    assert_int_equal(a.line.command, WASTE_CMD_RUN);
    assert_false(a.line.named);
    assert_string_equal(a.line.positional[0], "some.waste");
    assert_string_equal(a.line.positional[1], "hello");
    assert_int_equal(a.n, 512);
    assert_true(a.temp == 0 && a.top_p == 1);
}

static void options_may_stand_anywhere(void **state)
{
    struct waste_args a;
    (void)state;
    assert_int_equal(parse(&a,
                           "--json run -n 5 m.waste --ids 1,2 --temp=0.5 --no-verify --io Pread "
                           "--seed 18446744073709551615 --budget 1.5GiB --cpus 0,3"),
                     0);
    assert_int_equal(a.line.command, WASTE_CMD_RUN);
    assert_true(a.line.named && a.json && a.no_verify && a.seed_given);
    assert_int_equal(a.n, 5);
    assert_int_equal(a.ids_count, 2);
    assert_true(a.temp == 0.5);
    assert_int_equal(a.io, WASTE_IO_PREAD);
    assert_true(a.seed == UINT64_MAX);
    assert_true(a.budget_bytes == UINT64_C(1610612736));
    assert_true(a.cpus[0] == 9);
    waste_args_finish(&a);
    assert_int_equal(parse(&a, "plan m.waste --budget max"), 0);
    assert_true(a.budget_bytes == WASTE_BUDGET_MAX);
    waste_args_finish(&a);
}

static void the_later_option_wins(void **state)
{
    struct waste_args a;
    (void)state;
    assert_int_equal(parse(&a, "m p --no-verify --verify -n 1 -n 2 --ids 1 --ids 7,8"), 0);
    assert_false(a.no_verify);
    assert_int_equal(a.n, 2);
    assert_int_equal(a.ids_count, 2);
    waste_args_finish(&a);
}

static void two_dashes_end_the_options(void **state)
{
    struct waste_args a;
    (void)state;
    assert_int_equal(parse(&a, "run m -- --json"), 0);
    assert_string_equal(a.line.positional[1], "--json");
    assert_false(a.json);
    assert_int_equal(parse(&a, "run m -"), 0);
    assert_string_equal(a.line.positional[1], "-");
}

static void refuse(const char *line, const char *word)
{
    struct waste_args a;

    assert_int_equal(parse(&a, line), 2);
    assert_non_null(strstr(said, word));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    waste_args_finish(&a);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    refuse("m p --tmp 1", "did you mean '--temp'?");
    refuse("m p --temperature 1", "did you mean '--temp'?");
    refuse("m p --unlike-anything-known", "unknown option '--unlike-anything-known'");
    refuse("m p --budget", "option --budget needs SIZE|max");
    refuse("m p --budget 12Q", "'12Q' is no size");
    refuse("m p --budget maximal", "'maximal' is no size");
    refuse("m p --budget 0", "'0' is no size that anything has");
    refuse("m p --budget 99999999999T", "is no size that anything has");
    refuse("m p --temp x", "option --temp: 'x' is no number");
    refuse("m p --temp -1", "outside 0 to 100");
    refuse("m p --top-p 1.01", "outside 1e-06 to 1");
    refuse("m p --top-p 0", "option --top-p: '0' is outside"); /* nothing to choose from */
    refuse("m p --threads 0", "option --threads: '0' is outside 1 to 1024");
    refuse("m p -n 99999999999", "option -n");
    refuse("m p --io mmap", "none of auto, uring, pread");
    refuse("m p --io urin", "none of auto, uring, pread");
    refuse("m p --json=yes", "takes no value");
    refuse("m p --ids 1,,2",
           "option --ids: '1,,2' is no list of token ids (for example 1,2,3): not a token id: ,");
    refuse("m p --ids 1,2,x3", "not a token id: x3");
    refuse("m p --ids [1", "ends too early");
    refuse("m p --ids []", "it has none");
    refuse("run m p q", "unexpected argument 'q'");
    refuse("rnu m p", "did you mean 'run' by 'rnu'?");
    refuse("statz --pid 3", "did you mean 'stats' by 'statz'?");
    refuse("run", "run needs MODEL");
    refuse("", "nothing to run");
    refuse("plan m --temp 1", "option --temp does not belong to 'plan'");
    refuse("ps --ids 1", "does not belong to 'ps'");
}

static void help_needs_nothing_else(void **state)
{
    struct waste_args a;
    (void)state;
    assert_int_equal(parse(&a, "run --help"), 0);
    assert_true(a.line.help);
    assert_int_equal(a.line.command, WASTE_CMD_RUN);
    assert_int_equal(parse(&a, "help chat"), 0);
    assert_true(a.line.help && a.line.named);
    assert_int_equal(a.line.command, WASTE_CMD_CHAT);
    assert_int_equal(parse(&a, "--version"), 0);
    assert_true(a.line.version);
}

/* Every option is in the help of every command it belongs to, and in the whole one. */
static void help_shows_every_option(void **state)
{
    (void)state;
    for (int c = 0; c <= WASTE_COMMAND_COUNT; c++) {
        char *text = NULL;
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);
        waste_line_help(&waste_run_program, out, c);
        fclose(out);
        for (size_t i = 0; i < waste_run_program.option_count; i++) {
            const struct waste_option *o = &waste_run_program.options[i];
            char row[64];
            snprintf(row, sizeof(row), "\n  %s ", o->name);
            bool belongs = c == WASTE_COMMAND_COUNT;
            for (size_t k = 0; k < waste_run_program.option_count; k++) /* two may have one name */
                belongs |= strcmp(waste_run_program.options[k].name, o->name) == 0 &&
                           (waste_run_program.options[k].commands >> c & 1);
            if (o->help != NULL)
                assert_int_equal(strstr(text, row) != NULL, belongs);
        }
        assert_non_null(strstr(text, "examples:\n  waste-run"));
        free(text);
    }
}

static void near_words_are_found(void **state)
{
    static const char *const names[] = {"reader", "compute", "router", "all"};
    (void)state;
    assert_string_equal(waste_line_nearest("raeder", names, 4), "reader");
    assert_string_equal(waste_line_nearest("routr", names, 4), "router");
    assert_null(waste_line_nearest("nobody", names, 4));
    assert_null(waste_line_nearest("", names, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_alone_means_run), cmocka_unit_test(options_may_stand_anywhere),
        cmocka_unit_test(the_later_option_wins),   cmocka_unit_test(two_dashes_end_the_options),
        cmocka_unit_test(what_is_wrong_is_named),  cmocka_unit_test(help_needs_nothing_else),
        cmocka_unit_test(help_shows_every_option), cmocka_unit_test(near_words_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
