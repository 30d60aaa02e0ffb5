/* Apart from io.c, which is also built where there is no jansson (tests/kernels/neon.sh). */
#include "fetcher/io.h"

#include <errno.h>
#include <stdio.h>
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
