#include "tests/unit/cm.h"

#include <errno.h>

#include "shm/slot.h"

#define GEN(n) ((uint64_t)(n) << 32)
#define PINS(n) ((uint64_t)(n) << 16)

static uint64_t word(struct waste_slot *slot)
{
    return atomic_load(&slot->word);
}

static struct waste_slot slot_with(uint64_t w, uint64_t key)
{
    struct waste_slot slot = {0};

    atomic_store(&slot.word, w);
    atomic_store(&slot.key, key);
    return slot;
}

static void a_word_is_valid_if_its_parts_are(void **state)
{
    for (uint64_t s = 0; s < 8; s++)
        assert_int_equal(waste_slot_valid(GEN(9) | s), s <= WASTE_SLOT_FAILED);
    for (int bit = 3; bit < 16; bit++)
        assert_false(waste_slot_valid(UINT64_C(1) << bit | WASTE_SLOT_READY));
    assert_true(waste_slot_valid(GEN(UINT32_MAX) | PINS(0xffff) | WASTE_SLOT_READY));
    assert_false(waste_slot_valid(PINS(1) | WASTE_SLOT_EMPTY));
    assert_false(waste_slot_valid(PINS(1) | WASTE_SLOT_READING));
    assert_false(waste_slot_valid(PINS(1) | WASTE_SLOT_FAILED));
}

static void the_whole_life_of_a_slot(void **state)
{
    struct waste_slot slot = {0};
    uint64_t key = waste_slot_key(3, 17);

    assert_int_equal(key, UINT64_C(0x300000011));
    assert_true(waste_slot_claim(&slot, 0, key));
    assert_int_equal(word(&slot), GEN(1) | WASTE_SLOT_READING);
    assert_false(waste_slot_pin(&slot, key));
    waste_slot_publish(&slot);
    assert_int_equal(word(&slot), GEN(1) | WASTE_SLOT_READY);
    assert_false(waste_slot_pin(&slot, waste_slot_key(3, 18)));
    assert_true(waste_slot_pin(&slot, key));
    assert_true(waste_slot_pin(&slot, key));
    assert_int_equal(waste_slot_pins(word(&slot)), 2);
    assert_false(waste_slot_claim(&slot, word(&slot), 5));
    assert_false(waste_slot_empty(&slot, word(&slot)));
    waste_slot_unpin(&slot);
    assert_false(waste_slot_claim(&slot, word(&slot), 5));
    waste_slot_unpin(&slot);
    assert_int_equal(word(&slot), GEN(1) | WASTE_SLOT_READY);
    assert_true(waste_slot_claim(&slot, word(&slot), 5));
    assert_int_equal(word(&slot), GEN(2) | WASTE_SLOT_READING);
    assert_int_equal(atomic_load(&slot.key), 5);
    waste_slot_fail(&slot, WASTE_SLOT_EIO, EIO);
    assert_int_equal(word(&slot), GEN(2) | WASTE_SLOT_FAILED);
    assert_int_equal(atomic_load(&slot.error), WASTE_SLOT_EIO);
    assert_int_equal(atomic_load(&slot.detail), EIO);
    assert_false(waste_slot_pin(&slot, 5));
    assert_true(waste_slot_empty(&slot, word(&slot)));
    assert_int_equal(word(&slot), GEN(2) | WASTE_SLOT_EMPTY);
}

static void every_move_is_legal_or_changes_nothing(void **state)
{
    for (uint64_t s = 0; s < 8; s++)
        for (uint64_t pins = 0; pins < 3; pins++) {
            const uint64_t before = GEN(7) | PINS(pins) | s;
            const bool valid = waste_slot_valid(before);
            struct waste_slot slot = slot_with(before, 1);
            bool may_claim = valid && pins == 0 && s != WASTE_SLOT_READING;

            assert_int_equal(waste_slot_claim(&slot, before, 2), may_claim);
            assert_int_equal(word(&slot), may_claim ? (GEN(8) | WASTE_SLOT_READING) : before);
            assert_int_equal(atomic_load(&slot.key), may_claim ? 2 : 1);

            slot = slot_with(before, 1);
            waste_slot_publish(&slot);
            if (s == WASTE_SLOT_READING)
                assert_int_equal(word(&slot), GEN(7) | WASTE_SLOT_READY);
            else
                assert_int_equal(word(&slot), before);

            slot = slot_with(before, 1);
            waste_slot_fail(&slot, WASTE_SLOT_BAD_CRC, 0);
            if (s == WASTE_SLOT_READING)
                assert_int_equal(word(&slot), GEN(7) | WASTE_SLOT_FAILED);
            else
                assert_int_equal(word(&slot), before);

            slot = slot_with(before, 1);
            assert_int_equal(waste_slot_pin(&slot, 1), s == WASTE_SLOT_READY);
            assert_int_equal(word(&slot), s == WASTE_SLOT_READY ? before + PINS(1) : before);

            slot = slot_with(before, 1);
            assert_int_equal(waste_slot_empty(&slot, before), pins == 0);
            assert_int_equal(word(&slot), pins == 0 ? GEN(7) : before);
        }
}

