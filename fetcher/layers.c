#include "fetcher/layers.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>

#include "fetcher/io.h"

int waste_layers_parse(const char *text, uint32_t layers, uint32_t *first, uint32_t *last)
{
    char *end = NULL;
    unsigned long a = 0, b = layers - 1;
    bool ok = !text || isdigit((unsigned char)*text);
    if (text && ok) {
        a = b = strtoul(text, &end, 10);
        if (*end == '-' && (ok = isdigit((unsigned char)end[1])))
            b = strtoul(end + 1, &end, 10);
        ok = ok && !*end;
    }
    if (!ok || a > b || b >= layers)
        return waste_fetch_refuse("--layers %s: A-B is wanted, from 0 to %u", text, layers - 1);
    *first = (uint32_t)a;
    *last = (uint32_t)b;
    return 0;
}
