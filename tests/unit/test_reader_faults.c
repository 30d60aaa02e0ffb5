/* waste-reader with a backend that lies to it (fault_io.h), as a child of a fake pipeline. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "reader_rig.h"

static enum waste_io_mode modes[2];
static uint32_t mode_count;

static void start(struct reader_rig *r, uint32_t slots, enum waste_io_mode mode, const char *fault)
{
    rig_create(r, WASTE_DEMO_MODEL, slots, mode, true);
    r->program = WASTE_READER_FAULT_PROGRAM;
    r->fault = fault;
    rig_start(r, true);
}

static void stop(struct reader_rig *r)
{
    assert_int_equal(rig_stop(r), 0);
    rig_destroy(r);
}

/* The reader's banks that are open with O_DIRECT. */
static uint32_t direct_banks(const struct reader_rig *r)
{
    char dir[64], path[512], target[512];
    uint32_t count = 0;
    snprintf(dir, sizeof(dir), "/proc/%d/fd", (int)r->pid);
    DIR *fds = opendir(dir);
    assert_non_null(fds);
    for (struct dirent *e; (e = readdir(fds));) {
        unsigned flags = 0;
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        target[n > 0 ? n : 0] = '\0';
        snprintf(path, sizeof(path), "/proc/%d/fdinfo/%s", (int)r->pid, e->d_name);
        FILE *f = strstr(target, "/experts-") ? fopen(path, "re") : NULL;
        if (f && fscanf(f, "pos: %*s flags: %o", &flags) == 1)
            count += (flags & O_DIRECT) != 0;
        if (f)
            fclose(f);
    }
    closedir(fds);
    return count;
}

/* Whether the model's file system knows O_DIRECT. */
static bool direct_here(void)
{
    int fd = open(WASTE_DEMO_MODEL "/experts-L1.bin", O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static enum waste_slot_state state_of(const struct reader_rig *r, uint32_t layer, uint32_t expert)
{
    uint32_t slot = r->shm.directory[layer * r->model->config.experts + expert];
    return slot == WASTE_SLOT_NONE ? WASTE_SLOT_EMPTY : waste_slot_state(r->shm.slot[slot].word);
}

/* Demand is at it for 31 ms, and in vain. */
static void a_prediction_waits_until_demand_is_not_read_any_more(void **state)
{
    (void)state;
    const uint32_t now[] = {1, 2, 3, 4}, next[] = {5, 6, 7, 8};
    for (uint32_t m = 0; m < mode_count; m++) {
        struct reader_rig r;
        start(&r, 32, modes[m], "eioall=1");
        rig_demand(&r, 1, now, 4);
        rig_prefetch(&r, r.step, 2, next, 4);
        while (waste_ring_used(r.shm.prefetch) > 0)
            usleep(100);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(state_of(&r, 1, now[i]), WASTE_SLOT_FAILED);
        stop(&r);
    }
}

/* 7 layers, 4 experts each, twice. */
static void use_some_experts(struct reader_rig *r)
{
    for (uint32_t n = 0; n < 14; n++) {
        uint32_t expert[] = {n, n + 10, n + 20, n + 30};
        rig_check_experts(r, 1 + n % 7, expert, 4);
    }
}

static void what_can_be_mended_is_not_noticed(void **state)
{
    (void)state;
    static const char *const faults[] = {"short=4096",
                                         "short=1000",
                                         "short=5000",
                                         "short=8192",
                                         "eintr=2",
                                         "eagain=2",
                                         "busy=60",
                                         "full=2",
                                         "nodirect=1",
                                         "latedirect=1",
                                         "badcrc=1",
                                         "badcrc=9",
                                         "short=5000,eintr=3,eagain=5,full=7",
                                         "eio=1",
                                         "eio=2",
                                         "eio=7",
                                         "eio=20",
                                         "eio=56",
                                         "eio=3,short=5000,badcrc=4",
                                         "latedirect=1,short=5000"};
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        for (uint32_t m = 0; m < mode_count; m++) {
            struct reader_rig r;
            start(&r, 8, modes[m], faults[i]);
            uint32_t direct = direct_banks(&r);
            use_some_experts(&r);
            /* only who is refused, or cannot go on with it, does without */
            bool without = strstr(faults[i], "direct") || strstr(faults[i], "short=1000");
            assert_int_equal(direct_banks(&r), without ? 0 : direct);
            assert_int_equal(rig_counter(&r, WASTE_C_READ_FAILURES), 0);
            bool retried = strstr(faults[i], "eio") || strstr(faults[i], "badcrc");
            assert_int_equal(rig_counter(&r, WASTE_C_READ_RETRIES) > 0, retried);
            assert_int_equal(rig_logged(&r, WASTE_LOG_WARNING, "trying again"), retried);
            /* refused at the first read, all banks lose it at once, and the log says so */
            assert_int_equal(
                rig_logged(&r, WASTE_LOG_WARNING, "7 of 7 banks do not allow O_DIRECT"),
                strncmp(faults[i], "nodirect", 8) == 0 || !direct_here());
            stop(&r);
        }
}

/* The first 200 reads of a run, each of them once. */
static void any_read_may_fail_once(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 200; k++) {
        struct reader_rig r;
        char fault[16];
        snprintf(fault, sizeof(fault), "eio=%u", k);
        start(&r, 8, modes[k % mode_count], fault);
        for (uint32_t n = 0; rig_counter(&r, WASTE_C_READS) < k; n++) {
            uint32_t expert[] = {n % 64, (n + 10) % 64, (n + 20) % 64, (n + 30) % 64};
            rig_check_experts(&r, 1 + n % 7, expert, 4);
        }
        assert_int_equal(rig_counter(&r, WASTE_C_READ_RETRIES), 1);
        assert_int_equal(rig_counter(&r, WASTE_C_READ_FAILURES), 0);
        stop(&r);
    }
}

static void a_disk_that_is_gone_fails_experts_and_leaves_the_reader(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < mode_count; m++) {
        struct reader_rig r;
        const uint32_t expert[] = {3, 1, 4, 15};
        uint32_t slot;
        start(&r, 8, modes[m], "eioall=1");
        for (int n = 0; n < 2; n++) {
            int64_t begin = rig_now_ns();
            rig_demand(&r, 2, expert, 4);
            for (int i = 0; i < 4; i++) {
                assert_false(rig_wait(&r, 2, expert[i], &slot));
                assert_int_equal(atomic_load(&r.shm.slot[slot].error), WASTE_SLOT_EIO);
                assert_int_equal(atomic_load(&r.shm.slot[slot].detail), EIO);
            }
            assert_true(rig_now_ns() - begin >= 31000000); /* pauses of 1, 5 and 25 ms */
        }
        assert_true(
            rig_logged(&r, WASTE_LOG_ERROR,
                       "experts-L2.bin: layer 2 expert 15: read failed: Input/output error"));
        assert_int_equal(rig_counter(&r, WASTE_C_READ_FAILURES), 8);
        assert_int_equal(rig_counter(&r, WASTE_C_READ_RETRIES), 24);
        stop(&r);
    }
}

