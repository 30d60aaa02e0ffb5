/*
 * The token transaction of session.h in miniature: a step reads one bank, writes the other, appends
 * a token and publishes all of it with one store of the commit word. Its writer is killed anywhere;
 * the observer must see every token of one unbroken chain, none twice, none wrong.
 */
#include <sched.h>
#include <stdio.h>

#include "shm/session.h"
#include "tests/stress/stress.h"

enum { WORDS = 32, LOG = 256 };

struct shared {
    _Alignas(64) _Atomic uint64_t commit; /* stepper */
    _Alignas(64) _Atomic uint64_t seen;   /* observer: tokens verified */
    _Atomic uint64_t target;
    uint64_t bank[2][WORDS];
    uint64_t log[LOG];
};

/* Every word of a bank holds the same link of the chain, each in its own disguise. */
static uint64_t link_in(const uint64_t *bank)
{
    uint64_t link = bank[0];

    for (int i = 1; i < WORDS; i++)
        if ((bank[i] ^ (uint64_t)i * 977) != link)
            stress_fail("commit: the committed bank is half another step's");
    return link;
}

static bool over(struct shared *s, uint64_t position)
{
    uint64_t target = atomic_load_explicit(&s->target, memory_order_acquire);

    return target != 0 && position >= target;
}

static void stepper(void *shared)
{
    struct shared *s = shared;

    for (;;) {
        /* relaxed: our own word */
        uint64_t word = atomic_load_explicit(&s->commit, memory_order_relaxed), link;
        uint32_t bank = waste_commit_bank(word), position = waste_commit_position(word);

        if (over(s, position))
            return;
        /* acquire: the observer has done with the log entry that is written next */
        while (position >= atomic_load_explicit(&s->seen, memory_order_acquire) + LOG - 1)
            sched_yield();
        link = stress_mix(link_in(s->bank[bank]) + 1);
        for (int i = 0; i < WORDS; i++)
            s->bank[1 - bank][i] = link ^ (uint64_t)i * 977;
        s->log[(position + 1) % LOG] = link;
        /* release: pairs with the observer's acquire */
        atomic_store_explicit(&s->commit, waste_commit_word(1, position + 1, 1 - bank),
                              memory_order_release);
    }
}

/* Its own place is one word (`seen`), so it can be killed too: the chain it expects is the token
 * before, which the stepper leaves alone until `seen` moves on. */
static void observer(void *shared)
{
    struct shared *s = shared;

    for (;;) {
        uint64_t seen = atomic_load(&s->seen);
        /* acquire: pairs with the stepper's release */
        uint64_t word = atomic_load_explicit(&s->commit, memory_order_acquire);

        if (over(s, seen))
            return;
        if (waste_commit_position(word) <= seen) {
            sched_yield();
            continue;
        }
        if (s->log[(seen + 1) % LOG] != stress_mix(s->log[seen % LOG] + 1))
            stress_fail("commit: token %lu does not follow from the one before", seen + 1);
        /* release: pairs with the stepper's acquire */
        atomic_store_explicit(&s->seen, seen + 1, memory_order_release);
    }
}

static void after(void *shared, int side)
{
}

static void finish(void *shared)
{
    struct shared *s = shared;

    atomic_store(&s->target, waste_commit_position(atomic_load(&s->commit)) + 5000);
}

int stress_kill_commit(void)
{
    struct shared *s = stress_shared(sizeof(*s), NULL);
    int ret;

    for (int i = 0; i < WORDS; i++)
        s->bank[0][i] = (uint64_t)i * 977;
    atomic_store(&s->commit, waste_commit_word(1, 0, 0));
    ret = stress_kill(s, stepper, observer, (int)stress_count(200), after, finish);
    printf("commit: %lu tokens\n", atomic_load(&s->seen));
    return ret;
}
