/* The store's directory (prefix_disk.c), for prefix.c. */
#ifndef WASTE_CLI_PREFIX_INT_H
#define WASTE_CLI_PREFIX_INT_H

#include <limits.h>

#include "cli/prefix.h"

/* The name of a state: its weights, how many tokens, a hash of arithmetic and tokens, its kind. */
struct waste_prefix_key {
    uint64_t fingerprint, hash;
    uint32_t position;
    bool lived;
};

/* Extends a hash by one token; that of none is the arithmetic. Only a name: tokens are compared. */
static inline uint64_t waste_prefix_hash(uint64_t hash, uint32_t id)
{
    hash = (hash ^ id ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    return hash ^ hash >> 29;
}

void waste_prefix_path(const char *dir, const struct waste_prefix_key *key, char path[PATH_MAX]);

/* Whether a state of that kind and length can serve the prompt, if its tokens are the same. */
bool waste_prefix_serves(const struct waste_prefix_prompt *prompt, uint32_t position, bool lived);

/*
 * The longest file in `dir` that serves the prompt and has more than `least` tokens, opened, and
 * its key; hashes[i] is of the first i tokens. Damaged ones are removed. NULL: there is none.
 */
struct waste_snapshot_file *waste_prefix_disk_find(const struct waste_prefix_options *options,
                                                   const struct waste_prefix_prompt *prompt,
                                                   const uint64_t *hashes, uint32_t least,
                                                   struct waste_prefix_key *key);

/* A kept state cannot be used: says so. */
void waste_prefix_lost(const struct waste_prefix_options *options, const struct waste_error *why);

/* Removes the files that were not used for longest until no more than `room` bytes are left, and
 * what writers that died have left. */
void waste_prefix_disk_trim(const char *dir, uint64_t room);

#endif
