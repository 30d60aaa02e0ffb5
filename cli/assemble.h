/* The events of a reply (cli/parser.h) put together into an assistant's message. */
#ifndef WASTE_CLI_ASSEMBLE_H
#define WASTE_CLI_ASSEMBLE_H

#include <jansson.h>
#include <stdbool.h>

#include "cli/parser.h"
#include "cli/text.h"

/* All zero is an empty one. */
struct waste_assembly {
    struct waste_text response, thinking;
    json_t *calls; /* array; NULL: none */
    bool ended;    /* the message has its end */
    bool damaged;

    struct waste_text name, arguments, value; /* of the call at hand */
    unsigned index;
    bool is_json;
    char type[16];
};

/*
 * A waste_event_fn; `arg` is the message. A value that is not what its type says becomes a string,
 * and the message is damaged. 0 or -ENOMEM.
 */
int waste_assembly_event(void *arg, const struct waste_event *event);

/* {"role": "assistant", "content": ..., "reasoning_content": ..., "tool_calls": [...]}, the last
 * two where there are any. NULL: out of memory. */
json_t *waste_assembly_json(const struct waste_assembly *m);

/* Frees; the message is empty and usable afterwards. */
void waste_assembly_finish(struct waste_assembly *m);

#endif
