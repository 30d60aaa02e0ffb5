#include "fetcher/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

void waste_progress_show(struct waste_progress *p)
{
    uint64_t now = now_ns(), every = p->tty ? 250000000u : 5000000000u;
    if (p->quiet || now - p->start_ns < 2000000000u || now - p->shown_ns < every)
        return;
    p->shown_ns = now;
    double done = (double)atomic_load_explicit(&p->done, memory_order_relaxed);
    double seconds = (double)(now - p->start_ns) * 1e-9;
    double rate = (done - (double)p->begun) / seconds;
    double left = rate > 0 ? ((double)p->total_bytes - done) / rate : 0;
    fprintf(stderr, "%s%s: %.2f of %.2f GiB, %.0f MiB/s, %.0f s left%s", p->tty ? "\r" : "",
            p->what, done / 0x1p30, (double)p->total_bytes / 0x1p30, rate / 0x1p20, left,
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

void waste_progress_summary(const char *path, uint64_t bytes, double seconds)
{
    double mib = (double)bytes / 0x1p20;
    printf("%s: %.1f MiB in %.2f s, %.0f MiB/s\n", path, mib, seconds, mib / seconds);
}
