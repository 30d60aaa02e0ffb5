#include "cli/fields.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* "messages[2].content: what is wrong"; -EINVAL. */
int waste_field_refuse(const struct waste_place *at, const char *format, ...)
{
    char why[160];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    return waste_error_set(at->err, -EINVAL, "%s%s", at->path, why);
}

/* "messages[2]: what is wrong with all of it". */
int waste_field_refuse_whole(const struct waste_place *at, const char *why)
{
    size_t length = strlen(at->path);

    if (length == 0)
        return waste_error_set(at->err, -EINVAL, "%s", why);
    return waste_error_set(at->err, -EINVAL, "%.*s: %s", (int)length - 1, at->path, why);
}

/* A key of the input as errors may show it. */
static const char *printable(const char *key, char buf[41])
{
    size_t n = 0;

    for (; key[n] != '\0' && n < 40; n++)
        buf[n] = key[n] > ' ' && key[n] < 0x7f ? key[n] : '?';
    buf[n] = '\0';
    return buf;
}

struct waste_span waste_field_span(const json_t *string)
{
    return (struct waste_span){json_string_value(string), json_string_length(string)};
}

/* NULL for a key that is not there or null. */
const json_t *waste_field_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

int waste_field_get_string(const struct waste_place *at, const json_t *object, const char *key,
                           bool needed, struct waste_span *out)
{
    const json_t *value = waste_field_get(object, key);

    if (value == NULL)
        return needed ? waste_field_refuse(at, "%s: missing", key) : 0;
    if (!json_is_string(value))
        return waste_field_refuse(at, "%s: not a string", key);
    *out = waste_field_span(value);
    return 0;
}

/* One of `words` (NULL-terminated), or nothing. */
int waste_field_get_word(const struct waste_place *at, const json_t *object, const char *key,
                         const char *const *words, const char *list, const char **out)
{
    struct waste_span value = {0};
    int ret = waste_field_get_string(at, object, key, false, &value);

    if (ret < 0 || value.data == NULL)
        return ret;
    for (; *words != NULL; words++)
        if (strlen(*words) == value.bytes && memcmp(*words, value.data, value.bytes) == 0) {
            *out = *words;
            return 0;
        }
    return waste_field_refuse(at, "%s: none of %s", key, list);
}

int waste_field_get_flag(const struct waste_place *at, const json_t *object, const char *key,
                         bool *out)
{
    const json_t *value = waste_field_get(object, key);

    if (value == NULL)
        return 0;
    if (!json_is_boolean(value))
        return waste_field_refuse(at, "%s: neither true nor false", key);
    *out = json_is_true(value);
    return 0;
}

/* Every key that says something is one of `known` (NULL-terminated). */
int waste_field_check_keys(const struct waste_place *at, const json_t *object,
                           const char *const *known)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        char name[41];
        size_t i = 0;

        while (known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        if (known[i] == NULL && !json_is_null(value) &&
            !(json_is_array(value) && json_array_size(value) == 0))
            return waste_field_refuse(at, "%s: cannot be rendered", printable(key, name));
    }
    return 0;
}
