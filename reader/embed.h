/*
 * Embedding rows: one row of trunk.bin a token, read when compute asks (shm/control.h: want, have).
 */
#ifndef WASTE_READER_EMBED_H
#define WASTE_READER_EMBED_H

#include <stdbool.h>
#include <stdint.h>

#include "reader/container.h"
#include "shm/control.h"

struct waste_embed {
    const struct waste_shm *shm;
    int fd; /* trunk.bin */
};

/* 0 or -errno, `err` set. */
int waste_embed_open(struct waste_embed *e, const struct waste_shm *shm, const char *dir,
                     struct waste_error *err);
void waste_embed_close(struct waste_embed *e);

/* Some row is wanted and not there. */
bool waste_embed_wanted(const struct waste_embed *e);

/* Reads every wanted row, or says that it cannot be had. Returns how many; rings compute's bell. */
uint32_t waste_embed_serve(struct waste_embed *e);

#endif
