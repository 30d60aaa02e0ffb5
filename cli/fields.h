/*
 * Fields of JSON that may be anything: each is what it should be, or refused in one line that says
 * where. A field that is null is not there. -EINVAL for every refusal.
 */
#ifndef WASTE_CLI_FIELDS_H
#define WASTE_CLI_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "reader/container.h"

/* Not NUL-terminated for sure, and may hold NUL; data NULL: not there. */
struct waste_span {
    const char *data;
    size_t bytes;
};

/* Where we are, and whom to tell. The path is empty or ends with a dot: "messages[2]." */
struct waste_place {
    struct waste_error *err;
    char path[96];
};

/* "messages[2].content: what is wrong", where "content: ..." is the format's. */
int waste_field_refuse(const struct waste_place *at, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "messages[2]: what is wrong with all of it" */
int waste_field_refuse_whole(const struct waste_place *at, const char *why);

struct waste_span waste_field_span(const json_t *string);

/* NULL for a key that is not there or null. */
const json_t *waste_field_get(const json_t *object, const char *key);

int waste_field_get_string(const struct waste_place *at, const json_t *object, const char *key,
                           bool needed, struct waste_span *out);

/* One of `words` (NULL-terminated; *out is that pointer), or nothing. `list`: for the refusal. */
int waste_field_get_word(const struct waste_place *at, const json_t *object, const char *key,
                         const char *const *words, const char *list, const char **out);

int waste_field_get_flag(const struct waste_place *at, const json_t *object, const char *key,
                         bool *out);

/* Every key that says something is one of `known` (NULL-terminated). */
int waste_field_check_keys(const struct waste_place *at, const json_t *object,
                           const char *const *known);

#endif
