/*
 * How far a prompt is: what compute's stage record says of it, chunks in the middle included.
 */
#ifndef WASTE_CLI_PREFILL_H
#define WASTE_CLI_PREFILL_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/control.h"

struct waste_prefill {
    uint32_t begin, position, end; /* consumed are [begin, position) of [begin, end) */
    double seconds;                /* since it began */
    double tok_per_s, seconds_left; /* 0: not known yet */
};

/* False: no prompt is being consumed. The words may be of different moments; any thread. */
bool waste_prefill_look(const struct waste_shm *shm, struct waste_prefill *out);

/*
 * The line on stderr about a prompt that takes more than two seconds: on a terminal in place, five
 * times a second; elsewhere a line every two seconds. count: tokens of the request that runs; ahead:
 * of a prompt in parts, tokens behind these. When all are over, waste_prefill_line_end() clears the
 * terminal's.
 */
struct waste_prefill_line {
    int64_t begun_ns, shown_ns; /* 0: not yet */
    uint32_t total;             /* tokens, of all parts */
    bool on_screen;
};
void waste_prefill_line_show(struct waste_prefill_line *l, const struct waste_shm *shm,
                             uint32_t count, uint32_t ahead);
void waste_prefill_line_end(struct waste_prefill_line *l);

#endif
