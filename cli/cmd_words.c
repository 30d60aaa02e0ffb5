/* waste-run tokenize, detokenize: options to what cli/cmd_tokenize.h wants. */
#include "cli/cmd.h"
#include "cli/cmd_tokenize.h"
#include "cli/engine.h"

static int fill(const struct waste_args *args, struct waste_tokenize_options *out)
{
    /* MODEL is the first argument, unless an option says where the words are */
    bool first_is_model = args->model_path == NULL && args->tokenizer_path == NULL;
    uint32_t input = first_is_model ? 1 : 0;

    if (first_is_model && args->positional_count == 0)
        return waste_fail(2, "%s needs MODEL or --tokenizer FILE",
                          waste_command_name(args->command));
    if (args->positional_count > input + 1)
        return waste_fail(2, "unexpected argument '%.80s' (quote a text of several words)",
                          args->positional[input + 1]);
    *out = (struct waste_tokenize_options){
        .model = first_is_model ? args->positional[0] : args->model_path,
        .tokenizer = args->tokenizer_path,
        .input = args->positional_count > input ? args->positional[input] : args->ids_text,
        .markup = args->markup,
        .jsonl = args->jsonl,
        .json = args->json,
    };
    return 0;
}

int waste_cmd_words_tokenize(const struct waste_args *args)
{
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
