/* Replies on their way to stdout: as text, and as events. */
#include "cm.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/output.h"

static const char opening[] = "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>";
static const char reply[] =
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes: é.<|close|>response<|sep|>"
    "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>"
    "<|open|>argument key=\"n\" type=\"number\"<|sep|>1.50<|close|>argument<|sep|>"
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

/* What stdout gets of the reply. */
static char *written(enum waste_output_mode mode, bool think, bool dim, char **text)
{
    struct waste_tokenizer *demo = NULL;
    struct waste_ids prompt = {0}, ids = {0};
    struct waste_output o;
    struct waste_error err;
    FILE *file = tmpfile();
    int kept;

    assert_int_equal(waste_tokenizer_open(WASTE_DEMO_MODEL, 0, &demo, &err), 0);
    assert_int_equal(waste_tokenizer_encode_markup(demo, opening, strlen(opening), &prompt), 0);
    assert_int_equal(waste_tokenizer_encode_markup(demo, reply, strlen(reply), &ids), 0);
    fflush(stdout);
    kept = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    waste_output_init(&o, demo, prompt.id, prompt.count);
    o.mode = mode;
    o.think = think;
    o.dim = dim;
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(waste_output_token(&o, ids.id[i]), 0);
    waste_output_end(&o);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    *text = strdup(o.text.data);
    char *got = calloc(1, 4096);
    rewind(file);
    assert_true(fread(got, 1, 4095, file) < 4095);
    fclose(file);
    waste_output_finish(&o);
    waste_ids_finish(&prompt);
    waste_ids_finish(&ids);
    waste_tokenizer_destroy(demo);
    return got;
}

static void text_streams_with_what_is_wanted(void **state)
{
    static const struct {
        enum waste_output_mode mode;
        bool think, dim;
        const char *want;
    } cases[] = {
        {WASTE_OUTPUT_COLLECT, true, true, ""},
        {WASTE_OUTPUT_STREAM, false, false, "Yes: é.\n[calls f {\"n\":1.50}]\n"},
        {WASTE_OUTPUT_STREAM, true, false, "Hm.\nYes: é.\n[calls f {\"n\":1.50}]\n"},
        {WASTE_OUTPUT_STREAM, true, true,
         "\033[2mHm.\033[0m\nYes: é.\n\033[2m[calls f {\"n\":1.50}]\033[0m\n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text, *got = written(cases[i].mode, cases[i].think, cases[i].dim, &text);

        assert_string_equal(got, cases[i].want);
        assert_string_equal(text, "Yes: é.");
        free(got);
        free(text);
    }
}

static void events_are_lines_of_json(void **state)
{
    char *text, *got = written(WASTE_OUTPUT_EVENTS, false, false, &text);
    char think[64] = "", answer[64] = "";
    size_t calls = 0;

    (void)state;
    for (char *line = strtok(got, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *event = json_loads(line, 0, NULL);
        const char *kind = json_string_value(json_object_get(event, "event"));
        const char *words = json_string_value(json_object_get(event, "text"));

        assert_non_null(kind);
        if (strcmp(kind, "think") == 0)
            strcat(think, words);
        else if (strcmp(kind, "text") == 0)
            strcat(answer, words);
        else {
            assert_string_equal(kind, "tool_call");
            assert_string_equal(json_string_value(json_object_get(event, "id")), "call_1");
            assert_string_equal(json_string_value(json_object_get(event, "name")), "f");
            assert_string_equal(json_string_value(json_object_get(event, "arguments")),
                                "{\"n\":1.50}");
            assert_true(json_is_false(json_object_get(event, "damaged")));
            calls++;
        }
        json_decref(event);
    }
    assert_string_equal(think, "Hm.");
    assert_string_equal(answer, "Yes: é.");
    assert_int_equal(calls, 1);
    free(got);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_streams_with_what_is_wanted),
        cmocka_unit_test(events_are_lines_of_json),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
