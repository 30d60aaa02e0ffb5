/* What lines that begin with / do in a chat. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat.h"
#include "cli/image.h"
#include "cli/output.h"

static int cmd_help(struct waste_chat *c, const char *rest);
static int cmd_reset(struct waste_chat *c, const char *rest);
static int cmd_save(struct waste_chat *c, const char *rest);
static int cmd_load(struct waste_chat *c, const char *rest);
static int cmd_system(struct waste_chat *c, const char *rest);
static int cmd_image(struct waste_chat *c, const char *rest);
static int cmd_stats(struct waste_chat *c, const char *rest);
static int cmd_retry(struct waste_chat *c, const char *rest);
static int cmd_set(struct waste_chat *c, const char *rest);

static const struct {
    const char *name, *argument, *help;
    int (*run)(struct waste_chat *c, const char *rest);
} commands[] = {
    {"/help", "", "this text", cmd_help},
    {"/reset", "", "forget the conversation; the system message stays", cmd_reset},
    {"/save", "FILE", "the messages as JSON, as 'waste-run render' takes them", cmd_save},
    {"/load", "FILE", "go on with saved messages", cmd_load},
    {"/system", "TEXT", "another system message; without TEXT: none", cmd_system},
    {"/image", "FILE", "its placeholder goes with the next message", cmd_image},
    {"/stats", "", "what the conversation has cost so far", cmd_stats},
    {"/retry", "", "answer the last message once more", cmd_retry},
    {"/set", "[NAME VALUE]", "an option from now on; alone: all that can be set", cmd_set},
    {"/quit", "", "end; so does Ctrl-D", NULL},
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

/* Options that may change while the model runs. */
static const char *const settable[] = {"temp", "top-p", "top-k", "seed", "n", "think"};

static int cmd_help(struct waste_chat *c, const char *rest)
{
    char text[2048];
    size_t at = 0;

    for (size_t i = 0; i < COMMANDS; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%-8s%-14s %s\n", commands[i].name,
                               commands[i].argument, commands[i].help);
    snprintf(text + at, sizeof(text) - at,
             "A line that ends with \\ goes on in the next; \"\"\" begins and ends a text of many "
             "lines.\nCtrl-C ends a reply and keeps the conversation; at the prompt it ends the "
             "chat.");
    waste_chat_tell(c, "info", "%s", text);
    return 0;
}

static int cmd_reset(struct waste_chat *c, const char *rest)
{
    waste_chat_reset(c);
    waste_chat_tell(c, "note", "forgotten");
    return 0;
}

static int cmd_save(struct waste_chat *c, const char *rest)
{
    struct waste_error err;

    if (*rest == '\0')
        waste_chat_tell(c, "error", "/save needs a FILE");
    else if (waste_chat_save(c, rest, &err) != 0)
        waste_chat_tell(c, "error", "%s", err.text);
    else
        waste_chat_tell(c, "note", "%zu messages saved in %s", json_array_size(c->talk.messages),
                        rest);
    return 0;
}

static int cmd_load(struct waste_chat *c, const char *rest)
{
    struct waste_error err;

    if (*rest == '\0')
        waste_chat_tell(c, "error", "/load needs a FILE");
    else if (waste_chat_load(c, rest, &err) != 0)
        waste_chat_tell(c, "error", "%s", err.text);
    else
        waste_chat_tell(c, "note", "%zu messages loaded from %s", json_array_size(c->talk.messages),
                        rest);
    return 0;
}

static int cmd_system(struct waste_chat *c, const char *rest)
{
    if (waste_chat_system(c, rest) != 0)
        waste_chat_tell(c, "error", "that is no UTF-8");
    else
        waste_chat_tell(c, "note",
                        *rest != '\0' ? "the system message is set" : "there is no system message");
    return 0;
}

static int cmd_image(struct waste_chat *c, const char *rest)
{
    struct waste_error err;
    uint32_t width, height;
    char prompt[160];

    if (*rest == '\0') {
        waste_chat_tell(c, "error", "/image needs a FILE");
    } else if (waste_image_size(rest, &width, &height, &err) != 0) {
        waste_chat_tell(c, "error", "%s", err.text);
    } else {
        snprintf(prompt, sizeof(prompt),
                 "<|media_begin|>image %" PRIu32 "x%" PRIu32
                 "<|media_content|><|media_pad|><|media_end|>",
                 width, height);
        json_array_append_new(c->talk.attached, json_string(prompt));
        waste_chat_tell(c, "note",
                        "the next message has the place of a %" PRIu32 "x%" PRIu32
                        " image; the model sees no more of it",
                        width, height);
    }
    return 0;
}

static int stats_json(const struct waste_chat *c)
{
    const struct waste_control *control = c->e.pipeline.shm.control;
    json_t *counters = json_object(), *restarts = json_object();

    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        json_object_set_new(counters, waste_counter_info[i].name,
                            json_integer((json_int_t)atomic_load_explicit(&control->counter[i],
                                                                          memory_order_relaxed)));
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        json_object_set_new(
            restarts, waste_stage_name[i],
            json_integer(atomic_load_explicit(&control->stage[i].restarts, memory_order_relaxed)));
    return waste_output_print_json(
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o}", "event", "stats", "turns",
                  (json_int_t)c->turns, "reused_tokens", (json_int_t)c->reused, "tokens",
                  (json_int_t)c->tokens, "context", (json_int_t)c->talk.ids.count, "ctx",
                  (json_int_t)c->e.pipeline.options.ctx, "seconds", c->seconds, "counters",
                  counters, "restarts", restarts));
}

