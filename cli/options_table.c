/* The commands and the options. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ids_text.h"
#include "cli/options_int.h"
#include "cli/plan.h"
#include "options/units.h"
#include "shm/control.h"

_Static_assert(WASTE_IO_AUTO == 0 && WASTE_IO_URING == 1 && WASTE_IO_PREAD == 2, "--io");
_Static_assert(WASTE_THINK_SHOW == 1 && WASTE_THINK_HIDE == 2 && WASTE_THINK_OFF == 3, "--think");

/* Kinds of options that only waste-run has. */
enum {
    WASTE_OPT_SEED = WASTE_OPT_OWN, /* u64 and seed_given */
    WASTE_OPT_CPUS,
    WASTE_OPT_IDS,
    WASTE_OPT_BUDGET,
};

#define BIT(id) (UINT32_C(1) << WASTE_CMD_##id)
#define GENERATE (BIT(RUN) | BIT(CHAT))
#define PIPELINE (GENERATE | BIT(EVAL) | BIT(BENCH))
#define PLANNED (PIPELINE | BIT(PLAN))
#define WORDS (BIT(TOKENIZE) | BIT(DETOKENIZE))
#define ATTACHED                                                                                   \
    (BIT(PS) | BIT(STATS) | BIT(TOP) | BIT(RESTART) | BIT(STOP) | BIT(LOG) | BIT(BUDGET))
#define ANY UINT32_MAX

#define FIELD(name) offsetof(struct waste_args, name)

