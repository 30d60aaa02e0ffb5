/*
 * Writes tiny containers of both families and every format into a temporary directory, from
 * FORMAT and MODEL and independently of the reader. Weights are a formula of (tensor, row, column),
 * so a test knows each of them without reading the files. Anything that fails aborts.
 */
#ifndef WASTE_TESTS_TINY_H
#define WASTE_TESTS_TINY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    TINY_F32 = 0,
    TINY_Q8G = 2,
    TINY_Q4G = 3,
    TINY_VQ3R = 4,
    TINY_VQ2R = 5,
    TINY_Q3G = 7,
    TINY_VQ4P = 8
};

struct tiny_shape {
    bool k3;     /* else Kimi-Linear */
    bool nested; /* config.text_config */
    uint32_t expert_fmt, trunk_fmt;
    uint32_t layers, dense, hidden, vocab, experts, top_k, inner, latent, shared;
    uint32_t mla_every; /* layer l is MLA when (l + 1) % mla_every == 0 */
    uint32_t heads, head_dim;
    bool sparse; /* holes in place of weights and records: only geometry matters */
};

extern const struct tiny_shape tiny_k3, tiny_linear;

struct tiny {
    struct tiny_shape shape;
    char dir[64];
    json_t *manifest; /* change it, then tiny_save_manifest() */
    FILE *trunk;
    uint64_t trunk_bytes;
};

void tiny_build(struct tiny *t, const struct tiny_shape *shape);
void tiny_save_manifest(const struct tiny *t);
void tiny_free(struct tiny *t); /* and the directory */

/* "DIR/name" in a buffer of the caller. */
char *tiny_path(const struct tiny *t, const char *name, char out[128]);

/* Entry of a name (prefix left out) in the manifest's trunk. */
json_t *tiny_entry(const struct tiny *t, const char *name);
/* Its number there: what its weights are made from. */
uint32_t tiny_number(const struct tiny *t, const char *name);

/* Weight of an F32 tensor; integer and scale of a quantised one. */
float tiny_f32(uint32_t number, uint64_t row, uint64_t column);
int tiny_int(uint32_t number, uint64_t row, uint64_t column, uint32_t fmt);
float tiny_scale(uint32_t number, uint64_t row, uint64_t group, uint16_t *bits);

/* Entry `value` (0..8 x entries) of a codebook as readers must see it, and its bits on disk. */
float tiny_codebook(uint32_t book, uint32_t value, uint16_t *bits);

#endif
