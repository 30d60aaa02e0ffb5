/*
 * A line is a seqlock: seq 0 while it is written, 1 + its number when it is whole. The body is
 * copied in 64-bit atomic words; each store is a release and each load an acquire, so whoever reads
 * one new word also sees that seq is no longer the old one. (On x86 these are plain moves.)
 */
#include "shm/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "shm/inject.h"

typedef uint64_t __attribute__((may_alias)) word;

enum {
    BODY_OFF = offsetof(struct waste_log_line, time_ns),
    BODY_WORDS = (sizeof(struct waste_log_line) - BODY_OFF) / sizeof(word),
};
_Static_assert(sizeof(struct waste_log_line) == 24 + WASTE_LOG_TEXT && WASTE_LOG_TEXT % 8 == 0,
               "a line is whole words");
_Static_assert(sizeof(struct waste_log) % 64 == 0 && offsetof(struct waste_log, line) == 64,
               "lines start on a cache line");

/* Cuts at the last whole UTF-8 character and blanks what would break the line. */
static uint32_t tidy(char *text, size_t length, int truncated)
{
    if (truncated) {
        size_t start = length;

        while (start > 0 && length - start < 4 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
            start--;
        if (start > 0 && (unsigned char)text[start - 1] >= 0xc0) {
            unsigned char lead = (unsigned char)text[start - 1];
            size_t need = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;

            if (length - start < need)
                length = start - 1;
        }
    }
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            text[i] = ' ';
    memset(text + length, 0, WASTE_LOG_TEXT - length);
    return (uint32_t)length;
}

void waste_log_write(struct waste_log *log, enum waste_log_level level, const char *format, ...)
{
    struct waste_log_line body = {.level = level};
    /* relaxed: our own words, here and below */
    uint64_t number = atomic_load_explicit(&log->next, memory_order_relaxed);
    struct waste_log_line *line = &log->line[number % WASTE_LOG_LINES];
    const word *from = (const word *)((const char *)&body + BODY_OFF);
    struct timespec ts;
    va_list ap;
    int length;

    va_start(ap, format);
    length = vsnprintf(body.text, sizeof(body.text), format, ap);
    va_end(ap);
    if (length < 0)
        length = 0;
    body.length = tidy(body.text, length < WASTE_LOG_TEXT ? (size_t)length : WASTE_LOG_TEXT - 1,
                       length >= WASTE_LOG_TEXT);
    clock_gettime(CLOCK_REALTIME, &ts);
    body.time_ns = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;

    /* Our predecessor finished this line and died before it counted it: keep the line. */
    if (atomic_load_explicit(&line->seq, memory_order_relaxed) == number + 1)
        line = &log->line[++number % WASTE_LOG_LINES];
    atomic_store_explicit(&line->seq, 0, memory_order_relaxed);
    for (size_t i = 0; i < BODY_WORDS; i++)
        /* release: pairs with the acquire in waste_log_read; carries seq = 0 */
        __atomic_store_n((word *)((char *)line + BODY_OFF) + i, from[i], __ATOMIC_RELEASE);
    WASTE_POINT(LOG_BODY);
    /* release: pairs with the first load in waste_log_read */
    atomic_store_explicit(&line->seq, number + 1, memory_order_release);
    /* release: who sees the count finds the line */
    atomic_store_explicit(&log->next, number + 1, memory_order_release);
}

int waste_log_read(const struct waste_log *log, uint64_t number, struct waste_log_line *out)
{
    const struct waste_log_line *line = &log->line[number % WASTE_LOG_LINES];
    /* acquire: pairs with the release in waste_log_write, before the body is read */
    uint64_t next = atomic_load_explicit(&log->next, memory_order_acquire);
    uint64_t seq = atomic_load_explicit(&line->seq, memory_order_acquire);
    struct waste_log_line copy;
    word *to = (word *)((char *)&copy + BODY_OFF);

    if (seq != number + 1)
        return number < next || seq > number + 1 ? -1 : 0;
    for (size_t i = 0; i < BODY_WORDS; i++)
        /* acquire: pairs with the release in waste_log_write; a new word here means seq moved */
        to[i] =
            __atomic_load_n((const word *)((const char *)line + BODY_OFF) + i, __ATOMIC_ACQUIRE);
    /* relaxed: behind the acquire loads of the body */
    if (atomic_load_explicit(&line->seq, memory_order_relaxed) != seq)
        return -1;
    copy.text[WASTE_LOG_TEXT - 1] = 0;
    copy.length = (uint32_t)strlen(copy.text);
    memcpy((char *)out + BODY_OFF, (const char *)&copy + BODY_OFF, sizeof(copy) - BODY_OFF);
    atomic_store_explicit(&out->seq, seq, memory_order_relaxed); /* the caller's own memory */
    return 1;
}
