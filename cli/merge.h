/*
 * Byte-pair merging of one piece: again and again, the adjacent pair whose joined bytes have the
 * lowest rank (the leftmost of equals) becomes one token.
 */
#ifndef WASTE_CLI_MERGE_H
#define WASTE_CLI_MERGE_H

#include "cli/tokenizer.h"
#include "cli/vocab.h"

enum {
    WASTE_PIECE_BYTES = 1 << 30, /* longest piece */
    WASTE_MERGE_LEVELS = 9,      /* 16^8 is beyond it */
};

/*
 * Working memory for long pieces, kept from piece to piece; all zero at first. Parts are known by
 * the byte they begin at.
 */
struct waste_merge {
    uint32_t *next, *previous; /* [room] */
    /* lowest[0][at]: rank of the part at `at` joined with the next one, WASTE_NO_TOKEN if that is
     * no token or no part begins there; lowest[n + 1][i]: the least of lowest[n][16 i .. 16 i +
     * 16), up to one root */
    uint32_t *lowest[WASTE_MERGE_LEVELS];
    size_t room;
};

/* Appends the ids of the piece. 0 or -ENOMEM. */
int waste_merge_piece(struct waste_merge *m, const struct waste_vocab *v, const char *piece,
                      size_t bytes, struct waste_ids *out);
void waste_merge_finish(struct waste_merge *m);

#endif
