#include "fetcher/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "options/units.h"

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void waste_progress_init(struct waste_progress *p, const char *what, uint64_t total, bool quiet)
{
    memset(p, 0, sizeof(*p));
    p->what = what;
    p->total_bytes = total;
    p->quiet = quiet;
    p->tty = isatty(STDERR_FILENO);
    p->start_ns = p->shown_ns = now_ns();
}

/* "42 s", "7 min", "3 h 20 min". */
static void format_left(double seconds, char *out, size_t room)
{
    uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;
    if (s < 120)
        snprintf(out, room, "%u s", (unsigned)s);
    else if (s < 7200)
        snprintf(out, room, "%u min", (unsigned)(s / 60));
    else
        snprintf(out, room, "%llu h %u min", (unsigned long long)(s / 3600),
                 (unsigned)(s / 60 % 60));
}

void waste_progress_show(struct waste_progress *p)
{
    uint64_t now = now_ns(), every = p->tty ? 250000000u : 5000000000u;
    if (p->quiet || now - p->start_ns < 2000000000u || now - p->shown_ns < every)
        return;
    p->shown_ns = now;
    double done = (double)atomic_load_explicit(&p->done, memory_order_relaxed);
    double seconds = (double)(now - p->start_ns) * 1e-9;
    double rate = (done - (double)p->begun) / seconds;
    char have[24], total[24], speed[24], left[32] = "?";
    if (rate > 0)
        format_left(((double)p->total_bytes - done) / rate, left, sizeof(left));
    fprintf(stderr, "%s%s: %s of %s, %s/s, %s left%s", p->tty ? "\r" : "", p->what,
            waste_units_format_size((uint64_t)done, have, sizeof(have)),
            waste_units_format_size(p->total_bytes, total, sizeof(total)),
            waste_units_format_size(rate > 0 ? (uint64_t)rate : 0, speed, sizeof(speed)), left,
            p->tty ? "   " : "\n");
    p->open = p->tty;
}

double waste_progress_finish(struct waste_progress *p)
{
    if (p->open)
        fputc('\n', stderr);
    p->open = false;
    return (double)(now_ns() - p->start_ns) * 1e-9;
}