/* The point of the generation: READY with the same pins and even the same key is not the same. */
static void a_decision_taken_on_an_older_generation_is_refused(void **state)
{
    struct waste_slot slot = slot_with(GEN(4) | WASTE_SLOT_READY, 1);
    const uint64_t seen = word(&slot);

    assert_true(waste_slot_claim(&slot, seen, 2));
    waste_slot_publish(&slot);
    assert_true(waste_slot_claim(&slot, word(&slot), 1));
    waste_slot_publish(&slot);
    assert_int_not_equal(word(&slot), seen);
    assert_false(waste_slot_claim(&slot, seen, 3));
    assert_false(waste_slot_empty(&slot, seen));
    assert_int_equal(word(&slot), GEN(6) | WASTE_SLOT_READY);
    assert_int_equal(atomic_load(&slot.key), 1);
}

static void an_emptied_slot_does_not_repeat_a_generation(void **state)
{
    struct waste_slot slot = {0};
    uint64_t seen[4];

    for (int i = 0; i < 4; i++) {
        assert_true(waste_slot_claim(&slot, word(&slot), 1));
        waste_slot_publish(&slot);
        seen[i] = word(&slot);
        for (int k = 0; k < i; k++)
            assert_int_not_equal(seen[k], seen[i]);
        assert_true(waste_slot_empty(&slot, seen[i]));
    }
}

static void the_generation_wraps_without_touching_the_state(void **state)
{
    struct waste_slot slot = slot_with(GEN(UINT32_MAX) | WASTE_SLOT_READY, 1);

    assert_true(waste_slot_claim(&slot, word(&slot), 2));
    assert_int_equal(word(&slot), WASTE_SLOT_READING);
}

static void pins_never_overflow_nor_underflow(void **state)
{
    struct waste_slot slot = slot_with(GEN(1) | PINS(0xfffe) | WASTE_SLOT_READY, 1);

    assert_true(waste_slot_pin(&slot, 1));
    assert_false(waste_slot_pin(&slot, 1));
    assert_int_equal(word(&slot), GEN(1) | PINS(0xffff) | WASTE_SLOT_READY);
    slot = slot_with(GEN(1) | WASTE_SLOT_READY, 1);
    waste_slot_unpin(&slot);
    assert_int_equal(word(&slot), GEN(1) | WASTE_SLOT_READY);
}

static void clearing_pins_says_how_many_there_were(void **state)
{
    struct waste_slot slot = slot_with(GEN(3) | PINS(5) | WASTE_SLOT_READY, 1);

    assert_int_equal(waste_slot_clear_pins(&slot), 5);
    assert_int_equal(word(&slot), GEN(3) | WASTE_SLOT_READY);
    assert_int_equal(waste_slot_clear_pins(&slot), 0);
    assert_true(waste_slot_claim(&slot, word(&slot), 2));
    assert_int_equal(waste_slot_clear_pins(&slot), 0);
    assert_int_equal(word(&slot), GEN(4) | WASTE_SLOT_READING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_is_valid_if_its_parts_are),
        cmocka_unit_test(the_whole_life_of_a_slot),
        cmocka_unit_test(every_move_is_legal_or_changes_nothing),
        cmocka_unit_test(a_decision_taken_on_an_older_generation_is_refused),
        cmocka_unit_test(an_emptied_slot_does_not_repeat_a_generation),
        cmocka_unit_test(the_generation_wraps_without_touching_the_state),
        cmocka_unit_test(pins_never_overflow_nor_underflow),
        cmocka_unit_test(clearing_pins_says_how_many_there_were),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
