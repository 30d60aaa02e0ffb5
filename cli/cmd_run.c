/* waste-run run: one prompt, one reply. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd.h"
#include "cli/durable.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/snapshot.h"

/* saved: with --session, whether the conversation is in its file; NULL without. */
static int print_result(const struct waste_output *o, const struct waste_outcome *outcome,
                        const bool *saved)
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
    if (ok && saved != NULL)
        ok = json_object_set_new(object, "session_saved", json_boolean(*saved)) == 0;
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

/* One reply: what it follows, the tokens to append for it, and how it is asked for. */
struct job {
    struct waste_ids before, turn;
    struct waste_marks marks; /* of the turn */
    struct waste_asked asked;
    bool more; /* of a reply that ended for want of room: `before` is all of it so far */
};

static void finish_job(struct job *j)
{
    waste_ids_finish(&j->before);
    waste_ids_finish(&j->turn);
}

static int generate(struct waste_engine *e, const struct job *j, struct waste_output *output,
                    struct waste_outcome *outcome)
{
    const struct waste_args *a = e->args;
    struct waste_sampling sampling = j->asked.how;
    struct waste_error err;

    waste_engine_ends(e, &sampling);
    waste_output_init(output, e->tokenizer, j->before.id, j->before.count);
    output->mode = a->json ? WASTE_OUTPUT_COLLECT : WASTE_OUTPUT_STREAM;
    output->think = a->think == WASTE_THINK_SHOW;
    output->dim = waste_output_colour();
    output->live = !a->quiet && isatty(STDERR_FILENO) && (a->json || !isatty(STDOUT_FILENO));
    struct waste_request_spec spec = {
        .ids = j->turn.id,
        .count = (uint32_t)j->turn.count,
        .max_tokens = j->asked.n,
        .sampling = &sampling,
        .on_token = waste_output_token,
        .arg = output,
    };
    int rc = waste_reuse_request(e, &spec, &j->marks, outcome, &err);
    waste_output_end(output);
    if (!j->more) /* some may have been consumed before a cut */
        outcome->prompt_tokens = j->asked.from - j->asked.turn;
    return rc == 0 ? 0 : waste_fail(rc, "%s", err.text);
}

static int show(const struct waste_engine *e, const struct waste_output *output,
                const struct waste_outcome *outcome, const bool *saved)
{
    int rc = 0;

    if (output->error != 0)
        rc = waste_fail(1, "cannot write to stdout: %s", strerror(output->error));
    else if (e->args->json)
        rc = print_result(output, outcome, saved);
    if (rc == 0)
        say_how(e->args, outcome);
    return rc;
}

static int run_once(struct waste_engine *e)
{
    struct waste_outcome outcome;
    struct waste_output output;
    struct job j = {.asked = {.n = e->args->n}};
    uint32_t ctx;

    int rc = waste_prompt_make(e, &j.turn, &j.marks);
    if (rc == 0 && waste_ids_append(&j.before, j.turn.id, j.turn.count) != 0)
        rc = waste_fail(1, "out of memory");
    if (rc == 0)
        rc = waste_engine_fit(e, j.turn.id, j.turn.count, j.asked.n, &ctx);
    if (rc == 0)
        rc = waste_engine_start(e, ctx);
    if (rc == 0) {
        j.asked.from = (uint32_t)j.turn.count;
        waste_engine_sampling(e, &j.asked.how);
        rc = generate(e, &j, &output, &outcome);
        if (rc == 0)
            rc = show(e, &output, &outcome, NULL);
        waste_output_finish(&output);
    }
    finish_job(&j);
    return rc;
}

/* ---- --session ---- */

/* What tokens [from ..) of `all` are as a message of the assistant; NULL when out of memory. */
static json_t *message_of(const struct waste_engine *e, const struct waste_ids *all, size_t from)
{
    struct waste_output output;
    json_t *message;

    waste_output_init(&output, e->tokenizer, all->id, from);
    for (size_t i = from; i < all->count; i++)
        waste_output_token(&output, all->id[i]);
    waste_output_end(&output);
    message = output.error == 0 ? waste_assembly_json(&output.message) : NULL;
    waste_output_finish(&output);
    return message;
}

