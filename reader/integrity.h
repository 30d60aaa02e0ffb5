/*
 * integrity.json: the size of every file of a container, and a crc32 of every 16 MiB piece of those
 * that have no checksums of their own. Written by waste-fetch (fetcher/seal.h), read by who loads
 * those files. Hostile input like the rest.
 *
 *     {
 *      "format_version": 0, "checksum": "crc32", "piece_bytes": 16777216,
 *      "files": {"trunk.bin": {"bytes": 20000000, "crc32": ["0011aabb", "22cc33dd"]},
 *                "experts-L1.bin": {"bytes": 786432}, ...},
 *      "crc32": "8899eeff"
 *     }
 *
 * The last line is the checksum of everything before its comma, so that damage in this file is not
 * taken for damage in another.
 *
 * Thread rules: no hidden state; what has been read may be used by many threads.
 */
#ifndef WASTE_READER_INTEGRITY_H
#define WASTE_READER_INTEGRITY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reader/container.h"

#define WASTE_INTEGRITY_FILE "integrity.json"
enum { WASTE_INTEGRITY_PIECE = 16 << 20 };

struct waste_integrity_file {
    char name[WASTE_MAX_FILE_NAME];
    uint64_t bytes;
    uint32_t pieces; /* ceil(bytes / 16 MiB), or 0: no checksums */
    uint32_t *crc;
};

struct waste_integrity {
    uint32_t files;
    struct waste_integrity_file *file; /* manifest.json, trunk.bin and codebooks.bin are there */
};

/*
 * Reads DIR/integrity.json. 0 and *out = NULL: there is none. -EINVAL: it is bad; else -errno; err
 * is set. waste_integrity_free takes NULL.
 */
int waste_integrity_read(const char *dir, struct waste_integrity **out, struct waste_error *err);
void waste_integrity_free(struct waste_integrity *integrity);

/* NULL: not listed. */
const struct waste_integrity_file *waste_integrity_find(const struct waste_integrity *integrity,
                                                        const char *name);

/* Bytes of piece i of a file of `bytes`. */
size_t waste_integrity_piece_bytes(uint64_t bytes, uint32_t i);
uint32_t waste_integrity_pieces(uint64_t bytes);

/* The checksum of a piece, or of its first part: pass 0, then what came out before. */
uint32_t waste_integrity_crc(uint32_t crc, const void *data, size_t bytes);

/* The line for a piece that is not what it was. `where` adds to it, "" for nothing. -EINVAL. */
int waste_integrity_damaged(const char *dir, const char *name, uint64_t file_bytes, uint32_t piece,
                            const char *where, struct waste_error *err);

/*
 * Whether everything that is loaded outside of the reader is what it was: the sizes of all files
 * listed, and the bytes of manifest.json, tokenizer.model and specials.json. 0 also without an
 * integrity.json; -EINVAL or -errno with err set.
 */
int waste_integrity_check_texts(const char *dir, struct waste_error *err);

/* The file's text for `files`, an object as above. To be freed; NULL without memory. */
char *waste_integrity_text(json_t *files);

/* Files of which every piece has a checksum. */
bool waste_integrity_has_pieces(const char *name);

#endif
