/*
 * Token ids in a text, of an option or a file: digits, separated by a comma or white space, perhaps
 * all in brackets.
 */
#ifndef WASTE_CLI_IDS_TEXT_H
#define WASTE_CLI_IDS_TEXT_H

#include "cli/tokenizer.h"
#include "shm/control.h"

/* Appends the ids of text[bytes], which a NUL follows (NULL: of no bytes); none at all is fine. 0,
 * -EINVAL or -ENOMEM with err, which names what is no token id. */
int waste_ids_parse(const char *text, size_t bytes, struct waste_ids *out, struct waste_error *err);

#endif
