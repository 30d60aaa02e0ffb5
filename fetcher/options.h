/*
 * The command line of waste-fetch: its arguments, its table of commands and its table of options.
 * A command is a row here, a text in options_table.c, a function in fetch.h and a row in main.c.
 */
#ifndef WASTE_FETCHER_OPTIONS_H
#define WASTE_FETCHER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "options/options.h"

/* Commands: X(ID, name, positional arguments, least, most, summary). */
#define WASTE_FETCH_COMMANDS(X)                                                                    \
    X(GET, "get", "SRC DEST", 2, 2, "fetch a checkpoint from a hub or a URL")                      \
    X(CONVERT, "convert", "SRC OUT", 2, 2, "make a container of a release")                        \
    X(MERGE, "merge", "OUT PART...", 2, 256, "one container of the parts of convert --layers")     \
    X(SYNTH, "synth", "OUT", 0, 1, "write a container or a release of any shape")                  \
    X(VERIFY, "verify", "MODEL", 1, 1, "whether a container is whole, all damage named")           \
    X(SEAL, "seal", "MODEL", 1, 1, "checksums for what has none: writes integrity.json")           \
    X(DISKBENCH, "diskbench", "DIR", 1, 1, "what a drive gives at the size of expert records")

#define WASTE_X(id, name, positionals, least, most, summary) WASTE_FETCH_##id,
enum waste_fetch_command { WASTE_FETCH_COMMANDS(WASTE_X) WASTE_FETCH_COMMAND_COUNT };
#undef WASTE_X

/* In the order of --reclaim's words. */
enum waste_reclaim { WASTE_RECLAIM_OFF, WASTE_RECLAIM_DRY, WASTE_RECLAIM_ON };

struct waste_fetch_args {
    struct waste_line line;

    bool json, quiet, dry_run, force;
    uint32_t threads; /* 0: not given */

    const char *revision; /* get; NULL: not given */
    struct waste_strings include, exclude;
    uint32_t jobs, retries, stall_seconds;
    double retry_wait;
    bool check;

    const char *shape; /* synth */
    bool list;
    uint64_t seed;
    uint32_t expert_fmt; /* 0: not given, else waste_fetch_expert_fmt() */
    uint32_t trunk_bits; /* 0: not given, else waste_fetch_trunk_bits() */
    uint32_t layers;     /* 0: not given */
    bool checkpoint;
    uint32_t dtype;       /* 0: not given, else 1 + which of bf16, f16, f32, mxfp4 */
    uint64_t shard_bytes; /* 0: not given */

    const char *layer_range; /* NULL or "A-B" */
    uint32_t effort;         /* 0 to 3 */
    uint32_t reclaim;        /* enum waste_reclaim */

    const char *against; /* verify: a release */
    bool move;           /* merge */

    const char *model;   /* diskbench */
    uint64_t read_bytes; /* 0: not given */
    double seconds;
};

extern const struct waste_program waste_fetch_program;

/* What --experts and --trunk-bits say: enum waste_fmt, bits. `otherwise` if they were not given. */
uint32_t waste_fetch_expert_fmt(const struct waste_fetch_args *args, uint32_t otherwise);
uint32_t waste_fetch_trunk_bits(const struct waste_fetch_args *args, uint32_t otherwise);

/* Defaults, then argv. 0, or 2 after one line on stderr. */
int waste_fetch_args_parse(struct waste_fetch_args *args, int argc, char **argv);

#endif
