/* waste-run chat: turns of one conversation; each costs its own tokens only. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/line.h"
#include "cli/output.h"
#include "cli/signals.h"

struct chat {
    struct waste_engine e;
    struct waste_ids ids; /* the conversation, as the token log has it */
    size_t generated;     /* of it, the newest reply */
    bool failed;          /* the newest request did */
};

static const char help[] = "/help   this text\n"
                           "/reset  forget the conversation\n"
                           "/stats  what it has cost so far\n"
                           "/quit   end (so does Ctrl-D)\n"
                           "Ctrl-C ends a reply; at the prompt it ends the chat\n";

static void show_stats(const struct chat *c)
{
    const struct waste_control *control = c->e.pipeline.shm.control;

    printf("context: %zu of %u tokens\n", c->ids.count, c->e.pipeline.options.ctx);
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        printf("%-20s %" PRIu64 "\n", waste_counter_info[i].name,
               atomic_load_explicit(&control->counter[i], memory_order_relaxed));
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        printf("%s restarts: %u\n", waste_stage_name[i],
               atomic_load_explicit(&control->stage[i].restarts, memory_order_relaxed));
}

/* The tokens of this turn, to follow what there is. */
static int make_turn(struct chat *c, const char *line, struct waste_ids *turn)
{
    if (c->ids.count == 0)
        return waste_markup_first(c->e.markup, c->e.args->system_text, line, strlen(line),
                                  waste_engine_thinks(&c->e), turn);
    return waste_markup_next(c->e.markup, c->ids.id, c->ids.count, c->generated, line, strlen(line),
                             waste_engine_thinks(&c->e), turn);
}

static void end_turn(struct chat *c, const struct waste_outcome *outcome,
                     const struct waste_output *output)
{
    char status[160];

    if (output->error != 0)
        waste_fail(1, "cannot write to stdout: %s", strerror(output->error));
    if (outcome->status == WASTE_REPLY_CONTEXT)
        waste_fail(1, "the context is full: /reset, or start with a larger --ctx");
    if (c->e.args->quiet || !isatty(STDERR_FILENO))
        return;
    waste_output_status(outcome, status, sizeof(status));
    fprintf(stderr, "[%s]\n", status);
}

/* One request. Nonzero ends the chat. */
static int say(struct chat *c, const struct waste_ids *turn)
{
    struct waste_sampling sampling;
    struct waste_outcome outcome;
    struct waste_output output;
    struct waste_error err;

    waste_engine_sampling(&c->e, &sampling);
    if (waste_ids_append(&c->ids, turn->id, turn->count) != 0)
        return waste_fail(1, "out of memory");
    waste_output_init(&output, c->e.tokenizer, c->e.args->think == WASTE_THINK_SHOW, turn->id,
                      turn->count);
    output.to_stdout = true;
    struct waste_request_spec spec = {
        .ids = turn->id,
        .count = (uint32_t)turn->count,
        .max_tokens = c->e.args->n,
        .sampling = &sampling,
        .on_token = waste_output_token,
        .arg = &output,
    };
    int rc = waste_client_request(&c->e.client, &spec, &outcome, &err);
    waste_output_end(&output);
    c->failed = rc != 0;
    if (c->failed)
        waste_fail(rc, "%s", err.text); /* the pipeline stays: so does the chat */
    if (waste_ids_append(&c->ids, output.ids.id, output.ids.count) != 0)
        output.error = ENOMEM;
    c->generated = output.ids.count;
    end_turn(c, &outcome, &output);
    rc = output.error != 0;
    waste_output_finish(&output);
    return rc;
}

/* A line that is not a command. Nonzero ends the chat. */
static int converse(struct chat *c, const char *line)
{
    struct waste_ids turn = {0};
    uint32_t ctx = c->e.pipeline.options.ctx;
    int rc = 0;

    if (make_turn(c, line, &turn) != 0)
        rc = waste_fail(1, "out of memory");
    else if (turn.count + c->ids.count >= ctx)
        waste_fail(1, "%zu more tokens do not fit the context of %u: /reset", turn.count, ctx);
    else if (turn.count > 0)
        rc = say(c, &turn);
    waste_ids_finish(&turn);
    return rc;
}

static void command(struct chat *c, const char *line)
{
    if (strcmp(line, "/help") == 0) {
        fputs(help, stdout);
    } else if (strcmp(line, "/stats") == 0) {
        show_stats(c);
    } else if (strcmp(line, "/reset") == 0) {
        waste_client_reset(&c->e.client);
        waste_ids_finish(&c->ids);
        c->generated = 0;
    } else {
        printf("no command %s, see /help\n", line);
    }
    fflush(stdout);
}

static int talk(struct chat *c)
{
    struct waste_line *lines = waste_line_create("> ");
    const char *line;
    int rc = 0;

    if (lines == NULL)
        return waste_fail(1, "out of memory");
    while (rc == 0 && (line = waste_line_next(lines)) != NULL) {
        if (*line == '\0')
            continue;
        if (strcmp(line, "/quit") == 0)
            break;
        if (*line == '/')
            command(c, line);
        else
            rc = converse(c, line);
        if (waste_signals_forget_interrupt())
            break;
    }
    waste_line_destroy(lines);
    /* a person has seen it; a script has the exit code */
    return rc == 0 && c->failed && !isatty(STDIN_FILENO) ? 1 : rc;
}

int waste_cmd_chat(const struct waste_args *args)
{
    struct chat c = {0};
    uint32_t ctx;

    int rc = waste_engine_load(&c.e, args, false);
    if (rc == 0)
        rc = waste_engine_fit(&c.e, NULL, 0, 0, &ctx);
    if (rc == 0)
        rc = waste_engine_start(&c.e, ctx);
    if (rc == 0 && isatty(STDIN_FILENO) && !args->quiet)
        fprintf(stderr, "%s, /help for commands\n", c.e.dir);
    if (rc == 0)
        rc = talk(&c);
    waste_ids_finish(&c.ids);
    waste_engine_finish(&c.e);
    return rc;
}
