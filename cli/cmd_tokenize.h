/*
 * `waste-run tokenize` and `waste-run detokenize`.
 *
 *     tokenize   (MODEL | --model MODEL | --tokenizer RANKS) [TEXT | -] [--markup] [--jsonl |
 * --json] detokenize (MODEL | --model MODEL | --tokenizer RANKS) [IDS | -]            [--jsonl |
 * --json]
 *
 * Without TEXT or IDS, or with -, they come from stdin. Plain tokenize writes one line of ids with
 * commas, as --ids takes them; detokenize takes ids with commas or white space and writes the very
 * bytes of the tokens, so that one undoes the other. --jsonl: a JSON string a line in, a JSON array
 * of ids a line out, and the reverse. --json: one object.
 */
#ifndef WASTE_CLI_CMD_TOKENIZE_H
#define WASTE_CLI_CMD_TOKENIZE_H

#include <stdbool.h>

struct waste_tokenize_options {
    const char *model;     /* a container; or */
    const char *tokenizer; /* a ranks file (special tokens: specials.json beside it, if any) */
    const char *input;     /* TEXT or IDS; NULL or "-": stdin */
    bool markup;           /* special tokens' texts become those tokens */
    bool jsonl, json;
};

/* Exit code of the process: 0 done, 1 failed, 2 usage or a bad container; errors go to stderr. */
int waste_cmd_tokenize(const struct waste_tokenize_options *options);
int waste_cmd_detokenize(const struct waste_tokenize_options *options);

#endif
