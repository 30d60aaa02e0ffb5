/* waste-run render: what a conversation becomes in a chat format. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/json_text.h"
#include "cli/output.h"
#include "cli/prompt.h"

/* One JSON array: [[text, is markup], ...]. */
static int print_segments(const struct waste_segments *s)
{
    struct waste_text out = {0};
    int ret = waste_text_add(&out, "[", 1);

    for (size_t i = 0; i < s->count && ret == 0; i++) {
        const struct waste_segment *one = &s->segment[i];

        ret = waste_text_add(&out, i > 0 ? ",\n [" : "[", i > 0 ? 4 : 1);
        if (ret == 0)
            ret = waste_json_text_string(s->text.data + one->at, one->bytes, &out);
        if (ret == 0)
            ret = waste_text_add(&out, one->markup ? ", true]" : ", false]", one->markup ? 7 : 8);
    }
    if (ret == 0)
        ret = waste_text_add(&out, "]\n", 2);
    if (ret == 0)
        fwrite(out.data, 1, out.bytes, stdout);
    waste_text_finish(&out);
    return ret == 0 ? 0 : waste_fail(1, "out of memory");
}

static int print_ids(const struct waste_engine *e, const struct waste_segments *s)
{
    struct waste_ids ids = {0};
    int rc = 0;

    if (waste_segments_encode(s, e->tokenizer, &ids) != 0)
        rc = waste_fail(1, "out of memory");
    for (size_t i = 0; rc == 0 && i < ids.count; i++)
        printf("%s%u", i > 0 ? "," : "", ids.id[i]);
    if (rc == 0)
        putchar('\n');
    waste_ids_finish(&ids);
    return rc;
}

/* The text, its segments, and its ids if there is a MODEL. */
static int print_json(const struct waste_engine *e, const struct waste_segments *s)
{
    struct waste_ids ids = {0};
    json_t *list = json_array(), *object;

    for (size_t i = 0; i < s->count; i++) {
        const struct waste_segment *one = &s->segment[i];
        json_array_append_new(list,
                              json_pack("[o, b]", json_stringn(s->text.data + one->at, one->bytes),
                                        (int)one->markup));
    }
    object = json_pack("{s:o, s:o}", "text",
                       json_stringn(s->text.bytes > 0 ? s->text.data : "", s->text.bytes),
                       "segments", list);
    if (e->tokenizer != NULL && waste_segments_encode(s, e->tokenizer, &ids) == 0) {
        json_t *numbers = json_array();
        for (size_t i = 0; i < ids.count; i++)
            json_array_append_new(numbers, json_integer(ids.id[i]));
        json_object_set_new(object, "ids", numbers);
    }
    waste_ids_finish(&ids);
    return waste_output_print_json(object);
}

static int print(const struct waste_args *a, const struct waste_engine *e,
                 const struct waste_segments *s)
{
    int rc = 0;

    if (a->json)
        return print_json(e, s);
    if (a->segments)
        rc = print_segments(s);
    else if (a->show_ids)
        rc = print_ids(e, s);
    else if (s->text.bytes > 0)
        fwrite(s->text.data, 1, s->text.bytes, stdout);
    if (rc == 0 && !a->segments && !a->show_ids)
        putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout))
        return waste_fail(1, "cannot write to stdout: %s", strerror(errno));
    return rc;
}

int waste_cmd_render(const struct waste_args *args)
{
    struct waste_engine e = {0};
    struct waste_conversation *c = NULL;
    struct waste_segments segments = {0};
    struct waste_text text = {0};
    struct waste_error err;
    const char *file = args->line.positional[0];
    int rc = 0;

    if (args->segments + args->show_ids + args->json > 1)
        return waste_fail(2, "--segments, --ids and --json exclude each other");
    if (args->show_ids && args->line.positional_count < 2)
        return waste_fail(2, "--ids needs a MODEL");
    if (args->line.positional_count > 1) {
        struct waste_args of_model = *args;

        of_model.line.positional[0] = args->line.positional[1];
        rc = waste_engine_load(&e, &of_model, false);
        e.args = args;
    }
    if (rc == 0)
        rc = waste_prompt_read(file, &text);
    if (rc == 0 && waste_conversation_parse(text.data, text.bytes,
                                            strcmp(file, "-") == 0 ? "stdin" : file, &c, &err) != 0)
        rc = waste_fail(2, "%s", err.text);
    if (rc == 0 && waste_markup_render(e.markup, c, &segments, &err) != 0)
        rc = waste_fail(2, "%s", err.text);
    if (rc == 0)
        rc = print(args, &e, &segments);
    waste_segments_finish(&segments);
    waste_conversation_destroy(c);
    waste_text_finish(&text);
    waste_engine_finish(&e);
    return rc;
}
