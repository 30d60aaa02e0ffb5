#include "cli/ids_text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define SPACE " \t\r\n"

static const char *skip(const char *at)
{
    return at + strspn(at, SPACE);
}

static int wrong(const char *at, struct waste_error *err)
{
    size_t bytes = strcspn(at, "," SPACE);

    if (*at == '\0')
        return waste_error_set(err, -EINVAL, "the list of ids ends too early");
    return waste_error_set(err, -EINVAL, "not a token id: %.*s",
                           bytes == 0   ? 1
                           : bytes < 40 ? (int)bytes
                                        : 40,
                           at);
}

/* One id; *end is behind it. */
static bool read_id(const char *at, char **end, uint32_t *id)
{
    if (*at < '0' || *at > '9')
        return false;
    errno = 0;
    unsigned long long value = strtoull(at, end, 10);
    *id = (uint32_t)value;
    return errno == 0 && value <= UINT32_MAX && strchr(",]" SPACE, **end) != NULL;
}

int waste_ids_parse(const char *text, size_t bytes, struct waste_ids *out, struct waste_error *err)
{
    const char *at = skip(bytes > 0 ? text : "");
    bool bracket = *at == '[', more = false;

    if (bytes > 0 && strlen(text) != bytes)
        return waste_error_set(err, -EINVAL, "ids hold a zero byte");
    if (bracket)
        at = skip(at + 1);
    while (*at != (bracket ? ']' : '\0') || more) {
        uint32_t id;
        char *end;
        if (!read_id(at, &end, &id))
            return wrong(at, err);
        if (waste_ids_add(out, id) < 0)
            return waste_error_set(err, -ENOMEM, "out of memory");
        at = skip(end);
        more = *at == ',';
        if (more)
            at = skip(at + 1);
    }
    at = skip(at + bracket);
    return *at != '\0' ? wrong(at, err) : 0;
}
