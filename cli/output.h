/*
 * A reply on its way to a terminal, a pipe or a JSON object: whole characters only, markup left
 * out, and a status line on stderr.
 */
#ifndef WASTE_CLI_OUTPUT_H
#define WASTE_CLI_OUTPUT_H

#include <jansson.h>

#include "cli/client.h"
#include "cli/detokenizer.h"

struct waste_output {
    bool to_stdout; /* stream it; else only collect */
    bool live;      /* a status line while it streams */
    struct waste_detokenizer detok;
    bool has_words;
    struct waste_text text; /* all that was shown */
    struct waste_ids ids;   /* all that was generated */
    int64_t first_ns, shown_ns;
    int error; /* errno of a failed write */
};

/* tokenizer may be NULL: then only ids are kept. `prompt` is what the reply follows. */
void waste_output_init(struct waste_output *o, const struct waste_tokenizer *tokenizer, bool think,
                       const uint32_t *prompt, size_t count);
void waste_output_finish(struct waste_output *o);

/* For waste_request_spec.on_token; arg is the output. */
int waste_output_token(void *arg, uint32_t id);

/* The reply is over. */
void waste_output_end(struct waste_output *o);

/* "48 tokens, 31.2 tokens/s, prompt 32 in 0.51 s, 93 % of experts in memory" */
void waste_output_status(const struct waste_outcome *outcome, char *buf, size_t room);

/* The numbers of `run --json` that follow text and ids; NULL when out of memory. */
json_t *waste_output_json(const struct waste_outcome *outcome);

/* Prints and releases. 0 or an exit code. */
int waste_output_print_json(json_t *object);

#endif
