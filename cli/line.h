/*
 * Lines from a person (with editing and history, on a terminal) or from a pipe. Returns as soon as
 * an end is asked for (cli/signals.h), also in the middle of a line.
 */
#ifndef WASTE_CLI_LINE_H
#define WASTE_CLI_LINE_H

#include <stddef.h>

struct waste_line;

/* NULL when out of memory. `prompt` (not copied) is shown on a terminal only. */
struct waste_line *waste_line_create(const char *prompt);
void waste_line_destroy(struct waste_line *l);

/* Another prompt, from the next line on (not copied). */
void waste_line_prompt(struct waste_line *l, const char *prompt);

/* The next line without its newline, valid until the next call; NULL at the end. */
const char *waste_line_next(struct waste_line *l);

#endif
