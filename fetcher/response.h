/* What a response says of itself: its header lines, which are hostile. */
#ifndef WASTE_FETCHER_RESPONSE_H
#define WASTE_FETCHER_RESPONSE_H

#include <stdbool.h>
#include <stdint.h>

#include "fetcher/catalog.h"

/* Sizes that were not said are WASTE_SIZE_UNKNOWN. */
struct waste_response {
    long status;
    uint64_t length;                         /* of this body */
    uint64_t range_first, range_last, total; /* Content-Range; `first` unknown: there is none */
    bool framed;                             /* the end of the body can be told: a length, chunks */
    char etag[WASTE_VALIDATOR_TEXT], modified[WASTE_VALIDATOR_TEXT];
    char linked_etag[WASTE_VALIDATOR_TEXT]; /* X-Linked-Etag, of this or a redirecting response */
    char type[80], encoding[40];
};

/* Nothing is said yet, but for linked_etag, which the response may have that redirected to this. */
void waste_response_reset(struct waste_response *r);

/* One line, without its end. What is malformed, or too long, says nothing. */
void waste_response_take(struct waste_response *r, const char *line);

#endif
