/* Token ids in a text: digits, separated by a comma or white space, perhaps all in brackets. */
#ifndef WASTE_CLI_IDS_TEXT_H
#define WASTE_CLI_IDS_TEXT_H

#include "cli/text.h"
#include "cli/tokenizer.h"
#include "shm/control.h"

/* Appends them; a text without any is fine. 0, -EINVAL or -ENOMEM with err, which names what is no
 * token id. */
int waste_ids_parse(const struct waste_text *text, struct waste_ids *out, struct waste_error *err);

#endif
