/*
 * A conversation: its messages as OpenAI's JSON, and the token log they have become. A turn's
 * tokens are appended to the log, unless the past was changed (another system message, a reply
 * taken back, a conversation loaded): then the log is made anew from the messages. A reply that is
 * taken back leaves the tokens before it as they are: a past reply's words may be other tokens than
 * those it was given in, which kept states are found by. One thread.
 */
#ifndef WASTE_CLI_TALK_H
#define WASTE_CLI_TALK_H

#include <jansson.h>

#include "cli/engine.h"
#include "cli/reuse.h"

struct waste_talk {
    json_t *messages;     /* array */
    json_t *images;       /* image prompts of the messages, in order */
    json_t *attached;     /* those of the next message */
    size_t newest_images; /* of images, those of the newest message */
    struct waste_ids ids; /* the conversation, as the token log has it */
    size_t generated;     /* of it, the newest reply */
    bool stale;           /* the log is not what the messages say */
    bool again;           /* but for the newest reply, which is taken back, `ids` is */
    /* Of the newest question, as it was encoded; not known of one that another process asked. */
    struct {
        bool known, thinks;
        size_t at;                /* of ids */
        struct waste_marks marks; /* counted from there */
    } turn;
};

int waste_talk_init(struct waste_talk *t); /* 0 or -ENOMEM */
void waste_talk_finish(struct waste_talk *t);

/* The user says this, and what is attached. 0, -EINVAL (no UTF-8) or -ENOMEM. */
int waste_talk_ask(struct waste_talk *t, const char *text, size_t bytes);

/* The newest question was not asked; its images are attached again. */
void waste_talk_take_back(struct waste_talk *t);

/* Takes the newest reply back, if it is the newest message. False: nothing has been asked. */
bool waste_talk_take_back_reply(struct waste_talk *t);

/* Forgets all but the system message. */
void waste_talk_reset(struct waste_talk *t);

/* Sets, replaces or (NULL or empty) removes the system message. 0 or -EINVAL (no UTF-8). */
int waste_talk_system(struct waste_talk *t, const char *text);

/* Whether the log has to be made anew for the next reply. */
bool waste_talk_is_anew(const struct waste_talk *t);

/*
 * Appends to *out, which is empty, what the reply to the newest message follows: everything if the
 * log is made anew (then it is empty now), else the newest message behind the end of the newest
 * reply. -EINVAL: the model's format has no place for something. *marks: where messages end in it.
 */
int waste_talk_encode(struct waste_talk *t, const struct waste_engine *e, struct waste_ids *out,
                      struct waste_marks *marks, struct waste_error *err);

/* The turn's tokens are in the log; what is attached belongs to it. 0 or -ENOMEM. */
int waste_talk_asked(struct waste_talk *t, const struct waste_ids *turn);

/* So are those of the reply, and what they say is the newest message. 0 or -ENOMEM. */
int waste_talk_answered(struct waste_talk *t, const struct waste_ids *reply, json_t *message);

/* {"messages": [...], "thinking": ..., "image_prompts": [...]}, as `render` takes it; NULL when out
 * of memory. */
json_t *waste_talk_json(const struct waste_talk *t, bool thinking);

/* Takes the messages of such an object over, after checking that the model's format has a place for
 * all of them; the log is stale. On failure nothing has changed. */
int waste_talk_adopt(struct waste_talk *t, const struct waste_engine *e, json_t *root,
                     struct waste_error *err);

#endif
