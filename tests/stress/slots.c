/*
 * A reader that recycles slots as fast as it can against a compute that pins them: what is pinned
 * holds the wanted key, and not a word of it changes until it is unpinned.
 *
 * The records are plain memory on purpose: the thread sanitizer proves that the slot words order
 * every write of the reader against every read of compute.
 */
#include <sched.h>
#include <stdio.h>

#include "shm/segment.h"
#include "shm/slot.h"
#include "tests/stress/stress.h"

enum { SLOTS = 4, KEYS = 8, WORDS = 512, USED = 24, SLOT_BYTES = 4096 };

struct shared {
    struct waste_slot slot[SLOTS];
    _Alignas(64) _Atomic uint32_t directory[KEYS]; /* reader */
    _Alignas(64) _Atomic uint64_t claimed;         /* reader: slots given to another key */
    _Atomic uint64_t refused;                      /* reader: victims that were pinned */
    _Alignas(64) _Atomic uint64_t pinned;          /* compute: records verified */
    _Atomic uint64_t target;                       /* both stop there; 0: not known yet */
    _Atomic uint64_t cleared, punched;             /* supervisor */
    int fd;
    _Alignas(4096) uint64_t data[SLOTS][WORDS];
};

static uint64_t pattern(uint64_t key, uint64_t generation, int i)
{
    return stress_mix(key << 40 ^ generation << 8 ^ (uint64_t)i);
}

static void bump(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); /* a statistic */
}

static bool over(struct shared *s)
{
    /* relaxed: only says when to stop */
    uint64_t target = atomic_load_explicit(&s->target, memory_order_relaxed);

    return target != 0 && atomic_load_explicit(&s->claimed, memory_order_relaxed) >= target &&
           atomic_load_explicit(&s->pinned, memory_order_relaxed) >= target / 64 &&
           atomic_load_explicit(&s->refused, memory_order_relaxed) != 0;
}

/* A directory from the slots alone: all that a dead reader leaves is in their words and keys. */
static void rebuild(struct shared *s, uint32_t key_of[SLOTS])
{
    uint32_t of[KEYS];

    for (int k = 0; k < KEYS; k++)
        of[k] = WASTE_SLOT_NONE;
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint64_t word = atomic_load_explicit(&s->slot[i].word, memory_order_acquire);
        uint32_t key = (uint32_t)atomic_load_explicit(&s->slot[i].key, memory_order_relaxed);

        if (!waste_slot_valid(word) || waste_slot_state(word) == WASTE_SLOT_READING)
            stress_fail("slots: the reader starts on a slot in state %d",
                        (int)waste_slot_state(word));
        key_of[i] = waste_slot_state(word) == WASTE_SLOT_READY ? key : WASTE_SLOT_NONE;
        if (key_of[i] == WASTE_SLOT_NONE)
            continue;
        if (key >= KEYS || of[key] != WASTE_SLOT_NONE)
            stress_fail("slots: key %u is READY twice", key);
        of[key] = i;
    }
    for (int k = 0; k < KEYS; k++)
        atomic_store_explicit(&s->directory[k], of[k], memory_order_release);
}

static void reader(void *shared)
{
    struct shared *s = shared;
    struct stress_rng rng = stress_rng(1);
    uint32_t key_of[SLOTS];

    rebuild(s, key_of);
    while (!over(s)) {
        uint32_t i = (uint32_t)(stress_random(&rng) % SLOTS);
        uint32_t key = (uint32_t)(stress_random(&rng) % KEYS);
        struct waste_slot *slot = &s->slot[i];
        /* relaxed: the claim decides */
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
        uint64_t generation;

        if (atomic_load_explicit(&s->directory[key], memory_order_relaxed) != WASTE_SLOT_NONE)
            continue; /* resident, maybe in this very slot */
        if (!waste_slot_claim(slot, word, key)) {
            bump(&s->refused);
            continue;
        }
        if (key_of[i] != WASTE_SLOT_NONE)
            atomic_store_explicit(&s->directory[key_of[i]], WASTE_SLOT_NONE, memory_order_relaxed);
        key_of[i] = WASTE_SLOT_NONE;
        generation = atomic_load_explicit(&slot->word, memory_order_relaxed) >> 32;
        for (int w = 0; w < USED; w++)
            s->data[i][w] = pattern(key, generation, w);
        bump(&s->claimed);
        if (stress_random(&rng) % 61 == 0) {
            waste_slot_fail(slot, WASTE_SLOT_EIO, 5);
            if (!waste_slot_empty(slot, atomic_load_explicit(&slot->word, memory_order_relaxed)))
                stress_fail("slots: a FAILED slot could not be emptied");
            continue;
        }
        key_of[i] = key;
        /* relaxed: a hint, the pin checks it */
        atomic_store_explicit(&s->directory[key], i, memory_order_relaxed);
        waste_slot_publish(slot);
    }
}

static void verify(struct shared *s, uint32_t i, uint32_t key)
{
    struct waste_slot *slot = &s->slot[i];
    /* relaxed: pinned, so state and generation stand still */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);

    if (!waste_slot_valid(word) || waste_slot_state(word) != WASTE_SLOT_READY ||
        waste_slot_pins(word) == 0)
        stress_fail("slots: a pinned slot has word %lx", word);
    for (int w = 0; w < USED; w++)
        if (s->data[i][w] != pattern(key, word >> 32, w))
            stress_fail("slots: word %d of a slot pinned for key %u is foreign", w, key);
}

