/*
 * A release to convert: the tensors of its safetensors shards, and its small files, wherever they
 * are. What is named X.weight_packed (E2M1, two values a byte, low nibble first) and X.weight_scale
 * (one E8M0 exponent a 32 values) appears as one tensor X.weight of type MXFP4.
 *
 * Functions that can fail print one line and return -1 unless said. After waste_release_list
 * all but want and done may be called by several threads at once.
 */
#ifndef WASTE_FETCHER_RELEASE_H
#define WASTE_FETCHER_RELEASE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fetcher/digest.h"
#include "fetcher/safetensors.h"

enum waste_release_type {
    WASTE_RELEASE_BF16,
    WASTE_RELEASE_F16,
    WASTE_RELEASE_F32,
    WASTE_RELEASE_MXFP4,
    WASTE_RELEASE_OTHER, /* cannot be read */
};
enum { WASTE_MXFP4_GROUP = 32 };
struct waste_release_part {
    uint32_t shard;
    uint64_t off, bytes; /* in the shard's file */
};

struct waste_release_tensor {
    char *name;
    uint8_t type; /* enum waste_release_type */
    uint8_t axes;
    uint32_t shape[WASTE_SAFETENSORS_AXES];
    struct waste_release_part data, scale; /* scale: of MXFP4 */
};

struct waste_release_shard {
    char *name;
    uint64_t bytes;
    char sum[WASTE_SHA256_TEXT]; /* of its first waste_release_probe() bytes */
    int fd;                      /* -1: not wanted now */
    uint64_t inode;              /* of a file that is read in place, as it was listed; */
    int64_t modified;            /* when it was last written to, in ns */
    bool link;                   /* it is a symbolic link */
    bool here;                   /* wanting it takes no time */
    bool gone;                   /* deleted, its header was kept */
    bool over;                   /* the caller's: nothing more is to be read from it */
};

struct waste_release;
struct waste_release_ops {
    /* Makes a shard readable, however long that takes; a descriptor, which the release closes. */
    int (*want)(struct waste_release *r, uint32_t shard);
    /* The shard will be wanted soon. May be NULL. */
    void (*hint)(struct waste_release *r, uint32_t shard);
    /* Whether what was read from a wanted shard since it was listed is of one file that nobody
     * wrote to. 0 or -1. NULL: nobody can. */
    int (*unchanged)(const struct waste_release *r, uint32_t shard);
    /* All that was to be read from it is safely published. 0 or -1. May be NULL. */
    int (*done)(struct waste_release *r, uint32_t shard);
    /* A whole small file, NUL behind it. 0, -ENOENT without a word, or -1. */
    int (*small)(struct waste_release *r, const char *name, size_t limit, char **out,
                 size_t *bytes);
    /* Adds these shards, in this order (waste_release_add_shard). `kept`: headers of shards that
     * may be gone, or NULL. 0 or -1. */
    int (*add_shards)(struct waste_release *r, char *const *names, uint32_t count,
                      const json_t *kept);
    /* As waste_release_headers. */
    char *(*headers)(struct waste_release *r);
    void (*close)(struct waste_release *r); /* frees state; may be NULL */
};

struct waste_release {
    const struct waste_release_ops *ops;
    void *state; /* of ops */
    char *path;  /* as the user gave it, for messages */
    struct waste_release_shard *shard;
    uint32_t shards;
    bool reclaim;                        /* local: what is done with is deleted */
    bool copies;                         /* shards are copies, fetched for this run */
    bool used_up;                        /* the caller's: no other run will need it */
    struct waste_release_tensor *tensor; /* sorted by name once the list is finished */
    uint32_t tensors, tensor_room;
};

/* A directory. `cached` are headers of shards that may be gone (waste_release_headers), or NULL. */
int waste_release_open_local(struct waste_release *r, const char *path, const char *cached);
void waste_release_close(struct waste_release *r);

/* A hub's OWNER/NAME or a URL, see fetcher/release_remote.c. */
struct waste_release_remote {
    const char *source, *revision;
    const char *out; /* shards are staged in its directory .staging, which is made when one is */
    uint32_t jobs, retries, stall_seconds;
    double retry_wait;
    bool quiet;
};
int waste_release_open_remote(struct waste_release *r, const struct waste_release_remote *s,
                              const char *cached);

/* For backends, headers that are kept: to and from a JSON object, by the shards' names. 0, -ENOENT
 * without a word (it is not kept), or -1. */
int waste_release_keep_header(json_t *kept, const struct waste_release_shard *shard,
                              const char *json, size_t json_bytes);
int waste_release_add_kept(struct waste_release *r, const char *name, const json_t *kept);

/* How many first bytes of a shard tell it apart from others of the same layout: the header, and
 * values behind it. The same wherever the shard is. */
size_t waste_release_probe(uint64_t file_bytes, size_t json_bytes);

/* For backends: the next shard. `first` are its first waste_release_probe() bytes. */
int waste_release_add_shard(struct waste_release *r, const char *name, uint64_t file_bytes,
                            const char *first, size_t json_bytes);

/* For backends: the list of shards by the index, or the single one, and of their tensors: pairs are
 * joined, it is sorted, no name twice, and the index says the same. `cached`: as for
 * waste_release_open_local. */
int waste_release_list(struct waste_release *r, const char *cached);

/* NULL if there is none. */
const struct waste_release_tensor *waste_release_find(const struct waste_release *r,
                                                      const char *name);

/* Rows (all axes but the last, flattened; one row without axes) and values a row. */
uint64_t waste_release_rows(const struct waste_release_tensor *t);
uint32_t waste_release_cols(const struct waste_release_tensor *t);

int waste_release_want(struct waste_release *r, uint32_t shard);
void waste_release_hint(struct waste_release *r, uint32_t shard);
/* To be asked before what was read from the shards that are open is relied on. */
int waste_release_unchanged(const struct waste_release *r);
int waste_release_done(struct waste_release *r, uint32_t shard);

/*
 * Values [first, first + count) of the whole tensor, row-major, as f32. Of MXFP4 whole groups of
 * 32. The shards must be wanted. Values that are not finite are refused with the tensor's name.
 */
int waste_release_read(const struct waste_release *r, const struct waste_release_tensor *t,
                       uint64_t first, uint64_t count, float *out);

/* All headers as JSON text for waste_release_open_local, to be freed; NULL without memory or if
 * they cannot be read. */
char *waste_release_headers(struct waste_release *r);

/* Tells releases apart: names, types, shapes and places of all tensors, and the first values of
 * every shard. */
uint64_t waste_release_fingerprint(const struct waste_release *r);

#endif