static void a_polite_stop_leaves_no_read_in_flight(void **state)
{
    (void)state;
    struct reader_rig r;
    const uint32_t expert[] = {3, 1, 4, 15};
    start(&r, 8, WASTE_IO_AUTO, "eioall=1"); /* reads that take their time: pauses between tries */
    rig_demand(&r, 2, expert, 4);
    while (rig_counter(&r, WASTE_C_READ_RETRIES) == 0)
        usleep(100);
    assert_int_equal(rig_stop(&r), 0);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_not_equal(waste_slot_state(r.shm.slot[i].word), WASTE_SLOT_READING);
    assert_int_equal(rig_counter(&r, WASTE_C_READ_FAILURES), 4);
    rig_destroy(&r);
}

static void without_io_uring_auto_takes_pread_and_says_so(void **state)
{
    (void)state;
    static const struct {
        const char *fault, *text;
    } cases[] = {{"uring=1", "Operation not permitted"}, {"uring=38", "Function not implemented"}};
    for (int i = 0; i < 2; i++) {
        struct reader_rig r;
        start(&r, 8, WASTE_IO_AUTO, cases[i].fault);
        use_some_experts(&r);
        assert_int_equal(r.shm.control->io_in_use, WASTE_IO_PREAD);
        assert_true(rig_logged(&r, WASTE_LOG_WARNING, cases[i].text));
        stop(&r);
    }
}

static void io_uring_that_is_forced_and_not_there_is_an_error(void **state)
{
    (void)state;
    struct reader_rig r;
    rig_create(&r, WASTE_DEMO_MODEL, 8, WASTE_IO_URING, true);
    r.program = WASTE_READER_FAULT_PROGRAM;
    r.fault = "uring=1";
    rig_start(&r, false);
    assert_int_equal(rig_reap(&r), 2);
    assert_true(rig_logged(&r, WASTE_LOG_ERROR,
                           "io_uring is not available: the kernel refused it: Operation not "
                           "permitted; use --io pread"));
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_can_be_mended_is_not_noticed),
        cmocka_unit_test(a_prediction_waits_until_demand_is_not_read_any_more),
        cmocka_unit_test(any_read_may_fail_once),
        cmocka_unit_test(a_disk_that_is_gone_fails_experts_and_leaves_the_reader),
        cmocka_unit_test(a_polite_stop_leaves_no_read_in_flight),
        cmocka_unit_test(without_io_uring_auto_takes_pread_and_says_so),
        cmocka_unit_test(io_uring_that_is_forced_and_not_there_is_an_error),
    };
    mode_count = rig_io_modes(modes);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