static const struct waste_option option_table[] = {
    {"--budget", "SIZE|max",
     "bound on everything in memory, max: 7/8 of what is free; default: the floor and 3 working "
     "sets, see plan",
     WASTE_OPT_BUDGET, FIELD(budget_bytes), 1, 0x1p62, PLANNED},
    {"--ctx", "N", "token positions of the conversation; default 4096, or what the prompt needs",
     WASTE_OPT_U32, FIELD(ctx), 1, 0x1p30, PLANNED},
    {"--chunk", "N",
     "tokens of a prompt computed together; 1: one by one; default: by the model, see plan",
     WASTE_OPT_U32, FIELD(chunk), 1, 0x1p30, PLANNED},
    {"-n", "N", "generate at most N tokens; default 512", WASTE_OPT_U32, FIELD(n), 0, 0x1p30,
     GENERATE},
    {"--ids", "LIST", "token ids in place of the text, for example 1,2,3; blanks will do, too",
     WASTE_OPT_IDS, 0, 0, 0, BIT(RUN) | BIT(EVAL) | BIT(DETOKENIZE)},
    {"--raw", NULL, "no chat markup around the prompt", WASTE_OPT_FLAG, FIELD(raw), 0, 0,
     BIT(RUN) | BIT(EVAL) | BIT(TOKENIZE)},
    {"--system", "TEXT", "a system message before the conversation", WASTE_OPT_STRING,
     FIELD(system_text), 0, 0, GENERATE | BIT(EVAL) | BIT(TOKENIZE)},
    {"--think", "show|hide|off", "thinking seen, unseen, or none; default: as the model has it",
     WASTE_OPT_CHOICE, FIELD(think), WASTE_THINK_SHOW, 0, GENERATE | BIT(EVAL) | BIT(TOKENIZE)},
    {"--ignore-eos", NULL, "go on past end tokens", WASTE_OPT_FLAG, FIELD(ignore_eos), 0, 0,
     GENERATE},
    {"--temp", "F", "sampling temperature; default 0, the likeliest token", WASTE_OPT_FLOAT,
     FIELD(temp), 0, 100, GENERATE},
    {"--top-p", "F", "sample from the likeliest tokens that sum to this probability; default 1",
     WASTE_OPT_FLOAT, FIELD(top_p), 1e-6, 1, GENERATE},
    {"--top-k", "N", "sample from the N likeliest tokens; default 0, all", WASTE_OPT_U32,
     FIELD(top_k), 0, 0x1p30, GENERATE},
    {"--seed", "N", "seed of the sampling; default: a new one each run", WASTE_OPT_SEED,
     FIELD(seed), 0, 0x1p64, GENERATE},
    {"--session", "FILE", "keep the conversation there, and go on with what it holds",
     WASTE_OPT_STRING, FIELD(session_path), 0, 0, GENERATE | BIT(PLAN)},
    {"--session-every", "N",
     "tokens that may be computed again after a kill; default 64, and at most 32 MB saved a second",
     WASTE_OPT_U32, FIELD(session_every), 1, 0x1p30, GENERATE},
    {"--prefix-cache", "SIZE",
     "disk for states of how conversations begin, not to compute them again; 0: off; default 2G",
     WASTE_OPT_SIZE, FIELD(prefix_bytes), 0, 0x1p62, GENERATE | BIT(EVAL) | BIT(PLAN)},
    {"--threads", "N", "threads of compute; default: one a performance core, see info",
     WASTE_OPT_U32, FIELD(threads), 1, 1024, PLANNED | BIT(INFO)},
    {"--cpus", "LIST", "CPUs of compute's threads, for example 0-3,8", WASTE_OPT_CPUS, FIELD(cpus),
     0, 0, PLANNED | BIT(INFO)},
    {"--io", "auto|uring|pread|uring+direct|pread+direct",
     "how experts are read, +direct: or not at all; default auto, the best that works",
     WASTE_OPT_CHOICE, FIELD(io), 0, 0, PIPELINE | BIT(INFO)},
    {"--depth", "N", "reads a drive gets at once; default: as measured at the start", WASTE_OPT_U32,
     FIELD(depth), 1, 64, PIPELINE | BIT(INFO)},
    {"--mlock", NULL, "keep trunk, session and cache in memory whatever happens", WASTE_OPT_FLAG,
     FIELD(mlock), 0, 0, PLANNED},
    {"--lookahead", "N", "experts a layer to read ahead of the router; 0: off; default: as chosen",
     WASTE_OPT_U32, FIELD(lookahead), 0, 65535, PLANNED},
    {"--usage", "cache|model|off",
     "where to keep which experts are used; default: cache, for eval and bench off",
     WASTE_OPT_CHOICE, FIELD(usage), WASTE_USAGE_CACHE, 0, PIPELINE},
    {"--verify", NULL,
     "check the crc32 of every expert read, and what integrity.json says of the rest (the default)",
     WASTE_OPT_UNFLAG, FIELD(no_verify), 0, 0, PIPELINE},
    {"--no-verify", NULL, "trust the disk", WASTE_OPT_FLAG, FIELD(no_verify), 0, 0, PIPELINE},
    {"--hang-seconds", "N", "kill and restart a stage silent for N seconds; default 10",
     WASTE_OPT_U32, FIELD(hang_seconds), 1, 86400, PIPELINE},
    {"--logits", "FILE", "write the last position's logits, little-endian float32",
     WASTE_OPT_STRING, FIELD(logits_path), 0, 0, BIT(EVAL)},
    {"--all", NULL, "with --logits: those of every position, one after the other", WASTE_OPT_FLAG,
     FIELD(all), 0, 0, BIT(EVAL)},
    {"--perplexity", "FILE", "score a whole text, its every token by those before it",
     WASTE_OPT_STRING, FIELD(perplexity_path), 0, 0, BIT(EVAL)},
    {"--top", "N", "rows of the table; default 10", WASTE_OPT_U32, FIELD(top), 0, 1000, BIT(EVAL)},
    {"--tokens", "N", "tokens to decode; default 32", WASTE_OPT_U32, FIELD(tokens), 1, 0x1p30,
     BIT(BENCH)},
    {"--prompt-tokens", "N", "tokens of the prompt, spread over the vocabulary; default 32",
     WASTE_OPT_U32, FIELD(prompt_tokens), 1, 0x1p30, BIT(BENCH)},
    {"--ids-file", "FILE", "token ids of the prompt, one list", WASTE_OPT_STRING, FIELD(ids_file),
     0, 0, BIT(BENCH)},
    {"--step", NULL, "feed the given ids one at a time through decode", WASTE_OPT_FLAG, FIELD(step),
     0, 0, BIT(BENCH)},
    {"--timeline", NULL, "show the timeline of one layer: who waits for whom", WASTE_OPT_FLAG,
     FIELD(timeline), 0, 0, BIT(BENCH)},
    {"--model", "DIR", "the container, in place of MODEL", WASTE_OPT_STRING, FIELD(model_path), 0,
     0, WORDS},
    {"--tokenizer", "FILE", "a ranks file, in place of MODEL", WASTE_OPT_STRING,
     FIELD(tokenizer_path), 0, 0, WORDS},
    {"--markup", NULL, "special tokens' texts become those tokens", WASTE_OPT_FLAG, FIELD(markup),
     0, 0, BIT(TOKENIZE)},
    {"--jsonl", NULL, "one JSON value a line in, one out", WASTE_OPT_FLAG, FIELD(jsonl), 0, 0,
     WORDS},
    {"--segments", NULL, "JSON: each piece, and whether it is markup", WASTE_OPT_FLAG,
     FIELD(segments), 0, 0, BIT(RENDER)},
    {"--ids", NULL, "the token ids, as other commands' --ids takes them", WASTE_OPT_FLAG,
     FIELD(show_ids), 0, 0, BIT(RENDER)},
    {"--pid", "N", "the waste-run meant, when several run", WASTE_OPT_U32, FIELD(pid), 1,
     0x7fffffff, ATTACHED},
    {"--json", NULL, "JSON on stdout: one object; of chat and log, one a line", WASTE_OPT_FLAG,
     FIELD(json), 0, 0, ANY},
    {"--prometheus", NULL, "Prometheus' text format on stdout", WASTE_OPT_FLAG, FIELD(prometheus),
     0, 0, BIT(STATS)},
    {"--interval", "F", "seconds between two looks; default 1", WASTE_OPT_FLOAT, FIELD(interval),
     0.1, 3600, BIT(TOP)},
    {"--once", NULL, "one look, as text; so it is where stdout is no terminal", WASTE_OPT_FLAG,
     FIELD(once), 0, 0, BIT(TOP)},
    {"--follow", NULL, "go on with new lines until the pipeline ends; short: -f", WASTE_OPT_FLAG,
     FIELD(follow), 0, 0, BIT(LOG)},
    {"-f", NULL, NULL, WASTE_OPT_FLAG, FIELD(follow), 0, 0, BIT(LOG)},
    {"-q", NULL, "no progress, no status line; long: --quiet", WASTE_OPT_FLAG, FIELD(quiet), 0, 0,
     PIPELINE | BIT(RESTART) | BIT(STOP) | BIT(BUDGET)},
    {"--quiet", NULL, NULL, WASTE_OPT_FLAG, FIELD(quiet), 0, 0,
     PIPELINE | BIT(RESTART) | BIT(STOP) | BIT(BUDGET)},
    {"--help", NULL, "this text", WASTE_OPT_FLAG, FIELD(line.help), 0, 0, ANY},
    {"-h", NULL, NULL, WASTE_OPT_FLAG, FIELD(line.help), 0, 0, ANY},
    {"--version", NULL, "the version", WASTE_OPT_FLAG, FIELD(line.version), 0, 0, ANY},
};
_Static_assert(sizeof(option_table) / sizeof(option_table[0]) <= 64,
               "options given are a bit mask");

