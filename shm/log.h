/*
 * The shared error log: one ring of lines a stage in the control segment, so every line has a
 * single writer and what a stage said survives its death.
 */
#ifndef WASTE_SHM_LOG_H
#define WASTE_SHM_LOG_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { WASTE_LOG_LINES = 64, WASTE_LOG_TEXT = 480 };

/* LOSS: a warning that waste-run passes on to its user, who had something that was lost or is not
 * used. */
enum waste_log_level { WASTE_LOG_INFO, WASTE_LOG_WARNING, WASTE_LOG_LOSS, WASTE_LOG_ERROR };

struct waste_log_line {
    _Atomic uint64_t
        seq;          /* 1 + its number in this log, stored last (release); 0 while being written */
    uint64_t time_ns; /* CLOCK_REALTIME */
    uint32_t level;
    uint32_t length;
    char text[WASTE_LOG_TEXT]; /* NUL-terminated */
};

struct waste_log {
    _Alignas(64) _Atomic uint64_t
        next; /* lines ever written; the stage (its successor goes on from here) */
    uint64_t pad[7];
    struct waste_log_line line[WASTE_LOG_LINES];
};

/* Owner only. Lower case, no period, one line; longer text is cut at a whole UTF-8 character. */
void waste_log_write(struct waste_log *log, enum waste_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Any process: copies line number `number` (0-based) into *out. Returns 1 copied, 0 not written
 * yet, -1 overwritten (too old). Never blocks; a line torn by its writer's death counts as
 * overwritten.
 */
int waste_log_read(const struct waste_log *log, uint64_t number, struct waste_log_line *out);

#endif
