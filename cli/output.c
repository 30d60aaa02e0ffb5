#include "cli/output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/engine.h"
#include "cli/supervisor_int.h"

void waste_output_init(struct waste_output *o, const struct waste_tokenizer *tokenizer, bool think,
                       const uint32_t *prompt, size_t count)
{
    *o = (struct waste_output){.has_words = tokenizer != NULL};
    if (tokenizer == NULL)
        return;
    waste_detok_init(&o->detok, tokenizer, think ? WASTE_DETOK_THINK : 0);
    waste_detok_prompt(&o->detok, prompt, count);
}

void waste_output_finish(struct waste_output *o)
{
    waste_text_finish(&o->text);
    waste_ids_finish(&o->ids);
}

/* What was added to the text since `from` goes out. */
static void emit(struct waste_output *o, size_t from)
{
    size_t bytes = o->text.bytes - from;

    if (!o->to_stdout || bytes == 0 || o->error != 0)
        return;
    if (fwrite(o->text.data + from, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
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
    size_t from = o->text.bytes;

    if (waste_ids_add(&o->ids, id) != 0 ||
        (o->has_words && waste_detok_add(&o->detok, id, &o->text) != 0))
        o->error = ENOMEM;
    emit(o, from);
    show_live(o);
    return o->error;
}

void waste_output_end(struct waste_output *o)
{
    size_t from = o->text.bytes;

    if (o->has_words && waste_detok_end(&o->detok, &o->text) != 0)
        o->error = ENOMEM;
    emit(o, from);
    if (o->live && o->shown_ns != 0)
        fputs("\r\033[K", stderr);
    if (o->to_stdout && o->error == 0 && o->text.bytes > 0 &&
        (fputc('\n', stdout) == EOF || fflush(stdout) != 0))
        o->error = errno;
}

void waste_output_status(const struct waste_outcome *outcome, char *buf, size_t room)
{
    uint64_t hits = outcome->counter[WASTE_C_HITS], misses = outcome->counter[WASTE_C_MISSES];
    double share = hits + misses > 0 ? 100.0 * (double)hits / (double)(hits + misses) : 100;

    snprintf(buf, room,
             "%u tokens, %.2f tokens/s, prompt %u in %.2f s, %.0f %% of experts in memory",
             outcome->tokens, waste_outcome_rate(outcome), outcome->prompt_tokens,
             outcome->prefill_seconds, share);
}

json_t *waste_output_json(const struct waste_outcome *o)
{
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:{s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:I, s:I}}",
                     "prompt_tokens", (json_int_t)o->prompt_tokens, "tokens", (json_int_t)o->tokens,
                     "prefill_seconds", o->prefill_seconds, "decode_seconds", o->decode_seconds,
                     "tok_per_s", waste_outcome_rate(o), "experts", "hits",
                     (json_int_t)o->counter[WASTE_C_HITS], "misses",
                     (json_int_t)o->counter[WASTE_C_MISSES], "bytes_read",
                     (json_int_t)o->counter[WASTE_C_BYTES_READ], "prefetched",
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
