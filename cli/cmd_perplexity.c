/*
 * waste-run eval --perplexity: how well a model foretells a text. Every token but the first is
 * scored by what the model made of all before it, within windows of the context's length; a window
 * begins with the last token of the one before, so that none goes without.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/supervisor_int.h"

struct score {
    const struct waste_engine *e;
    const uint32_t *window; /* its ids, and the one behind it */
    double nll;             /* the sum of -log(probability), in nats */
    size_t scored, of;
    size_t bytes; /* of the text */
    int64_t start_ns, shown_ns;
    unsigned tenths; /* shown, where there is no terminal */
};

/* log(softmax(logits)[id]) */
static double log_probability(const float *logits, uint32_t vocab, uint32_t id)
{
    double most = (double)logits[0], sum = 0;

    for (uint32_t i = 1; i < vocab; i++)
        if ((double)logits[i] > most)
            most = (double)logits[i];
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - most);
    return (double)logits[id] - most - log(sum);
}

static double seconds(const struct score *s)
{
    return (double)(waste_now_ns() - s->start_ns) / 1e9;
}

/* On a terminal a line that moves, elsewhere a line every tenth. */
static void show_progress(const struct waste_engine *e, struct score *s)
{
    int64_t now = waste_now_ns();
    bool live = isatty(STDERR_FILENO);
    unsigned tenths = (unsigned)(10 * s->scored / s->of);

    if (e->args->quiet || (live ? now - s->shown_ns < WASTE_SECOND_NS / 4 : tenths <= s->tenths))
        return;
    s->shown_ns = now;
    s->tenths = tenths;
    fprintf(stderr, "%s%zu of %zu tokens, %.0f %%, ppl %.4f, %.1f tokens/s%s", live ? "\r" : "",
            s->scored, s->of, 100.0 * (double)s->scored / (double)s->of,
            exp(s->nll / (double)s->scored), (double)s->scored / seconds(s),
            live ? "\033[K" : "\n");
}

/* What the model makes of ids[window + position] scores the token behind it. */
static int score(void *arg, uint32_t position, const float *logits)
{
    struct score *s = arg;
    const struct waste_engine *e = s->e;

    s->nll -= log_probability(logits, e->model->config.vocab, s->window[position + 1]);
    s->scored++;
    show_progress(e, s);
    return 0;
}

static int measure(struct waste_engine *e, const struct waste_ids *ids, struct score *s)
{
    size_t most = e->pipeline.options.ctx - 1;

    s->e = e;
    s->start_ns = waste_now_ns();
    s->of = ids->count - 1;
    for (size_t at = 0; at < s->of; at += most) {
        struct waste_outcome outcome;
        struct waste_error err;
        struct waste_request_spec spec = {
            .ids = ids->id + at,
            .count = (uint32_t)(s->of - at < most ? s->of - at : most),
            .on_logits = score,
            .arg = s,
        };

        s->window = ids->id + at;
        waste_client_reset(&e->client);
        int rc = waste_client_request(&e->client, &spec, &outcome, &err);
        if (rc != 0)
            return waste_fail(rc, "%s", err.text);
        if (outcome.status == WASTE_REPLY_CANCELLED)
            return -ECANCELED;
    }
    return 0;
}

static int print(const struct waste_engine *e, const struct score *s)
{
    double mean = s->nll / (double)s->scored, took = seconds(s);

    if (e->args->json)
        return waste_output_print_json(
            json_pack("{s:I, s:f, s:f, s:f, s:I, s:f, s:f}", "tokens", (json_int_t)s->scored, "nll",
                      mean, "ppl", exp(mean), "bits_per_byte", s->nll / log(2) / (double)s->bytes,
                      "ctx", (json_int_t)e->pipeline.options.ctx, "seconds", took, "tok_per_s",
                      (double)s->scored / took));
    printf("tokens  %zu\nnll     %.6f a token\nppl     %.4f\nbits    %.4f a byte\ntime    %.2f s, "
           "%.2f tokens/s\n",
           s->scored, mean, exp(mean), s->nll / log(2) / (double)s->bytes, took,
           (double)s->scored / took);
    return fflush(stdout) == 0 ? 0 : waste_fail(1, "cannot write to stdout: %s", strerror(errno));
}

/* The ids of the file. */
static int read_ids(const struct waste_engine *e, struct waste_ids *ids, size_t *bytes)
{
    const char *path = e->args->perplexity_path;
    struct waste_text text = {0};

    int rc = waste_prompt_read(path, &text);
    if (rc == 0 && waste_tokenizer_encode(e->tokenizer, text.data, text.bytes, ids) != 0)
        rc = waste_fail(1, "out of memory");
    *bytes = text.bytes;
    waste_text_finish(&text);
    if (rc == 0 && ids->count < 2)
        rc = waste_fail(2, "%s: %zu tokens, at least 2 are needed", path, ids->count);
    return rc;
}

int waste_cmd_perplexity(const struct waste_args *args)
{
    struct waste_engine e;
    struct waste_ids ids = {0};
    struct score s = {0};
    uint32_t ctx;

    if (args->line.positional_count > 1 || args->ids != NULL || args->logits_path != NULL ||
        args->all)
        return waste_fail(2, "--perplexity goes without a text, --ids, --logits and --all");
    int rc = waste_engine_load(&e, args, false);
    if (rc == 0)
        rc = read_ids(&e, &ids, &s.bytes);
    if (rc == 0)
        rc = waste_engine_fit(&e, NULL, 0, 0, &ctx);
    if (rc == 0 && ctx < 2)
        rc = waste_fail(2, "option --ctx: a context of 2 is the least");
    if (rc == 0)
        rc = waste_engine_start(&e, ctx);
    if (rc == 0)
        rc = measure(&e, &ids, &s);
    if (s.shown_ns != 0 && isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (rc == -ECANCELED)
        rc = waste_fail(1, "ended after %zu of %zu tokens", s.scored, s.of);
    else if (rc == 0)
        rc = print(&e, &s);
    waste_ids_finish(&ids);
    waste_engine_finish(&e);
    return rc;
}
