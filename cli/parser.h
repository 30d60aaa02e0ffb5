/*
 * Replies as they stream: token ids in, events out.
 *
 * One state machine knows the structure of a reply in Kimi K3's markup and in Kimi-Linear's: which
 * channel each piece of text belongs to, tool calls and their typed arguments, which tags are open.
 * It works id by id, so events do not depend on how the stream was cut; only whole characters
 * leave; and structure comes from ids alone, never from text that looks like it.
 *
 * Damaged markup: text is never dropped and never becomes part of something it is not. A call
 * begins only inside of tools, an argument only inside of a call; a channel that begins while
 * another is open ends that one; a closing tag of something that is not open does nothing; a tag
 * that does not end is given up after WASTE_PARSER_TAG bytes; the end of a message ends everything
 * in it. What was cut off or out of place is marked as damaged.
 *
 * Nothing to free; no state is shared: one parser a stream, any thread.
 */
#ifndef WASTE_CLI_PARSER_H
#define WASTE_CLI_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/tokenizer.h"

enum waste_channel {
    WASTE_CHANNEL_TEXT,  /* the answer, or anything outside of markup */
    WASTE_CHANNEL_THINK, /* inside <|open|>think<|sep|> ... */
    WASTE_CHANNEL_TOOLS, /* inside of tools, but of no argument */
    WASTE_CHANNEL_OTHER, /* of a message that is not the assistant's, or behind the reply */
    WASTE_CHANNEL_TAG,   /* words of a tag: no event has them */
    WASTE_CHANNEL_VALUE, /* of an argument */
    WASTE_CHANNEL_COUNT,
};

enum waste_event_kind {
    WASTE_EVENT_TEXT,         /* text, of a channel */
    WASTE_EVENT_CALL,         /* a call begins: name; index as the model wrote it, or its number */
    WASTE_EVENT_ARGUMENT,     /* an argument begins: name is its key; type */
    WASTE_EVENT_JSON,         /* all arguments at once, as JSON, begin */
    WASTE_EVENT_VALUE,        /* text of the argument or the JSON */
    WASTE_EVENT_ARGUMENT_END, /* of either */
    WASTE_EVENT_CALL_END,
    WASTE_EVENT_END, /* of the message */
};

struct waste_event {
    enum waste_event_kind kind;
    enum waste_channel channel; /* TEXT */
    const char *text;           /* TEXT, VALUE; CALL: name; ARGUMENT: key. Not NUL-terminated */
    size_t bytes;
    const char *type; /* ARGUMENT: NUL-terminated, "string" when the model named none */
    unsigned index;   /* CALL */
    bool damaged;     /* ..._END, END: cut off, or something in it was out of place */
};

/* Returns 0, or -errno to stop; the parser hands it on. Pointers are valid during the call. */
typedef int waste_event_fn(void *arg, const struct waste_event *event);

/* Control tokens that structure a reply. X(ROLE, text) */
#define WASTE_CONTROLS(X)                                                                          \
    X(OPEN, "<|open|>")                                                                            \
    X(CLOSE, "<|close|>")                                                                          \
    X(SEP, "<|sep|>")                                                                              \
    X(END_OF_MSG, "<|end_of_msg|>")                                                                \
    X(IM_SYSTEM, "<|im_system|>")                                                                  \
    X(IM_USER, "<|im_user|>")                                                                      \
    X(IM_ASSISTANT, "<|im_assistant|>")                                                            \
    X(IM_MIDDLE, "<|im_middle|>")                                                                  \
    X(IM_END, "<|im_end|>")                                                                        \
    X(TOOLS_BEGIN, "<|tool_calls_section_begin|>")                                                 \
    X(TOOLS_END, "<|tool_calls_section_end|>")                                                     \
    X(CALL_BEGIN, "<|tool_call_begin|>")                                                           \
    X(CALL_ARGUMENT, "<|tool_call_argument_begin|>")                                               \
    X(CALL_END, "<|tool_call_end|>")

#define WASTE_X(role, text) WASTE_CONTROL_##role,
enum waste_control_token { WASTE_CONTROLS(WASTE_X) WASTE_CONTROL_COUNT };
#undef WASTE_X

/* Tags with a meaning. Others belong to what they are in. X(ID, name) */
#define WASTE_TAGS(X)                                                                              \
    X(MESSAGE, "message")                                                                          \
    X(THINK, "think")                                                                              \
    X(RESPONSE, "response")                                                                        \
    X(TOOLS, "tools")                                                                              \
    X(CALL, "call")                                                                                \
    X(ARGUMENT, "argument")                                                                        \
    X(JSON, "json")

#define WASTE_X(id, name) WASTE_TAG_##id,
enum waste_tag { WASTE_TAGS(WASTE_X) WASTE_TAG_UNKNOWN, WASTE_TAG_COUNT };
#undef WASTE_X

enum {
    WASTE_PARSER_DEPTH = 16, /* tags within each other; deeper ones are counted only */
    WASTE_PARSER_TAG = 4096, /* bytes of a tag */
};

struct waste_parser {
    const struct waste_tokenizer *tokenizer;
    waste_event_fn *emit;
    void *arg;
    enum waste_tag stack[WASTE_PARSER_DEPTH];
    unsigned depth, deeper; /* open tags; those beyond the stack */
    bool flat;              /* set after init: no structure, control tokens are their texts */
    bool other;             /* the message is not the assistant's */
    bool closed;            /* the message's tag is closed, its end has not come */
    bool ended;             /* a message has ended and no other has begun */
    bool answered;          /* the message has, or had, a response or tools */
    bool damaged_call, damaged;
    unsigned calls; /* begun in this message */

    int tag; /* control token that began the tag at hand, or -1 */
    size_t tag_bytes, tag_ids;
    char tag_text[WASTE_PARSER_TAG];

    unsigned tail_bytes; /* of a character not complete yet */
    char tail[4];
    int64_t control[WASTE_CONTROL_COUNT]; /* their ids; -1 = not in this model */
};

/* `tokenizer` must outlive it. `emit` may be NULL: then it only follows the structure. */
void waste_parser_init(struct waste_parser *r, const struct waste_tokenizer *tokenizer,
                       waste_event_fn *emit, void *arg);

/* Takes the prompt's ids for their structure (what is open when the reply starts); no events. */
void waste_parser_prompt(struct waste_parser *r, const uint32_t *ids, size_t count);

/* Generated ids. 0 or what emit returned. */
int waste_parser_add(struct waste_parser *r, const uint32_t *ids, size_t count);

/* The end of the stream: an incomplete character leaves as U+FFFD, what is open is closed. No END
 * follows a message that has ended by itself. */
int waste_parser_end(struct waste_parser *r);

/* The channel of text that came now. */
enum waste_channel waste_parser_channel(const struct waste_parser *r);

const char *waste_tag_name(enum waste_tag tag);

/* The control token with this id, or -1. */
int waste_parser_control(const struct waste_parser *r, uint32_t id);

#endif