static const struct waste_command_info command_table[WASTE_COMMAND_COUNT] = {
#define WASTE_X(id, word, args, few, many, text)                                                   \
    {.name = word, .positionals = args, .summary = text, .least = few, .most = many},
    WASTE_COMMANDS(WASTE_X)
#undef WASTE_X
};

static const char *set_ids(struct waste_args *args, const char *value)
{
    struct waste_ids ids = {0};
    struct waste_error err;
    int rc = waste_ids_parse(value, strlen(value), &ids, &err);

    if (rc == 0 && ids.count == 0)
        rc = waste_error_set(&err, -EINVAL, "it has none");
    if (rc != 0) {
        waste_ids_finish(&ids);
        snprintf(args->ids_wrong, sizeof(args->ids_wrong),
                 "is no list of token ids (for example 1,2,3): %.96s", err.text);
        return args->ids_wrong;
    }
    free(args->ids);
    args->ids = ids.id;
    args->ids_count = (uint32_t)ids.count;
    args->ids_text = value;
    return NULL;
}

static const char *set_budget(struct waste_args *args, const char *value)
{
    uint64_t bytes = 0;
    int rc = waste_plan_parse_budget(value, &bytes);

    if (rc == -EINVAL)
        return "is no size (for example 46G, 512M, 1.5GiB, max)";
    if (rc != 0 || bytes == 0)
        return "is no size that anything has";
    args->budget_bytes = bytes;
    return NULL;
}

