/*
 * A conversation's state outside of its segment, and the file that holds one.
 *
 * State is what `position` consumed tokens leave: a bank (KDA states and convolution histories) and
 * the latent rows [0, position) of every MLA layer; see shm/session.h. With it go the tokens, of
 * which the last may not be consumed yet, and a text of the owner's.
 *
 * File, little-endian: a header of fixed size, then four zstd frames: tokens (u32), text, bank,
 * latent rows (layer after layer). The header has the sizes and the crc32 of each packed frame, and
 * its own; every frame has zstd's checksum of its content. The place holds the old file or the new
 * one at any moment (beside.h).
 *
 * Files are hostile input. No size of theirs is used before it was found to be the model's.
 */
#ifndef WASTE_CLI_SNAPSHOT_H
#define WASTE_CLI_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/text.h"
#include "cli/tokenizer.h"
#include "reader/container.h"

/* What of a model decides about its state. */
struct waste_snapshot_shape {
    uint64_t fingerprint; /* of the weights */
    uint64_t bank_bytes;  /* all KDA layers */
    uint32_t mla_layers, row_bytes;
    uint32_t vocab; /* every token is below it */
};

/* Where state lies: row r of MLA layer l at rows + l * layer_stride + r * row_bytes. */
struct waste_snapshot_place {
    char *bank, *rows;
    uint64_t layer_stride;
};

struct waste_snapshot {
    const uint32_t *ids;
    uint32_t count;    /* tokens */
    uint32_t position; /* of them, consumed: at most count; 0: there is no state */
    struct waste_snapshot_place state;
    const char *text;
    size_t text_bytes;
};

/*
 * Makes PATH hold it. keep_old: what PATH held is PATH.old afterwards. 0 or -errno with err (which
 * names the file); PATH is untouched then, -EBUSY: by us, somebody else is writing it. Any thread.
 */
int waste_snapshot_write(const char *path, const struct waste_snapshot_shape *shape,
                         const struct waste_snapshot *snapshot, bool keep_old,
                         struct waste_error *err);

/* A file that was opened: tokens and text are here, the state is still in it. */
struct waste_snapshot_file;

/*
 * Opens PATH and checks all of it against the shape and its checksums; at most `most` tokens. 0;
 * -ENOENT; -ESTALE: another model's; -EFBIG: more tokens than that; -EBADMSG: damaged, or no such
 * file at all; other -errno: cannot be read. err names the file and says what is wrong.
 */
int waste_snapshot_open(const char *path, const struct waste_snapshot_shape *shape, uint32_t most,
                        struct waste_snapshot_file **out, struct waste_error *err);
void waste_snapshot_close(struct waste_snapshot_file *f);

const struct waste_ids *waste_snapshot_ids(const struct waste_snapshot_file *f);
const struct waste_text *waste_snapshot_text(const struct waste_snapshot_file *f);
uint32_t waste_snapshot_position(const struct waste_snapshot_file *f);
const char *waste_snapshot_path(const struct waste_snapshot_file *f);

/* Puts the state there. 0 or -errno with err; the place is garbage then. */
int waste_snapshot_load(struct waste_snapshot_file *f, const struct waste_snapshot_place *to,
                        struct waste_error *err);

#endif
