#include "cli/chat.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/beside.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/signals.h"

int waste_chat_init(struct waste_chat *c, const struct waste_args *args)
{
    *c = (struct waste_chat){.args = *args};
    return waste_talk_init(&c->talk) == 0 ? 0 : waste_fail(1, "out of memory");
}

int waste_chat_finish(struct waste_chat *c)
{
    int rc = waste_durable_finish(&c->durable, &c->e);

    waste_talk_finish(&c->talk);
    waste_engine_finish(&c->e);
    return rc;
}

void waste_chat_tell(struct waste_chat *c, const char *event, const char *format, ...)
{
    char text[4096];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    c->failed |= strcmp(event, "error") == 0;
    if (c->args.json)
        waste_output_print_json(json_pack("{s:s, s:s}", "event", event, "text", text));
    else if (strcmp(event, "error") == 0)
        waste_fail(1, "%s", text);
    else if (strcmp(event, "note") == 0)
        fprintf(stderr, "%s%s", c->args.quiet ? "" : text, c->args.quiet ? "" : "\n");
    else
        printf("%s\n", text);
    fflush(stdout);
}

/* ---- a turn ---- */

static void show_bar(const struct waste_chat *c)
{
    const char *dim = waste_output_colour() ? "\033[2m" : "", *plain = *dim ? "\033[0m" : "";
    uint32_t ctx = c->e.pipeline.options.ctx;
    char status[160];

    if (c->args.quiet || !isatty(STDERR_FILENO))
        return;
    waste_output_status(&c->outcome, status, sizeof(status));
    fprintf(stderr, "%s[%s, context %zu of %u, %.0f %%]%s\n", dim, status, c->talk.ids.count, ctx,
            100.0 * (double)c->talk.ids.count / ctx, plain);
}

static void show_end(const struct waste_chat *c, json_t *message)
{
    json_t *event, *numbers;

    if (!c->args.json) {
        if (c->outcome.status == WASTE_REPLY_CONTEXT)
            waste_fail(1, "the context is full: /reset, or start with a larger --ctx");
        show_bar(c);
        return;
    }
    event = json_pack("{s:s, s:s, s:O, s:I, s:I}", "event", "end", "status",
                      waste_output_why(c->outcome.status), "message", message, "context",
                      (json_int_t)c->talk.ids.count, "ctx", (json_int_t)c->e.pipeline.options.ctx);
    numbers = waste_output_json(&c->outcome);
    if (event != NULL && numbers != NULL)
        json_object_update(event, numbers);
    json_decref(numbers);
    waste_output_print_json(event);
}

static void set_output(const struct waste_chat *c, struct waste_output *output)
{
    bool seen = isatty(STDOUT_FILENO) && waste_engine_thinks(&c->e);

    output->mode = c->args.json ? WASTE_OUTPUT_EVENTS : WASTE_OUTPUT_STREAM;
    output->think =
        c->args.think == WASTE_THINK_SHOW || (c->args.think == WASTE_THINK_DEFAULT && seen);
    output->dim = waste_output_colour();
}

/* What the request brought. A reply that an end of the program cuts off stays open: with --session
 * it goes on at the next start. */
static void conclude(struct waste_chat *c, const struct waste_ids *reply, json_t *message,
                     const struct waste_error *failed)
{
    c->turns++;
    c->tokens += c->outcome.tokens;
    c->reused += c->outcome.reused;
    c->seconds += c->outcome.decode_seconds;
    if (failed != NULL) { /* the pipeline stays: so does the chat, with the question taken back */
        waste_chat_tell(c, "error", "%s", failed->text);
        waste_talk_take_back(&c->talk);
        c->talk.stale = true;
    } else if (waste_talk_answered(&c->talk, reply, message) == 0) {
        show_end(c, message);
        waste_reuse_keep(&c->e, false);
    }
    /* one that failed stays open, too: what of it was saved is not lost until it is asked again */
    if (failed == NULL &&
        (c->outcome.status != WASTE_REPLY_CANCELLED || !waste_signals_terminated()))
        waste_durable_rest(&c->durable, &c->e, &c->talk, c->outcome.status);
}

