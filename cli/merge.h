/*
 * Byte-pair merging of one piece: again and again, the adjacent pair whose joined bytes have the
 * lowest rank (the leftmost of equals) becomes one token.
 */
#ifndef WASTE_CLI_MERGE_H
#define WASTE_CLI_MERGE_H

#include "cli/tokenizer.h"
#include "cli/vocab.h"

enum { WASTE_PIECE_BYTES = 1 << 30 }; /* longest piece */

/* Working memory, kept from piece to piece; all zero at first. */
struct waste_merge {
    uint32_t *next, *previous, *rank; /* [room] by the byte a part begins at */
    uint64_t *heap;
    size_t room;
};

/* Appends the ids of the piece. 0 or -ENOMEM. */
int waste_merge_piece(struct waste_merge *m, const struct waste_vocab *v, const char *piece,
                      size_t bytes, struct waste_ids *out);
void waste_merge_finish(struct waste_merge *m);

#endif
