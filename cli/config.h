/*
 * Options from elsewhere than the command line: the file $XDG_CONFIG_HOME/waste/config, else
 * ~/.config/waste/config, and WASTE_* variables. Names are those of the options: --top-p is
 * `top-p` in the file and WASTE_TOP_P in the environment. The command line counts before the
 * environment, that before the file, that before the defaults.
 *
 *     # a comment
 *     budget = 46G
 *     temp = 0.6
 *     no-verify = true
 */
#ifndef WASTE_CLI_CONFIG_H
#define WASTE_CLI_CONFIG_H

#include "cli/options.h"

/*
 * waste_args_parse with file and environment below it. Options there that are not the command's
 * are left alone; an unknown name in the file is refused, with its line. 0 or 2.
 */
int waste_args_load(struct waste_args *args, int argc, char **argv, FILE *err);

#endif
