/* The tables behind cli/options.h. */
#ifndef WASTE_CLI_OPTIONS_INT_H
#define WASTE_CLI_OPTIONS_INT_H

#include "cli/options.h"

enum waste_option_kind {
    WASTE_OPT_FLAG,   /* bool, set */
    WASTE_OPT_UNFLAG, /* bool, cleared */
    WASTE_OPT_U32,
    WASTE_OPT_U64,
    WASTE_OPT_SEED,  /* u64 and seed_given */
    WASTE_OPT_FLOAT, /* double */
    WASTE_OPT_SIZE,  /* u64 bytes */
    WASTE_OPT_STRING,
    WASTE_OPT_CHOICE, /* u32: min + which of `argument`'s words, a|b|c */
    WASTE_OPT_CPUS,
    WASTE_OPT_IDS,
};

struct waste_option {
    const char *name;
    const char *argument; /* NULL: a flag */
    const char *help;
    enum waste_option_kind kind;
    size_t offset;     /* in struct waste_args */
    double min, max;   /* numbers */
    uint32_t commands; /* bit mask of enum waste_command */
};

struct waste_command_info {
    const char *name, *positionals, *summary;
    uint32_t least, most;
};

/* What a command has to say for itself. */
struct waste_command_text {
    const char *about;    /* a paragraph */
    const char *examples; /* one a line, indented */
};

/* The command's option of this name (with its dashes), else another's, else NULL. */
const struct waste_option *waste_args_option(enum waste_command command, const char *name);

extern const struct waste_command_text waste_command_texts[WASTE_COMMAND_COUNT];
extern const struct waste_option waste_option_table[];
extern const size_t waste_option_count;
extern const struct waste_command_info waste_command_table[WASTE_COMMAND_COUNT];

#endif
