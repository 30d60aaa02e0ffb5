/* What a command is asked to run: text in the model's markup, or ids. */
#ifndef WASTE_CLI_PROMPT_H
#define WASTE_CLI_PROMPT_H

#include "cli/engine.h"
#include "cli/reuse.h"

/*
 * Appends to *out, which is empty, the tokens of --ids, or of the text after MODEL (from stdin for
 * "-" or when there is none), as a conversation's first turn unless --raw is given. Refuses an
 * empty prompt. 0 or an exit code, with a line on stderr. *marks: where messages end in it.
 */
int waste_prompt_make(struct waste_engine *e, struct waste_ids *out, struct waste_marks *marks);

/* Appends the text after MODEL (from stdin for "-" or when there is none), without the newline that
 * ends it unless --raw is given. Refuses an empty one. */
int waste_prompt_text(const struct waste_args *args, struct waste_text *out);

/* Appends a whole file, or stdin for "-". 0 or an exit code, with a line on stderr. */
int waste_prompt_read(const char *path, struct waste_text *out);

#endif
