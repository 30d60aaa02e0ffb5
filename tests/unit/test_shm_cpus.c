/* What a stage asks of the scheduler. */
#include "cm.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "shm/cpus.h"

/* struct sched_attr, see sched_setattr(2): size, policy, flags, nice, priority, three times */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static struct attributes mine(void)
{
    struct attributes a = {0};

    assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0), 0);
    return a;
}

static bool kernel_has_slices(void)
{
    struct utsname u;
    int major = 0, minor = 0;

    uname(&u);
    sscanf(u.release, "%d.%d", &major, &minor);
    return major > 6 || (major == 6 && minor >= 12);
}

static void a_prompt_thread_has_short_slices_and_else_what_it_had(void **state)
{
    (void)state;
    struct attributes usual = mine();
    int n = nice(3);
    struct attributes before = mine();
    assert_int_equal(before.nice, n);
    assert_int_not_equal(usual.nice, n); /* the tests are not run at the end of the scale */
    waste_cpus_prompt();
    struct attributes after = mine();
    assert_int_equal(after.policy, SCHED_OTHER);
    assert_int_equal(after.nice, n);
    assert_int_equal(after.flags, before.flags);
    if (kernel_has_slices())
        assert_int_equal(after.runtime, 100000);
}

static void another_policy_is_left_alone(void **state)
{
    (void)state;
    assert_int_equal(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}), 0);
    struct attributes before = mine();
    waste_cpus_prompt();
    struct attributes after = mine();
    assert_memory_equal(&after, &before, sizeof(before));
    assert_int_equal(sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_policy_is_left_alone),
        cmocka_unit_test(a_prompt_thread_has_short_slices_and_else_what_it_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
