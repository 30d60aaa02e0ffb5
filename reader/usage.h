/*
 * What was learned about which experts are used, kept from run to run: usage.waste.
 *
 *     u32 0x47535557   u32 1   u64 turns      then, for each expert that was used:
 *     { u16 layer, u16 expert, u32 hits, u32 last_seen, u32 0 }
 *
 * A turn is a token. hits fade with a half-life of 256 turns (habit.h), last_seen is the turn of
 * the last use. Files of others, with hits of any scale, are understood too. A file is anybody's:
 * one that is not as it should be is refused whole, with a line that says why, and nothing else
 * happens.
 */
#ifndef WASTE_READER_USAGE_H
#define WASTE_READER_USAGE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reader/container.h"
#include "reader/habit.h"

struct waste_usage_entry {
    uint32_t layer, expert;
    float share; /* of the turns that chose it */
};

struct waste_usage {
    uint64_t turns;
    uint32_t count;
    struct waste_usage_entry *entry; /* [count] the largest share first */
};

/* Zeroed until loaded; waste_usage_free is always fine. */
void waste_usage_free(struct waste_usage *u);

/* The content of a file. 0, or -EINVAL or -ENOMEM with `err` (which names `name`); then *u is
 * empty. */
int waste_usage_parse(const uint8_t *data, size_t bytes, const char *name,
                      const struct waste_model *model, struct waste_usage *u,
                      struct waste_error *err);

/* The same of dir/name. -ENOENT, without a line: there is none. */
int waste_usage_load(int dir_fd, const char *name, const struct waste_model *model,
                     struct waste_usage *u, struct waste_error *err);

/* Bytes a file of this model has at most. */
size_t waste_usage_room(const struct waste_model *model);

/* Writes what `habit` knows to data[waste_usage_room]. `turns`: of the runs before. The bytes. */
size_t waste_usage_encode(const struct waste_habit *habit, uint64_t turns, uint8_t *data);

/* Puts data[bytes] in place of dir/name: whole or not at all, whoever else does so at the time. 0
 * or -errno. */
int waste_usage_write(int dir_fd, const char *name, const uint8_t *data, size_t bytes);

/* Removes what writers of dir/name that died have left: our user's, and more than an hour old. */
void waste_usage_sweep(int dir_fd, const char *name);

/* ---- a thread that writes, since a disk may take its time ---- */

struct waste_usage_saver {
    int dir_fd;
    const char *name;
    bool running;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t change;
    bool due, quit;
    int result; /* of the last write */
    size_t bytes;
    uint8_t *data; /* [waste_usage_room]; the thread's while due */
};

/* 0 or -errno; then nothing runs. dir_fd and name must outlive it. */
int waste_usage_saver_start(struct waste_usage_saver *s, int dir_fd, const char *name,
                            const struct waste_model *model);

/* Has what `habit` knows now written; not if the last one is still being written. */
void waste_usage_saver_save(struct waste_usage_saver *s, const struct waste_habit *habit,
                            uint64_t turns);

/* Waits for what is due. What the last write said: 0 or -errno. Twice is fine, and so is a zeroed
 * *s. */
int waste_usage_saver_stop(struct waste_usage_saver *s);

#endif
