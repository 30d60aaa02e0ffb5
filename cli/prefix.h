/*
 * A store of states at the beginnings of conversations, so that one that begins like another is put
 * back instead of computed: in memory first, then in a directory of snapshot files that outlives us
 * and is shared with other waste-runs. What was not used for longest goes first.
 *
 * A state is found by its tokens, all of them compared, by the fingerprint of the weights and by
 * the arithmetic it was computed with. One that was computed from nothing, chunk by chunk, is put
 * back only where the prompt at hand would be cut as well, so that the chunks behind it are the
 * same. One that was lived through (replies decoded token by token) has no such places. Files are
 * hostile input (snapshot.h); a damaged one is removed. Writing happens in a thread of its own; the
 * functions are for one other, unless they say any.
 */
#ifndef WASTE_CLI_PREFIX_H
#define WASTE_CLI_PREFIX_H

#include "cli/snapshot.h"
#include "shm/log.h"

struct waste_prefix;

struct waste_prefix_options {
    struct waste_snapshot_shape shape;
    uint64_t arithmetic; /* a hash of what else decides about a state's bits */
    const char *dir;     /* NULL: memory alone */
    uint64_t memory_bytes, disk_bytes;
    /* One line: what cannot be written, once (WARNING), and each damaged file (LOSS). From any
     * thread. */
    void (*note)(void *arg, enum waste_log_level level, const char *text);
    void *arg;
};

/* 0 or -errno with err. */
int waste_prefix_create(const struct waste_prefix_options *options, struct waste_prefix **out,
                        struct waste_error *err);

/* Waits until what is to be written is. NULL is fine. */
void waste_prefix_destroy(struct waste_prefix *s);

/* Another limit of what is in memory, which gives way at once but for what is being put back or
 * written. Any thread. */
void waste_prefix_limit(struct waste_prefix *s, uint64_t memory_bytes);

/* Bytes that a state of `position` tokens takes in memory. */
uint64_t waste_prefix_bytes(const struct waste_snapshot_shape *shape, uint32_t position);

/* What was found: position 0 is nothing. */
struct waste_prefix_hit {
    uint32_t position;
    bool lived;
    struct waste_prefix_entry *entry; /* in memory, or */
    struct waste_snapshot_file *file; /* on disk */
};

/* Tokens to be computed from nothing, and where they are cut, ascending. */
struct waste_prefix_prompt {
    const uint32_t *ids;
    uint32_t count;
    const uint32_t *cut;
    unsigned cuts;
};

/* The longest state that the prompt begins with and may go on from, shorter than it. */
void waste_prefix_find(struct waste_prefix *s, const struct waste_prefix_prompt *prompt,
                       struct waste_prefix_hit *hit);

/* Puts it there and ends the hit. False: it was damaged, and the place is garbage. */
bool waste_prefix_load(struct waste_prefix *s, struct waste_prefix_hit *hit,
                       const struct waste_snapshot_place *to);

/* A state to keep: of ids[0 .. position). */
struct waste_prefix_state {
    const uint32_t *ids;
    uint32_t position;
    struct waste_snapshot_place place;
    bool lived;   /* not computed from nothing in the chunks of a prompt */
    bool lasting; /* on disk, too, not only when memory is full */
};

/* Keeps a copy, unless it is there. */
void waste_prefix_keep(struct waste_prefix *s, const struct waste_prefix_state *state);

#endif
