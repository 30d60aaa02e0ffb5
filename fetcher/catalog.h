/*
 * What `get` knows of a directory: where its files come from, at which revision, what they should
 * be, and which are done. It is DEST/.waste-fetch.json, replaced whole after each change, so a run
 * that was killed finds the last state that was true.
 */
#ifndef WASTE_FETCHER_CATALOG_H
#define WASTE_FETCHER_CATALOG_H

#include <stdbool.h>
#include <stdint.h>

#include "reader/container.h"

#define WASTE_CATALOG_NAME ".waste-fetch.json"
#define WASTE_SIZE_UNKNOWN UINT64_MAX

enum {
    WASTE_SHA256_TEXT = 65, /* hex and its NUL */
    WASTE_SHA1_TEXT = 41,
    WASTE_VALIDATOR_TEXT = 200,
    WASTE_BOOT_TEXT = 40,
};

struct waste_file {
    char *name;      /* a path below DEST that waste_listing_name_fault has no fault to find with */
    uint64_t size;   /* or WASTE_SIZE_UNKNOWN */
    bool size_given; /* by a listing: what a server says later must agree */
    bool shard;      /* tensors, as the index names them */
    bool wanted;     /* to be fetched by this run; not written down */
    bool optional;   /* not there is no error: a small file of a server without a listing */
    bool absent;     /* optional, and the server has none */
    bool done;       /* whole, checked and on the disk */
    bool dropped;    /* done once, and no longer needed */
    char sha256[WASTE_SHA256_TEXT];  /* as the server gives it; "": it does not */
    char git_id[WASTE_SHA1_TEXT];    /* sha1 of the file as a git blob; "": not given */
    char actual[WASTE_SHA256_TEXT];  /* of what is stored, once it is done */
    char etag[WASTE_VALIDATOR_TEXT]; /* strong validator of NAME.part; "": none */
};

struct waste_catalog {
    char *source;               /* OWNER/NAME, or a URL without query */
    char *endpoint;             /* of the hub, or NULL */
    char *asked;                /* --revision, or NULL */
    char *revision;             /* the commit it stands for, or NULL */
    char boot[WASTE_BOOT_TEXT]; /* boot id of the machine when it was written */
    struct waste_file *file;
    uint32_t count, room;
};

void waste_catalog_finish(struct waste_catalog *l);

/* Adds a file of this name, size unknown and not wanted; NULL without memory. Pointers to files
 * hold until the next one is added. */
struct waste_file *waste_catalog_add(struct waste_catalog *l, const char *name);
struct waste_file *waste_catalog_find(const struct waste_catalog *l, const char *name);

/* Text of the file to catalog. 0, -EINVAL (no catalog, or a damaged one) or -ENOMEM with err. */
int waste_catalog_parse(const char *text, size_t bytes, struct waste_catalog *out,
                        struct waste_error *err);

/* The catalog in the directory. 0, -ENOENT without err: none; else -errno with err. */
int waste_catalog_load(int dir, struct waste_catalog *out, struct waste_error *err);

/* Replaces it and has it on the disk when it returns. 0 or -errno with err. */
int waste_catalog_save(int dir, const struct waste_catalog *l, struct waste_error *err);

#endif
