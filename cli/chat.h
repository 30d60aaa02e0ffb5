/*
 * A conversation with a model: the messages as JSON, and the token log they have become. A turn
 * costs its own tokens only, unless the past was changed (another system message, a reply taken
 * back, a conversation loaded): then the log is made anew from the messages.
 */
#ifndef WASTE_CLI_CHAT_H
#define WASTE_CLI_CHAT_H

#include <jansson.h>

#include "cli/engine.h"

struct waste_chat {
    struct waste_engine e;
    struct waste_args args;       /* ours: /set changes them */
    json_t *messages;             /* array */
    json_t *images;               /* image prompts of the messages, in order */
    json_t *attached;             /* those of the next message */
    size_t newest_images;         /* of images, those of the newest message */
    struct waste_ids ids;         /* the conversation, as the token log has it */
    size_t generated;             /* of it, the newest reply */
    bool stale;                   /* the log is not what the messages say */
    bool failed;                  /* the newest request did */
    uint64_t turns, tokens;       /* requests, tokens generated */
    double seconds;               /* spent generating */
    struct waste_outcome outcome; /* of the newest */
};

int waste_chat_init(struct waste_chat *c, const struct waste_args *args);
void waste_chat_finish(struct waste_chat *c);

/* The user says this (and what is attached), the model answers. Nonzero ends the chat: stdout is
 * gone, or memory. */
int waste_chat_say(struct waste_chat *c, const char *text, size_t bytes);

/* The newest user's message once more. */
int waste_chat_retry(struct waste_chat *c);

void waste_chat_reset(struct waste_chat *c);

/* Sets, replaces or (NULL or empty) removes the system message. 0 or -EINVAL (no UTF-8). */
int waste_chat_system(struct waste_chat *c, const char *text);

/* {"messages": [...]}, as `render` takes it. -errno or -EINVAL with err. */
int waste_chat_save(const struct waste_chat *c, const char *path, struct waste_error *err);
int waste_chat_load(struct waste_chat *c, const char *path, struct waste_error *err);

/* A line that begins with /; *over: end the chat. Nonzero as waste_chat_say. */
int waste_chat_command(struct waste_chat *c, const char *line, bool *over);

/* What is said besides replies: info (asked for) goes to stdout, error and note (unless -q) to
 * stderr; with --json all of them are events. */
void waste_chat_tell(struct waste_chat *c, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
