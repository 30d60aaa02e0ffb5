/*
 * The command line of waste-run: its arguments, its table of commands and its table of options.
 */
#ifndef WASTE_CLI_OPTIONS_H
#define WASTE_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "options/options.h"

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
    X(BUDGET, "budget", "SIZE|max", 1, 1, "another memory budget for a running pipeline")          \
    X(STOP, "stop", "", 0, 0, "end a running pipeline")                                            \
    X(LOG, "log", "", 0, 0, "what the stages of a running pipeline reported")

#define WASTE_X(id, name, positionals, least, most, summary) WASTE_CMD_##id,
enum waste_command { WASTE_COMMANDS(WASTE_X) WASTE_COMMAND_COUNT };
#undef WASTE_X

enum { WASTE_CPU_WORDS = 16 };
#define WASTE_LOOKAHEAD_DEFAULT UINT32_MAX
#define WASTE_PREFIX_DEFAULT (UINT64_C(2) << 30)

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
    struct waste_line line; /* the first positional is MODEL, or STAGE */

    uint64_t budget_bytes; /* 0: not given; or WASTE_BUDGET_MAX */
    uint32_t ctx;          /* 0: not given */
    uint32_t chunk;        /* 0: not given */
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
    bool timeline;
    uint32_t lookahead;
    uint32_t usage; /* enum waste_usage_place */
    bool no_verify;
    bool json, quiet;
    char *config_text; /* what options from a file point into; malloc'd */
    uint32_t *ids;     /* --ids; malloc'd */
    const char *ids_text;
    uint32_t ids_count;
    char ids_wrong[160]; /* why --ids was refused */
    bool raw, ignore_eos;
    uint32_t think; /* enum waste_think */
    const char *system_text;
    uint32_t hang_seconds;
    const char *session_path;
    uint32_t session_every; /* 0: not given */
    uint64_t prefix_bytes;

    const char *logits_path, *perplexity_path; /* eval */
    bool all;
    uint32_t top;

    const char *model_path, *tokenizer_path; /* tokenize, detokenize */
    bool markup, jsonl;

    bool segments, show_ids; /* render */

    uint32_t pid;    /* ps, stats, ...; 0: the only one */
    bool prometheus; /* stats */
    bool once;       /* top */
    double interval;
    bool follow; /* log */

    const char *ids_file; /* bench */
    uint32_t prompt_tokens;
    uint32_t tokens;
    bool step;
};

extern const struct waste_program waste_run_program;

/* waste_line_parse for waste-run, with or without its defaults (cli/config.h puts others in place).
 */
int waste_args_parse(struct waste_args *args, int argc, char **argv, FILE *err);
int waste_args_parse_onto(struct waste_args *args, int argc, char **argv, FILE *err);
void waste_args_defaults(struct waste_args *args);
void waste_args_finish(struct waste_args *args);

/* What --io says: enum waste_io_mode, and whether O_DIRECT must be granted. */
uint32_t waste_options_io(uint32_t io, bool *direct);

#endif
