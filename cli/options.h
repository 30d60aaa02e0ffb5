/*
 * The command line: one table of commands and one of options drive parsing and every --help text.
 */
#ifndef WASTE_CLI_OPTIONS_H
#define WASTE_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Commands: X(ID, name, positional arguments, least, most, summary). The first argument is MODEL
 * where it is named so. */
#define WASTE_COMMANDS(X)                                                                          \
    X(RUN, "run", "MODEL [PROMPT | -]", 1, 2, "generate a continuation, streaming to stdout")      \
    X(CHAT, "chat", "MODEL", 1, 1, "a conversation, line by line")                                 \
    X(EVAL, "eval", "MODEL [TEXT | -]", 1, 2, "next-token probabilities and logits of a text")     \
    X(TOKENIZE, "tokenize", "MODEL [TEXT | -]", 0, 2, "text to token ids")                         \
    X(DETOKENIZE, "detokenize", "MODEL [IDS | -]", 0, 2, "token ids to text")                      \
    X(RENDER, "render", "FILE|- [MODEL]", 1, 2, "what a conversation becomes in chat markup")      \
    X(BENCH, "bench", "MODEL", 1, 1, "measure prefill and decode")                                 \
    X(PLAN, "plan", "MODEL", 1, 1, "what a budget pays for, without starting anything")            \
    X(INFO, "info", "MODEL", 1, 1, "what a container holds")                                       \
    X(PS, "ps", "", 0, 0, "the running pipelines and their processes")                             \
    X(STATS, "stats", "", 0, 0, "counters and stages of a running pipeline")                       \
    X(TOP, "top", "", 0, 0, "the same, refreshed every second")                                    \
    X(RESTART, "restart", "STAGE", 1, 1, "restart reader, compute, router or all, politely")       \
    X(BUDGET, "budget", "SIZE", 1, 1, "another memory budget for a running pipeline")              \
    X(STOP, "stop", "", 0, 0, "end a running pipeline")                                            \
    X(LOG, "log", "", 0, 0, "what the stages of a running pipeline reported")

#define WASTE_X(id, name, positionals, least, most, summary) WASTE_CMD_##id,
enum waste_command { WASTE_COMMANDS(WASTE_X) WASTE_COMMAND_COUNT };
#undef WASTE_X

enum { WASTE_CPU_WORDS = 16 };
#define WASTE_LOOKAHEAD_DEFAULT UINT32_MAX

/* The thinking of a model whose chat format has it. */
enum waste_think {
    WASTE_THINK_DEFAULT, /* as the format has it */
    WASTE_THINK_SHOW,
    WASTE_THINK_HIDE, /* it thinks, unseen */
    WASTE_THINK_OFF,  /* it answers at once */
};

/* Where what is learned about experts is kept: usage.waste. */
enum waste_usage_place {
    WASTE_USAGE_DEFAULT,
    WASTE_USAGE_CACHE, /* the user's cache directory, a file a model */
    WASTE_USAGE_MODEL, /* the model's directory */
    WASTE_USAGE_OFF,
};

struct waste_args {
    enum waste_command command;
    bool named; /* the command was named, not implied by MODEL */
    bool help;
    bool version;
    const char *positional[2]; /* MODEL and what follows, or STAGE */
    uint32_t positional_count;

    uint64_t budget_bytes; /* 0: not given */
    uint32_t ctx;          /* 0: not given */
    uint32_t n;            /* tokens to generate */
    double temp, top_p;
    uint32_t top_k;
    uint64_t seed;
    bool seed_given;
    uint32_t threads; /* 0: not given */
    uint64_t cpus[WASTE_CPU_WORDS];
    uint32_t io;    /* see waste_options_io */
    uint32_t depth; /* 0: not given */
    bool mlock;
    uint32_t lookahead;
    uint32_t usage; /* enum waste_usage_place */
    bool no_verify;
    bool json, quiet;
    char *config_text; /* what options from a file point into; malloc'd */
    uint32_t *ids;     /* --ids; malloc'd */
    const char *ids_text;
    uint32_t ids_count;
    bool raw, ignore_eos;
    uint32_t think; /* enum waste_think */
    const char *system_text;
    uint32_t hang_seconds;

    const char *logits_path, *perplexity_path; /* eval */
    bool all;
    uint32_t top;

    const char *model_path, *tokenizer_path; /* tokenize, detokenize */
    bool markup, jsonl;

    bool segments, show_ids; /* render */

    uint32_t pid; /* ps, stats, ...; 0: the only one */

    const char *ids_file; /* bench */
    uint32_t tokens;
    bool step;
};

/*
 * Parses argv (argv[0] is the program). Returns 0, or 2 after one line on `err` that names the
 * argument and, where one is near, what may have been meant.
 */
int waste_args_parse(struct waste_args *args, int argc, char **argv, FILE *err);
void waste_args_finish(struct waste_args *args);

/* The two halves of it, for options that come from elsewhere first (cli/config.h). */
void waste_args_defaults(struct waste_args *args);
int waste_args_parse_onto(struct waste_args *args, int argc, char **argv, FILE *err);

/* One option of the command, outside of argv; `name` with its dashes. 0, or 2 after one line. */
int waste_args_set(struct waste_args *args, const char *name, const char *value, FILE *err);

/* --help: of one command, or of the program when `command` is WASTE_COMMAND_COUNT. */
void waste_args_help(FILE *out, enum waste_command command);

/* What --io says: enum waste_io_mode, and whether O_DIRECT must be granted. */
uint32_t waste_options_io(uint32_t io, bool *direct);

const char *waste_command_name(enum waste_command command);

/* The entry of names[count] nearest to `word`, NULL if none is near. */
const char *waste_args_nearest(const char *word, const char *const *names, size_t count);

#endif
