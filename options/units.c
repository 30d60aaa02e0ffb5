#include "options/units.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* How many times 1024 a unit stands for; -1 if it is none. */
static int unit_power(const char *unit)
{
    static const char letters[] = "kmgtp";

    if (*unit == '\0' || strcasecmp(unit, "b") == 0)
        return 0;
    const char *at = strchr(letters, tolower((unsigned char)*unit));
    if (at == NULL)
        return -1;
    unit++;
    if (*unit != '\0' && strcasecmp(unit, "b") != 0 && strcasecmp(unit, "ib") != 0)
        return -1;
    return (int)(at - letters) + 1;
}

int waste_units_parse_size(const char *text, uint64_t *out)
{
    size_t digits = strspn(text, "0123456789.");
    char number[32];

    if (digits == 0 || digits >= sizeof(number))
        return -EINVAL;
    memcpy(number, text, digits);
    number[digits] = '\0';
    const char *unit = text + digits;
    while (*unit == ' ')
        unit++;
    int power = unit_power(unit);
    double value;
    if (power < 0 || waste_units_parse_float(number, &value) != 0)
        return -EINVAL;
    value = ldexp(value, 10 * power);
    if (value >= 0x1p63)
        return -ERANGE;
    *out = (uint64_t)value;
    return 0;
}

int waste_units_parse_u64(const char *text, uint64_t *out)
{
    if (!isdigit((unsigned char)*text))
        return -EINVAL;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end != '\0')
        return -EINVAL;
    if (errno != 0)
        return -ERANGE;
    *out = value;
    return 0;
}

int waste_units_parse_float(const char *text, double *out)
{
    /* strtod alone would take blanks, hexadecimals, "inf" and "nan" */
    if (*text == '\0' || text[strspn(text, "0123456789.eE+-")] != '\0')
        return -EINVAL;
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end != '\0')
        return -EINVAL;
    if (!isfinite(value))
        return -ERANGE;
    *out = value;
    return 0;
}

int waste_units_parse_cpus(const char *text, uint64_t *mask, size_t words)
{
    uint64_t bits[64] = {0};
    uint64_t limit = words * 64;

    if (words > 64 || *text == '\0')
        return -EINVAL;
    for (;;) {
        if (!isdigit((unsigned char)*text))
            return -EINVAL;
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-') {
            text = end + 1;
            if (!isdigit((unsigned char)*text))
                return -EINVAL;
            last = strtoul(text, &end, 10);
        }
        if (last < first)
            return -EINVAL;
        if (last >= limit)
            return -ERANGE;
        for (unsigned long cpu = first; cpu <= last; cpu++)
            bits[cpu / 64] |= UINT64_C(1) << cpu % 64;
        if (*end == '\0')
            break;
        if (*end != ',')
            return -EINVAL;
        text = end + 1;
    }
    memcpy(mask, bits, words * sizeof(*mask));
    return 0;
}

char *waste_units_format_size(uint64_t bytes, char *buf, size_t room)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t u = 0;

    while (value >= 1024 && u + 1 < sizeof(unit) / sizeof(unit[0])) {
        value /= 1024;
        u++;
    }
    int decimals = u == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    snprintf(buf, room, "%.*f %s", decimals, value, unit[u]);
    return buf;
}
