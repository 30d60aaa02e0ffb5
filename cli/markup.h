/*
 * Chat formats: conversation -> segments -> ids, and a reply's end.
 *
 * A model's format is the container's chat.json, else the one its special tokens stand for (Kimi
 * K3's <|open|>, or Kimi-Linear's <|im_user|>), else none: text as it is. A chat.json that says
 * what the built-in format of the special tokens says is that format, with all it can do; its
 * `open` then tells whether a reply begins with thinking. Only what the format itself writes is
 * searched for special tokens; what system, user, assistant and tools said is plain text, so nobody
 * can write a control token.
 */
#ifndef WASTE_CLI_MARKUP_H
#define WASTE_CLI_MARKUP_H

#include "cli/conversation.h"
#include "cli/segments.h"
#include "cli/tokenizer.h"
#include "shm/model.h"

enum waste_markup_kind {
    WASTE_MARKUP_RAW,    /* none */
    WASTE_MARKUP_FILE,   /* chat.json */
    WASTE_MARKUP_XTML,   /* built in: Kimi K3 */
    WASTE_MARKUP_CHATML, /* built in: Kimi-Linear */
};

struct waste_markup;

/*
 * `dir`: the container (chat.json is optional there). `raw`: no markup whatever there is. The
 * tokenizer must outlive it. 0, -EINVAL (a bad chat.json), -ENOMEM...; err set.
 */
int waste_markup_open(const char *dir, const struct waste_tokenizer *tokenizer, bool raw,
                      struct waste_markup **out, struct waste_error *err);
void waste_markup_destroy(struct waste_markup *m);

enum waste_markup_kind waste_markup_kind(const struct waste_markup *m);

/* Whether replies think unless told otherwise, and whether they can. */
bool waste_markup_thinks(const struct waste_markup *m);
bool waste_markup_can_think(const struct waste_markup *m);

/*
 * Appends what a conversation becomes. `m` may be NULL: Kimi K3's format. 0, -EINVAL (the format
 * has no place for something in it; err says what) or -ENOMEM.
 */
int waste_markup_render(const struct waste_markup *m, const struct waste_conversation *c,
                        struct waste_segments *out, struct waste_error *err);

/* Appends one whole message. Raw markup: the text alone. Text need not be NUL-terminated. 0 or
 * -ENOMEM. */
int waste_markup_message(const struct waste_markup *m, enum waste_role role, const char *text,
                         size_t bytes, struct waste_ids *out);

/* Appends the beginning of the assistant's reply. */
int waste_markup_reply(const struct waste_markup *m, bool thinking, struct waste_ids *out);

/* First turn: system (NULL: none), user, opening of the reply. */
int waste_markup_first(const struct waste_markup *m, const char *system, const char *user,
                       size_t user_bytes, bool thinking, struct waste_ids *out);

/*
 * A later turn, to follow ids[0 .. count): the conversation so far, of which the last `generated`
 * are the model's reply to the last opening. Closes that reply as far as it did not close itself
 * (cut off by -n or Ctrl-C, perhaps in the middle of a tag), then user and opening.
 */
int waste_markup_next(const struct waste_markup *m, const uint32_t *ids, size_t count,
                      size_t generated, const char *user, size_t user_bytes, bool thinking,
                      struct waste_ids *out);

/* Only the first part of the above. */
int waste_markup_close(const struct waste_markup *m, const uint32_t *ids, size_t count,
                       size_t generated, struct waste_ids *out);

/*
 * The ids that end a reply: the config's end tokens, and the format's own (the last special token
 * of an assistant message). Returns how many; never more than WASTE_MAX_EOS.
 */
uint32_t waste_markup_eos(const struct waste_markup *m, const struct waste_config *config,
                          uint32_t eos[WASTE_MAX_EOS]);

#endif
