#include "shm/slot.h"

#include "shm/inject.h"

#define GEN_MASK (~UINT64_C(0) << 32)
#define WORD_MASK (GEN_MASK | WASTE_SLOT_PIN_MASK | WASTE_SLOT_STATE_MASK)

const char *waste_slot_error_text(uint32_t error)
{
    static const char *const text[] = {
        [WASTE_SLOT_OK] = "nothing",
        [WASTE_SLOT_EIO] = "read failed",
        [WASTE_SLOT_SHORT] = "file ends inside the record",
        [WASTE_SLOT_BAD_HEADER] = "record header is not what the manifest says",
        [WASTE_SLOT_BAD_CRC] = "checksum does not match",
        [WASTE_SLOT_BAD_SCALE] = "a row's scale is not finite",
    };
    return error < sizeof(text) / sizeof(text[0]) ? text[error] : "unknown error";
}

bool waste_slot_valid(uint64_t word)
{
    uint64_t state = word & WASTE_SLOT_STATE_MASK;

    if ((word & ~WORD_MASK) != 0 || state > WASTE_SLOT_FAILED)
        return false;
    return state == WASTE_SLOT_READY || waste_slot_pins(word) == 0;
}

bool waste_slot_claim(struct waste_slot *slot, uint64_t expected, uint64_t key)
{
    uint64_t next = ((expected & GEN_MASK) + WASTE_SLOT_GEN_ONE) | WASTE_SLOT_READING;

    if (!waste_slot_valid(expected) || waste_slot_state(expected) == WASTE_SLOT_READING ||
        waste_slot_pins(expected) != 0)
        return false;
    /* acquire: pairs with the release in waste_slot_unpin; whoever read the old record is done, so
     * it may be overwritten. (A pin and unpin are RMWs, so the last one carries all before it.) */
    if (!atomic_compare_exchange_strong_explicit(&slot->word, &expected, next, memory_order_acquire,
                                                 memory_order_relaxed))
        return false;
    WASTE_POINT(SLOT_WORD);
    /* relaxed: published by READY or FAILED. A pinner that reads this key with an older word fails
     * its compare-and-swap: the generation moved first. release: keeps the key behind the word. */
    atomic_store_explicit(&slot->key, key, memory_order_release);
    return true;
}

/* READING -> state. Only the reader moves a READING slot, so a store is enough; a word that is not
 * READING (a completion that came after the slot was emptied) is left alone. */
static void finish(struct waste_slot *slot, enum waste_slot_state state)
{
    /* relaxed: our own last move */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);

    if (waste_slot_state(word) != WASTE_SLOT_READING)
        return;
    /* release: pairs with the acquire in waste_slot_pin (record, key) and with the acquire load of
     * whoever reads error and detail of a FAILED slot */
    atomic_store_explicit(&slot->word, (word & GEN_MASK) | state, memory_order_release);
}

void waste_slot_publish(struct waste_slot *slot)
{
    finish(slot, WASTE_SLOT_READY);
}

void waste_slot_fail(struct waste_slot *slot, enum waste_slot_error error, uint32_t detail)
{
    /* relaxed: published by the word */
    atomic_store_explicit(&slot->error, error, memory_order_relaxed);
    atomic_store_explicit(&slot->detail, detail, memory_order_relaxed);
    WASTE_POINT(SLOT_REASON);
    finish(slot, WASTE_SLOT_FAILED);
}

bool waste_slot_empty(struct waste_slot *slot, uint64_t expected)
{
    if (waste_slot_pins(expected) != 0)
        return false;
    /* acq_rel: acquire as in claim; release so that a punched hole is there for who sees EMPTY */
    return atomic_compare_exchange_strong_explicit(&slot->word, &expected,
                                                   (expected & GEN_MASK) | WASTE_SLOT_EMPTY,
                                                   memory_order_acq_rel, memory_order_relaxed);
}

bool waste_slot_pin(struct waste_slot *slot, uint64_t key)
{
    /* acquire: pairs with the release in waste_slot_publish; the key read below belongs to this
     * generation or a later one */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);

    do {
        if (waste_slot_state(word) != WASTE_SLOT_READY ||
            (word & WASTE_SLOT_PIN_MASK) == WASTE_SLOT_PIN_MASK)
            return false;
        /* relaxed: if it is a later generation's key, the exchange below fails */
        if (atomic_load_explicit(&slot->key, memory_order_relaxed) != key)
            return false;
        /* acquire, on failure too: the word read is the start of the next round */
    } while (!atomic_compare_exchange_weak_explicit(&slot->word, &word, word + WASTE_SLOT_PIN_ONE,
                                                    memory_order_acquire, memory_order_acquire));
    return true;
}

void waste_slot_unpin(struct waste_slot *slot)
{
    /* relaxed: the exchange decides */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);

    do {
        if (waste_slot_pins(word) == 0)
            return; /* subtracting would borrow from the generation */
        /* release: pairs with the acquire in waste_slot_claim; our reads of the record are over */
    } while (!atomic_compare_exchange_weak_explicit(&slot->word, &word, word - WASTE_SLOT_PIN_ONE,
                                                    memory_order_release, memory_order_relaxed));
}

uint32_t waste_slot_clear_pins(struct waste_slot *slot)
{
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);

    do {
        if ((word & WASTE_SLOT_PIN_MASK) == 0)
            return 0;
        /* release: as in unpin, on behalf of the process that was reaped */
    } while (!atomic_compare_exchange_weak_explicit(&slot->word, &word, word & ~WASTE_SLOT_PIN_MASK,
                                                    memory_order_release, memory_order_relaxed));
    return waste_slot_pins(word);
}