/* The tokens of a reply that stays as it is, and its message if there are messages. */
static int take_reply(struct waste_durable *d, struct waste_engine *e, struct waste_talk *t,
                      const uint32_t *ids, size_t count)
{
    json_t *message = NULL;
    int ret = waste_ids_append(&t->ids, ids, count);

    t->generated = t->ids.count - d->asked.from;
    if (ret == 0 && !d->raw) {
        message = message_of(e, &t->ids, d->asked.from);
        ret = message != NULL && json_array_append(t->messages, message) == 0 ? 0 : -ENOMEM;
    }
    json_decref(message);
    return ret == 0 ? 0 : waste_fail(1, "out of memory");
}

/* Whether text is what the newest message says. */
static bool was_asked(const struct waste_talk *t, const struct waste_text *text)
{
    const json_t *newest = json_array_get(t->messages, json_array_size(t->messages) - 1);
    const json_t *content = json_object_get(newest, "content");

    return json_string_length(content) == text->bytes &&
           memcmp(json_string_value(content), text->data, text->bytes) == 0;
}

/* The rest of the newest reply: one that was cut off, or has had all that -n allowed. */
static int go_on(const struct waste_durable *d, struct waste_engine *e, struct waste_talk *t,
                 struct job *j)
{
    const struct waste_ids *saved = waste_snapshot_ids(d->file);
    uint32_t position = waste_snapshot_position(d->file);
    int ret = 0;

    j->asked = d->asked;
    j->more = !d->asked.open;
    if (j->more) {
        j->asked.n = e->args->n;
        if (e->args->seed_given)
            j->asked.how.seed = e->args->seed;
        if (position == 0) /* nothing of it was consumed: the talk would make it anew */
            ret = waste_ids_append(&t->ids, saved->id, saved->count);
        if (!d->raw)
            waste_talk_take_back_reply(t);
        t->stale = false;
    }
    if (ret == 0)
        ret = waste_durable_prompt(d, &j->turn, &j->marks);
    if (ret == 0)
        ret = waste_ids_append(&j->before, t->ids.id, t->ids.count);
    /* all of them consumed (-n 0): what follows the last one is known to nobody */
    if (ret == 0 && j->more && (position == 0 || position >= t->ids.count))
        ret = waste_ids_append(&j->turn, t->ids.id, t->ids.count);
    return ret == 0 ? 0 : waste_fail(1, "out of memory");
}

/* A turn of tokens as they are. */
static int raw_turn(struct waste_durable *d, struct waste_engine *e, struct waste_talk *t,
                    struct job *j)
{
    int rc = waste_prompt_make(e, &j->turn, &j->marks);
    size_t from = d->asked.from, turn = d->asked.turn;

    if (rc != 0)
        return rc;
    if (d->asked.open && from - turn == j->turn.count &&
        memcmp(t->ids.id + turn, j->turn.id, j->turn.count * sizeof(*j->turn.id)) == 0) {
        waste_ids_finish(&j->turn);
        return go_on(d, e, t, j);
    }
    if (d->asked.open) {
        const struct waste_ids *all = waste_snapshot_ids(d->file);
        rc = take_reply(d, e, t, all->id + from, all->count - from);
    }
    d->raw = true;
    j->asked.turn = (uint32_t)t->ids.count;
    return rc;
}

/* A turn in words. */
static int worded_turn(struct waste_durable *d, struct waste_engine *e, struct waste_talk *t,
                       struct job *j)
{
    struct waste_text text = {0};
    struct waste_error err;

    int rc = waste_prompt_text(e->args, &text);
    if (rc == 0 && d->asked.open && was_asked(t, &text)) {
        waste_text_finish(&text);
        return go_on(d, e, t, j);
    }
    if (rc == 0 && d->asked.open) {
        const struct waste_ids *all = waste_snapshot_ids(d->file);
        rc = take_reply(d, e, t, all->id + d->asked.from, all->count - d->asked.from);
    }
    if (rc == 0 && e->args->system_text != NULL && waste_talk_system(t, e->args->system_text) != 0)
        rc = waste_fail(2, "option --system: the text is no UTF-8");
    int ret = rc == 0 ? waste_talk_ask(t, text.data, text.bytes) : 0;
    if (ret < 0)
        rc = waste_fail(ret == -EINVAL ? 2 : 1,
                        ret == -EINVAL ? "the prompt is no UTF-8" : "out of memory");
    if (rc == 0 && waste_talk_encode(t, e, &j->turn, &j->marks, &err) != 0)
        rc = waste_fail(2, "%s", err.text);
    j->asked.turn = (uint32_t)t->ids.count;
    waste_text_finish(&text);
    return rc;
}

