/* What the supervisor makes of the slots a dead reader left. */
#include "cm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/repair.h"

enum { SLOTS = 16, CTX = 64 };

struct rig {
    struct waste_model *model;
    struct waste_pipeline p;
    struct waste_mapping cache;
};

static int set_up(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct waste_options options = {.threads = 1, .ctx = CTX, .logit_rows = 1};
    struct waste_error err;

    assert_int_equal(waste_container_open(WASTE_DEMO_MODEL, &r->model, &err), 0);
    struct waste_plan plan = {
        .control_bytes = waste_control_bytes(r->model, SLOTS),
        .trunk_bytes = r->model->trunk_bytes,
        .session_bytes = waste_session_bytes(r->model, CTX, 1),
        .cache_bytes = (uint64_t)SLOTS * r->model->expert.record_bytes,
        .slots = SLOTS,
    };
    assert_int_equal(
        waste_pipeline_create(&r->p, WASTE_DEMO_MODEL, r->model, &plan, &options, &err), 0);
    assert_int_equal(waste_segment_map(r->p.fd[WASTE_SEG_CACHE], WASTE_SEG_CACHE, true, &r->cache),
                     0);
    memset(r->cache.base, 7, r->cache.bytes);
    *state = r;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;

    waste_segment_unmap(&r->cache);
    waste_pipeline_finish(&r->p);
    free(r->model);
    free(r);
    return 0;
}

static uint64_t word(const struct rig *r, uint32_t slot)
{
    return atomic_load(&r->p.shm.slot[slot].word);
}

/* Slot 1 is being read, slot 2 is nonsense, slot 3 is whole and pinned. */
static void leave_slots(struct rig *r)
{
    assert_true(waste_slot_claim(&r->p.shm.slot[1], 0, waste_slot_key(1, 5)));
    atomic_store(&r->p.shm.slot[2].word, UINT64_MAX);
    assert_true(waste_slot_claim(&r->p.shm.slot[3], 0, waste_slot_key(1, 6)));
    waste_slot_publish(&r->p.shm.slot[3]);
    assert_true(waste_slot_pin(&r->p.shm.slot[3], waste_slot_key(1, 6)));
}

static uint8_t first_byte(const struct rig *r, uint32_t slot)
{
    return ((uint8_t *)r->cache.base)[slot * r->model->expert.record_bytes];
}

static void slots_being_read_lose_their_pages_and_become_empty(void **state)
{
    struct rig *r = *state;

    leave_slots(r);
    uint64_t kept = word(r, 3), generation = word(r, 1) >> 32;
    waste_repair(&r->p, WASTE_STAGE_READER);
    assert_int_equal(waste_slot_state(word(r, 1)), WASTE_SLOT_EMPTY);
    assert_int_equal(word(r, 1) >> 32, generation);
    assert_int_equal(waste_slot_state(word(r, 2)), WASTE_SLOT_EMPTY);
    assert_true(waste_slot_valid(word(r, 2)));
    assert_int_equal(word(r, 3), kept);
    assert_int_equal(first_byte(r, 0), 7);
    assert_int_equal(first_byte(r, 1), 0);
    assert_int_equal(first_byte(r, 2), 0);
    assert_int_equal(first_byte(r, 3), 7);
}

static void slots_whose_pages_cannot_be_thrown_away_stay_out_of_use(void **state)
{
    struct rig *r = *state;
    int fd = r->p.fd[WASTE_SEG_CACHE], readonly = -1;

    leave_slots(r);
    assert_int_equal(waste_segment_open_readonly(fd, &readonly), 0);
    r->p.fd[WASTE_SEG_CACHE] = readonly;
    waste_repair(&r->p, WASTE_STAGE_READER);
    r->p.fd[WASTE_SEG_CACHE] = fd;
    close(readonly);
    for (uint32_t slot = 1; slot <= 2; slot++) {
        assert_int_equal(waste_slot_state(word(r, slot)), WASTE_SLOT_READING);
        assert_true(waste_slot_valid(word(r, slot)));
        assert_int_equal(first_byte(r, slot), 7);
    }
    waste_repair(&r->p, WASTE_STAGE_READER); /* the next death, when it works again */
    assert_int_equal(waste_slot_state(word(r, 1)), WASTE_SLOT_EMPTY);
    assert_int_equal(first_byte(r, 1), 0);
}

static void pins_of_a_dead_compute_are_gone(void **state)
{
    struct rig *r = *state;

    leave_slots(r);
    waste_repair(&r->p, WASTE_STAGE_COMPUTE);
    assert_int_equal(waste_slot_pins(word(r, 3)), 0);
    assert_int_equal(waste_slot_state(word(r, 3)), WASTE_SLOT_READY);
    assert_int_equal(waste_slot_state(word(r, 1)),
                     WASTE_SLOT_READING); /* the reader's own affair */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slots_being_read_lose_their_pages_and_become_empty, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(slots_whose_pages_cannot_be_thrown_away_stay_out_of_use,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(pins_of_a_dead_compute_are_gone, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
