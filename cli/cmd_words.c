/*
 * waste-run tokenize, detokenize. Plain text goes to cli/cmd_tokenize.h; what `run` would send for
 * a text, chat markup included, is made here.
 */
#include <jansson.h>
#include <stdio.h>

#include "cli/cmd.h"
#include "cli/cmd_tokenize.h"
#include "cli/output.h"
#include "cli/prompt.h"

static int fill(const struct waste_args *args, struct waste_tokenize_options *out)
{
    /* MODEL is the first argument, unless an option says where the words are */
    bool first_is_model = args->model_path == NULL && args->tokenizer_path == NULL;
    uint32_t input = first_is_model ? 1 : 0;

    if (first_is_model && args->line.positional_count == 0)
        return waste_fail(2, "%s needs MODEL or --tokenizer FILE",
                          waste_run_program.commands[args->line.command].name);
    if (args->line.positional_count > input + 1)
        return waste_fail(2, "unexpected argument '%.80s' (quote a text of several words)",
                          args->line.positional[input + 1]);
    *out = (struct waste_tokenize_options){
        .model = first_is_model ? args->line.positional[0] : args->model_path,
        .tokenizer = args->tokenizer_path,
        .input =
            args->line.positional_count > input ? args->line.positional[input] : args->ids_text,
        .markup = args->markup,
        .jsonl = args->jsonl,
        .json = args->json,
    };
    return 0;
}

static int print_ids(const struct waste_ids *ids, bool json)
{
    json_t *array = json_array();

    for (size_t i = 0; json && i < ids->count; i++)
        json_array_append_new(array, json_integer(ids->id[i]));
    if (json)
        return waste_output_print_json(
            json_pack("{s:I, s:o}", "tokens", (json_int_t)ids->count, "ids", array));
    json_decref(array);
    for (size_t i = 0; i < ids->count; i++)
        printf("%s%u", i > 0 ? "," : "", ids->id[i]);
    return putchar('\n') == EOF || fflush(stdout) != 0 ? waste_fail(1, "cannot write to stdout")
                                                       : 0;
}

static int tokenize_turn(const struct waste_args *args)
{
    struct waste_engine e;
    struct waste_marks marks;
    struct waste_ids ids = {0};

    int rc = waste_engine_load(&e, args, false);
    if (rc == 0)
        rc = waste_prompt_make(&e, &ids, &marks);
    if (rc == 0)
        rc = print_ids(&ids, args->json);
    waste_ids_finish(&ids);
    waste_engine_finish(&e);
    return rc;
}

int waste_cmd_words_tokenize(const struct waste_args *args)
{
    bool plain = args->raw || args->jsonl || args->markup || args->model_path != NULL ||
                 args->tokenizer_path != NULL || args->line.positional_count == 0;

    if (!plain)
        return tokenize_turn(args);
    struct waste_tokenize_options options;

    int rc = fill(args, &options);
    return rc == 0 ? waste_cmd_tokenize(&options) : rc;
}

int waste_cmd_words_detokenize(const struct waste_args *args)
{
    struct waste_tokenize_options options;
    int rc = fill(args, &options);

    return rc == 0 ? waste_cmd_detokenize(&options) : rc;
}
