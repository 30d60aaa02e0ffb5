/* waste-run log: what the stages reported, merged by time; -f: and goes on. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/attach.h"
#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "cli/text.h"

enum { LOGS = WASTE_STAGE_COUNT + 1, FOLLOW_MS = 100 };

struct reading {
    const struct waste_log *log; /* [LOGS], the last one waste-run's */
    uint64_t number[LOGS];       /* the next line of each */
    bool json, follows;
};

static const char *name_of(int log)
{
    return log < WASTE_STAGE_COUNT ? waste_stage_name[log] : "waste-run";
}

static const char *level_of(const struct waste_log_line *line)
{
    static const char *const level[] = {
        [WASTE_LOG_INFO] = "info",
        [WASTE_LOG_WARNING] = "warning",
        [WASTE_LOG_LOSS] = "warning",
        [WASTE_LOG_ERROR] = "error",
    };

    return level[line->level < WASTE_LOG_ERROR ? line->level : WASTE_LOG_ERROR];
}

/* Lines that were overwritten before they could be read: said, when one wants to miss nothing. */
static void skip(struct reading *r, int log, uint64_t lines)
{
    if (r->follows && r->number[log] > 0)
        fprintf(stderr, "waste-run: %" PRIu64 " lines of %s came too fast to be read\n", lines,
                name_of(log));
    r->number[log] += lines;
}

/* The next line of one log. */
static bool peek(struct reading *r, int log, struct waste_log_line *line)
{
    /* acquire: pairs with the writer's release; each line is checked again when read */
    uint64_t next = atomic_load_explicit(&r->log[log].next, memory_order_acquire);

    if (next > r->number[log] + WASTE_LOG_LINES)
        skip(r, log, next - WASTE_LOG_LINES - r->number[log]);
    while (r->number[log] < next && waste_log_read(&r->log[log], r->number[log], line) != 1)
        r->number[log]++;
    return r->number[log] < next;
}

static int print_json(const char *who, const struct waste_log_line *line)
{
    time_t seconds = (time_t)(line->time_ns / 1000000000u);
    struct waste_text text = {0}; /* a stage may name files, and those may be no UTF-8 */
    struct tm tm;
    char day[32] = "", when[48];
    int rc;

    if (gmtime_r(&seconds, &tm) != NULL)
        strftime(day, sizeof(day), "%FT%T", &tm);
    snprintf(when, sizeof(when), "%s.%03uZ", day, (unsigned)(line->time_ns / 1000000 % 1000));
    if (waste_text_add_utf8(&text, line->text, strnlen(line->text, WASTE_LOG_TEXT)) != 0)
        rc = waste_fail(1, "out of memory");
    else
        rc = waste_output_print_json(json_pack("{s:s, s:s, s:s, s:s}", "time", when, "stage", who,
                                               "level", level_of(line), "text", text.data));
    waste_text_finish(&text);
    return rc;
}

static void print_line(const char *who, const struct waste_log_line *line)
{
    time_t seconds = (time_t)(line->time_ns / 1000000000u);
    struct tm tm;
    char when[32] = "";

    if (localtime_r(&seconds, &tm) != NULL)
        strftime(when, sizeof(when), "%F %T", &tm);
    printf("%s.%03u %-9s %-7s %.*s\n", when, (unsigned)(line->time_ns / 1000000 % 1000), who,
           level_of(line), WASTE_LOG_TEXT, line->text);
}

/* All that is there, oldest first. 0 or an exit code. */
static int print_all(struct reading *r)
{
    for (;;) {
        struct waste_log_line line, oldest = {0};
        int from = -1, rc = 0;

        for (int i = 0; i < LOGS; i++) {
            if (peek(r, i, &line) && (from < 0 || line.time_ns < oldest.time_ns)) {
                oldest = line;
                from = i;
            }
        }
        if (from < 0)
            break;
        if (r->json)
            rc = print_json(name_of(from), &oldest);
        else
            print_line(name_of(from), &oldest);
        if (rc != 0)
            return rc;
        r->number[from]++;
    }
    return fflush(stdout) == 0 ? 0 : waste_fail(1, "cannot write to stdout: %s", strerror(errno));
}

int waste_cmd_log(const struct waste_args *args)
{
    struct waste_attached a;
    struct waste_error err;
    bool ended = false;

    int rc = waste_attach_open(args->pid, &a, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    struct reading r = {.log = a.shm.control->log, .json = args->json, .follows = args->follow};
    rc = print_all(&r);
    while (rc == 0 && args->follow && !ended) {
        struct pollfd end = {.fd = a.fd, .events = POLLIN}; /* the pipeline's end closes it */
        ended = poll(&end, 1, FOLLOW_MS) > 0;
        rc = print_all(&r); /* what was said last can still be read */
    }
    waste_attach_close(&a);
    return rc;
}