/* One request for the reply to what the messages end with; `asked` is in the log, or `turn` is what
 * to append. */
static int request(struct waste_chat *c, const struct waste_ids *turn,
                   const struct waste_marks *marks, const struct waste_asked *asked,
                   const struct waste_ids *before)
{
    struct waste_sampling sampling = asked->how;
    struct waste_output output;
    struct waste_error err;
    json_t *message;
    int rc;

    waste_engine_ends(&c->e, &sampling);
    waste_durable_ask(&c->durable, &c->e, &c->talk, asked);
    waste_output_init(&output, c->e.tokenizer, before->id, before->count);
    set_output(c, &output);
    struct waste_request_spec spec = {
        .ids = turn->id,
        .count = (uint32_t)turn->count,
        .max_tokens = asked->n,
        .sampling = &sampling,
        .on_token = waste_output_token,
        .arg = &output,
    };
    bool failed = waste_reuse_request(&c->e, &spec, marks, &c->outcome, &err) != 0;
    waste_output_end(&output);
    message = waste_assembly_json(&output.message);
    conclude(c, &output.ids, message, failed ? &err : NULL);
    if (message == NULL)
        output.error = ENOMEM;
    json_decref(message);
    rc =
        output.error != 0 ? waste_fail(1, "cannot write to stdout: %s", strerror(output.error)) : 0;
    waste_output_finish(&output);
    return rc;
}

/* The reply to the newest message. A question that does not fit is taken back if it is `fresh`. */
static int answer(struct waste_chat *c, bool fresh)
{
    struct waste_ids turn = {0};
    struct waste_marks marks;
    struct waste_error err;
    uint32_t ctx = c->e.pipeline.options.ctx;
    bool anew = waste_talk_is_anew(&c->talk);
    int rc = 0;

    if (anew)
        waste_client_reset(&c->e.client);
    int ret = waste_talk_encode(&c->talk, &c->e, &turn, &marks, &err);
    if (ret == 0 && turn.count + c->talk.ids.count >= ctx)
        ret = waste_error_set(&err, -ENOSPC, "%zu more tokens do not fit the context of %u: /reset",
                              turn.count, ctx);
    if (ret == 0) {
        struct waste_asked asked = {
            .turn = (uint32_t)c->talk.ids.count,
            .from = (uint32_t)(c->talk.ids.count + turn.count),
            .n = c->args.n,
            .marks = marks,
        };
        waste_engine_sampling(&c->e, &asked.how);
        rc = waste_talk_asked(&c->talk, &turn) == 0 ? request(c, &turn, &marks, &asked, &turn)
                                                    : waste_fail(1, "out of memory");
    } else {
        waste_chat_tell(c, "error", "%s", err.text);
        if (fresh)
            waste_talk_take_back(&c->talk);
    }
    waste_ids_finish(&turn);
    return rc;
}

int waste_chat_say(struct waste_chat *c, const char *text, size_t bytes)
{
    int ret = waste_talk_ask(&c->talk, text, bytes);

    if (ret == -EINVAL) {
        waste_chat_tell(c, "error", "that is no UTF-8");
        return 0;
    }
    return ret == 0 ? answer(c, true) : waste_fail(1, "out of memory");
}

int waste_chat_retry(struct waste_chat *c)
{
    if (!waste_talk_take_back_reply(&c->talk)) {
        waste_chat_tell(c, "error", "nothing has been asked");
        return 0;
    }
    return answer(c, false);
}

/* ---- the past ---- */

static void past_changed(struct waste_chat *c)
{
    if (c->talk.stale)
        waste_durable_rest(&c->durable, &c->e, &c->talk, WASTE_REPLY_NONE);
}

void waste_chat_reset(struct waste_chat *c)
{
    waste_talk_reset(&c->talk);
    past_changed(c);
}

int waste_chat_system(struct waste_chat *c, const char *text)
{
    int ret = waste_talk_system(&c->talk, text);

    past_changed(c);
    return ret;
}

