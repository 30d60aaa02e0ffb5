/* chat.json of the two families. */
#ifndef WASTE_FETCHER_CHAT_H
#define WASTE_FETCHER_CHAT_H

#include <jansson.h>

/* The text for a vocabulary with these special tokens ([{"id", "text"}, ...]); NULL if they are of
 * neither family. */
const char *waste_chat_text(const json_t *specials);

#endif
