/* waste-run top: frames on a terminal until q, a signal or the pipeline's end; elsewhere one. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "cli/supervisor_int.h"
#include "cli/top.h"

/* What processes take is looked up again after so many times the time that took: a walk over the
 * page tables of tens of gigabytes is not for every frame. */
enum { MEMORY_REST = 50 };

struct top {
    struct waste_attached attached;
    struct waste_view *before, *now;
    int64_t memory_due_ns;
    bool ended; /* the pipeline has */
};

/* ---- the terminal ---- */

#define ENTER "\033[?1049h\033[?25l\033[?7l" /* another screen, no cursor, no wrapping */
#define LEAVE "\033[?7h\033[?25h\033[?1049l"

static struct termios cooked;
static bool is_raw; /* stdin's mode was changed */
static _Atomic int quit_signal, stop_wanted;

static void on_signal(int number)
{
    /* relaxed: flags alone */
    if (number == SIGTSTP)
        atomic_store_explicit(&stop_wanted, 1, memory_order_relaxed);
    else if (number != SIGWINCH && number != SIGCONT) /* those only end the sleep */
        atomic_store_explicit(&quit_signal, number, memory_order_relaxed);
}

static void write_all(const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(STDOUT_FILENO, text, bytes);
        if (n < 0 && errno != EINTR) {
            atomic_store_explicit(&quit_signal, SIGPIPE, memory_order_relaxed);
            return;
        }
        if (n > 0) {
            text += n;
            bytes -= (size_t)n;
        }
    }
}

static void enter_screen(void)
{
    struct termios raw;

    if (tcgetattr(STDIN_FILENO, &cooked) == 0) {
        raw = cooked;
        raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
        is_raw = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    write_all(ENTER, strlen(ENTER));
}

static void leave_screen(void)
{
    write_all(LEAVE, strlen(LEAVE));
    if (is_raw)
        tcsetattr(STDIN_FILENO, TCSANOW, &cooked);
    is_raw = false;
}

static void catch_signals(void)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH, SIGCONT};
    struct sigaction action = {.sa_handler = on_signal};

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        sigaction(caught[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* Ctrl-Z: the shell gets its terminal back as it was. */
static void stop_self(void)
{
    leave_screen();
    raise(SIGSTOP);
    atomic_store_explicit(&stop_wanted, 0, memory_order_relaxed);
    enter_screen();
}

static struct waste_top_size terminal_size(void)
{
    struct winsize w = {0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col == 0 || w.ws_row == 0)
        return (struct waste_top_size){80, 24};
    return (struct waste_top_size){w.ws_col, w.ws_row};
}

/* ---- looking ---- */

static void look(struct top *t)
{
    struct waste_view *old = t->before;
    int64_t start = waste_now_ns();
    bool memory = start >= t->memory_due_ns;

    t->before = t->now;
    t->now = old;
    for (int i = 0; i < WASTE_STAGE_COUNT; i++) /* what is not looked up stays as it was */
        old->stage[i].process = t->before->stage[i].process;
    old->own = t->before->own;
    waste_view_take(t->now, memory);
    if (memory)
        t->memory_due_ns = waste_now_ns() + MEMORY_REST * (waste_now_ns() - start);
}

/* Lines are filled to the edge, so that each is simply written over what stood there: nothing
 * flickers. */
static int draw(struct top *t)
{
    struct waste_top_size size = terminal_size();
    struct waste_text frame = {0}, screen = {0};
    unsigned lines = 0;

    int rc = waste_top_frame(&frame, t->before, t->now, size, waste_output_colour());
    if (rc == 0)
        rc = waste_text_add(&screen, "\033[H", 3);
    for (size_t at = 0; rc == 0 && at < frame.bytes;) {
        size_t n = strcspn(frame.data + at, "\n");
        rc = waste_text_add(&screen, frame.data + at, n);
        at += n + 1;
        lines++;
        if (rc == 0 && lines < size.rows)
            rc = waste_text_add(&screen, "\r\n", 2);
    }
    if (rc == 0 && lines < size.rows)
        rc = waste_text_add(&screen, "\033[J", 3); /* below the last line */
    if (rc == 0)
        write_all(screen.data, screen.bytes);
    waste_text_finish(&frame);
    waste_text_finish(&screen);
    return rc;
}

/* Sleeps until `until_ns`. False: it is time to go. A changed size draws at once. */
static bool rest(struct top *t, int64_t until_ns)
{
    struct waste_top_size drawn = terminal_size();
    struct pollfd fds[2] = {{.fd = t->attached.fd, .events = POLLIN},
                            {.fd = STDIN_FILENO, .events = POLLIN}};

    for (int64_t left; (left = until_ns - waste_now_ns()) > 0;) {
        int n = poll(fds, is_raw ? 2 : 1, (int)(left / 1000000) + 1);
        char key;
        if (atomic_load_explicit(&quit_signal, memory_order_relaxed) != 0)
            return false;
        if (atomic_load_explicit(&stop_wanted, memory_order_relaxed) != 0) {
            stop_self();
            return draw(t) == 0;
        }
        struct waste_top_size size = terminal_size();
        if (n < 0 && (size.columns != drawn.columns || size.rows != drawn.rows)) {
            drawn = size;
            draw(t);
        }
        if (n > 0 && fds[0].revents != 0) { /* nobody writes: it was closed */
            t->ended = true;
            return false;
        }
        if (n > 0 && fds[1].revents != 0 &&
            (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q'))
            return false;
    }
    return true;
}

static int show(struct top *t, double interval)
{
    int rc = 0;

    catch_signals();
    enter_screen();
    do {
        look(t);
        rc = draw(t);
    } while (rc == 0 && rest(t, t->now->when_ns + (int64_t)(interval * 1e9)));
    leave_screen();
    if (rc != 0)
        return waste_fail(1, "out of memory");
    if (t->ended)
        printf("the pipeline of waste-run %d has ended\n", t->attached.pid);
    return 0;
}

static int show_once(struct top *t, const struct waste_args *args)
{
    struct pollfd end = {.fd = t->attached.fd, .events = POLLIN};
    struct waste_text frame = {0};
    const struct waste_top_size size = {.columns =
                                            isatty(STDOUT_FILENO) ? terminal_size().columns : 120};
    struct waste_rates r;

    poll(&end, 1, (int)(args->interval * 1000));
    t->memory_due_ns = 0;
    look(t);
    if (args->json) {
        json_t *object = waste_view_stats_json(t->now);
        waste_view_rates(t->before, t->now, &r);
        if (object != NULL)
            json_object_set_new(object, "rates", waste_view_rates_json(&r));
        return waste_output_print_json(object);
    }
    int rc = waste_top_frame(&frame, t->before, t->now, size, false);
    if (rc == 0)
        fwrite(frame.data, 1, frame.bytes, stdout);
    waste_text_finish(&frame);
    return rc == 0 ? 0 : waste_fail(1, "out of memory");
}

int waste_cmd_top(const struct waste_args *args)
{
    struct top t = {0};
    struct waste_error err;

    int rc = waste_attach_open(args->pid, &t.attached, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    t.before = waste_view_create(&t.attached);
    t.now = waste_view_create(&t.attached);
    if (t.before == NULL || t.now == NULL) {
        rc = waste_fail(1, "out of memory");
    } else {
        look(&t);
        bool once = args->once || args->json || !isatty(STDOUT_FILENO);
        rc = once ? show_once(&t, args) : show(&t, args->interval);
    }
    waste_view_destroy(t.before);
    waste_view_destroy(t.now);
    waste_attach_close(&t.attached);
    return rc;
}
