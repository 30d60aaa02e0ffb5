#include "cli/output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/engine.h"
#include "cli/supervisor_int.h"

#define DIM "\033[2m"
#define PLAIN "\033[0m"

bool waste_output_colour(void)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(STDOUT_FILENO) && (none == NULL || *none == '\0') &&
           (term == NULL || strcmp(term, "dumb") != 0);
}

static void put(struct waste_output *o, const char *text, size_t bytes)
{
    if (o->error == 0 && fwrite(text, 1, bytes, stdout) != bytes)
        o->error = errno;
}

/* One line of JSON; takes over the object. */
static void put_event(struct waste_output *o, json_t *object)
{
    if (object == NULL)
        o->error = ENOMEM;
    else if (o->error == 0 &&
             (json_dumpf(object, stdout, JSON_COMPACT) != 0 || fputc('\n', stdout) == EOF))
        o->error = errno;
    json_decref(object);
}

static void flush_pending(struct waste_output *o)
{
    const char *name = o->channel == WASTE_CHANNEL_THINK ? "think" : "text";

    if (o->pending.bytes > 0)
        put_event(
            o, json_pack("{s:s, s:s%}", "event", name, "text", o->pending.data, o->pending.bytes));
    o->pending.bytes = 0;
}

/* What comes next is no thinking. */
static void end_dim(struct waste_output *o)
{
    if (o->mode == WASTE_OUTPUT_STREAM && o->channel == WASTE_CHANNEL_THINK && o->dim)
        put(o, PLAIN, strlen(PLAIN));
}

/* Text of the answer, of the thinking, or from behind the reply. */
static void stream_text(struct waste_output *o, const struct waste_event *e)
{
    bool think = e->channel == WASTE_CHANNEL_THINK;
    bool other_side =
        o->channel == WASTE_CHANNEL_TOOLS ||
        (o->channel != WASTE_CHANNEL_COUNT && (o->channel == WASTE_CHANNEL_THINK) != think);

    if (o->mode == WASTE_OUTPUT_EVENTS) {
        if (other_side)
            flush_pending(o);
        o->channel = e->channel;
        if (waste_text_add(&o->pending, e->text, e->bytes) != 0)
            o->error = ENOMEM;
        return;
    }
    if (think && !o->think)
        return;
    bool was_think = o->channel == WASTE_CHANNEL_THINK;
    if (was_think && !think)
        end_dim(o);
    if (other_side)
        put(o, "\n", 1);
    o->channel = e->channel;
    if (think && !was_think && o->dim)
        put(o, DIM, strlen(DIM));
    put(o, e->text, e->bytes);
}

