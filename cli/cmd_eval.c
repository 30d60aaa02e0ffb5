/* waste-run eval: what would follow a text, and the logits behind it. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd.h"
#include "cli/detokenizer.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "cli/prompt.h"

struct ranked {
    float logit;
    uint32_t id;
};

/* Best first; of equals the lower id, as greedy sampling takes it. */
static int by_logit(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* Logits sorted, and log(sum(exp)). malloc'd. */
static struct ranked *rank(const float *logits, uint32_t vocab, double *log_sum)
{
    struct ranked *r = malloc(vocab * sizeof(*r));
    double sum = 0;

    if (r == NULL)
        return NULL;
    for (uint32_t i = 0; i < vocab; i++)
        r[i] = (struct ranked){.logit = logits[i], .id = i};
    qsort(r, vocab, sizeof(*r), by_logit);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)r[i].logit - (double)r[0].logit);
    *log_sum = log(sum) + (double)r[0].logit;
    return r;
}

/* A token's own text, control tokens included; in JSON's terms where it is not printable. */
static void token_text(const struct waste_engine *e, uint32_t id, struct waste_text *out)
{
    if (e->tokenizer != NULL)
        waste_detokenize(e->tokenizer, WASTE_DETOK_SPECIALS, &id, 1, out);
}

static void print_quoted(const struct waste_text *text)
{
    json_t *string = json_stringn(text->bytes > 0 ? text->data : "", text->bytes);

    if (string != NULL)
        json_dumpf(string, stdout, JSON_ENCODE_ANY);
    json_decref(string);
}

static void print_table(const struct waste_engine *e, const struct ranked *r, uint32_t rows,
                        double log_sum)
{
    printf("%4s %8s %10s %10s  %s\n", "rank", "id", "logit", "prob", "text");
    for (uint32_t i = 0; i < rows; i++) {
        struct waste_text text = {0};
        token_text(e, r[i].id, &text);
        printf("%4u %8u %10.4f %10.6f  ", i + 1, r[i].id, (double)r[i].logit,
               exp((double)r[i].logit - log_sum));
        print_quoted(&text);
        putchar('\n');
        waste_text_finish(&text);
    }
}

static int print_json(const struct waste_engine *e, const struct ranked *r, uint32_t rows,
                      double log_sum, const struct waste_outcome *outcome)
{
    json_t *top = json_array();

    for (uint32_t i = 0; i < rows; i++) {
        struct waste_text text = {0};
        token_text(e, r[i].id, &text);
        json_array_append_new(
            top, json_pack("{s:I, s:o, s:f, s:f}", "id", (json_int_t)r[i].id, "text",
                           json_stringn(text.bytes > 0 ? text.data : "", text.bytes), "logit",
                           (double)r[i].logit, "prob", exp((double)r[i].logit - log_sum)));
        waste_text_finish(&text);
    }
    return waste_output_print_json(
        json_pack("{s:I, s:I, s:f, s:I, s:o}", "prompt_tokens", (json_int_t)outcome->prompt_tokens,
                  "reused_tokens", (json_int_t)outcome->reused, "prefill_seconds",
                  outcome->prefill_seconds, "argmax", (json_int_t)r[0].id, "top", top));
}

static const float *last_logits(const struct waste_engine *e, const struct waste_ids *prompt)
{
    return waste_pipeline_logits(&e->pipeline, (uint32_t)prompt->count - 1);
}

/* Where logits go. */
struct sink {
    FILE *f; /* NULL: nowhere */
    uint32_t vocab;
    int error; /* errno */
};

static int write_logits(void *arg, uint32_t position, const float *logits)
{
    struct sink *sink = arg;

    (void)position;
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "logits are written as they are");
    if (sink->f != NULL && fwrite(logits, sizeof(float), sink->vocab, sink->f) != sink->vocab)
        sink->error = errno;
    return sink->error;
}

/* The prompt in one request; with --all the logits of every position are written on the way. */
static int consume(struct waste_engine *e, const struct waste_ids *prompt,
                   const struct waste_marks *marks, FILE *f, struct waste_outcome *outcome)
{
    const struct waste_args *a = e->args;
    struct sink sink = {.f = f, .vocab = e->model->config.vocab};
    struct waste_error err;
    struct waste_request_spec spec = {
        .ids = prompt->id,
        .count = (uint32_t)prompt->count,
        .want_logits = !a->all,
        .on_logits = a->all ? write_logits : NULL,
        .arg = &sink,
    };
    int rc = a->all ? waste_client_request(&e->client, &spec, outcome, &err)
                    : waste_reuse_request(e, &spec, marks, outcome, &err);

    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    if (!a->all && outcome->status != WASTE_REPLY_CANCELLED)
        write_logits(&sink, 0, last_logits(e, prompt));
    if (sink.error != 0)
        return waste_fail(1, "cannot write %s: %s", a->logits_path, strerror(sink.error));
    return outcome->status == WASTE_REPLY_CANCELLED
               ? waste_fail(1, "ended before the text was through")
               : 0;
}

static int evaluate(struct waste_engine *e, const struct waste_ids *prompt,
                    const struct waste_marks *marks, FILE *f)
{
    uint32_t vocab = e->model->config.vocab;
    uint32_t rows = e->args->top < vocab ? e->args->top : vocab;
    struct waste_outcome outcome;
    double log_sum;

    int rc = consume(e, prompt, marks, f, &outcome);
    if (rc != 0)
        return rc;
    struct ranked *r = rank(last_logits(e, prompt), vocab, &log_sum);
    if (r == NULL)
        return waste_fail(1, "out of memory");
    if (e->args->json)
        rc = print_json(e, r, rows, log_sum, &outcome);
    else
        print_table(e, r, rows, log_sum);
    free(r);
    return rc;
}

int waste_cmd_eval(const struct waste_args *args)
{
    struct waste_engine e;
    struct waste_ids prompt = {0};
    struct waste_marks marks;
    FILE *f = NULL;
    uint32_t ctx;

    if (args->perplexity_path != NULL)
        return waste_cmd_perplexity(args);
    int rc = waste_engine_load(&e, args, args->ids != NULL);
    if (rc == 0)
        rc = waste_prompt_make(&e, &prompt, &marks);
    if (rc == 0)
        rc = waste_engine_fit(&e, prompt.id, prompt.count, 0, &ctx);
    /* before the work, not after it */
    if (rc == 0 && args->logits_path != NULL && (f = fopen(args->logits_path, "wbe")) == NULL)
        rc = waste_fail(waste_exit_of_path(errno), "cannot write %s: %s", args->logits_path,
                        strerror(errno));
    if (rc == 0)
        rc = waste_engine_start(&e, ctx);
    if (rc == 0)
        rc = evaluate(&e, &prompt, &marks, f);
    if (f != NULL && fclose(f) != 0 && rc == 0)
        rc = waste_fail(1, "cannot write %s: %s", args->logits_path, strerror(errno));
    waste_ids_finish(&prompt);
    waste_engine_finish(&e);
    return rc;
}
