/* A progress line on stderr: nothing for two seconds, then how much, how fast, how long still. */
#ifndef WASTE_FETCHER_PROGRESS_H
#define WASTE_FETCHER_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct waste_progress {
    const char *what; /* "synth" */
    uint64_t total_bytes;
    _Atomic uint64_t done; /* bytes; any worker adds, relaxed: only shown */
    uint64_t begun;        /* bytes that were there at the start: not part of the rate */
    uint64_t start_ns, shown_ns;
    bool tty, quiet, open; /* open: a line without its newline stands there */
};

void waste_progress_init(struct waste_progress *p, const char *what, uint64_t total, bool quiet);

/* One thread calls it, as often as it likes. */
void waste_progress_show(struct waste_progress *p);

/* Ends the line, if one was begun; seconds since init. */
double waste_progress_finish(struct waste_progress *p);

#endif
