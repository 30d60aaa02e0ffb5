#include "cli/json_text.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add(struct waste_text *out, const char *text)
{
    return waste_text_add(out, text, strlen(text));
}

int waste_json_text_string(const char *text, size_t bytes, struct waste_text *out)
{
    static const char short_name[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                      ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    size_t done = 0;
    int ret = add(out, "\"");

    for (size_t at = 0; at < bytes && ret == 0; at++) {
        unsigned char c = (unsigned char)text[at];
        char escape[8];

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        ret = waste_text_add(out, text + done, at - done);
        done = at + 1;
        if (c < sizeof(short_name) && short_name[c] != '\0')
            snprintf(escape, sizeof(escape), "\\%c", short_name[c]);
        else
            snprintf(escape, sizeof(escape), "\\u%04x", c);
        if (ret == 0)
            ret = add(out, escape);
    }
    if (ret == 0)
        ret = waste_text_add(out, text + done, bytes - done);
    return ret == 0 ? add(out, "\"") : ret;
}

/* The shortest digits that read back as the same number, never in a locale's spelling. */
static int add_real(double value, struct waste_text *out)
{
    char scientific[40], digits[20], text[64];
    int precision = 0, exponent, count = 0;

    do
        snprintf(scientific, sizeof(scientific), "%.*e", precision, value);
    while (strtod(scientific, NULL) != value && ++precision < 17);
    exponent = (int)strtol(strchr(scientific, 'e') + 1, NULL, 10);
    for (const char *c = scientific; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9')
            digits[count++] = *c;
    digits[count] = '\0';
    if (exponent < -4 || exponent >= 16)
        snprintf(text, sizeof(text), "%c%s%se%c%02d", digits[0], count > 1 ? "." : "", digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(text, sizeof(text), "0.%.*s%s", -exponent - 1, "000", digits);
    else if (count <= exponent + 1)
        snprintf(text, sizeof(text), "%s%.*s.0", digits, exponent + 1 - count, "0000000000000000");
    else
        snprintf(text, sizeof(text), "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    if (scientific[0] == '-' && add(out, "-") != 0)
        return -ENOMEM;
    return add(out, text);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int add_object(const json_t *object, bool sorted, struct waste_text *out)
{
    size_t count = 0, room = json_object_size(object);
    const char **keys = calloc(room + 1, sizeof(*keys)), *key;
    json_t *value;
    int ret = keys == NULL ? -ENOMEM : add(out, "{");

    if (keys == NULL)
        return ret;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) keys[count++] = key;
    if (sorted)
        qsort(keys, count, sizeof(*keys), by_bytes);
    for (size_t i = 0; i < count && ret == 0; i++) {
        if (i > 0)
            ret = add(out, ",");
        if (ret == 0)
            ret = waste_json_text_string(keys[i], strlen(keys[i]), out);
        if (ret == 0)
            ret = add(out, ":");
        if (ret == 0)
            ret = waste_json_text(json_object_get(object, keys[i]), sorted, out);
    }
    free(keys);
    return ret == 0 ? add(out, "}") : ret;
}

static int add_array(const json_t *array, bool sorted, struct waste_text *out)
{
    int ret = add(out, "[");

    for (size_t i = 0; i < json_array_size(array) && ret == 0; i++) {
        if (i > 0)
            ret = add(out, ",");
        if (ret == 0)
            ret = waste_json_text(json_array_get(array, i), sorted, out);
    }
    return ret == 0 ? add(out, "]") : ret;
}

int waste_json_text(const json_t *value, bool sorted, struct waste_text *out)
{
    char number[32];

    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return add_object(value, sorted, out);
    case JSON_ARRAY:
        return add_array(value, sorted, out);
    case JSON_STRING:
        return waste_json_text_string(json_string_value(value), json_string_length(value), out);
    case JSON_INTEGER:
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return add(out, number);
    case JSON_REAL:
        return add_real(json_real_value(value), out);
    case JSON_TRUE:
        return add(out, "true");
    case JSON_FALSE:
        return add(out, "false");
    default:
        return add(out, "null");
    }
}
