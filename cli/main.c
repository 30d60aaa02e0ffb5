/* waste-run: picks the command. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cmd.h"
#include "cli/config.h"
#include "cli/engine.h"

static int (*const commands[WASTE_COMMAND_COUNT])(const struct waste_args *args) = {
    [WASTE_CMD_RUN] = waste_cmd_run,
    [WASTE_CMD_CHAT] = waste_cmd_chat,
    [WASTE_CMD_EVAL] = waste_cmd_eval,
    [WASTE_CMD_TOKENIZE] = waste_cmd_words_tokenize,
    [WASTE_CMD_DETOKENIZE] = waste_cmd_words_detokenize,
    [WASTE_CMD_RENDER] = waste_cmd_render,
    [WASTE_CMD_BENCH] = waste_cmd_bench,
    [WASTE_CMD_PLAN] = waste_cmd_plan,
    [WASTE_CMD_INFO] = waste_cmd_info,
    [WASTE_CMD_PS] = waste_cmd_ps,
    [WASTE_CMD_STATS] = waste_cmd_stats,
    [WASTE_CMD_TOP] = waste_cmd_top,
    [WASTE_CMD_RESTART] = waste_cmd_restart,
    [WASTE_CMD_BUDGET] = waste_cmd_budget,
    [WASTE_CMD_STOP] = waste_cmd_stop,
    [WASTE_CMD_LOG] = waste_cmd_log,
};

/* Descriptors 0 to 2 are open, so that nothing of ours gets their numbers. */
static void keep_standard_fds(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    if (fd > 2)
        close(fd);
}

/* The first word is neither a command nor a directory: say what it may have been meant for. */
static int unknown_word(const char *word)
{
    const char *near = waste_line_nearest_command(&waste_run_program, word);

    fprintf(stderr, "waste-run: '%.200s' is neither a command nor a model directory", word);
    if (near != NULL)
        fprintf(stderr, ", did you mean '%s'?", near);
    fputc('\n', stderr);
    return 2;
}

/* What stdio still holds goes out, and a full disk is no success. */
static int finish_stdout(int rc)
{
    bool flushed = fflush(stdout) == 0;

    if (rc != 0 || (flushed && !ferror(stdout)))
        return rc;
    return waste_fail(1, "cannot write to stdout%s%s", flushed ? "" : ": ",
                      flushed ? "" : strerror(errno));
}

int main(int argc, char **argv)
{
    struct waste_args args;
    struct stat st;

    keep_standard_fds();
    signal(SIGXFSZ, SIG_IGN); /* a segment beyond RLIMIT_FSIZE is an error, here and in stages */
    int rc = waste_args_load(&args, argc, argv, stderr);
    if (rc == 0 && args.line.version) {
        puts("waste-run " WASTE_VERSION);
    } else if (rc == 0 && args.line.help) {
        waste_line_help(&waste_run_program, stdout,
                        args.line.named ? args.line.command : WASTE_COMMAND_COUNT);
    } else if (rc == 0) {
        bool implied = !args.line.named;
        if (implied && (stat(args.line.positional[0], &st) != 0 || !S_ISDIR(st.st_mode)))
            rc = unknown_word(args.line.positional[0]);
        else if (implied && args.line.positional_count == 1 && args.ids == NULL &&
                 isatty(STDIN_FILENO))
            rc = waste_cmd_chat(&args);
        else
            rc = commands[args.line.command](&args);
    }
    waste_args_finish(&args);
    return finish_stdout(rc);
}