/* What is to be done: the rest of a reply, or a new turn. */
static int make_job(struct waste_durable *d, struct waste_engine *e, struct waste_talk *t,
                    struct job *j)
{
    const struct waste_args *a = e->args;
    bool raw = a->ids != NULL || a->raw || e->markup == NULL;
    bool given = a->ids != NULL || a->line.positional_count > 1;

    if (!given && d->asked.exists &&
        (d->asked.open || d->asked.status == WASTE_REPLY_LENGTH ||
         d->asked.status == WASTE_REPLY_CONTEXT || d->asked.status == WASTE_REPLY_CANCELLED))
        return go_on(d, e, t, j);
    if (d->file != NULL && d->raw != raw)
        return waste_fail(2,
                          d->raw ? "%s: holds tokens without messages: go on with --ids or --raw"
                                 : "%s: holds messages: --ids and --raw do not go with them",
                          a->session_path);
    int rc = raw ? raw_turn(d, e, t, j) : worded_turn(d, e, t, j);
    if (rc != 0 || j->asked.exists) /* a reply that goes on */
        return rc;
    j->asked.n = a->n;
    waste_engine_sampling(e, &j->asked.how);
    if (waste_talk_asked(t, &j->turn) != 0 ||
        waste_ids_append(&j->before, j->turn.id, j->turn.count) != 0)
        return waste_fail(1, "out of memory");
    j->asked.from = (uint32_t)t->ids.count;
    j->asked.marks = j->marks;
    return 0;
}

/* The reply, and how the conversation is saved with it: before its end is shown, since that says
 * whether it was. One that an end cuts off stays open. */
static int answer(struct waste_durable *d, struct waste_engine *e, struct waste_talk *t,
                  const struct job *j)
{
    struct waste_outcome outcome;
    struct waste_output output;

    waste_durable_ask(d, e, t, &j->asked);
    int rc = generate(e, j, &output, &outcome);
    if (rc == 0 && outcome.status != WASTE_REPLY_CANCELLED) {
        rc = take_reply(d, e, t, output.ids.id, output.ids.count);
        if (rc == 0)
            waste_durable_rest(d, e, t, outcome.status);
    }
    int unsaved = waste_durable_finish(d, e);
    if (rc == 0)
        rc = show(e, &output, &outcome, &(bool){unsaved == 0});
    waste_output_finish(&output);
    return rc == 0 ? unsaved : rc;
}

static int run_session(struct waste_engine *e)
{
    struct waste_durable d = {0};
    struct waste_talk t;
    struct job j = {0};
    uint32_t ctx;

    int rc =
        waste_talk_init(&t) == 0 ? waste_durable_open(&d, e, &t) : waste_fail(1, "out of memory");
    if (rc == 0)
        rc = make_job(&d, e, &t, &j);
    if (rc == 0)
        rc = j.asked.open ? waste_durable_fit(&d, e, &ctx)
                          : waste_engine_fit(e, t.ids.id, t.ids.count, j.asked.n, &ctx);
    if (rc == 0)
        rc = waste_engine_start(e, ctx);
    if (rc == 0)
        rc = waste_durable_start(&d, e, t.ids.count - j.turn.count);
    if (rc == 0)
        rc = answer(&d, e, &t, &j);
    waste_durable_finish(&d, e);
    finish_job(&j);
    waste_talk_finish(&t);
    return rc;
}

int waste_cmd_run(const struct waste_args *args)
{
    struct waste_engine e;

    int rc = waste_engine_load(&e, args, args->ids != NULL);
    if (rc == 0)
        rc = args->session_path != NULL ? run_session(&e) : run_once(&e);
    waste_engine_finish(&e);
    return rc;
}
