/*
 * The .waste container (version 0) as hostile input: manifest.json, trunk.bin, codebooks.bin,
 * experts-L<n>.bin, tokenizer.model, specials.json, chat.json. Reads and validates; nothing here
 * trusts a number from disk.
 *
 * Every refusal is one line in `struct waste_error`: file, field, value, limit. Thread rules: no
 * hidden state; one object may be used by one thread at a time.
 */
#ifndef WASTE_READER_CONTAINER_H
#define WASTE_READER_CONTAINER_H

#include <stddef.h>
#include <stdint.h>

#include "shm/model.h"

struct waste_error {
    char text[512]; /* lower case, no period, no newline */
};

/* Formats into err->text (control characters from the input are escaped). Returns `code`, for
 * `return waste_error_set(...)`. */
int waste_error_set(struct waste_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define WASTE_RECORD_MAGIC UINT32_C(0x50584557)
#define WASTE_CODEBOOK_MAGIC UINT32_C(0x4B424357)

/*
 * Parses DIR/manifest.json, checks it against the sizes of the other files and against FORMAT,
 * plans the trunk segment and returns the flat model (malloc, free() it). 0, -EINVAL (the container
 * is bad), -ENOENT..., with err set. Every tensor the layers need is there with the right shape;
 * record geometry is derived from the shapes.
 */
int waste_container_open(const char *dir, struct waste_model **out, struct waste_error *err);

/*
 * The same by the manifest alone: the other files may be missing or of any size, and
 * expert.codebooks is only an upper bound. For who names what is wrong with each file
 * (waste-fetch verify); not for running.
 */
int waste_container_open_index(const char *dir, struct waste_model **out, struct waste_error *err);

/*
 * A process that comes later (a restarted reader) checks that DIR still holds what the model was
 * made from: the manifest's bytes and the sizes of all files. 0, -ESTALE, or -errno; err is set.
 */
int waste_container_recheck(const char *dir, const struct waste_model *model,
                            struct waste_error *err);

/* The release's name of tensor `id`, without tensor_prefix, for messages. `out` of 128 bytes holds
 * every name. */
void waste_container_tensor_name(const struct waste_model *model, uint32_t id, char *out,
                                 size_t bytes);

/*
 * Checks a whole record's header (48 bytes at least) against what the model says about (layer,
 * expert). Returns WASTE_SLOT_OK or WASTE_SLOT_BAD_HEADER.
 */
uint32_t waste_record_check_header(const struct waste_model *model, uint32_t layer, uint32_t expert,
                                   const void *record);

/* The name of the first header field that is wrong, with what it is and must be; NULL: none is. */
const char *waste_record_wrong_field(const struct waste_model *model, uint32_t layer,
                                     uint32_t expert, const void *record, uint32_t *value,
                                     uint32_t *want);

/* crc32 over [48, crc_end) equals the header's. record is record_bytes long. WASTE_SLOT_OK or
 * WASTE_SLOT_BAD_CRC. */
uint32_t waste_record_check_crc(const struct waste_model *model, const void *record);

/* Every row scale [scale_off, crc_end) is finite. WASTE_SLOT_OK or WASTE_SLOT_BAD_SCALE. An
 * infinite one may saturate in the activation and leave a finite, wrong answer. */
uint32_t waste_record_check_scales(const struct waste_model *model, const void *record);

/* Codebook number of a record whose header has been checked (codebook + 3 * stages <= codebooks).
 */
uint32_t waste_record_codebook(const void *record);

/* Reads a whole small file (at most `limit` bytes) into malloc'd memory with a NUL behind it. 0 or
 * -errno, err set. */
int waste_container_read_file(const char *dir, const char *name, size_t limit, char **out,
                              size_t *out_bytes, struct waste_error *err);

#endif
