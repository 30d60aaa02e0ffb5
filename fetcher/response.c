#include "fetcher/response.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "options/units.h"

void waste_response_reset(struct waste_response *r)
{
    char linked[WASTE_VALIDATOR_TEXT];

    memcpy(linked, r->linked_etag, sizeof(linked));
    *r = (struct waste_response){.length = WASTE_SIZE_UNKNOWN,
                                 .range_first = WASTE_SIZE_UNKNOWN,
                                 .range_last = WASTE_SIZE_UNKNOWN,
                                 .total = WASTE_SIZE_UNKNOWN};
    memcpy(r->linked_etag, linked, sizeof(linked));
}

/* The value, if the header is of this name; a value too long for its place is none. */
static bool header_is(const char *line, const char *name, char *out, size_t room)
{
    size_t length = strlen(name);

    if (strncasecmp(line, name, length) != 0 || line[length] != ':')
        return false;
    line += length + 1;
    line += strspn(line, " \t");
    length = strlen(line);
    if (length >= room)
        length = 0;
    memcpy(out, line, length);
    out[length] = '\0';
    return true;
}

/* Digits, as a size. */
static uint64_t size_of(const char *text, size_t digits)
{
    char number[24];
    uint64_t value;

    if (digits == 0 || digits >= sizeof(number))
        return WASTE_SIZE_UNKNOWN;
    memcpy(number, text, digits);
    number[digits] = '\0';
    return waste_units_parse_u64(number, &value) == 0 ? value : WASTE_SIZE_UNKNOWN;
}

/* "bytes FIRST-LAST/TOTAL", TOTAL may be "*". */
static void take_range(struct waste_response *r, const char *value)
{
    static const char digits[] = "0123456789";
    size_t n;

    if (strncasecmp(value, "bytes ", 6) != 0)
        return;
    value += 6;
    n = strspn(value, digits);
    uint64_t first = size_of(value, n), last, total = WASTE_SIZE_UNKNOWN;
    if (value[n] != '-')
        return;
    value += n + 1;
    n = strspn(value, digits);
    last = size_of(value, n);
    if (value[n] != '/')
        return;
    value += n + 1;
    n = strspn(value, digits);
    if (n > 0 && value[n] == '\0')
        total = size_of(value, n);
    else if (strcmp(value, "*") != 0)
        return;
    if (first > last || last == WASTE_SIZE_UNKNOWN || last >= total)
        return;
    r->range_first = first;
    r->range_last = last;
    r->total = total;
}

void waste_response_take(struct waste_response *r, const char *line)
{
    char value[WASTE_VALIDATOR_TEXT];

    if (header_is(line, "content-length", value, sizeof(value))) {
        r->length = size_of(value, strlen(value));
        r->framed |= r->length != WASTE_SIZE_UNKNOWN;
    } else if (header_is(line, "transfer-encoding", value, sizeof(value))) {
        r->framed |= strcasestr(value, "chunked") != NULL;
    } else if (header_is(line, "content-range", value, sizeof(value))) {
        take_range(r, value);
    } else if (!header_is(line, "etag", r->etag, sizeof(r->etag)) &&
               !header_is(line, "last-modified", r->modified, sizeof(r->modified)) &&
               !header_is(line, "x-linked-etag", r->linked_etag, sizeof(r->linked_etag)) &&
               !header_is(line, "content-type", r->type, sizeof(r->type))) {
        header_is(line, "content-encoding", r->encoding, sizeof(r->encoding));
    }
}
