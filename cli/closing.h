/* The end of a reply that was cut off anywhere, in the terms of the built-in chat formats. */
#ifndef WASTE_CLI_CLOSING_H
#define WASTE_CLI_CLOSING_H

#include "cli/parser.h"

/*
 * Appends what is missing until the message has ended: the rest of the tag at hand, the closing of
 * all that is open, a response if there was none (Kimi K3), the end of the message. `r` is where
 * ids[0 .. count) left a parser, and follows what is appended. 0 or -ENOMEM.
 */
int waste_closing_xtml(struct waste_parser *r, const uint32_t *ids, size_t count,
                       struct waste_ids *out);
int waste_closing_chatml(struct waste_parser *r, struct waste_ids *out);

#endif