static int cmd_stats(struct waste_chat *c, const char *rest)
{
    const struct waste_control *control = c->e.pipeline.shm.control;
    uint32_t ctx = c->e.pipeline.options.ctx;
    /* relaxed: numbers to look at */
    uint64_t hits = atomic_load_explicit(&control->counter[WASTE_C_HITS], memory_order_relaxed);
    uint64_t misses = atomic_load_explicit(&control->counter[WASTE_C_MISSES], memory_order_relaxed);

    if (c->args.json)
        return stats_json(c);
    printf("turns                %" PRIu64 ", %" PRIu64 " tokens generated, %.2f tokens/s\n",
           c->turns, c->tokens, c->seconds > 0 ? (double)c->tokens / c->seconds : 0);
    printf("context              %zu of %u tokens, %.0f %%\n", c->talk.ids.count, ctx,
           100.0 * (double)c->talk.ids.count / ctx);
    printf("reused               %" PRIu64 " tokens put back, not computed\n", c->reused);
    printf("experts              %.1f %% in memory when asked for\n",
           hits + misses > 0 ? 100.0 * (double)hits / (double)(hits + misses) : 100);
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        printf("%-8s restarts    %u\n", waste_stage_name[i],
               atomic_load_explicit(&control->stage[i].restarts, memory_order_relaxed));
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        printf("  %-18s %13" PRIu64 "  %s\n", waste_counter_info[i].name,
               atomic_load_explicit(&control->counter[i], memory_order_relaxed),
               waste_counter_info[i].help);
    return 0;
}

static int cmd_retry(struct waste_chat *c, const char *rest)
{
    return waste_chat_retry(c);
}

static void show_settings(struct waste_chat *c)
{
    static const char *const think[] = {"as the model has it", "show", "hide", "off"};
    const struct waste_args *a = &c->args;
    char seed[24] = "new for each reply";

    if (a->seed_given)
        snprintf(seed, sizeof(seed), "%" PRIu64, a->seed);
    waste_chat_tell(c, "info", "temp %g\ntop-p %g\ntop-k %u\nseed %s\nn %u\nthink %s", a->temp,
                    a->top_p, a->top_k, seed, a->n, think[a->think]);
}

static int cmd_set(struct waste_chat *c, const char *rest)
{
    char name[24], line[256] = "";
    size_t length = strcspn(rest, " ="), known = 0;
    const char *value = rest + length + strspn(rest + length, " =");
    struct waste_args changed = c->args;

    if (length == 0) {
        show_settings(c);
        return 0;
    }
    rest += strspn(rest, "-"); /* --temp is temp */
    length = strcspn(rest, " =");
    while (known < sizeof(settable) / sizeof(settable[0]) &&
           (strlen(settable[known]) != length || memcmp(settable[known], rest, length) != 0))
        known++;
    if (known == sizeof(settable) / sizeof(settable[0]) || *value == '\0') {
        waste_chat_tell(c, "error", "/set takes temp, top-p, top-k, seed, n or think, and a value");
        return 0;
    }
    snprintf(name, sizeof(name), "%s%s", length == 1 ? "-" : "--", settable[known]);
    FILE *err = fmemopen(line, sizeof(line), "w");
    int rc = err != NULL ? waste_line_set(&waste_run_program, &changed, name, value, err) : 2;
    if (err != NULL)
        fclose(err);
    line[strcspn(line, "\n")] = '\0';
    if (rc == 0 && !waste_markup_can_think(c->e.markup) &&
        (changed.think == WASTE_THINK_SHOW || changed.think == WASTE_THINK_HIDE))
        rc = snprintf(line, sizeof(line), "waste-run: this model's chat format has no thinking");
    if (rc != 0)
        waste_chat_tell(c, "error", "%s",
                        line + (strncmp(line, "waste-run: ", 11) == 0 ? strlen("waste-run: ") : 0));
    else
        c->args = changed;
    return 0;
}

static void unknown(struct waste_chat *c, const char *name)
{
    const char *names[COMMANDS];

    for (size_t i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = waste_line_nearest(name, names, COMMANDS);
    if (near != NULL)
        waste_chat_tell(c, "error", "there is no %.40s, did you mean %s?", name, near);
    else
        waste_chat_tell(c, "error", "there is no %.40s, see /help", name);
}

int waste_chat_command(struct waste_chat *c, const char *line, bool *over)
{
    size_t length = strcspn(line, " \t"), i = 0;
    char name[64], *rest;
    int rc = 0;

    snprintf(name, sizeof(name), "%.*s", (int)length, line);
    while (i < COMMANDS && strcmp(commands[i].name, name) != 0)
        i++;
    if (i == COMMANDS) {
        unknown(c, name);
        return 0;
    }
    *over = commands[i].run == NULL;
    if (*over)
        return 0;
    rest = strdup(line + length + strspn(line + length, " \t"));
    if (rest == NULL)
        return waste_fail(1, "out of memory");
    for (size_t end = strlen(rest); end > 0 && strchr(" \t\r", rest[end - 1]) != NULL;)
        rest[--end] = '\0';
    rc = commands[i].run(c, rest);
    free(rest);
    fflush(stdout);
    return rc;
}