static void compute(void *shared)
{
    struct shared *s = shared;
    struct stress_rng rng = stress_rng(2);

    while (!over(s)) {
        uint32_t key = (uint32_t)(stress_random(&rng) % KEYS);
        /* relaxed: a hint, the pin checks it */
        uint32_t i = atomic_load_explicit(&s->directory[key], memory_order_relaxed);
        uint64_t dice = stress_random(&rng);

        if (i >= SLOTS || !waste_slot_pin(&s->slot[i], key))
            continue;
        verify(s, i, key);
        if (dice % 4 == 0) {
            stress_pause(dice / 4 % 256);
            if (dice % 1024 == 0)
                sched_yield(); /* on one CPU the reader only meets a pin if we let go of it here */
            verify(s, i, key);
            if (waste_slot_pin(&s->slot[i], key)) /* a second pin holds on its own */
                waste_slot_unpin(&s->slot[i]);
            verify(s, i, key);
        }
        waste_slot_unpin(&s->slot[i]);
        bump(&s->pinned);
    }
}

static struct shared *make(void)
{
    int fd;
    struct shared *s = stress_shared(sizeof(struct shared), &fd);

    s->fd = fd;
    for (int k = 0; k < KEYS; k++)
        atomic_store(&s->directory[k], WASTE_SLOT_NONE);
    return s;
}

static int judge(struct shared *s)
{
    int bad = 0;

    printf("slots: %lu claimed, %lu refused, %lu pinned; pins cleared %lu, holes punched %lu\n",
           atomic_load(&s->claimed), atomic_load(&s->refused), atomic_load(&s->pinned),
           atomic_load(&s->cleared), atomic_load(&s->punched));
    for (int i = 0; i < SLOTS; i++)
        if (waste_slot_pins(atomic_load(&s->slot[i].word)) != 0)
            bad = 1;
    if (bad)
        fprintf(stderr, "slots: pins are left over\n");
    return bad;
}

int stress_slots(void)
{
    struct shared *s = make();

    atomic_store(&s->target, stress_count(1000000));
    return stress_pair(s, reader, compute) || judge(s);
}

/*
 * One slot, two keys, records of one word: it changes hands and comes back within the time that a
 * compare-and-swap waits for its cache line. Without generations compute pins the wrong key.
 */
static void hot_reader(void *shared)
{
    struct shared *s = shared;
    struct waste_slot *slot = &s->slot[0];
    unsigned in_a_row = 0;

    for (uint64_t n = 0; !over(s); n++) {
        /* relaxed: the claim decides */
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);

        if (!waste_slot_claim(slot, word, n % 2)) {
            bump(&s->refused);
            if (++in_a_row % 256 == 0)
                sched_yield(); /* the one who pins waits for this CPU */
            continue;
        }
        in_a_row = 0;
        s->data[0][0] = n % 2;
        waste_slot_publish(slot);
        bump(&s->claimed);
        if (n % 16384 == 0)
            sched_yield(); /* on one CPU the other side has its turn here */
    }
}

static void hot_compute(void *shared)
{
    struct shared *s = shared;

    for (uint64_t n = 0; !over(s); n++) {
        if (!waste_slot_pin(&s->slot[0], n % 2))
            continue;
        if (s->data[0][0] != n % 2)
            stress_fail("slots: pinned for key %lu, holds the other", n % 2);
        if (n % 8192 < 2)
            sched_yield(); /* with the pin in hand */
        waste_slot_unpin(&s->slot[0]);
        bump(&s->pinned);
        if (n % 256 < 2)
            sched_yield(); /* the one who claims waits for this CPU */
    }
}

int stress_hot_slot(void)
{
    struct shared *s = make();

    atomic_store(&s->target, stress_count(3000000));
    return stress_pair(s, hot_reader, hot_compute) || judge(s);
}

/* What the supervisor does: pins of a dead compute go; a dead reader's READING slots lose their
 * pages and become EMPTY. */
static void after(void *shared, int side)
{
    struct shared *s = shared;

    for (int i = 0; i < SLOTS; i++) {
        struct waste_slot *slot = &s->slot[i];
        uint64_t word = atomic_load(&slot->word);

        if (side == 1)
            atomic_fetch_add(&s->cleared, waste_slot_clear_pins(slot));
        if (side == 0 && waste_slot_state(word) == WASTE_SLOT_READING) {
            if (waste_segment_punch(s->fd, offsetof(struct shared, data) + (uint64_t)i * SLOT_BYTES,
                                    SLOT_BYTES) < 0)
                stress_fail("slots: cannot punch");
            if (!waste_slot_empty(slot, word))
                stress_fail("slots: a dead reader's slot moved");
            bump(&s->punched);
        }
    }
}

static void finish(void *shared)
{
    struct shared *s = shared;

    atomic_store(&s->target, atomic_load(&s->claimed) + 10000);
}

int stress_kill_slots(void)
{
    struct shared *s = make();
    int ret = stress_kill(s, reader, compute, (int)stress_count(200), after, finish) || judge(s);

    if (ret == 0 && (atomic_load(&s->cleared) == 0 || atomic_load(&s->punched) == 0) &&
        stress_options.scale >= 1) {
        fprintf(stderr, "slots: nobody died with a pin or a slot in hand\n");
        ret = 1;
    }
    return ret;
}
