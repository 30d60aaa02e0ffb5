/*
 * A conversation with a model, line by line (talk.h), that may outlive us (durable.h). A turn costs
 * its own tokens only, unless the past was changed.
 */
#ifndef WASTE_CLI_CHAT_H
#define WASTE_CLI_CHAT_H

#include "cli/durable.h"

struct waste_chat {
    struct waste_engine e;
    struct waste_args args; /* ours: /set changes them */
    struct waste_talk talk;
    struct waste_durable durable; /* --session */
    bool failed;                  /* the newest request did */
    uint64_t turns, tokens;       /* requests, tokens generated */
    uint64_t reused;              /* tokens whose state was put back, not computed */
    double seconds;               /* spent generating */
    struct waste_outcome outcome; /* of the newest */
};

int waste_chat_init(struct waste_chat *c, const struct waste_args *args);
/* 0, or WASTE_EXIT_UNSAVED. */
int waste_chat_finish(struct waste_chat *c);

/* Loads the model and the --session, starts the pipeline, and goes on with a reply that was cut
 * off. 0 or an exit code. */
int waste_chat_start(struct waste_chat *c);

/* The user says this (and what is attached), the model answers. Nonzero ends the chat: stdout is
 * gone, or memory. */
int waste_chat_say(struct waste_chat *c, const char *text, size_t bytes);

/* The newest user's message once more. */
int waste_chat_retry(struct waste_chat *c);

void waste_chat_reset(struct waste_chat *c);

/* Sets, replaces or (NULL or empty) removes the system message. 0 or -EINVAL (no UTF-8). */
int waste_chat_system(struct waste_chat *c, const char *text);

/* {"messages": [...]}, as `render` takes it. -errno or -EINVAL with err. */
int waste_chat_save(struct waste_chat *c, const char *path, struct waste_error *err);
int waste_chat_load(struct waste_chat *c, const char *path, struct waste_error *err);

/* A line that begins with /; *over: end the chat. Nonzero as waste_chat_say. */
int waste_chat_command(struct waste_chat *c, const char *line, bool *over);

/* What is said besides replies: info (asked for) goes to stdout, error and note (unless -q) to
 * stderr; with --json all of them are events. */
void waste_chat_tell(struct waste_chat *c, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
