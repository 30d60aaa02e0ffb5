/*
 * Byte-level BPE in tiktoken form with Kimi's pre-tokenisation pattern, exact on all of Unicode.
 *
 * The ranks file has one "base64 rank" line a token; the number of lines is the first special id.
 * Special tokens come from specials.json and are made by waste_tokenizer_encode_markup and
 * waste_tokenizer_special only: waste_tokenizer_encode never yields one, whatever the text says.
 *
 * Both files are hostile input: every refusal is one line in `struct waste_error`. A tokenizer does
 * not change after it is opened and may be used by any number of threads at once.
 */
#ifndef WASTE_CLI_TOKENIZER_H
#define WASTE_CLI_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reader/container.h"
#include "shm/model.h"

struct waste_tokenizer;

/* A growing list of token ids; all zero is an empty one. */
struct waste_ids {
    uint32_t *id;
    size_t count, room;
};

/* 0 or -ENOMEM (list unchanged). */
int waste_ids_add(struct waste_ids *ids, uint32_t id);
int waste_ids_append(struct waste_ids *ids, const uint32_t *id, size_t count);
void waste_ids_finish(struct waste_ids *ids); /* frees; the list is empty and usable afterwards */

/*
 * DIR/tokenizer.model and, if it is there, DIR/specials.json. `vocab` bounds every id (0: no
 * bound). 0, -EINVAL (a bad file), -ENOENT and other -errno; err set, *out untouched.
 */
int waste_tokenizer_open(const char *dir, uint32_t vocab, struct waste_tokenizer **out,
                         struct waste_error *err);

/* The same of a container: the config's end tokens must be among what the two files describe, too. A
 * file that was cut at the end of a line shows here and nowhere else. */
int waste_tokenizer_open_model(const char *dir, const struct waste_config *config,
                               struct waste_tokenizer **out, struct waste_error *err);

/* As above with a ranks file of any name; `specials` may be NULL. */
int waste_tokenizer_open_files(const char *ranks, const char *specials, uint32_t vocab,
                               struct waste_tokenizer **out, struct waste_error *err);
void waste_tokenizer_destroy(struct waste_tokenizer *t);

/*
 * Appends the ids of plain text. Text that is not UTF-8 is encoded too: a byte that is part of no
 * character splits the text and becomes its own byte token, so ids always decode back to the very
 * bytes. 0 or -ENOMEM.
 */
int waste_tokenizer_encode(const struct waste_tokenizer *t, const char *text, size_t bytes,
                           struct waste_ids *out);

/* As above, but every text of a special token becomes that token (leftmost, longest first). For
 * markup of our own or of chat.json; never for what a user wrote. */
int waste_tokenizer_encode_markup(const struct waste_tokenizer *t, const char *text, size_t bytes,
                                  struct waste_ids *out);

/* The bytes of a token, a special's text included; NULL if there is no such id. Not
 * NUL-terminated. */
const char *waste_tokenizer_bytes(const struct waste_tokenizer *t, uint32_t id, size_t *bytes);

bool waste_tokenizer_is_special(const struct waste_tokenizer *t, uint32_t id);

/* The id of the special token with exactly this text, or -1. */
int64_t waste_tokenizer_special(const struct waste_tokenizer *t, const char *text);

/* Tokens in the ranks file = the first special id. */
uint32_t waste_tokenizer_ranks(const struct waste_tokenizer *t);

#endif
