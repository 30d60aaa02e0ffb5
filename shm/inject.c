#include "shm/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/control.h"

enum { MAX_RULES = 64, ANY = WASTE_INJECT_COUNT, EVERY = 0 };

struct rule {
    int point; /* or ANY */
    char action[16];
    unsigned long arg;
    unsigned long hit; /* or EVERY */
};

static const char *const names[] = {
#define WASTE_X(id, name) name,
    WASTE_INJECT_POINTS(WASTE_X)
#undef WASTE_X
        "any",
};

/* A process is one stage, so this is the process's own; written before there are threads. */
static struct {
    struct rule rule[MAX_RULES];
    int rules;
    struct waste_log *log;
    const char *stage;
    _Atomic unsigned long hits[WASTE_INJECT_COUNT + 1];
} inject;

static void refuse(const char *rule)
{
    fprintf(stderr, "WASTE_INJECT: no rule: %s\n", rule);
    exit(2);
}

static unsigned long number(const char *text, const char *rule)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0')
        refuse(rule);
    return n;
}

static bool is_incarnation(char *range, unsigned long incarnation, const char *rule)
{
    char *last = strchr(range, '-');

    if (strcmp(range, "*") == 0)
        return true;
    if (last != NULL)
        *last++ = '\0';
    unsigned long from = number(range, rule), to = last != NULL ? number(last, rule) : from;
    return incarnation >= from && incarnation <= to;
}

static void set_action(struct rule *r, char *action, const char *text)
{
    static const char *const known[] = {"kill", "segv", "bus",  "abort",
                                        "stop", "open", "exit", "delay"};
    char *arg = strchr(action, '=');
    bool found = false;

    if (arg != NULL) {
        *arg++ = '\0';
        r->arg = number(arg, text);
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        found = found || strcmp(known[i], action) == 0;
    if (!found || (arg != NULL) != (action[0] == 'e' || action[0] == 'd'))
        refuse(text);
    snprintf(r->action, sizeof(r->action), "%s", action);
}

/* One rule; counted if it is about this process. */
static void add_rule(char *text, const char *stage, unsigned long incarnation)
{
    char copy[128], *save = NULL, *field[5] = {0};
    struct rule r = {.point = -1, .hit = 1};
    int fields = 0;

    snprintf(copy, sizeof(copy), "%s", text);
    for (char *f = strtok_r(text, ":", &save); f != NULL; f = strtok_r(NULL, ":", &save)) {
        if (fields == 5)
            refuse(copy);
        field[fields++] = f;
    }
    if (fields < 3)
        refuse(copy);
    for (int i = 0; i <= ANY; i++)
        if (strcmp(names[i], field[1]) == 0)
            r.point = i;
    if (r.point < 0)
        refuse(copy);
    set_action(&r, field[2], copy);
    if (fields > 3)
        r.hit = strcmp(field[3], "*") == 0 ? EVERY : number(field[3], copy);
    bool mine = fields > 4 ? is_incarnation(field[4], incarnation, copy) : incarnation == 1;
    if (mine && strcmp(field[0], stage) == 0 && inject.rules < MAX_RULES)
        inject.rule[inject.rules++] = r;
}

void waste_inject_init(struct waste_control *control, int stage)
{
    const char *env = getenv("WASTE_INJECT");
    char text[4096], *save = NULL;
    unsigned long incarnation = 1;

    inject.log = &control->log[stage];
    inject.stage = stage < WASTE_STAGE_COUNT ? waste_stage_name[stage] : "waste-run";
    if (stage < WASTE_STAGE_COUNT)
        incarnation =
            atomic_load_explicit(&control->stage[stage].incarnation, memory_order_acquire);
    if (env == NULL)
        return;
    if (snprintf(text, sizeof(text), "%s", env) >= (int)sizeof(text))
        refuse("too long");
    for (char *rule = strtok_r(text, ",", &save); rule != NULL; rule = strtok_r(NULL, ",", &save))
        add_rule(rule, inject.stage, incarnation);
}

/* A contained stage may signal itself, and only itself. */
static void signal_self(int number)
{
    signal(number, SIG_DFL);
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
}

static void try_one(const char *what, int result)
{
    waste_log_write(inject.log, WASTE_LOG_INFO, "inject: %s: %s", what,
                    result < 0 ? strerror(errno) : "succeeded");
    if (result > 0)
        close(result);
}

/* What a stage that somebody has taken over would try. */
static void try_to_get_out(void)
{
    try_one("open", open("/dev/null", O_RDONLY | O_CLOEXEC));
    try_one("create", open("/tmp/waste-inject", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    try_one("socket", socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    try_one("kill", kill(getppid(), 0));
    try_one("fork", (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    try_one("execve", execve("/bin/true", (char *const[]){(char *)"true", NULL}, NULL));
}

/* On stderr, so that a test can count what really happened. */
static void announce(const struct rule *r, enum waste_inject_point point)
{
    char line[128];
    int n =
        snprintf(line, sizeof(line), "inject: %s:%s:%s\n", inject.stage, names[point], r->action);

    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* then nobody counts */
}

static void act(const struct rule *r, enum waste_inject_point point)
{
    struct timespec pause = {.tv_sec = (time_t)(r->arg / 1000),
                             .tv_nsec = (long)(r->arg % 1000) * 1000000};

    announce(r, point);
    if (strcmp(r->action, "kill") == 0)
        signal_self(SIGKILL);
    else if (strcmp(r->action, "segv") == 0)
        signal_self(SIGSEGV);
    else if (strcmp(r->action, "bus") == 0)
        signal_self(SIGBUS);
    else if (strcmp(r->action, "abort") == 0)
        signal_self(SIGABRT);
    else if (strcmp(r->action, "stop") == 0)
        signal_self(SIGSTOP);
    else if (strcmp(r->action, "exit") == 0)
        _exit((int)r->arg);
    else if (strcmp(r->action, "delay") == 0)
        nanosleep(&pause, NULL);
    else
        try_to_get_out();
}

void waste_inject_at(enum waste_inject_point point)
{
    /* relaxed, both: counts, of which each value is handed out once */
    unsigned long hit = 0, any = 0;

    if (inject.rules == 0)
        return;
    hit = 1 + atomic_fetch_add_explicit(&inject.hits[point], 1, memory_order_relaxed);
    any = 1 + atomic_fetch_add_explicit(&inject.hits[ANY], 1, memory_order_relaxed);
    for (int i = 0; i < inject.rules; i++) {
        const struct rule *r = &inject.rule[i];
        if ((r->point == (int)point && (r->hit == EVERY || r->hit == hit)) ||
            (r->point == ANY && (r->hit == EVERY || r->hit == any)))
            act(r, point);
    }
}
