/*
 * The command line of a program: its table of commands and its table of options drive parsing,
 * --help (options/help.c), completion and the man page (options/docs.h).
 */
#ifndef WASTE_OPTIONS_OPTIONS_H
#define WASTE_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum waste_option_kind {
    WASTE_OPT_FLAG,   /* bool, set */
    WASTE_OPT_UNFLAG, /* bool, cleared */
    WASTE_OPT_U32,
    WASTE_OPT_U64,
    WASTE_OPT_FLOAT, /* double */
    WASTE_OPT_SIZE,  /* u64 bytes */
    WASTE_OPT_STRING,
    WASTE_OPT_STRINGS, /* struct waste_strings: may be given again */
    WASTE_OPT_CHOICE,  /* u32: min + which of `argument`'s words, a|b|c or A|B|C */
    WASTE_OPT_OWN,     /* this and more: kinds of the program's own, see waste_program.set */
};

struct waste_option {
    const char *name;
    const char *argument; /* NULL: a flag */
    const char *help;     /* NULL: works, but is not shown */
    int kind;             /* enum waste_option_kind, or of the program's own */
    size_t offset;        /* in the program's struct of arguments */
    double min, max;      /* numbers */
    uint32_t commands; /* bit mask of commands; several options may share a name, one a command */
};

struct waste_command_info {
    const char *name, *positionals, *summary;
    uint32_t least, most; /* positional arguments; most is at most WASTE_LINE_WORDS */
};

/* What a command has to say for itself. */
struct waste_command_text {
    const char *about;    /* a paragraph */
    const char *examples; /* one a line, indented */
    const char *words;    /* what its arguments are completed with; NULL: files */
};

struct waste_program {
    const char *name, *summary; /* "waste-run", what it does */
    const char *synopsis;       /* the lines of usage, without the program's name */
    const char *notes;          /* after the options of --help; ends with its newline */
    const char *examples;       /* of the program: one a line, indented */
    const char *man_notes;      /* the same in the man page, as roff; whole sections */
    const struct waste_option *options;
    size_t option_count; /* at most 64 */
    const struct waste_command_info *commands;
    const struct waste_command_text *texts;
    int command_count; /* at most 32 */
    bool implied;      /* words without a command mean the first one */
    /* Sets an option of a kind of the program's own. NULL, or why the value will not do. */
    const char *(*set)(void *args, const struct waste_option *o, const char *value);
};

enum { WASTE_LINE_WORDS = 256, WASTE_STRINGS = 32 };

/* What every command line has. The program's struct of arguments begins with it. */
struct waste_line {
    int command;
    bool named; /* the command was named, not implied */
    bool help;
    bool version;
    const char *positional[WASTE_LINE_WORDS];
    uint32_t positional_count;
};

struct waste_strings {
    const char *text[WASTE_STRINGS];
    uint32_t count;
};

/*
 * Parses argv (argv[0] is the program) onto `args`, which begins with a struct waste_line and holds
 * the defaults. Returns 0, or 2 after one line on `err` that names the argument and, where one is
 * near, what may have been meant.
 */
int waste_line_parse(const struct waste_program *p, void *args, int argc, char **argv, FILE *err);

/* One option of the command, outside of argv; `name` with its dashes. 0, or 2 after one line. */
int waste_line_set(const struct waste_program *p, void *args, const char *name, const char *value,
                   FILE *err);

/* The command's option of this name (with its dashes), else another's, else NULL. */
const struct waste_option *waste_line_option(const struct waste_program *p, int command,
                                             const char *name);

/*
 * Exit codes, of all programs. What a path from the command line could not be opened for is wrong
 * use (WASTE_EXIT_USAGE), unless it is the machine's doing (WASTE_EXIT_FAILED).
 */
enum { WASTE_EXIT_DONE, WASTE_EXIT_FAILED, WASTE_EXIT_USAGE, WASTE_EXIT_UNSAVED };
int waste_exit_of_path(int error); /* errno */

struct waste_exit_text {
    const char *code, *text; /* lines */
};
enum { WASTE_EXIT_TEXTS = 5 };
extern const struct waste_exit_text waste_exit_texts[WASTE_EXIT_TEXTS];

/* --help: of one command, or of the program when `command` is command_count. */
void waste_line_help(const struct waste_program *p, FILE *out, int command);

static inline bool waste_option_belongs(const struct waste_option *o, int command)
{
    return o->commands >> command & 1;
}

/* The entry of names[count] nearest to `word`, NULL if none is near. */
const char *waste_line_nearest(const char *word, const char *const *names, size_t count);

/* The command nearest to `word`, NULL if none is near. */
const char *waste_line_nearest_command(const struct waste_program *p, const char *word);

#endif
