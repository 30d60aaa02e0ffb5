#include "reader/container_int.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void describe(const json_t *value, char *out, size_t bytes)
{
    switch (json_typeof(value)) {
    case JSON_INTEGER:
        snprintf(out, bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(out, bytes, "%#.9g", json_real_value(value));
        break;
    case JSON_STRING:
        snprintf(out, bytes, "\"%.40s%s\"", json_string_value(value),
                 json_string_length(value) > 40 ? "..." : "");
        break;
    case JSON_OBJECT:
        snprintf(out, bytes, "an object");
        break;
    case JSON_ARRAY:
        snprintf(out, bytes, "an array of %zu", json_array_size(value));
        break;
    default:
        snprintf(out, bytes, "%s",
                 json_is_true(value)    ? "true"
                 : json_is_false(value) ? "false"
                                        : "null");
    }
}

const json_t *waste_json_get(const struct waste_json_at *at, const char *key)
{
    const json_t *value = json_object_get(at->object, key);
    return json_is_null(value) ? NULL : value;
}

static const char *dot(const struct waste_json_at *at)
{
    return at->path[0] ? "." : "";
}

int waste_json_missing(const struct waste_json_at *at, const char *key)
{
    return waste_error_set(at->err, -EINVAL, WASTE_MANIFEST ": %s%s%s is missing", at->path,
                           dot(at), key);
}

int waste_json_wrong(const struct waste_json_at *at, const char *key, const char *wanted)
{
    const json_t *value = json_object_get(at->object, key);
    char text[64];
    if (!value)
        return waste_json_missing(at, key);
    describe(value, text, sizeof(text));
    return waste_error_set(at->err, -EINVAL, WASTE_MANIFEST ": %s%s%s is %s, must be %s", at->path,
                           dot(at), key, text, wanted);
}

static bool uint_in(const json_t *value, uint64_t min, uint64_t max, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    uint64_t n = (uint64_t)json_integer_value(value);
    if (n < min || n > max)
        return false;
    *out = n;
    return true;
}

int waste_json_uint_opt(const struct waste_json_at *at, const char *key, uint64_t min, uint64_t max,
                        uint64_t *out)
{
    const json_t *value = waste_json_get(at, key);
    char wanted[80];
    if (!value || uint_in(value, min, max, out))
        return 0;
    snprintf(wanted, sizeof(wanted), "an integer from %llu to %llu", (unsigned long long)min,
             (unsigned long long)max);
    return waste_json_wrong(at, key, wanted);
}

int waste_json_uint(const struct waste_json_at *at, const char *key, uint64_t min, uint64_t max,
                    uint64_t *out)
{
    if (!waste_json_get(at, key))
        return waste_json_missing(at, key);
    return waste_json_uint_opt(at, key, min, max, out);
}

int waste_json_real_opt(const struct waste_json_at *at, const char *key, double min, double max,
                        double *out)
{
    const json_t *value = waste_json_get(at, key);
    char wanted[80];
    if (!value)
        return 0;
    double n = json_is_number(value) ? json_number_value(value) : NAN;
    if (n >= min && n <= max) {
        *out = n;
        return 0;
    }
    snprintf(wanted, sizeof(wanted), "a number from %g to %g", min, max);
    return waste_json_wrong(at, key, wanted);
}

int waste_json_flag_opt(const struct waste_json_at *at, const char *key, bool *out)
{
    const json_t *value = waste_json_get(at, key);
    if (!value)
        return 0;
    if (!json_is_boolean(value))
        return waste_json_wrong(at, key, "true or false");
    *out = json_is_true(value);
    return 0;
}

int waste_json_string_opt(const struct waste_json_at *at, const char *key, size_t max_bytes,
                          const char **out)
{
    const json_t *value = waste_json_get(at, key);
    char wanted[80];
    if (!value)
        return 0;
    if (!json_is_string(value) || json_string_length(value) > max_bytes) {
        snprintf(wanted, sizeof(wanted), "a string of at most %zu bytes", max_bytes);
        return waste_json_wrong(at, key, wanted);
    }
    *out = json_string_value(value);
    return 0;
}

int waste_json_object(const struct waste_json_at *at, const char *key, const json_t **out)
{
    const json_t *value = waste_json_get(at, key);
    if (!value)
        return waste_json_missing(at, key);
    if (!json_is_object(value))
        return waste_json_wrong(at, key, "an object");
    *out = value;
    return 0;
}

int waste_json_array(const struct waste_json_at *at, const char *key, size_t max_length,
                     const json_t **out)
{
    const json_t *value = waste_json_get(at, key);
    char wanted[80];
    if (!value)
        return waste_json_missing(at, key);
    if (!json_is_array(value) || json_array_size(value) > max_length) {
        snprintf(wanted, sizeof(wanted), "an array of at most %zu", max_length);
        return waste_json_wrong(at, key, wanted);
    }
    *out = value;
    return 0;
}

int waste_json_element(const json_t *value, struct waste_error *err, const char *what, size_t index,
                       uint64_t min, uint64_t max, uint64_t *out)
{
    char text[64];
    if (uint_in(value, min, max, out))
        return 0;
    describe(value, text, sizeof(text));
    return waste_error_set(err, -EINVAL,
                           WASTE_MANIFEST ": %s[%zu] is %s, must be an integer from %llu to %llu",
                           what, index, text, (unsigned long long)min, (unsigned long long)max);
}
