/* What --help says of each command, for the program's tables. */
#ifndef WASTE_CLI_OPTIONS_INT_H
#define WASTE_CLI_OPTIONS_INT_H

#include "cli/options.h"

extern const struct waste_command_text waste_command_texts[WASTE_COMMAND_COUNT];

#endif
