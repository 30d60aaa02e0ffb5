/*
 * Files of a catalog into a directory: several at once, each into NAME.part, resumed by Range where
 * the server allows it, checked by a thread of its own, then published and noted in the catalog.
 * All calls come from one thread.
 */
#ifndef WASTE_FETCHER_DOWNLOAD_H
#define WASTE_FETCHER_DOWNLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "fetcher/address.h"
#include "fetcher/catalog.h"
#include "fetcher/http.h"

enum waste_download_state {
    WASTE_DOWNLOAD_IDLE, /* not asked for */
    WASTE_DOWNLOAD_FETCHING,
    WASTE_DOWNLOAD_CHECKING,
    WASTE_DOWNLOAD_DONE,   /* in place, and done in the catalog */
    WASTE_DOWNLOAD_ABSENT, /* optional, and the server has none */
    WASTE_DOWNLOAD_FAILED,
};

struct waste_download;

struct waste_download_setup {
    int dir;          /* of the files and the catalog */
    const char *path; /* its name, for messages */
    struct waste_catalog *catalog;
    const struct waste_address *address;
    struct waste_http *http; /* used by nobody else in the meantime */
    _Atomic uint64_t *done;  /* bytes that came: added to; taken back when they are thrown away */
};

/* NULL with err. */
struct waste_download *waste_download_create(const struct waste_download_setup *s,
                                             struct waste_error *err);
/* What is under way stops; its parts stay. */
void waste_download_destroy(struct waste_download *d);

/* File number `i` of the catalog is fetched; nothing if that is under way. */
void waste_download_add(struct waste_download *d, uint32_t i);

/* Works for up to timeout_ms; files under way. After a failure of the directory itself (no space
 * left, say) 0 at once, see waste_download_broken. */
uint32_t waste_download_step(struct waste_download *d, int timeout_ms);

enum waste_download_state waste_download_state(const struct waste_download *d, uint32_t i);

/* Why file i failed. */
const struct waste_error *waste_download_error(const struct waste_download *d, uint32_t i);

/* Why nothing more can be stored; NULL if nothing is wrong. */
const struct waste_error *waste_download_broken(const struct waste_download *d);

/* Bytes that came from the network, those thrown away too. */
uint64_t waste_download_received(const struct waste_download *d);

#endif
