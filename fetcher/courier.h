/*
 * Files of a mirror, fetched one by one as they are asked for, by a thread of its own while others
 * work. From start to stop the mirror's catalog belongs to that thread. One caller.
 */
#ifndef WASTE_FETCHER_COURIER_H
#define WASTE_FETCHER_COURIER_H

#include <stdint.h>

#include "fetcher/mirror.h"

struct waste_courier;

/* NULL with err. The mirror's directory is there. */
struct waste_courier *waste_courier_start(struct waste_mirror *m, struct waste_error *err);

/* What was asked to be dropped is; what is under way stays as it is. */
void waste_courier_stop(struct waste_courier *c);

/* File number `i` of the catalog is begun with, if it is not there; returns at once. */
void waste_courier_fetch(struct waste_courier *c, uint32_t i);

/* Until it is there, checked and on the disk; with a progress line, of `bytes`. 0, or -EIO with
 * err. */
int waste_courier_wait(struct waste_courier *c, uint32_t i, uint64_t bytes,
                       struct waste_error *err);

/* It is deleted, soon, and does not count as missing. */
void waste_courier_drop(struct waste_courier *c, uint32_t i);

#endif
