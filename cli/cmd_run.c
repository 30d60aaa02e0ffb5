/* waste-run run: one prompt, one reply. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "cli/prompt.h"

static int print_result(const struct waste_output *o, const struct waste_outcome *outcome)
{
    json_t *object = waste_output_json(outcome);
    json_t *ids = json_array();
    bool ok = object != NULL && ids != NULL;

    for (size_t i = 0; ok && i < o->ids.count; i++)
        ok = json_array_append_new(ids, json_integer(o->ids.id[i])) == 0;
    ok = ok && json_object_set_new(
                   object, "text",
                   json_stringn(o->text.bytes > 0 ? o->text.data : "", o->text.bytes)) == 0;
    ok = json_object_set_new(object, "ids", ids) == 0 && ok;
    if (ok)
        ok = json_object_set_new(object, "status",
                                 json_string(waste_output_why(outcome->status))) == 0;
    if (ok && o->message.thinking.bytes > 0)
        ok = json_object_set_new(
                 object, "thinking",
                 json_stringn(o->message.thinking.data, o->message.thinking.bytes)) == 0;
    if (ok && o->message.calls != NULL)
        ok = json_object_set(object, "tool_calls", o->message.calls) == 0;
    if (!ok) {
        json_decref(object);
        object = NULL;
    }
    return waste_output_print_json(object);
}

static void say_how(const struct waste_args *a, const struct waste_outcome *outcome)
{
    char status[160];

    if (outcome->status == WASTE_REPLY_CONTEXT)
        fprintf(stderr, "waste-run: the context is full (--ctx)\n");
    if (a->quiet || (a->json && !isatty(STDERR_FILENO)))
        return;
    waste_output_status(outcome, status, sizeof(status));
    fprintf(stderr, "%s\n", status);
}

static int generate(struct waste_engine *e, const struct waste_ids *prompt)
{
    const struct waste_args *a = e->args;
    struct waste_sampling sampling;
    struct waste_outcome outcome;
    struct waste_output output;
    struct waste_error err;

    waste_engine_sampling(e, &sampling);
    waste_output_init(&output, e->tokenizer, prompt->id, prompt->count);
    output.mode = a->json ? WASTE_OUTPUT_COLLECT : WASTE_OUTPUT_STREAM;
    output.think = a->think == WASTE_THINK_SHOW;
    output.dim = waste_output_colour();
    output.live = !a->quiet && isatty(STDERR_FILENO) && (a->json || !isatty(STDOUT_FILENO));
    struct waste_request_spec spec = {
        .ids = prompt->id,
        .count = (uint32_t)prompt->count,
        .max_tokens = a->n,
        .sampling = &sampling,
        .on_token = waste_output_token,
        .arg = &output,
    };
    int rc = waste_client_request(&e->client, &spec, &outcome, &err);
    waste_output_end(&output);
    if (rc != 0)
        waste_fail(rc, "%s", err.text);
    else if (output.error != 0)
        rc = waste_fail(1, "cannot write to stdout: %s", strerror(output.error));
    else if (a->json)
        rc = print_result(&output, &outcome);
    if (rc == 0)
        say_how(a, &outcome);
    waste_output_finish(&output);
    return rc;
}

int waste_cmd_run(const struct waste_args *args)
{
    struct waste_engine e;
    struct waste_ids prompt = {0};
    uint32_t ctx;

    int rc = waste_engine_load(&e, args, args->ids != NULL);
    if (rc == 0)
        rc = waste_prompt_make(&e, &prompt);
    if (rc == 0)
        rc = waste_engine_fit(&e, prompt.id, prompt.count, args->n, &ctx);
    if (rc == 0)
        rc = waste_engine_start(&e, ctx);
    if (rc == 0)
        rc = generate(&e, &prompt);
    waste_ids_finish(&prompt);
    waste_engine_finish(&e);
    return rc;
}