static const char *set_own(void *any, const struct waste_option *o, const char *value)
{
    struct waste_args *args = any;
    int rc;

    if (o->kind == WASTE_OPT_IDS)
        return set_ids(args, value);
    if (o->kind == WASTE_OPT_BUDGET)
        return set_budget(args, value);
    if (o->kind == WASTE_OPT_CPUS)
        return waste_units_parse_cpus(value, args->cpus, WASTE_CPU_WORDS) == 0
                   ? NULL
                   : "is no list of CPUs (for example 0-3,8)";
    rc = waste_units_parse_u64(value, &args->seed);
    args->seed_given = rc == 0;
    return rc == 0 ? NULL : rc == -ERANGE ? "is outside 0 to 2^64-1" : "is no whole number";
}

const struct waste_program waste_run_program = {
    .name = "waste-run",
    .summary = "runs mixture-of-experts models larger than memory",
    .synopsis = "MODEL [PROMPT | -] [options]\n"
                "COMMAND [arguments] [options]\n",
    .notes =
        "Options may also stand in ~/.config/waste/config ('temp = 0.6') and in the environment\n"
        "(WASTE_TEMP=0.6); the command line counts first, then the environment.\n"
        "'waste-run COMMAND --help' shows one command, with examples.\n"
        "Ctrl-C, SIGTERM and SIGHUP end in order, printing what there is: exit code 0, or 1 if "
        "nothing\n"
        "could be generated yet. A second one ends at once.\n",
    .examples = "  waste-run models/demo.waste \"What is the capital of Italy?\"\n"
                "  waste-run models/demo.waste\n"
                "  waste-run plan k3.waste --budget 46G\n"
                "  waste-run k3.waste --budget 46G --temp 0.6 --top-p 0.95 - < question.txt\n"
                "  waste-run eval models/demo.waste --perplexity book.txt\n"
                "  waste-run top\n",
    .man_notes =
        ".SH ENVIRONMENT\n"
        "Every option has a variable: \\fBWASTE_TOP_P\\fR is \\-\\-top\\-p. Flags take yes or no.\n"
        "The command line counts first, then the environment, then the file below.\n"
        ".TP\n.B NO_COLOR\nno colours, if it is set and not empty\n"
        ".SH FILES\n"
        ".TP\n.I ~/.config/waste/config\n"
        "options of the same names, one a line: \\fBtemp = 0.6\\fR. A line that begins with # is "
        "a\n"
        "comment. $XDG_CONFIG_HOME is respected.\n"
        ".SH SIGNALS\n"
        "The first SIGINT, SIGTERM or SIGHUP ends "
        "in\n"
        "order: what was generated is printed, the stages exit, the status is 0 (1 if the pipeline "
        "was\n"
        "not ready yet). In a chat SIGINT ends the reply, and at the prompt the chat. The second "
        "one\n"
        "ends at once with 128 and its number: 130, 143, 129. Stages never outlive waste\\-run.\n",
    .options = option_table,
    .option_count = sizeof(option_table) / sizeof(option_table[0]),
    .commands = command_table,
    .texts = waste_command_texts,
    .command_count = WASTE_COMMAND_COUNT,
    .implied = true,
    .set = set_own,
};
