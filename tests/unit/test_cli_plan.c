/* The budget's arithmetic, on the demo model: 7 MoE layers of 64 experts, 4 chosen, 12 KiB each. */
#include "cm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plan.h"
#include "shm/session.h"

enum { RECORD = 12288, FLOOR = 8, SET = 28, ALL = 448 };

static struct waste_model *model;
static struct waste_options options = {.threads = 2, .lookahead = 4, .ctx = 512, .verify = 1, .logit_rows = 1};
static struct waste_machine_memory memory;
static struct waste_error err;

static int open_model(void **state)
{
    (void)state;
    return waste_container_open(WASTE_DEMO_MODEL, &model, &err);
}

static int free_model(void **state)
{
    (void)state;
    free(model);
    return 0;
}

static uint64_t wish; /* for kept states */

/* A machine that lets us have `allowed` bytes, and `budget` (0: the default). */
static int make(uint64_t allowed, uint64_t budget, struct waste_plan *out)
{
    memory = (struct waste_machine_memory){
        .total_bytes = UINT64_C(64) << 30,
        .available_bytes = allowed,
        .allowed_bytes = allowed,
        .limit_bytes = UINT64_MAX,
    };
    struct waste_plan_input in = {
        .model = model,
        .options = &options,
        .budget_bytes = budget,
        .own_bytes = 1 << 20,
        .prefix_bytes = wish,
        .memory = &memory,
    };
    memset(out, 0, sizeof(*out));
    return waste_plan_make(&in, out, &err);
}

#define PLENTY (UINT64_C(32) << 30)

static uint64_t sum(const struct waste_plan *p)
{
    uint64_t total =
        p->control_bytes + p->trunk_bytes + p->session_bytes + p->cache_bytes + p->own_bytes;

    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        total += p->stage_bytes[i];
    return total;
}

static void the_total_is_the_sum_of_its_parts(void **state)
{
    struct waste_plan p;
    (void)state;
    assert_int_equal(make(PLENTY, 0, &p), 0);
    assert_int_equal(p.total_bytes, sum(&p));
    assert_int_equal(p.cache_bytes, (uint64_t)p.slots * RECORD);
    assert_true(p.session_bytes >= waste_session_bytes(model, 512, 1));
    assert_true(p.control_bytes >= waste_control_bytes(model, p.slots));
}

static void the_default_is_the_floor_and_three_working_sets(void **state)
{
    struct waste_plan p;
    (void)state;
    assert_int_equal(make(PLENTY, 0, &p), 0);
    assert_int_equal(p.floor_slots, FLOOR);
    assert_int_equal(p.working_set_slots, SET);
    assert_int_equal(p.expert_slots, ALL);
    assert_int_equal(p.slots, FLOOR + 3 * SET);
    assert_false(p.budget_given);
}

static void less_memory_means_fewer_working_sets(void **state)
{
    struct waste_plan full, p;
    (void)state;
    assert_int_equal(make(PLENTY, 0, &full), 0);
    for (uint32_t sets = 3; sets-- > 0;) {
        /* 7/8 of it is a little more than what this many sets take */
        uint64_t wanted = full.floor_bytes + (uint64_t)sets * SET * (RECORD + 64) + 8192;
        assert_int_equal(make(wanted / 7 * 8 + 8, 0, &p), 0);
        assert_int_equal(p.slots, FLOOR + sets * SET);
        assert_true(p.total_bytes <= p.allowed_bytes);
    }
}

static void too_little_memory_for_the_floor_is_refused(void **state)
{
    struct waste_plan full, p;
    (void)state;
    assert_int_equal(make(PLENTY, 0, &full), 0);
    assert_int_equal(make(full.floor_bytes, 0, &p), -EINVAL);
    assert_non_null(strstr(err.text, "not enough memory"));
}

static void the_floor_works_and_a_byte_less_does_not(void **state)
{
    struct waste_plan p, q;
    char number[32];
    (void)state;
    assert_int_equal(make(PLENTY, 0, &p), 0);
    assert_int_equal(make(PLENTY, p.floor_bytes, &q), 0);
    assert_int_equal(q.slots, FLOOR);
    assert_int_equal(q.total_bytes, p.floor_bytes);
    assert_int_equal(make(PLENTY, p.floor_bytes - 1, &q), -EINVAL);
    snprintf(number, sizeof(number), "--budget %lluK",
             (unsigned long long)(p.floor_bytes + 1023) / 1024);
    assert_non_null(strstr(err.text, number));
    assert_int_equal(make(PLENTY, (p.floor_bytes + 1023) / 1024 * 1024, &q), 0);
}

static void a_budget_is_used_but_never_exceeded(void **state)
{
    struct waste_plan base, p;
    (void)state;
    assert_int_equal(make(PLENTY, 0, &base), 0);
    for (uint64_t more = 0; more < 6 << 20; more += 100003) {
        assert_int_equal(make(PLENTY, base.floor_bytes + more, &p), 0);
        assert_true(p.total_bytes <= p.budget_bytes);
        assert_int_equal(p.total_bytes, sum(&p));
        /* nothing that would still fit is left out: a slot and a page of descriptors */
        if (p.slots < ALL)
            assert_true(p.total_bytes + RECORD + 4096 > p.budget_bytes);
    }
}

