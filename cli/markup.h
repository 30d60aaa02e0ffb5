/*
 * Conversations as token ids.
 *
 * The format is the container's chat.json, else the one its special tokens stand for (Kimi K3's
 * <|open|>, or Kimi-Linear's <|im_user|>), else none: text as it is. Only prefixes, suffixes and
 * the opening of the format are searched for special tokens; what system, user and assistant said
 * is plain text, so a user can never write a control token.
 */
#ifndef WASTE_CLI_MARKUP_H
#define WASTE_CLI_MARKUP_H

#include "cli/tokenizer.h"
#include "shm/model.h"

enum waste_role { WASTE_ROLE_SYSTEM, WASTE_ROLE_USER, WASTE_ROLE_ASSISTANT, WASTE_ROLE_COUNT };

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

/* Appends one whole message. Raw markup: the text alone. Text need not be NUL-terminated. 0 or
 * -ENOMEM. */
int waste_markup_message(const struct waste_markup *m, enum waste_role role, const char *text,
                         size_t bytes, struct waste_ids *out);

/* Appends the beginning of the assistant's reply. */
int waste_markup_reply(const struct waste_markup *m, struct waste_ids *out);

/* First turn: system (NULL: none), user, opening of the reply. */
int waste_markup_first(const struct waste_markup *m, const char *system, const char *user,
                       size_t user_bytes, struct waste_ids *out);

/*
 * A later turn, to follow ids[0 .. count): the conversation so far, of which the last `generated`
 * are the model's reply to the last opening. Closes that reply as far as it did not close itself
 * (cut off by -n or Ctrl-C, perhaps in the middle of the closing), then user and opening.
 */
int waste_markup_next(const struct waste_markup *m, const uint32_t *ids, size_t count,
                      size_t generated, const char *user, size_t user_bytes, struct waste_ids *out);

/*
 * The ids that end a reply: the config's end tokens, and the format's own (the last special token
 * of an assistant message). Returns how many; never more than WASTE_MAX_EOS.
 */
uint32_t waste_markup_eos(const struct waste_markup *m, const struct waste_config *config,
                          uint32_t eos[WASTE_MAX_EOS]);

#endif
