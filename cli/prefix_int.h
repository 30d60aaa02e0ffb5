/* The store's directory (prefix_disk.c), for prefix.c. */
#ifndef WASTE_CLI_PREFIX_INT_H
#define WASTE_CLI_PREFIX_INT_H

#include <limits.h>

#include "cli/prefix.h"

/* The name of a state: its weights, how many tokens, and a hash of them. */
struct waste_prefix_key {
    uint64_t fingerprint, hash;
    uint32_t position;
};

/* Extends a hash by one token; the hash of none is 0. Only a name: tokens are compared. */
static inline uint64_t waste_prefix_hash(uint64_t hash, uint32_t id)
{
    hash = (hash ^ id ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    return hash ^ hash >> 29;
}

void waste_prefix_path(const char *dir, const struct waste_prefix_key *key, char path[PATH_MAX]);

/*
 * The longest file in `dir` of ids[0 .. position), least < position < count, opened; hashes[i] is
 * of ids[0 .. i). Damaged ones are removed. NULL: there is none.
 */
struct waste_snapshot_file *waste_prefix_disk_find(const struct waste_prefix_options *options,
                                                   const uint32_t *ids, const uint64_t *hashes,
                                                   uint32_t least, uint32_t count);

/* Removes the files that were not used for longest until no more than `room` bytes are left, and
 * what writers that died have left. */
void waste_prefix_disk_trim(const char *dir, uint64_t room);

#endif
