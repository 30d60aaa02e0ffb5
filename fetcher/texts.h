/* The small files of a synthetic container (tokenizer.model, specials.json, chat.json), and of a
 * release (tiktoken.model, tokenizer_config.json, generation_config.json). */
#ifndef WASTE_FETCHER_TEXTS_H
#define WASTE_FETCHER_TEXTS_H

#include <stdint.h>

#include "fetcher/shape.h"

/* Sets the config's bos_token_id and eos_token_id to the vocabulary that waste_texts_write makes.
 */
void waste_texts_set_ids(struct waste_shape *shape);

/* 0, or -1 with the reason printed. */
int waste_texts_write(int dir, const struct waste_shape *shape);
int waste_texts_write_release(int dir, const struct waste_shape *shape);

#endif