/* The newest call, whole. */
static void stream_call(struct waste_output *o, const struct waste_event *e)
{
    const json_t *call = json_array_get(o->message.calls, json_array_size(o->message.calls) - 1);
    const json_t *function = json_object_get(call, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    const char *arguments = json_string_value(json_object_get(function, "arguments"));

    if (name == NULL || arguments == NULL)
        return;
    if (o->mode == WASTE_OUTPUT_EVENTS) {
        flush_pending(o);
        put_event(o, json_pack("{s:s, s:O, s:O, s:O, s:b}", "event", "tool_call", "id",
                               json_object_get(call, "id"), "name",
                               json_object_get(function, "name"), "arguments",
                               json_object_get(function, "arguments"), "damaged", (int)e->damaged));
        return;
    }
    end_dim(o);
    if (o->error == 0 &&
        fprintf(stdout, "%s%s[calls %s %s]%s", o->channel != WASTE_CHANNEL_COUNT ? "\n" : "",
                o->dim ? DIM : "", name, arguments, o->dim ? PLAIN : "") < 0)
        o->error = errno;
    o->channel = WASTE_CHANNEL_TOOLS;
}

static int on_event(void *arg, const struct waste_event *e)
{
    struct waste_output *o = arg;
    bool words = e->kind == WASTE_EVENT_TEXT &&
                 (e->channel == WASTE_CHANNEL_TEXT || e->channel == WASTE_CHANNEL_OTHER ||
                  e->channel == WASTE_CHANNEL_THINK);
    int ret = waste_assembly_event(&o->message, e);

    if (ret == 0 && words && e->channel != WASTE_CHANNEL_THINK)
        ret = waste_text_add(&o->text, e->text, e->bytes);
    if (o->mode != WASTE_OUTPUT_COLLECT && words)
        stream_text(o, e);
    if (o->mode != WASTE_OUTPUT_COLLECT && e->kind == WASTE_EVENT_CALL_END)
        stream_call(o, e);
    return ret;
}

void waste_output_init(struct waste_output *o, const struct waste_tokenizer *tokenizer,
                       const uint32_t *prompt, size_t count)
{
    *o = (struct waste_output){.has_words = tokenizer != NULL, .channel = WASTE_CHANNEL_COUNT};
    if (tokenizer == NULL)
        return;
    waste_parser_init(&o->parser, tokenizer, on_event, o);
    waste_parser_prompt(&o->parser, prompt, count);
}

void waste_output_finish(struct waste_output *o)
{
    waste_assembly_finish(&o->message);
    waste_text_finish(&o->pending);
    waste_text_finish(&o->text);
    waste_ids_finish(&o->ids);
}

/* What has been written goes out. */
static void push_out(struct waste_output *o)
{
    if (o->mode == WASTE_OUTPUT_EVENTS)
        flush_pending(o);
    if (o->mode != WASTE_OUTPUT_COLLECT && o->error == 0 && fflush(stdout) != 0)
        o->error = errno;
}

static void show_live(struct waste_output *o)
{
    int64_t now = waste_now_ns();

    if (o->ids.count == 1)
        o->first_ns = now;
    if (!o->live || now - o->shown_ns < WASTE_SECOND_NS / 4 || o->ids.count < 2)
        return;
    o->shown_ns = now;
    fprintf(stderr, "\r%zu tokens, %.2f tokens/s  ", o->ids.count,
            (double)(o->ids.count - 1) * 1e9 / (double)(now - o->first_ns));
}

int waste_output_token(void *arg, uint32_t id)
{
    struct waste_output *o = arg;

    if (waste_ids_add(&o->ids, id) != 0 ||
        (o->has_words && waste_parser_add(&o->parser, &id, 1) != 0))
        o->error = ENOMEM;
    push_out(o);
    show_live(o);
    return o->error;
}

void waste_output_end(struct waste_output *o)
{
    if (o->has_words && waste_parser_end(&o->parser) != 0)
        o->error = ENOMEM;
    end_dim(o);
    if (o->mode == WASTE_OUTPUT_STREAM && o->channel != WASTE_CHANNEL_COUNT)
        put(o, "\n", 1);
    push_out(o);
    if (o->live && o->shown_ns != 0)
        fputs("\r\033[K", stderr);
}

const char *waste_output_why(enum waste_reply_status status)
{
    switch (status) {
    case WASTE_REPLY_LENGTH:
        return "length";
    case WASTE_REPLY_CONTEXT:
        return "context";
    case WASTE_REPLY_CANCELLED:
        return "cancelled";
    default:
        return "stop";
    }
}

void waste_output_status(const struct waste_outcome *outcome, char *buf, size_t room)
{
    uint64_t hits = outcome->counter[WASTE_C_HITS], misses = outcome->counter[WASTE_C_MISSES];
    double share = hits + misses > 0 ? 100.0 * (double)hits / (double)(hits + misses) : 100;

    snprintf(buf, room,
             "%u tokens%s, %.2f tokens/s, prompt %u in %.2f s, %.0f %% of experts in memory",
             outcome->tokens, outcome->status == WASTE_REPLY_LENGTH ? " (all that -n allows)" : "",
             waste_outcome_rate(outcome), outcome->prompt_tokens, outcome->prefill_seconds, share);
}

json_t *waste_output_json(const struct waste_outcome *o)
{
    return json_pack(
        "{s:I, s:I, s:I, s:f, s:f, s:f, s:{s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:I, s:I}}",
        "prompt_tokens", (json_int_t)o->prompt_tokens, "reused_tokens", (json_int_t)o->reused,
        "tokens", (json_int_t)o->tokens, "prefill_seconds", o->prefill_seconds, "decode_seconds",
        o->decode_seconds, "tok_per_s", waste_outcome_rate(o), "experts", "hits",
        (json_int_t)o->counter[WASTE_C_HITS], "misses", (json_int_t)o->counter[WASTE_C_MISSES],
        "bytes_read", (json_int_t)o->counter[WASTE_C_BYTES_READ], "prefetched",
        (json_int_t)o->counter[WASTE_C_PREFETCHED], "prefetch_used",
        (json_int_t)o->counter[WASTE_C_PREFETCH_USED], "restarts", "reader",
        (json_int_t)o->restarts[WASTE_STAGE_READER], "router",
        (json_int_t)o->restarts[WASTE_STAGE_ROUTER], "compute",
        (json_int_t)o->restarts[WASTE_STAGE_COMPUTE]);
}

int waste_output_print_json(json_t *object)
{
    if (object == NULL)
        return waste_fail(1, "out of memory");
    int rc = json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (rc != 0 || fputc('\n', stdout) == EOF || fflush(stdout) != 0)
        return waste_fail(1, "cannot write to stdout: %s", strerror(errno));
    return 0;
}
