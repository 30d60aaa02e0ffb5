/*
 * The tokens of a tokenizer: bytes of each id, and a hash table from bytes to id. Loading treats
 * the ranks file and specials.json as hostile.
 */
#ifndef WASTE_CLI_VOCAB_H
#define WASTE_CLI_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reader/container.h"

#define WASTE_NO_TOKEN UINT32_MAX

enum {
    WASTE_TOKEN_BYTES = 1024,      /* longest token; released vocabularies stop at 128 */
    WASTE_RANKS_BYTES = 256 << 20, /* largest ranks file */
    WASTE_SPECIALS_BYTES = 16 << 20,
};

struct waste_special {
    uint32_t id;
    uint32_t bytes;
    char *text;
    const struct waste_special *shorter; /* the longest other one that this one begins with */
};

struct waste_vocab {
    uint32_t ranks; /* tokens of the ranks file: ids [0, ranks) */
    uint32_t longest;
    char *data;    /* their bytes, by id */
    uint32_t *off; /* [ranks + 1] */
    uint64_t seed; /* of the hash: a file cannot be made to collide */
    uint32_t mask; /* slots of the table - 1 */
    uint32_t *slot_tag, *slot_id;
    uint32_t single[256];           /* id of every byte */
    uint32_t *pair;                 /* [65536] id of every two bytes, first byte * 256 + second */
    struct waste_special *special;  /* sorted by id */
    struct waste_special **by_text; /* the same, by their bytes */
    uint32_t specials;
};

/* Both work on a zeroed struct and leave it fit for waste_vocab_finish whatever they return. 0 or
 * -errno, err set. `specials` follow the ranks. */
int waste_vocab_load_ranks(struct waste_vocab *v, const char *dir, const char *name, uint32_t limit,
                           struct waste_error *err);
int waste_vocab_load_specials(struct waste_vocab *v, const char *dir, const char *name,
                              uint32_t limit, struct waste_error *err);
void waste_vocab_finish(struct waste_vocab *v);

/* The id of a token with exactly these bytes, or WASTE_NO_TOKEN. */
uint32_t waste_vocab_find(const struct waste_vocab *v, const char *data, size_t bytes);

/* The special token with this id, or whose text is the longest that `text` begins with; NULL if
 * none. */
const struct waste_special *waste_vocab_special(const struct waste_vocab *v, uint32_t id);
const struct waste_special *waste_vocab_special_at(const struct waste_vocab *v, const char *text,
                                                   size_t bytes);

#endif
