/* Log lines are whole or not shown; what a writer finished before it was killed is not lost. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/log.h"
#include "tests/stress/stress.h"

enum { LIVES = 65536 };

struct shared {
    struct waste_log log;
    _Alignas(64) _Atomic uint64_t lines; /* to write before both stop; 0: not known yet */
    _Atomic uint64_t seen;               /* reader: lines read; 0 while it keeps no pace */
    _Atomic uint64_t torn;               /* reader: lines that were overwritten meanwhile */
    _Atomic uint32_t life;               /* supervisor: the writer's incarnation */
    _Atomic uint64_t last;               /* reader: life << 32 | count of the line before */
    _Atomic uint64_t said[LIVES];        /* writer: lines this incarnation finished */
};

/* A text of varying length that proves itself whole. */
static void say(struct shared *s, uint32_t life, uint64_t count)
{
    static const char padding[] = "the quick brown fox jumps over the lazy dog, and then once more "
                                  "because a line has to be longer than one cache line to tear";
    int n = (int)(stress_mix(count) % sizeof(padding));

    waste_log_write(&s->log, WASTE_LOG_INFO, "%u %lu %.*s %lx", life, count, n, padding,
                    stress_mix(count * LIVES + life));
}

static void parse(const struct waste_log_line *line, uint32_t *life, uint64_t *count)
{
    const char *last = strrchr(line->text, ' ');
    char *end;

    *life = (uint32_t)strtoul(line->text, &end, 10);
    *count = strtoul(end, &end, 10);
    if (!last || strtoul(last, NULL, 16) != stress_mix(*count * LIVES + *life) ||
        strlen(line->text) != line->length)
        stress_fail("log: a torn line was shown: %s", line->text);
}

static bool over(struct shared *s, uint64_t number)
{
    uint64_t lines = atomic_load_explicit(&s->lines, memory_order_acquire);

    return lines != 0 && number >= lines;
}

static void writer(void *shared)
{
    struct shared *s = shared;

    for (uint64_t n = 0; !over(s, n); n++)
        say(s, 0, n);
}

/* Chases the newest line of a writer that never waits. */
static void chaser(void *shared)
{
    struct shared *s = shared;
    struct stress_rng rng = stress_rng(2);
    struct waste_log_line line;
    uint64_t next = 0, count;
    uint32_t life;

    while (!over(s, next)) {
        uint64_t back = stress_random(&rng) % (WASTE_LOG_LINES + 2), number;
        int ret;

        next = atomic_load_explicit(&s->log.next, memory_order_acquire);
        number = next > back ? next - back : 0;
        ret = waste_log_read(&s->log, number, &line);
        if (ret < 0)
            atomic_fetch_add_explicit(&s->torn, 1, memory_order_relaxed);
        if (ret != 1)
            continue;
        parse(&line, &life, &count);
        if (count != number)
            stress_fail("log: line %lu says it is %lu", number, count);
        atomic_fetch_add_explicit(&s->seen, 1, memory_order_relaxed);
    }
}

int stress_log(void)
{
    struct shared *s = stress_shared(sizeof(*s), NULL);

    atomic_store(&s->lines, stress_count(200000));
    if (stress_pair(s, writer, chaser))
        return 1;
    printf("log: %lu lines, %lu read whole, %lu overwritten\n", atomic_load(&s->lines),
           atomic_load(&s->seen), atomic_load(&s->torn));
    if (atomic_load(&s->seen) == 0)
        fprintf(stderr, "log: not a line was read\n");
    return atomic_load(&s->seen) == 0;
}

/* Half a log ahead of the reader at most, so that no line may be lost. */
static void paced_writer(void *shared)
{
    struct shared *s = shared;
    uint32_t life = atomic_load(&s->life) % LIVES;

    for (uint64_t n = 0;; n++) {
        uint64_t next = atomic_load(&s->log.next);

        if (over(s, next))
            return;
        while (next >= atomic_load(&s->seen) + WASTE_LOG_LINES / 2)
            sched_yield();
        say(s, life, n);
        /* release: pairs with the reader's acquire */
        atomic_store_explicit(&s->said[life], n + 1, memory_order_release);
    }
}

/* Every line in turn. A reader killed between its two last stores meets its last line again. */
static void paced_reader(void *shared)
{
    struct shared *s = shared;
    struct waste_log_line line;

    for (;;) {
        uint64_t number = atomic_load(&s->seen), last = atomic_load(&s->last), count;
        uint32_t life, last_life = (uint32_t)(last >> 32), last_count = (uint32_t)last;
        int ret = waste_log_read(&s->log, number, &line);

        if (over(s, number))
            return;
        if (ret < 0)
            stress_fail("log: line %lu was lost", number);
        if (ret == 0) {
            sched_yield();
            continue;
        }
        parse(&line, &life, &count);
        if (life == last_life && count != last_count && count != last_count + 1)
            stress_fail("log: life %u says %lu after %u", life, count, last_count);
        if (life != last_life) {
            uint64_t said = atomic_load_explicit(&s->said[last_life], memory_order_acquire);

            if (life < last_life || count != 0 || (number > 0 && last_count + 1 < said))
                stress_fail("log: life %u line %lu follows life %u line %u of %lu", life, count,
                            last_life, last_count, said);
        }
        atomic_store(&s->last, (uint64_t)life << 32 | count);
        atomic_store(&s->seen, number + 1);
    }
}

static void after(void *shared, int side)
{
    struct shared *s = shared;

    if (side == 0)
        atomic_fetch_add(&s->life, 1);
}

static void finish(void *shared)
{
    struct shared *s = shared;

    atomic_store(&s->lines, atomic_load(&s->log.next) + 1000);
}

int stress_kill_log(void)
{
    struct shared *s = stress_shared(sizeof(*s), NULL);
    int ret = stress_kill(s, paced_writer, paced_reader, (int)stress_count(200), after, finish);

    printf("log: %lu lines by %u lives\n", atomic_load(&s->seen), atomic_load(&s->life) + 1);
    return ret;
}
