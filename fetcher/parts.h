/*
 * Partial containers that `convert --layers` made: what each holds, and that they belong together.
 * Their files have the names, sizes and offsets of the whole container; trunk.bin and codebooks.bin
 * are holes where another part has the bytes. The manifest says what is there ("partial").
 */
#ifndef WASTE_FETCHER_PARTS_H
#define WASTE_FETCHER_PARTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct waste_part {
    const char *path;
    int dir;
    json_t *manifest;
    uint8_t *has; /* [units]: 0: tensors of no layer, n + 1: layer n */
};

struct waste_parts {
    struct waste_part *part;
    uint32_t count, layers, dense_layers;
    int out;         /* the directory to merge into; a bank may be there already */
    char *recipe;    /* convert.json, the same in all */
    uint16_t *first; /* [layers + 1] the part each unit is taken from */
    uint64_t trunk_bytes, book_bytes, layer_book_bytes; /* files; 3 x stages books */
};

/*
 * Opens and checks: the same recipe, manifests, small files and sizes, each layer somewhere, what
 * is in several parts the same, byte for byte. The parts stay locked; to `move` files out of them,
 * against all others. 0, or -1 with the reason printed; close in any case.
 */
int waste_parts_open(struct waste_parts *p, const char *const *paths, uint32_t count, bool move);
void waste_parts_close(struct waste_parts *p);

/* After waste_parts_open, with `out` open: banks are there, none differs. */
int waste_parts_check_banks(const struct waste_parts *p);

/* The manifest of the whole container, to be freed; NULL without memory. */
char *waste_parts_manifest(const struct waste_parts *p);

/* Trunk entries of a part that belong to a unit: each(ctx, entry). */
int waste_parts_entries(const struct waste_parts *p, uint32_t part, uint32_t unit,
                        int (*each)(void *ctx, uint64_t off, uint64_t bytes), void *ctx);

/* A layer's bank in a part's manifest: its name (NULL: not a MoE layer), size and first book. */
const char *waste_parts_bank(const struct waste_parts *p, uint32_t part, uint32_t layer,
                             uint64_t *bytes, uint64_t *first_book_byte);

/* Small files that lie in every part, NULL at the end. */
extern const char *const waste_parts_texts[];

#endif
