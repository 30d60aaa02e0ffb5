#include "cli/options.h"

#include <stdlib.h>

#include "shm/control.h"

void waste_args_defaults(struct waste_args *args)
{
    *args = (struct waste_args){
        .line.command = WASTE_CMD_RUN,
        .n = 512,
        .top_p = 1,
        .lookahead = WASTE_LOOKAHEAD_DEFAULT,
        .hang_seconds = 10,
        .prefix_bytes = WASTE_PREFIX_DEFAULT,
        .interval = 1,
        .top = 10,
        .tokens = 32,
        .prompt_tokens = 32,
    };
}

int waste_args_parse(struct waste_args *args, int argc, char **argv, FILE *err)
{
    waste_args_defaults(args);
    return waste_args_parse_onto(args, argc, argv, err);
}

int waste_args_parse_onto(struct waste_args *args, int argc, char **argv, FILE *err)
{
    return waste_line_parse(&waste_run_program, args, argc, argv, err);
}

void waste_args_finish(struct waste_args *args)
{
    free(args->ids);
    free(args->config_text);
    args->ids = NULL;
    args->config_text = NULL;
}

uint32_t waste_options_io(uint32_t io, bool *direct)
{
    _Static_assert(WASTE_IO_AUTO == 0 && WASTE_IO_URING == 1 && WASTE_IO_PREAD == 2,
                   "the order of the words after --io");
    *direct = io > WASTE_IO_PREAD;
    return *direct ? io - WASTE_IO_PREAD : io;
}
