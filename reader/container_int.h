/*
 * Internal to the container parser: one parse in progress and the JSON field readers.
 *
 * container.c         opens, orchestrates, files and errors
 * container_json.c    typed, bounded fields of hostile JSON
 * container_config.c  the geometry
 * container_index.c   the trunk's index
 * container_trunk.c   the table of roles, the plan of the trunk segment
 * container_expert.c  expert format, banks, codebooks, records
 */
#ifndef WASTE_READER_CONTAINER_INT_H
#define WASTE_READER_CONTAINER_INT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reader/container.h"

#define WASTE_MANIFEST "manifest.json"
#define WASTE_TRUNK_FILE "trunk.bin"
#define WASTE_CODEBOOK_FILE "codebooks.bin"

/* A real manifest is under 1 MiB. The worst of this size takes 650 MB while it is parsed. */
enum { WASTE_MANIFEST_LIMIT = 8 << 20, WASTE_CODEBOOK_HEADER = 16, WASTE_VEC_DIM = 8 };

/* One container being parsed. The JSON stays alive until the model is complete. */
struct waste_parse {
    const char *dir;
    int dir_fd;
    struct waste_error *err;
    bool index_only; /* the manifest alone: no file's size is looked at */
    json_t *root;
    const char *prefix; /* tensor_prefix, inside root */
    bool tied;          /* lm_head may be the embedding */
    struct waste_config config;
    struct waste_expert_format expert;
    uint8_t is_kda[WASTE_MAX_LAYERS];
    struct waste_bank *bank; /* [config.layers] */
    uint64_t trunk_file_bytes;
};

/* An object of the manifest and how to call it in an error. */
struct waste_json_at {
    const json_t *object;
    const char *path; /* "config.linear_attn_config"; "" at the top */
    struct waste_error *err;
};

/*
 * Field readers: 0, or -EINVAL with the error set and *out untouched. A field that is absent or
 * null counts as missing; the _opt forms then leave *out alone and return 0.
 */
const json_t *waste_json_get(const struct waste_json_at *at, const char *key);
int waste_json_missing(const struct waste_json_at *at, const char *key);
int waste_json_wrong(const struct waste_json_at *at, const char *key, const char *wanted);
int waste_json_uint(const struct waste_json_at *at, const char *key, uint64_t min, uint64_t max,
                    uint64_t *out);
int waste_json_uint_opt(const struct waste_json_at *at, const char *key, uint64_t min, uint64_t max,
                        uint64_t *out);
int waste_json_real_opt(const struct waste_json_at *at, const char *key, double min, double max,
                        double *out);
int waste_json_flag_opt(const struct waste_json_at *at, const char *key, bool *out);
int waste_json_string_opt(const struct waste_json_at *at, const char *key, size_t max_bytes,
                          const char **out);
int waste_json_object(const struct waste_json_at *at, const char *key, const json_t **out);
int waste_json_array(const struct waste_json_at *at, const char *key, size_t max_length,
                     const json_t **out);
/* An integer in [min, max]; `what` names it in the error. */
int waste_json_element(const json_t *value, struct waste_error *err, const char *what, size_t index,
                       uint64_t min, uint64_t max, uint64_t *out);

/* Size of a regular file in the container: 0 or -errno with the error set. */
int waste_parse_file_bytes(const struct waste_parse *p, const char *name, uint64_t *out);

int waste_parse_config(struct waste_parse *p);
/* Needs the config. Fills expert and bank. */
int waste_parse_experts(struct waste_parse *p);
/* Needs config and experts. Builds the model; the caller frees it. */
int waste_parse_trunk(struct waste_parse *p, struct waste_model **out);

/* Neither empty, ".", ".." nor with a slash or control characters. */
bool waste_plain_file_name(const char *name);

static inline uint64_t waste_align_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* One codebook in codebooks.bin, header included. */
static inline uint64_t waste_codebook_bytes(const struct waste_expert_format *x)
{
    return WASTE_CODEBOOK_HEADER + (uint64_t)x->entries * WASTE_VEC_DIM * 2;
}

/* Header of codebook `number` as the format says: 0 or -EINVAL with the error set. */
int waste_codebook_check_header(const struct waste_expert_format *x, const uint8_t *header,
                                uint64_t number, struct waste_error *err);

#endif
