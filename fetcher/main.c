/* waste-fetch: picks the command. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fetcher/fetch.h"
#include "fetcher/io.h"

static int (*const commands[WASTE_FETCH_COMMAND_COUNT])(const struct waste_fetch_args *args) = {
    [WASTE_FETCH_GET] = waste_fetch_get,
    [WASTE_FETCH_CONVERT] = waste_fetch_convert,
    [WASTE_FETCH_MERGE] = waste_fetch_merge,
    [WASTE_FETCH_SYNTH] = waste_fetch_synth,
    [WASTE_FETCH_VERIFY] = waste_fetch_verify,
    [WASTE_FETCH_SEAL] = waste_fetch_seal,
    [WASTE_FETCH_DISKBENCH] = waste_fetch_diskbench,
};

/* What stdio still holds goes out, and a full disk is no success. */
static int finish_stdout(int rc)
{
    bool flushed = fflush(stdout) == 0;

    if (rc != 0 || (flushed && !ferror(stdout)))
        return rc;
    waste_fetch_fail("cannot write to stdout%s%s", flushed ? "" : ": ",
                     flushed ? "" : strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    static struct waste_fetch_args args;
    int rc = waste_fetch_args_parse(&args, argc, argv);

    if (rc == 0 && args.line.version)
        puts("waste-fetch " WASTE_VERSION);
    else if (rc == 0 && args.line.help)
        waste_line_help(&waste_fetch_program, stdout,
                        args.line.named ? args.line.command : WASTE_FETCH_COMMAND_COUNT);
    else if (rc == 0)
        rc = commands[args.line.command](&args);
    if (rc < 0)
        rc = waste_fetch_exit_code();
    return finish_stdout(rc);
}
