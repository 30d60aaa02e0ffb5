/*
 * A store of states at the beginnings of conversations, so that one that begins like another is put
 * back instead of computed: in memory first, then in a directory of snapshot files that outlives us
 * and is shared with other waste-runs. What was not used for longest goes first.
 *
 * A state is found by its tokens, all of them compared, and by the fingerprint of the weights.
 * Files are hostile input (snapshot.h); a damaged one is removed. Writing happens in a thread of
 * its own; the functions are for one other.
 */
#ifndef WASTE_CLI_PREFIX_H
#define WASTE_CLI_PREFIX_H

#include "cli/snapshot.h"

struct waste_prefix;

struct waste_prefix_options {
    struct waste_snapshot_shape shape;
    const char *dir; /* NULL: memory alone */
    uint64_t memory_bytes, disk_bytes;
    /* One line: what cannot be written, once, and each damaged file. From any thread. */
    void (*note)(void *arg, const char *text);
    void *arg;
};

/* 0 or -errno with err. */
int waste_prefix_create(const struct waste_prefix_options *options, struct waste_prefix **out,
                        struct waste_error *err);

/* Waits until what is to be written is. NULL is fine. */
void waste_prefix_destroy(struct waste_prefix *s);

/* Bytes that a state of `position` tokens takes in memory. */
uint64_t waste_prefix_bytes(const struct waste_snapshot_shape *shape, uint32_t position);

/* What was found: position 0 is nothing. */
struct waste_prefix_hit {
    uint32_t position;
    struct waste_prefix_entry *entry; /* in memory, or */
    struct waste_snapshot_file *file; /* on disk */
};

/* The longest state whose tokens ids[0 .. count) begin with, shorter than count. */
void waste_prefix_find(struct waste_prefix *s, const uint32_t *ids, uint32_t count,
                       struct waste_prefix_hit *hit);

/* Puts it there and ends the hit. False: it was damaged, and the place is garbage. */
bool waste_prefix_load(struct waste_prefix *s, struct waste_prefix_hit *hit,
                       const struct waste_snapshot_place *to);

/* Keeps a copy of the state of ids[0 .. position), unless it is there. lasting: on disk, too, not
 * only when memory is full. */
void waste_prefix_keep(struct waste_prefix *s, const uint32_t *ids, uint32_t position,
                       const struct waste_snapshot_place *from, bool lasting);

#endif