static void the_cache_is_never_larger_than_all_experts(void **state)
{
    struct waste_plan p;
    (void)state;
    assert_int_equal(make(PLENTY, UINT64_C(46) << 30, &p), 0);
    assert_int_equal(p.slots, ALL);
    assert_int_equal(p.cache_bytes, (uint64_t)ALL * RECORD);
    assert_true(p.total_bytes < UINT64_C(64) << 20);
}

static void max_is_what_may_be_had(void **state)
{
    struct waste_plan p, q;
    (void)state;
    assert_int_equal(make(PLENTY, WASTE_BUDGET_MAX, &p), 0);
    assert_int_equal(p.budget_bytes, PLENTY / 8 * 7);
    assert_int_equal(p.slots, ALL);
    for (uint64_t allowed = p.floor_bytes / 7 * 8 + 8; allowed < p.total_bytes; allowed += 777777) {
        assert_int_equal(make(allowed, WASTE_BUDGET_MAX, &p), 0);
        assert_int_equal(make(PLENTY, allowed / 8 * 7, &q), 0);
        assert_int_equal(p.slots, q.slots);
        assert_int_equal(p.total_bytes, q.total_bytes);
    }
    assert_int_equal(make(p.floor_bytes, WASTE_BUDGET_MAX, &p), -EINVAL); /* 7/8 of it are too few */
    assert_non_null(strstr(err.text, "not enough memory"));
}

/* What a running pipeline may be told is what a plan for it says, kept states or not. */
static void another_budget_is_another_plan(void **state)
{
    (void)state;
    for (wish = 0; wish <= 4 << 20; wish += 1 << 20) {
        struct waste_plan running, p;

        assert_int_equal(make(PLENTY, 0, &running), 0);
        const uint64_t floor = running.floor_bytes;
        assert_int_equal(running.prefix_bytes, wish);
        assert_int_equal(waste_plan_change(&running, model, floor - 1, &err), -EINVAL);
        assert_non_null(strstr(err.text, "under the floor"));
        assert_int_equal(running.prefix_bytes, wish); /* nothing has changed */
        for (uint64_t more = 0; more < 12 << 20; more += 777777) {
            assert_int_equal(waste_plan_change(&running, model, floor + more, &err), 0);
            assert_int_equal(make(PLENTY, floor + more, &p), 0);
            assert_int_equal(p.floor_bytes, floor);
            assert_int_equal(running.slots, p.slots);
            assert_int_equal(running.prefix_bytes, p.prefix_bytes);
            assert_int_equal(running.total_bytes, p.total_bytes);
            assert_true(running.total_bytes <= floor + more);
            assert_true(more > 0 || (running.slots == FLOOR && running.prefix_bytes == 0));
        }
    }
    wish = 0;
}

static void a_router_that_does_not_run_costs_nothing(void **state)
{
    struct waste_plan with, without;
    (void)state;
    assert_int_equal(make(PLENTY, 0, &with), 0);
    options.lookahead = 0;
    assert_int_equal(make(PLENTY, 0, &without), 0);
    options.lookahead = 4;
    assert_true(with.stage_bytes[WASTE_STAGE_ROUTER] > 0);
    assert_int_equal(without.stage_bytes[WASTE_STAGE_ROUTER], 0);
    assert_int_equal(with.floor_bytes - without.floor_bytes, with.stage_bytes[WASTE_STAGE_ROUTER]);
}

static void more_than_a_hard_limit_is_refused(void **state)
{
    struct waste_plan p;
    (void)state;
    memory = (struct waste_machine_memory){
        .total_bytes = PLENTY,
        .available_bytes = PLENTY,
        .allowed_bytes = 10 << 20,
        .limit_bytes = 12 << 20,
        .limit_path = "/sys/fs/cgroup/small",
    };
    struct waste_plan_input in = {
        .model = model,
        .options = &options,
        .budget_bytes = 100 << 20,
        .own_bytes = 1 << 20,
        .memory = &memory,
    };
    assert_int_equal(waste_plan_make(&in, &p, &err), -EINVAL);
    assert_non_null(strstr(err.text, "/sys/fs/cgroup/small"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_total_is_the_sum_of_its_parts),
        cmocka_unit_test(the_default_is_the_floor_and_three_working_sets),
        cmocka_unit_test(less_memory_means_fewer_working_sets),
        cmocka_unit_test(too_little_memory_for_the_floor_is_refused),
        cmocka_unit_test(the_floor_works_and_a_byte_less_does_not),
        cmocka_unit_test(a_budget_is_used_but_never_exceeded),
        cmocka_unit_test(the_cache_is_never_larger_than_all_experts),
        cmocka_unit_test(max_is_what_may_be_had),
        cmocka_unit_test(another_budget_is_another_plan),
        cmocka_unit_test(a_router_that_does_not_run_costs_nothing),
        cmocka_unit_test(more_than_a_hard_limit_is_refused),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
