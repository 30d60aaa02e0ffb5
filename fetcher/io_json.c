/* Apart from io.c, which is also built where there is no jansson (tests/kernels/neon.sh). */
#include "fetcher/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int waste_fetch_print_json(json_t *object)
{
    int rc = object ? json_dumpf(object, stdout, JSON_INDENT(1)) : -1;
    json_decref(object);
    if (!object)
        return waste_fetch_fail("out of memory");
    return rc || putchar('\n') == EOF || fflush(stdout)
               ? waste_fetch_fail("cannot write to stdout: %s", strerror(errno))
               : 0;
}

/* Bytes of the character that text begins with; 0: it is no UTF-8, says jansson itself. */
static size_t character(const char *text)
{
    for (size_t n = 1; n <= 4 && text[n - 1]; n++) {
        json_t *one = json_stringn(text, n);
        json_decref(one);
        if (one)
            return n;
    }
    return 0;
}

json_t *waste_io_json(const char *text)
{
    static const char unknown[] = "\xef\xbf\xbd";
    json_t *whole = json_string(text);
    char *out = whole ? NULL : malloc(3 * strlen(text) + 1);
    size_t used = 0;
    for (size_t n; out && *text; text += n ? n : 1) {
        n = character(text);
        memcpy(out + used, n ? text : unknown, n ? n : 3);
        used += n ? n : 3;
    }
    if (out)
        whole = json_stringn(out, used);
    free(out);
    return whole;
}
