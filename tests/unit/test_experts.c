/* Compute's side of the slot protocol, against a reader that does what each test says. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cm.h"
#include "compute/experts.h"
#include "reader/container.h"

enum { LAYER = 2, TOP_K = 4, SLOTS = 8 };
#define HOUR_NS (3600 * INT64_C(1000000000)) /* this machine may stand still for a while */

static struct waste_model *model;

struct scene {
    struct waste_shm shm;
    void *base;
    struct waste_experts e;
    uint32_t id[TOP_K], slot[TOP_K], taken[TOP_K], count;
    float weight[TOP_K];
    const uint8_t *record[TOP_K];
    char text[200];
};

static int open_model(void **state)
{
    struct waste_error err;
    return waste_container_open(WASTE_DEMO_MODEL, &model, &err);
}

static int free_model(void **state)
{
    free(model);
    return 0;
}

static void begin(struct scene *s)
{
    const struct waste_options options = {.threads = 1, .ctx = 16};
    uint64_t bytes = waste_control_bytes(model, SLOTS);

    memset(s, 0, sizeof *s);
    s->base = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(s->base, 0, bytes);
    waste_control_init(s->base, bytes, model, SLOTS, &options, 0, &s->shm);
    s->e = (struct waste_experts){.shm = &s->shm,
                                  .cache = (const uint8_t *)4096,
                                  .reader_event = -1,
                                  .id = s->id,
                                  .weight = s->weight,
                                  .slot = s->slot,
                                  .record = s->record};
    for (uint32_t i = 0; i < TOP_K; i++)
        s->id[i] = 10 + 3 * i;
    waste_experts_begin(&s->e, 7, LAYER);
}

static void end(struct scene *s)
{
    free(s->base);
}

static struct waste_slot *reading(struct scene *s, uint32_t n, uint32_t expert)
{
    struct waste_slot *slot = &s->shm.slot[n];

    assert_true(waste_slot_claim(slot, slot->word, waste_slot_key(LAYER, expert)));
    s->shm.directory[LAYER * model->config.experts + expert] = n;
    return slot;
}

static void ready(struct scene *s, uint32_t n, uint32_t expert)
{
    waste_slot_publish(reading(s, n, expert));
}

static void take_record(struct scene *s)
{
    assert_non_null(waste_ring_peek(s->shm.demand));
    waste_ring_release(s->shm.demand);
}

static int take(struct scene *s)
{
    return waste_experts_take(&s->e, s->taken, &s->count, s->text, sizeof s->text);
}

static void test_demand_names_all_in_selection_order(void **state)
{
    struct scene s;
    const struct waste_want *want;

    begin(&s);
    ready(&s, 3, s.id[1]);
    waste_experts_demand(&s.e, TOP_K);
    want = waste_ring_peek(s.shm.demand);
    assert_non_null(want);
    assert_int_equal(want->step, 7);
    assert_int_equal(want->layer, LAYER);
    assert_int_equal(want->count, TOP_K);
    assert_memory_equal(want->expert, s.id, sizeof s.id);
    end(&s);
}

static void test_the_reader_is_woken_only_if_something_is_missing(void **state)
{
    struct scene s;
    uint32_t seen;

    begin(&s);
    seen = s.shm.control->reader_bell.seq;
    for (uint32_t i = 0; i < TOP_K; i++)
        ready(&s, i, s.id[i]);
    waste_experts_demand(&s.e, TOP_K);
    assert_int_equal(s.shm.control->reader_bell.seq, seen);
    end(&s);

    begin(&s);
    seen = s.shm.control->reader_bell.seq;
    for (uint32_t i = 0; i + 1 < TOP_K; i++)
        ready(&s, i, s.id[i]);
    reading(&s, TOP_K, s.id[TOP_K - 1]);
    waste_experts_demand(&s.e, TOP_K);
    assert_int_not_equal(s.shm.control->reader_bell.seq, seen);
    end(&s);
}

static void test_experts_are_taken_as_they_arrive(void **state)
{
    struct scene s;

    begin(&s);
    ready(&s, 5, s.id[2]);
    waste_experts_demand(&s.e, TOP_K);
    assert_int_equal(take(&s), 0);
    assert_int_equal(s.count, 1);
    assert_int_equal(s.taken[0], 2);
    assert_int_equal(s.e.missing, 3);
    assert_ptr_equal(s.record[2], (const uint8_t *)4096 + 5 * s.shm.control->slot_bytes);
    assert_int_equal(waste_slot_pins(s.shm.slot[5].word), 1);
    take_record(&s);
    struct waste_slot *slow = reading(&s, 0, s.id[0]);
    ready(&s, 1, s.id[1]);
    ready(&s, 2, s.id[3]);
    assert_int_equal(take(&s), 0);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.taken[0], 1);
    assert_int_equal(s.taken[1], 3);
    waste_slot_publish(slow);
    assert_int_equal(take(&s), 0);
    assert_int_equal(s.count, 1);
    assert_int_equal(s.e.missing, 0);
    waste_experts_release(&s.e);
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_int_equal(waste_slot_pins(s.shm.slot[i].word), 0);
    end(&s);
}

