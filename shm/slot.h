/*
 * Expert slots: one descriptor a slot, its state, generation and pins packed in one word.
 *
 *     EMPTY -> READING -> READY -> EMPTY          the reader makes every one of these moves
 *              READING -> FAILED -> EMPTY
 *
 * Compute only pins and unpins READY slots (compare-and-swap on the very word it saw, so a slot
 * that changed hands in between cannot be pinned: every move to READING adds 1 to the generation).
 * A READY slot with pins is never a victim. The supervisor, after it has reaped a dead stage,
 * clears pins (compute) or punches out and empties READING slots (reader).
 *
 * The word: bits 0-2 state, 3-15 zero, 16-31 pins, 32-63 generation.
 */
#ifndef WASTE_SHM_SLOT_H
#define WASTE_SHM_SLOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum waste_slot_state {
    WASTE_SLOT_EMPTY = 0,
    WASTE_SLOT_READING = 1,
    WASTE_SLOT_READY = 2,
    WASTE_SLOT_FAILED = 3,
};

/* Why a slot FAILED; written before the word (pairs with its acquire load). */
enum waste_slot_error {
    WASTE_SLOT_OK = 0,
    WASTE_SLOT_EIO,        /* errno in `detail` */
    WASTE_SLOT_SHORT,      /* file ends inside the record */
    WASTE_SLOT_BAD_HEADER, /* magic, layer, expert, offsets or codebook are not what the model says
                            */
    WASTE_SLOT_BAD_CRC,
    WASTE_SLOT_BAD_SCALE, /* a row's scale is infinite or not a number */
};

/* "read failed", "checksum does not match" ...; "unknown error" for any other number. */
const char *waste_slot_error_text(uint32_t error);

#define WASTE_SLOT_STATE_MASK UINT64_C(7)
#define WASTE_SLOT_PIN_ONE (UINT64_C(1) << 16)
#define WASTE_SLOT_PIN_MASK (UINT64_C(0xffff) << 16)
#define WASTE_SLOT_GEN_ONE (UINT64_C(1) << 32)
#define WASTE_SLOT_NONE UINT32_MAX /* "no slot" in the directory */

struct waste_slot {
    _Alignas(64) _Atomic uint64_t word;
    _Atomic uint64_t key;    /* waste_slot_key(); reader, written in READING, stable in READY and
                                FAILED; means nothing in EMPTY */
    _Atomic uint32_t error;  /* enum waste_slot_error; reader, before FAILED */
    _Atomic uint32_t detail; /* errno or 0 */
    uint64_t pad[5];
};
_Static_assert(sizeof(struct waste_slot) == 64, "a slot descriptor is one cache line");

static inline uint64_t waste_slot_key(uint32_t layer, uint32_t expert)
{
    return (uint64_t)layer << 32 | expert;
}

static inline enum waste_slot_state waste_slot_state(uint64_t word)
{
    return (enum waste_slot_state)(word & WASTE_SLOT_STATE_MASK);
}

static inline uint32_t waste_slot_pins(uint64_t word)
{
    return (uint32_t)((word & WASTE_SLOT_PIN_MASK) >> 16);
}

/* State legal, the zero bits zero, and pins only on READY. */
bool waste_slot_valid(uint64_t word);

/*
 * Reader: take an EMPTY slot, or a READY (unpinned) or FAILED victim, for `key`: the word becomes
 * READING with a new generation. False if the slot was pinned or changed meanwhile. `expected` is
 * the word the caller decided on.
 */
bool waste_slot_claim(struct waste_slot *slot, uint64_t expected, uint64_t key);

/* Reader: READING -> READY (release: pairs with waste_slot_pin's acquire), READING -> FAILED, any
 * unpinned -> EMPTY (false if it is pinned or no longer `expected`). */
void waste_slot_publish(struct waste_slot *slot);
void waste_slot_fail(struct waste_slot *slot, enum waste_slot_error error, uint32_t detail);
bool waste_slot_empty(struct waste_slot *slot, uint64_t expected);

/* Compute: pin if READY and holding `key`. Returns true when pinned. */
bool waste_slot_pin(struct waste_slot *slot, uint64_t key);
void waste_slot_unpin(struct waste_slot *slot); /* does nothing to a slot without pins */

/* Supervisor, no compute alive: drop all pins. The reader may be moving other slots meanwhile.
 * Returns pins dropped. */
uint32_t waste_slot_clear_pins(struct waste_slot *slot);

#endif
