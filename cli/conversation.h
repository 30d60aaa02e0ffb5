/*
 * A conversation as OpenAI's API writes it, checked and ready to be rendered.
 *
 *     {"messages": [{"role": "user", "content": "Hi"}, ...],
 *      "tools": [...], "tool_choice": "auto|none|required", "response_format": {"type": ...},
 *      "thinking": true, "thinking_effort": "low|medium|high|max", "image_prompts": [...],
 *      "add_generation_prompt": true}
 *
 * thinking may also be {"type": "enabled"|"disabled"}, and its effort be called reasoning_effort.
 * Roles: system (developer is the same), user, assistant, tool. Content: a string, null, or parts
 * {"type": "text", "text": ...} and {"type": "image_url", ...}. An assistant may have
 * reasoning_content (or reasoning) and tool_calls; a tool result has tool_call_id, or names its
 * tool; a system message may declare further tools. Whatever of a message cannot be rendered is
 * refused, never left out; what goes with the request and not with the conversation (model,
 * temperature, ...) is not looked at.
 *
 * The JSON is hostile input: every refusal is one line that says where. No state is shared.
 */
#ifndef WASTE_CLI_CONVERSATION_H
#define WASTE_CLI_CONVERSATION_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "cli/fields.h"

enum waste_role {
    WASTE_ROLE_SYSTEM,
    WASTE_ROLE_USER,
    WASTE_ROLE_ASSISTANT,
    WASTE_ROLE_TOOL,
    WASTE_ROLE_COUNT,
};

/* What a user's text may hold in the place of an image. */
#define WASTE_IMAGE_PLACEHOLDER "<|kimi_image_placeholder|>"

struct waste_part {
    bool is_image;
    struct waste_span text; /* is_image: its prompt in markup; NULL when none was given */
};

struct waste_call {
    struct waste_span id, name;
    const json_t *arguments; /* an object; NULL: they are no JSON object */
    struct waste_span raw;   /* as they were written; NULL: they came as an object */
    bool answered;           /* a result has come */
};

struct waste_message {
    enum waste_role role;
    struct waste_span name, reasoning;
    struct waste_part *parts;
    size_t part_count;
    struct waste_call *calls; /* assistant */
    size_t call_count;
    struct waste_span result_id, result_of; /* tool: the call's id and the tool's name */
    unsigned result_index;                  /* tool: number of the call in its message, from 1 */
    const json_t *tools;                    /* system: declared here, or NULL */
};

struct waste_conversation {
    struct waste_message *messages;
    size_t count;
    const json_t *tools;                                /* a non-empty array, or NULL */
    const json_t *schema;                               /* of the response format, or NULL */
    const char *effort, *tool_choice, *response_format; /* NULL: nothing to say */
    bool thinking;                                      /* default: true */
    bool reply;          /* the assistant's next message is opened at the end; default: true */
    json_t *root;        /* what the spans point into */
    json_t *parsed;      /* array: arguments that came as text */
    json_t *calls_by_id; /* id: message and number of the newest call that has it */
    struct waste_message *calling; /* the newest that calls tools, or NULL */
    size_t images;                 /* of image_prompts, how many have their place */
};

/* Takes a reference to `root`. 0, -EINVAL (err says where) or -ENOMEM; *out untouched on failure.
 */
int waste_conversation_make(json_t *root, struct waste_conversation **out, struct waste_error *err);

/* From text; `name` is what errors call it. */
int waste_conversation_parse(const char *text, size_t bytes, const char *name,
                             struct waste_conversation **out, struct waste_error *err);
void waste_conversation_destroy(struct waste_conversation *c);

#endif