static void test_a_slot_that_changed_hands_is_not_taken(void **state)
{
    struct scene s;

    begin(&s);
    ready(&s, 0, s.id[0]);
    ready(&s, 0, 63); /* the directory still says slot 0 holds id[0] */
    waste_experts_demand(&s.e, 1);
    assert_int_equal(take(&s), 0);
    assert_int_equal(s.count, 0);
    end(&s);
}

static void test_a_failure_from_before_is_no_answer(void **state)
{
    struct scene s;

    begin(&s);
    waste_slot_fail(reading(&s, 0, s.id[0]), WASTE_SLOT_EIO, EIO);
    waste_experts_demand(&s.e, 1);
    assert_int_equal(take(&s), 0);
    assert_int_equal(s.count, 0);
    take_record(&s);
    assert_int_equal(take(&s), -EIO);
    assert_string_equal(s.text, "experts-L2.bin: layer 2 expert 10: read failed: Input/output "
                                "error");
    end(&s);
}

static void test_a_new_reader_is_asked_again(void **state)
{
    struct scene s;

    begin(&s);
    waste_experts_demand(&s.e, TOP_K);
    take_record(&s);
    reading(&s, 0, s.id[0]);
    assert_int_equal(take(&s), 0);
    assert_int_equal(waste_ring_used(s.shm.demand), 0);
    s.shm.control->stage[WASTE_STAGE_READER].incarnation++;
    assert_int_equal(take(&s), 0);
    assert_int_equal(waste_ring_used(s.shm.demand), 1);
    assert_int_equal(take(&s), 0);
    assert_int_equal(waste_ring_used(s.shm.demand), 1); /* once */
    end(&s);
}

static void test_an_expert_that_is_gone_again_is_asked_for_again(void **state)
{
    struct scene s;

    begin(&s);
    waste_experts_demand(&s.e, 1);
    s.e.posted_ns -= HOUR_NS;
    assert_int_equal(take(&s), 0);
    assert_int_equal(waste_ring_used(s.shm.demand), 1); /* not before it was taken */
    take_record(&s);
    reading(&s, 0, s.id[0]);
    assert_int_equal(take(&s), 0);
    assert_int_equal(waste_ring_used(s.shm.demand), 0); /* on its way */
    waste_slot_publish(&s.shm.slot[0]);
    assert_true(waste_slot_empty(&s.shm.slot[0], s.shm.slot[0].word));
    assert_int_equal(take(&s), 0);
    assert_int_equal(waste_ring_used(s.shm.demand), 1);
    take_record(&s);
    s.e.posted_ns += HOUR_NS;
    assert_int_equal(take(&s), 0);
    assert_int_equal(waste_ring_used(s.shm.demand), 0); /* the reader has a while */
    end(&s);
}

static void test_a_full_ring_only_delays(void **state)
{
    struct scene s;

    begin(&s);
    while (waste_ring_claim(s.shm.demand))
        waste_ring_publish(s.shm.demand);
    waste_experts_demand(&s.e, 2);
    assert_int_equal(waste_ring_used(s.shm.demand), WASTE_DEMAND_RING);
    ready(&s, 0, s.id[0]);
    assert_int_equal(take(&s), 0);
    assert_int_equal(s.count, 1); /* what is there is taken all the same */
    take_record(&s);
    assert_int_equal(take(&s), 0);
    assert_int_equal(waste_ring_used(s.shm.demand), WASTE_DEMAND_RING);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demand_names_all_in_selection_order),
        cmocka_unit_test(test_the_reader_is_woken_only_if_something_is_missing),
        cmocka_unit_test(test_experts_are_taken_as_they_arrive),
        cmocka_unit_test(test_a_slot_that_changed_hands_is_not_taken),
        cmocka_unit_test(test_a_failure_from_before_is_no_answer),
        cmocka_unit_test(test_a_new_reader_is_asked_again),
        cmocka_unit_test(test_an_expert_that_is_gone_again_is_asked_for_again),
        cmocka_unit_test(test_a_full_ring_only_delays),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
