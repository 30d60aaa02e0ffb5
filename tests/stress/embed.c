/*
 * Embedding rows under a compute that changes its mind all the time and a reader that is killed in
 * the middle of a row: what compute accepts is the row it asked for, whole. Processes only: the row
 * is read while it may be written, and thrown away then, which the thread sanitizer cannot know.
 */
#include <sched.h>
#include <stdio.h>

#include "shm/control.h"
#include "tests/stress/stress.h"

enum { WORDS = 64 };

struct shared {
    struct waste_embed_slot slot;
    _Atomic uint64_t accepted; /* compute */
    _Atomic uint64_t torn;     /* compute: looked at, then thrown away */
    _Atomic uint64_t target;
    _Atomic uint64_t row[WORDS]; /* relaxed: stands for plain bytes, without undefined behaviour */
};

static bool over(struct shared *s)
{
    uint64_t target = atomic_load_explicit(&s->target, memory_order_relaxed);

    return target != 0 && atomic_load_explicit(&s->accepted, memory_order_relaxed) >= target;
}

static void reader(void *shared)
{
    struct shared *s = shared;
    struct stress_rng rng = stress_rng(1);

    while (!over(s)) {
        /* acquire, release: as in reader/embed.c */
        uint64_t want = atomic_load_explicit(&s->slot.want, memory_order_acquire);

        if (want == 0 || want == atomic_load_explicit(&s->slot.have, memory_order_relaxed)) {
            sched_yield();
            continue;
        }
        if (stress_random(&rng) % 4 == 0)
            sched_yield(); /* compute changes its mind here, */
        waste_embed_begin(&s->slot);
        for (int i = 0; i < WORDS; i++)
            atomic_store_explicit(&s->row[i], stress_mix(want + (uint64_t)i), memory_order_relaxed);
        atomic_store_explicit(&s->slot.have, want, memory_order_release);
    }
}

static void compute(void *shared)
{
    struct shared *s = shared;
    struct stress_rng rng = stress_rng(2);

    while (!over(s)) {
        uint64_t tag = waste_embed_tag(7, (uint32_t)(stress_random(&rng) % 2)), turn, word[WORDS];

        atomic_store_explicit(&s->slot.want, tag, memory_order_relaxed);
        stress_pause(stress_random(&rng) % 64);
        if (waste_embed_look(&s->slot, &turn) != tag)
            continue; /* and the next turn may want the other one */
        for (int i = 0; i < WORDS; i++) {
            if (i == WORDS / 2 && stress_random(&rng) % 4 == 0)
                sched_yield(); /* and has half a row here */
            word[i] = atomic_load_explicit(&s->row[i], memory_order_relaxed);
        }
        if (!waste_embed_still(&s->slot, turn)) {
            atomic_fetch_add_explicit(&s->torn, 1, memory_order_relaxed);
            continue;
        }
        for (int i = 0; i < WORDS; i++)
            if (word[i] != stress_mix(tag + (uint64_t)i))
                stress_fail("embed: word %d of an accepted row is another row's", i);
        atomic_fetch_add_explicit(&s->accepted, 1, memory_order_relaxed);
    }
}

static void after(void *shared, int side)
{
}

static void finish(void *shared)
{
    struct shared *s = shared;

    atomic_store(&s->target, atomic_load(&s->accepted) + 10000);
}

int stress_kill_embed(void)
{
    struct shared *s = stress_shared(sizeof(*s), NULL);
    int ret = stress_kill(s, reader, compute, (int)stress_count(200), after, finish);

    printf("embed: %lu rows accepted, %lu thrown away\n", atomic_load(&s->accepted),
           atomic_load(&s->torn));
    return ret;
}
