/*
 * What servers say about a checkpoint's files. Everything here is hostile: parsers take bytes,
 * check types, sizes, digests and names, and refuse with one line.
 */
#ifndef WASTE_FETCHER_LISTING_H
#define WASTE_FETCHER_LISTING_H

#include <stddef.h>
#include <stdint.h>

#include "fetcher/catalog.h"

#define WASTE_INDEX_NAME "model.safetensors.index.json"
#define WASTE_SINGLE_NAME "model.safetensors"
#define WASTE_SUMS_NAME "SHA256SUMS"

enum {
    WASTE_LISTING_BYTES = 64 << 20, /* of a hub's listing, of a file of sums */
    WASTE_INDEX_BYTES = 256 << 20,
    WASTE_LISTING_FILES = 65536,
};

/* Why a name may not become a file below DEST; NULL if it may. It must be a relative path without
 * "." and "..", backslashes and control characters, short enough for a file system, and none that
 * `get` itself uses. */
const char *waste_listing_name_fault(const char *name, size_t bytes);

/*
 * The hub's answer to /api/models/REPO/revision/REV?blobs=true: adds every sibling with its size
 * and digests and sets the revision. 0 or -EINVAL, -ENOMEM with err.
 */
int waste_listing_parse_hub(const char *text, size_t bytes, struct waste_catalog *l,
                            struct waste_error *err);

/* The output of sha256sum: adds every file with its digest. */
int waste_listing_parse_sums(const char *text, size_t bytes, struct waste_catalog *l,
                             struct waste_error *err);

/* model.safetensors.index.json: marks the files its weight_map names as shards; those that the
 * catalog lacks are added if `add`, else refused by name. */
int waste_listing_parse_index(const char *text, size_t bytes, bool add, struct waste_catalog *l,
                              struct waste_error *err);

/* No file is twice in it, and none is the directory of another. 0 or -EINVAL with err. */
int waste_listing_check(const struct waste_catalog *l, struct waste_error *err);

/* Hex digits, `digits` of them and nothing else. */
bool waste_listing_is_hex(const char *text, size_t digits);

#endif
