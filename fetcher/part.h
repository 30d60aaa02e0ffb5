/*
 * NAME.part: a file that is being fetched. It grows at its end only, so that its size says how much
 * of it there is; it becomes NAME when all of it is on the disk and right.
 */
#ifndef WASTE_FETCHER_PART_H
#define WASTE_FETCHER_PART_H

#include <stddef.h>
#include <stdint.h>

enum { WASTE_PART_NAME = 1100 };

struct waste_part {
    int fd; /* -1: not open */
    uint64_t bytes;
};

/* Opens or makes it, with the directories of its name. 0 or -errno. */
int waste_part_open(int dir, const char *name, struct waste_part *p);
void waste_part_close(struct waste_part *p);

/* Bytes of it that are there, without opening it; 0: none. */
uint64_t waste_part_bytes(int dir, const char *name);

int waste_part_append(struct waste_part *p, const void *data, size_t n); /* 0 or -errno */
int waste_part_empty(struct waste_part *p);                              /* 0 or -errno */

/* It becomes NAME, which is on the disk when this returns; its data must be already. 0 or -errno.
 */
int waste_part_publish(int dir, const char *name);
void waste_part_remove(int dir, const char *name);

#endif
