/*
 * A reply on its way to a terminal, a pipe or a JSON object: whole characters only, markup left
 * out, and a status line on stderr.
 */
#ifndef WASTE_CLI_OUTPUT_H
#define WASTE_CLI_OUTPUT_H

#include <jansson.h>

#include "cli/assemble.h"
#include "cli/client.h"
#include "cli/tokenizer.h"

enum waste_output_mode {
    WASTE_OUTPUT_COLLECT, /* nothing goes out */
    WASTE_OUTPUT_STREAM,  /* text goes to stdout as it comes */
    WASTE_OUTPUT_EVENTS,  /* JSON objects, one a line: text, think, tool_call */
};

struct waste_output {
    enum waste_output_mode mode;
    bool live;  /* a status line while it comes */
    bool think; /* STREAM: the thinking too */
    bool dim;   /* STREAM: thinking and tool calls in a fainter colour */
    bool has_words;
    struct waste_parser parser;
    struct waste_assembly message;
    struct waste_text text; /* the answer, and what came behind it */
    struct waste_ids ids;   /* all that was generated */

    struct waste_text pending;  /* EVENTS: text of one channel, of the token at hand */
    enum waste_channel channel; /* of that, or of what stdout has last; COUNT: nothing yet */
    int64_t first_ns, shown_ns;
    int error; /* errno of a failed write */
};

/*
 * Streams nothing, yet: set mode and the rest afterwards. tokenizer may be NULL: then only ids are
 * kept. `prompt` is what the reply follows. Does not move afterwards.
 */
void waste_output_init(struct waste_output *o, const struct waste_tokenizer *tokenizer,
                       const uint32_t *prompt, size_t count);
void waste_output_finish(struct waste_output *o);

/* For waste_request_spec.on_token; arg is the output. */
int waste_output_token(void *arg, uint32_t id);

/* The reply is over. */
void waste_output_end(struct waste_output *o);

/* May stdout have colours: a terminal, and NO_COLOR is not set. */
bool waste_output_colour(void);

/* Why a reply ended: stop, length, context or cancelled, the words of JSON. */
const char *waste_output_why(enum waste_reply_status status);

/* "48 tokens, 31.2 tokens/s, prompt 32 in 0.51 s, 93 % of experts in memory" */
void waste_output_status(const struct waste_outcome *outcome, char *buf, size_t room);

/* The numbers of `run --json` that follow text and ids; NULL when out of memory. */
json_t *waste_output_json(const struct waste_outcome *outcome);

/* Prints and releases. 0 or an exit code. */
int waste_output_print_json(json_t *object);

#endif
