/*
 * Requests that begin with what is known already: the longest beginning of the conversation that
 * the store has (prefix.h) is put back, the rest is computed.
 *
 * States are kept where messages end. A prompt is always cut there, whether anything is put back or
 * not, and goes on from what prompts have left only where it is cut itself, so a request computes
 * the same chunks and gives the same tokens either way.
 */
#ifndef WASTE_CLI_REUSE_H
#define WASTE_CLI_REUSE_H

#include "cli/client.h"

struct waste_engine;

/* Ends of messages in a prompt: tokens before them. */
enum { WASTE_MARKS = 2, WASTE_MARK_LEAST = 32 /* tokens that are worth a state */ };
struct waste_marks {
    uint32_t at[WASTE_MARKS]; /* ascending */
    unsigned count;
    bool lasting; /* the first is the end of the system message: worth a file */
};

/* Adds one behind a message of so many tokens, if they are worth a state. */
void waste_marks_add(struct waste_marks *marks, size_t at, size_t tokens);

/* As waste_client_request; marks are counted from the first of spec->ids. */
int waste_reuse_request(struct waste_engine *e, const struct waste_request_spec *spec,
                        const struct waste_marks *marks, struct waste_outcome *out,
                        struct waste_error *err);

/* No request runs: keeps the state of the last commit, if it is worth it. lasting: for other
 * processes, too. */
void waste_reuse_keep(struct waste_engine *e, bool lasting);

#endif
