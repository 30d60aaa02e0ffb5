/* waste-run restart, stop, log: of a running pipeline. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/attach.h"
#include "cli/cmd.h"
#include "cli/engine.h"

int waste_cmd_restart(const struct waste_args *args)
{
    const char *names[WASTE_STAGE_COUNT + 1];
    const char *stage = args->line.positional[0];
    struct waste_attached a;
    struct waste_error err;
    char command[64];
    bool known = false;

    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        names[i] = waste_stage_name[i];
    names[WASTE_STAGE_COUNT] = "all";
    for (int i = 0; i <= WASTE_STAGE_COUNT; i++)
        known = known || strcmp(stage, names[i]) == 0;
    if (!known) {
        const char *near = waste_line_nearest(stage, names, WASTE_STAGE_COUNT + 1);
        return waste_fail(2, "there is no stage '%.80s'%s%s%s", stage,
                          near != NULL ? ", did you mean '" : " (reader, compute, router, all)",
                          near != NULL ? near : "", near != NULL ? "'?" : "");
    }
    int rc = waste_attach_open(args->pid, &a, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    snprintf(command, sizeof(command), "restart %s", stage);
    rc = waste_attach_command(&a, command, &err);
    waste_attach_close(&a);
    return rc == 0 ? 0 : waste_fail(rc, "%s", err.text);
}

int waste_cmd_stop(const struct waste_args *args)
{
    struct waste_attached a;
    struct waste_error err;

    int rc = waste_attach_open(args->pid, &a, &err);
    if (rc == 0)
        rc = waste_attach_command(&a, "stop", &err);
    waste_attach_close(&a);
    return rc == 0 ? 0 : waste_fail(rc, "%s", err.text);
}

/* The next line of one log, not older than what was printed. */
static bool peek(const struct waste_log *log, uint64_t *number, struct waste_log_line *line)
{
    int rc;

    /* acquire: pairs with the writer's release; each line is checked again when read */
    uint64_t next = atomic_load_explicit(&log->next, memory_order_acquire);
    if (next > WASTE_LOG_LINES && *number < next - WASTE_LOG_LINES)
        *number = next - WASTE_LOG_LINES;
    while (*number < next && (rc = waste_log_read(log, *number, line)) != 1)
        (*number)++;
    return *number < next;
}

static void print_line(const char *who, const struct waste_log_line *line)
{
    static const char *const level[] = {"info", "warning", "error"};
    time_t seconds = (time_t)(line->time_ns / 1000000000u);
    struct tm tm;
    char when[32] = "";

    if (localtime_r(&seconds, &tm) != NULL)
        strftime(when, sizeof(when), "%F %T", &tm);
    printf("%s.%03u %-9s %-7s %.*s\n", when, (unsigned)(line->time_ns / 1000000 % 1000), who,
           level[line->level < 3 ? line->level : 2], WASTE_LOG_TEXT, line->text);
}

int waste_cmd_log(const struct waste_args *args)
{
    uint64_t number[WASTE_STAGE_COUNT + 1] = {0};
    struct waste_attached a;
    struct waste_error err;

    int rc = waste_attach_open(args->pid, &a, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    for (;;) { /* merges the logs by time */
        struct waste_log_line line, oldest = {0};
        int from = -1;
        for (int i = 0; i <= WASTE_STAGE_COUNT; i++) {
            if (peek(&a.shm.control->log[i], &number[i], &line) &&
                (from < 0 || line.time_ns < oldest.time_ns)) {
                oldest = line;
                from = i;
            }
        }
        if (from < 0)
            break;
        print_line(from < WASTE_STAGE_COUNT ? waste_stage_name[from] : "waste-run", &oldest);
        number[from]++;
    }
    waste_attach_close(&a);
    return 0;
}
