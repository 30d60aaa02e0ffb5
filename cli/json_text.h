/*
 * JSON values as one line of text, spelled as chat formats want it: no white space, UTF-8 left as
 * it is, control characters as \u00xx in lower case, numbers as short as they can be and still be
 * the same number (0.1, 1e-07, 100.0).
 */
#ifndef WASTE_CLI_JSON_TEXT_H
#define WASTE_CLI_JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>

#include "cli/text.h"

/* Appends the value. `sorted`: the keys of objects in the order of their bytes, else as they came.
 * 0 or -ENOMEM. */
int waste_json_text(const json_t *value, bool sorted, struct waste_text *out);

/* Appends a string, quoted. 0 or -ENOMEM. */
int waste_json_text_string(const char *text, size_t bytes, struct waste_text *out);

#endif
