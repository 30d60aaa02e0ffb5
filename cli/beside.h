/*
 * A file that takes another's place whole: it is written beside it (PATH.new), flushed, renamed,
 * and its directory flushed. At any moment, that of a power cut too, the place holds the old file
 * or the new one. PATH.new is locked meanwhile: of several writers one writes, and what one that
 * died has left is written over. Any thread.
 */
#ifndef WASTE_CLI_BESIDE_H
#define WASTE_CLI_BESIDE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct waste_beside {
    char place[PATH_MAX], path[PATH_MAX];
    int fd; /* to write to; -1: none is open */
};

/* 0 or -errno; -EBUSY: somebody else is writing it. Then, too, it can be dropped. */
int waste_beside_open(struct waste_beside *b, const char *place);

/* All of it, where the file is at. 0 or -errno. */
int waste_beside_put(const struct waste_beside *b, const void *data, size_t bytes);

/* Moves it in. keep_old: what was there is PLACE.old afterwards. 0, or -errno and it is dropped. */
int waste_beside_move_in(struct waste_beside *b, bool keep_old);

/* Removes it if it was not moved in. */
void waste_beside_drop(struct waste_beside *b);

#endif
