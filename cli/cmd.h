/* One function a command; argv is parsed. Each returns the exit code. */
#ifndef WASTE_CLI_CMD_H
#define WASTE_CLI_CMD_H

#include "cli/options.h"

int waste_cmd_run(const struct waste_args *args);
int waste_cmd_chat(const struct waste_args *args);
int waste_cmd_eval(const struct waste_args *args);
int waste_cmd_perplexity(const struct waste_args *args); /* eval --perplexity */
int waste_cmd_words_tokenize(const struct waste_args *args);
int waste_cmd_words_detokenize(const struct waste_args *args);
int waste_cmd_render(const struct waste_args *args);
int waste_cmd_bench(const struct waste_args *args);
int waste_cmd_plan(const struct waste_args *args);
int waste_cmd_info(const struct waste_args *args);
int waste_cmd_ps(const struct waste_args *args);
int waste_cmd_stats(const struct waste_args *args);
int waste_cmd_top(const struct waste_args *args);
int waste_cmd_restart(const struct waste_args *args);
int waste_cmd_budget(const struct waste_args *args);
int waste_cmd_stop(const struct waste_args *args);
int waste_cmd_log(const struct waste_args *args);

#endif