int waste_chat_save(struct waste_chat *c, const char *path, struct waste_error *err)
{
    json_t *root = waste_talk_json(&c->talk, waste_engine_thinks(&c->e));
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    struct waste_beside file;
    int ret = waste_beside_open(&file, path);

    if (ret == 0)
        ret = text != NULL ? waste_beside_put(&file, text, strlen(text)) : -ENOMEM;
    if (ret == 0)
        ret = waste_beside_put(&file, "\n", 1);
    if (ret == 0)
        ret = waste_beside_move_in(&file, false);
    waste_beside_drop(&file);
    free(text);
    json_decref(root);
    if (ret < 0)
        return waste_error_set(err, ret, "cannot write %s: %s", path, strerror(-ret));
    if (!waste_talk_is_anew(&c->talk)) /* for who loads it */
        waste_reuse_keep(&c->e, true);
    return 0;
}

int waste_chat_load(struct waste_chat *c, const char *path, struct waste_error *err)
{
    struct waste_error why;
    json_error_t where;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &where);
    int ret;

    if (root == NULL && json_error_code(&where) == json_error_cannot_open_file)
        return waste_error_set(err, -ENOENT, "cannot read %s: %s", path, strerror(errno));
    if (root == NULL)
        return waste_error_set(err, -EINVAL, "%s: line %d: %s", path, where.line, where.text);
    if (json_is_array(root))
        root = json_pack("{s:o}", "messages", root);
    ret = waste_talk_adopt(&c->talk, &c->e, root, &why);
    json_decref(root);
    if (ret < 0)
        return waste_error_set(err, ret, "%s: %s", path, why.text);
    past_changed(c);
    return 0;
}

/* ---- the start ---- */

/* What a --session has, and the rest of a reply that was cut off: `turn` is what of its prompt is
 * not consumed. */
static int resume(struct waste_chat *c, const struct waste_ids *turn,
                  const struct waste_marks *marks)
{
    struct waste_asked asked = c->durable.asked;
    size_t messages = json_array_size(c->talk.messages);

    if (c->durable.used && messages > 0)
        waste_chat_tell(c, "note", "%s: going on after %zu messages, %zu tokens",
                        c->e.args->session_path, messages, c->talk.ids.count);
    if (!asked.exists || !asked.open)
        return 0;
    waste_chat_tell(c, "note", "the newest reply was cut off and goes on");
    return request(c, turn, marks, &asked, &c->talk.ids);
}

int waste_chat_start(struct waste_chat *c)
{
    struct waste_ids turn = {0};
    struct waste_marks marks;
    uint32_t ctx;

    int rc = waste_engine_load(&c->e, &c->args, false);
    if (rc == 0)
        rc = waste_durable_open(&c->durable, &c->e, &c->talk);
    if (rc == 0 && c->durable.raw)
        rc = waste_fail(2, "%s: holds tokens without messages, for run --ids or --raw",
                        c->args.session_path);
    if (rc == 0 && c->args.system_text != NULL &&
        waste_talk_system(&c->talk, c->args.system_text) != 0)
        rc = waste_fail(2, "option --system: the text is no UTF-8");
    if (rc == 0)
        rc = c->durable.asked.open ? waste_durable_fit(&c->durable, &c->e, &ctx)
                                   : waste_engine_fit(&c->e, c->talk.ids.id, c->talk.ids.count,
                                                      c->talk.ids.count > 0 ? c->args.n : 0, &ctx);
    if (rc == 0)
        rc = waste_engine_start(&c->e, ctx);
    if (rc == 0 && waste_durable_prompt(&c->durable, &turn, &marks) != 0)
        rc = waste_fail(1, "out of memory");
    if (rc == 0)
        rc = waste_durable_start(&c->durable, &c->e,
                                 c->talk.stale ? 0 : c->talk.ids.count - turn.count);
    if (rc == 0 && isatty(STDIN_FILENO) && !c->args.quiet)
        fprintf(stderr, "%s, /help for commands\n", c->e.dir);
    if (rc == 0)
        rc = resume(c, &turn, &marks);
    waste_ids_finish(&turn);
    return rc;
}
