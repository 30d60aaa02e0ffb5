/* Pieces, queues and drives, on backends that do what the test says, and on two real drives. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

#include "reader/io_drives.h"

/* Link-time replacement: -Wl,--wrap=waste_io_create. Backends that keep what they are given. */

enum { MOST = 256 };

struct fake {
    struct waste_io io;
    struct waste_io_read read[MOST]; /* in the kernel, in the order they came */
    struct waste_io_done done[MOST];
    uint32_t reads, dones, submits;
    bool full; /* takes nothing */
    uint32_t released;
};

static struct fake *made[WASTE_DRIVES_MAX];
static uint32_t made_count;
static bool use_fakes;
static int refuse_uring_on = -1; /* the which-th backend made */

static bool fake_queue(struct waste_io *io, const struct waste_io_read *read)
{
    struct fake *f = (struct fake *)io;
    if (f->full || io->in_flight == io->depth)
        return false;
    f->read[f->reads++] = *read;
    io->in_flight++;
    return true;
}

static int fake_submit(struct waste_io *io)
{
    ((struct fake *)io)->submits++;
    return 0;
}

static uint32_t fake_reap(struct waste_io *io, struct waste_io_done *done, uint32_t max)
{
    struct fake *f = (struct fake *)io;
    uint32_t n = f->dones < max ? f->dones : max;
    memcpy(done, f->done, n * sizeof(*done));
    f->dones -= n;
    memmove(f->done, f->done + n, f->dones * sizeof(*done));
    io->in_flight -= n;
    return n;
}

static void fake_clear(struct waste_io *io)
{
    (void)io;
}

static void fake_destroy(struct waste_io *io)
{
    close(io->fd);
    free(io);
}

static void fake_release(struct waste_io *io, uint32_t slot)
{
    ((struct fake *)io)->released = slot + 1;
}

static const struct waste_io_ops fake_ops = {.queue = fake_queue,
                                             .submit = fake_submit,
                                             .reap = fake_reap,
                                             .clear = fake_clear,
                                             .destroy = fake_destroy,
                                             .release = fake_release};

typedef int create_function(enum waste_io_mode mode, const struct waste_io_setup *setup,
                            struct waste_io **out, struct waste_error *why_not,
                            struct waste_error *err);
create_function __real_waste_io_create, __wrap_waste_io_create;

int __wrap_waste_io_create(enum waste_io_mode mode, const struct waste_io_setup *setup,
                           struct waste_io **out, struct waste_error *why_not,
                           struct waste_error *err)
{
    if (!use_fakes)
        return __real_waste_io_create(mode, setup, out, why_not, err);
    if (mode == WASTE_IO_URING && (int)made_count == refuse_uring_on)
        return waste_error_set(err, -EPERM, "refused by the test");
    struct fake *f = calloc(1, sizeof(*f));
    f->io = (struct waste_io){
        .ops = &fake_ops, .mode = mode, .fd = eventfd(0, EFD_NONBLOCK), .depth = setup->depth};
    made[made_count++] = f;
    *out = &f->io;
    return 0;
}

/* The read that came as number `at` ends; later ones move up. */
static void finish(struct fake *f, uint32_t at, int32_t result)
{
    assert_true(at < f->reads);
    f->done[f->dones++] = (struct waste_io_done){f->read[at].tag, result};
    f->reads--;
    memmove(f->read + at, f->read + at + 1, (f->reads - at) * sizeof(*f->read));
}

static char directory[] = "/tmp/waste-test-drives-XXXXXX";
static int files[4];

static int make_file(const char *path, uint64_t bytes)
{
    int fd = open(path, O_CREAT | O_RDWR, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    return fd;
}

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(directory));
    for (int i = 0; i < 4; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%d", directory, i);
        files[i] = make_file(path, 64 << 20);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", directory);
    return system(command);
}

static struct waste_io_setup setup;

static struct waste_io *create(uint32_t depth, enum waste_io_mode mode)
{
    const struct waste_io_drives_options options = {.mode = mode, .depth = depth};
    struct waste_error err;
    struct waste_io *io;
    made_count = 0;
    setup = (struct waste_io_setup){.files = files, .file_count = 4, .depth = WASTE_IO_DEPTH};
    use_fakes = true;
    if (waste_io_drives_create(&options, &setup, &io, NULL, &err) != 0)
        fail_msg("%s", err.text);
    use_fakes = false;
    return io;
}

static uint8_t *const memory = (uint8_t *)4096; /* nobody looks at it */

static bool ask(struct waste_io *io, uint32_t tag, uint32_t bytes, bool urgent)
{
    struct waste_io_read read = {.tag = tag,
                                 .file = 1,
                                 .off = 8192,
                                 .data = memory,
                                 .bytes = bytes,
                                 .buffer = tag,
                                 .urgent = urgent};
    return io->ops->queue(io, &read);
}

static void end(struct waste_io *io)
{
    struct waste_io_done done[64];
    while (io->in_flight > 0) {
        while (made[0]->reads > 0)
            finish(made[0], 0, (int32_t)made[0]->read[0].bytes);
        io->ops->reap(io, done, 64);
    }
    waste_io_destroy(io);
}

static void a_record_is_read_in_pieces_that_cover_it_once(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1,
                                     4096,
                                     WASTE_IO_PIECE,
                                     WASTE_IO_PIECE + 1,
                                     2666496,
                                     WASTE_IO_PIECE * WASTE_IO_PARTS - 1,
                                     WASTE_IO_PIECE * WASTE_IO_PARTS,
                                     WASTE_IO_PIECE * WASTE_IO_PARTS + 4096,
                                     50000000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct waste_io *io = create(64, WASTE_IO_URING);
        struct waste_io_done done[2];
        uint32_t next = 0;
        assert_true(ask(io, 7, sizes[i], true));
        assert_int_equal(io->ops->submit(io), 0);
        assert_true(made[0]->reads <= WASTE_IO_PARTS);
        for (uint32_t p = 0; p < made[0]->reads; p++) {
            const struct waste_io_read *r = &made[0]->read[p];
            assert_int_equal(r->off, 8192 + next);
            assert_ptr_equal(r->data, memory + next);
            assert_int_equal(r->off % 4096, 0);
            assert_int_equal(r->buffer, 7);
            next += r->bytes;
        }
        assert_int_equal(next, sizes[i]);
        while (made[0]->reads > 0) { /* the last first */
            assert_int_equal(io->ops->reap(io, done, 2), 0);
            uint32_t last = made[0]->reads - 1;
            finish(made[0], last, (int32_t)made[0]->read[last].bytes);
        }
        assert_int_equal(io->ops->reap(io, done, 2), 1);
        assert_int_equal(done[0].tag, 7);
        assert_int_equal(done[0].result, sizes[i]);
        assert_int_equal(io->in_flight, 0);
        waste_io_destroy(io);
    }
}

static void what_failed_makes_the_record_short_or_is_its_result(void **state)
{
    (void)state;
    enum { P = WASTE_IO_PIECE };
    static const struct {
        int32_t part[4], result;
    } cases[] = {
        {{P, P, P, P}, 4 * P},
        {{P, -EIO, P, P}, P},
        {{-EIO, P, P, P}, -EIO},
        {{P, P, 4096, P}, 2 * P + 4096},
        {{P, P, P, 0}, 3 * P},
        {{0, 0, 0, 0}, 0},
        {{-EINVAL, -EINVAL, P, P}, -EINVAL},
        {{P, P, P, -ENXIO}, 3 * P},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct waste_io *io = create(64, WASTE_IO_URING);
        struct waste_io_done done;
        assert_true(ask(io, 3, 4 * P, true));
        io->ops->submit(io);
        assert_int_equal(made[0]->reads, 4);
        for (int p = 0; p < 4; p++)
            finish(made[0], 0, cases[i].part[p]);
        assert_int_equal(io->ops->reap(io, &done, 1), 1);
        assert_int_equal(done.result, cases[i].result);
        waste_io_destroy(io);
    }
}

static void a_piece_that_was_interrupted_is_asked_again_by_itself(void **state)
{
    (void)state;
    static const int32_t busy[] = {-EINTR, -EAGAIN};
    struct waste_io *io = create(3, WASTE_IO_URING);
    struct waste_io_done done;
    assert_true(ask(io, 3, 3 * WASTE_IO_PIECE, true));
    io->ops->submit(io);
    finish(made[0], 0, WASTE_IO_PIECE);
    finish(made[0], 1, WASTE_IO_PIECE);
    uint64_t off = made[0]->read[0].off;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(made[0]->reads, 1);
        assert_int_equal(made[0]->read[0].off, off);
        assert_int_equal(made[0]->read[0].bytes, WASTE_IO_PIECE);
        finish(made[0], 0, busy[i % 2]);
        assert_int_equal(io->ops->reap(io, &done, 1), 0);
    }
    finish(made[0], 0, WASTE_IO_PIECE);
    assert_int_equal(io->ops->reap(io, &done, 1), 1);
    assert_int_equal(done.result, 3 * WASTE_IO_PIECE);
    assert_true(ask(io, 4, 2 * WASTE_IO_PIECE, true)); /* but not for ever */
    io->ops->submit(io);
    uint32_t n = 0;
    while (io->ops->reap(io, &done, 1) == 0 && n++ < 100000)
        while (made[0]->reads > 0)
            finish(made[0], 0, -EAGAIN);
    assert_int_equal(done.result, -EAGAIN);
    assert_int_equal(made[0]->reads, 0);
    waste_io_destroy(io);
}

/* Tags of the reads in the kernel, as digits. */
static const char *in_kernel(void)
{
    static char text[MOST + 1];
    for (uint32_t i = 0; i < made[0]->reads; i++)
        text[i] = (char)('0' + made[0]->read[i].buffer);
    text[made[0]->reads] = '\0';
    return text;
}

static void the_kernel_has_no_more_than_the_depth_and_is_fed_at_once(void **state)
{
    (void)state;
    struct waste_io *io = create(5, WASTE_IO_URING);
    struct waste_io_done done[4];
    for (uint32_t i = 0; i < 3; i++)
        assert_true(ask(io, i, 3 * WASTE_IO_PIECE, true));
    io->ops->submit(io);
    assert_string_equal(in_kernel(), "00011");
    finish(made[0], 1, WASTE_IO_PIECE);
    finish(made[0], 0, WASTE_IO_PIECE);
    uint32_t submits = made[0]->submits;
    assert_int_equal(io->ops->reap(io, done, 4), 0);
    assert_string_equal(in_kernel(), "01112");
    assert_int_equal(made[0]->submits, submits + 1); /* before anybody looks at results */
    end(io);
}

static void demand_goes_first_and_what_becomes_demand_too(void **state)
{
    (void)state;
    struct waste_io *io = create(4, WASTE_IO_URING);
    struct waste_io_done done[4];
    ask(io, 0, 6 * WASTE_IO_PIECE, false);
    ask(io, 1, 2 * WASTE_IO_PIECE, false);
    ask(io, 2, 2 * WASTE_IO_PIECE, false);
    io->ops->submit(io);
    assert_string_equal(in_kernel(), "0000");
    ask(io, 3, 2 * WASTE_IO_PIECE, true);
    assert_true(io->ops->urge(io, 2));
    assert_true(io->ops->urge(io, 0)); /* begun, with parts left */
    assert_false(io->ops->urge(io, 9));
    for (int i = 0; i < 4; i++)
        finish(made[0], 0, WASTE_IO_PIECE);
    io->ops->reap(io, done, 4);
    assert_string_equal(in_kernel(), "3322");
    for (int i = 0; i < 4; i++)
        finish(made[0], 0, WASTE_IO_PIECE);
    assert_int_equal(io->ops->reap(io, done, 4), 2);
    assert_string_equal(in_kernel(), "0011");
    end(io);
}

static void what_has_not_begun_can_be_forgotten(void **state)
{
    (void)state;
    struct waste_io *io = create(2, WASTE_IO_URING);
    struct waste_io_done done[4];
    ask(io, 0, 3 * WASTE_IO_PIECE, false);
    ask(io, 1, 2 * WASTE_IO_PIECE, false);
    ask(io, 2, 2 * WASTE_IO_PIECE, false);
    io->ops->submit(io);
    assert_false(io->ops->cancel(io, 0)); /* the kernel has some of it */
    assert_true(io->ops->cancel(io, 1));
    assert_false(io->ops->cancel(io, 1));
    assert_int_equal(io->in_flight, 2);
    finish(made[0], 0, WASTE_IO_PIECE);
    finish(made[0], 0, WASTE_IO_PIECE);
    assert_int_equal(io->ops->reap(io, done, 4), 0);
    finish(made[0], 0, WASTE_IO_PIECE);
    assert_int_equal(io->ops->reap(io, done, 4), 1);
    assert_int_equal(done[0].tag, 0);
    assert_string_equal(in_kernel(), "22");
    assert_true(io->ops->cancel(io, 5) == false);
    end(io);
}

static void no_more_than_its_depth_of_reads_is_taken(void **state)
{
    (void)state;
    struct waste_io *io = create(2, WASTE_IO_URING);
    for (uint32_t i = 0; i < WASTE_IO_DEPTH; i++)
        assert_true(ask(io, i, 4096, i % 2));
    assert_false(ask(io, WASTE_IO_DEPTH, 4096, true));
    assert_int_equal(io->in_flight, io->depth);
    end(io);
}

static void a_backend_that_is_full_for_a_moment_is_asked_again(void **state)
{
    (void)state;
    struct waste_io *io = create(4, WASTE_IO_URING);
    struct waste_io_done done;
    made[0]->full = true;
    assert_true(ask(io, 1, 4096, true));
    assert_int_equal(io->ops->submit(io), 0);
    assert_int_equal(made[0]->reads, 0);
    made[0]->full = false;
    assert_int_equal(io->ops->reap(io, &done, 1), 0);
    assert_string_equal(in_kernel(), "1");
    end(io);
}

static void slots_are_released_everywhere(void **state)
{
    (void)state;
    struct waste_io *io = create(4, WASTE_IO_URING);
    waste_io_release(io, 11);
    assert_int_equal(made[0]->released, 12);
    waste_io_destroy(io);
}

static void depth_given_known_or_default(void **state)
{
    (void)state;
    uint32_t count;
    struct waste_io *io = create(9, WASTE_IO_URING);
    assert_int_equal(waste_io_drives_list(io, &count)->depth, 9);
    assert_int_equal(count, 1);
    const struct waste_io_drive known = {
        .drive.dev = waste_io_drives_list(io, &count)->drive.dev, .depth = 23, .bytes_per_s = 77};
    waste_io_destroy(io);
    const struct waste_io_drives_options options = {
        .mode = WASTE_IO_URING, .known = &known, .known_count = 1};
    struct waste_error err;
    made_count = 0;
    use_fakes = true;
    assert_int_equal(waste_io_drives_create(&options, &setup, &io, NULL, &err), 0);
    use_fakes = false;
    assert_int_equal(waste_io_drives_list(io, &count)->depth, 23);
    assert_int_equal(waste_io_drives_list(io, &count)->bytes_per_s, 77);
    waste_io_destroy(io);
    io = create(0, WASTE_IO_URING); /* too little to measure */
    assert_int_equal(waste_io_drives_list(io, &count)->depth, WASTE_IO_DEPTH_DEFAULT);
    waste_io_destroy(io);
    io = create(1000, WASTE_IO_URING);
    assert_int_equal(waste_io_drives_list(io, &count)->depth, WASTE_IO_DEPTH);
    waste_io_destroy(io);
}

static void o_direct_that_is_forced_and_not_there_is_an_error(void **state)
{
    (void)state;
    const struct waste_io_drives_options options = {.mode = WASTE_IO_URING, .direct = true};
    struct waste_error err;
    struct waste_io *io;
    made_count = 0; /* the files are open without O_DIRECT */
    use_fakes = true;
    assert_int_equal(waste_io_drives_create(&options, &setup, &io, NULL, &err), -EINVAL);
    use_fakes = false;
    if (!strstr(err.text, "uring+direct is not available: 4 of 4 banks") ||
        !strstr(err.text, "use --io uring"))
        fail_msg("%s", err.text);
}

static void partitions_are_their_disk(void **state)
{
    (void)state;
    struct waste_drive drive[WASTE_DRIVES_MAX];
    uint32_t of_file[4];
    struct stat st;
    assert_int_equal(waste_drives_find(files, 4, drive, of_file), 1);
    assert_int_equal(drive[0].files, 4);
    assert_int_equal(drive[0].bytes, UINT64_C(4) * 64 << 20);
    assert_int_equal(fstat(files[0], &st), 0);
    char path[128];
    snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/partition", major(st.st_dev),
             minor(st.st_dev));
    if (access(path, F_OK) == 0)
        assert_int_not_equal(drive[0].dev, st.st_dev);
    else
        assert_int_equal(drive[0].dev, st.st_dev);
    int closed[] = {-1, files[0]};
    assert_int_equal(waste_drives_find(closed, 2, drive, of_file), 2);
    assert_string_equal(drive[0].name, "?");
}

/* Files on two drives, if there is a second one: each has a backend of its own. */
static void two_drives_work_side_by_side(void **state)
{
    (void)state;
    int other = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    struct waste_drive drive[WASTE_DRIVES_MAX];
    uint32_t of_file[2], count, n = 0;
    int both[] = {files[0], other};
    if (other < 0 || waste_drives_find(both, 2, drive, of_file) != 2) {
        print_message("no second drive here: not tested\n");
        return;
    }
    static uint8_t want[2][3 * WASTE_IO_PIECE], got[2][3 * WASTE_IO_PIECE];
    memset(want[0], 'a', sizeof(want[0]));
    memset(want[1], 'b', sizeof(want[1]));
    for (int i = 0; i < 2; i++)
        assert_int_equal(pwrite(both[i], want[i], sizeof(want[i]), 0), sizeof(want[i]));
    const struct waste_io_setup two = {.files = both, .file_count = 2, .depth = WASTE_IO_DEPTH};
    for (enum waste_io_mode mode = WASTE_IO_AUTO; mode <= WASTE_IO_PREAD; mode++) {
        const struct waste_io_drives_options options = {.mode = mode, .depth = 2};
        struct waste_error err;
        struct waste_io *io;
        if (waste_io_drives_create(&options, &two, &io, NULL, &err) != 0) {
            print_message("%s: not tested\n", err.text);
            continue;
        }
        waste_io_drives_list(io, &count);
        assert_int_equal(count, 2);
        memset(got, 0, sizeof(got));
        for (uint32_t i = 0; i < 2; i++) {
            struct waste_io_read read = {.tag = i,
                                         .file = i,
                                         .data = got[i],
                                         .bytes = sizeof(got[i]),
                                         .buffer = WASTE_IO_NO_BUFFER};
            assert_true(io->ops->queue(io, &read));
        }
        assert_int_equal(io->ops->submit(io), 0);
        for (n = 0; n < 2;) {
            struct waste_io_done done[2];
            struct pollfd pfd = {.fd = io->fd, .events = POLLIN};
            uint32_t came = io->ops->reap(io, done, 2);
            for (uint32_t i = 0; i < came; i++)
                assert_int_equal(done[i].result, sizeof(got[0]));
            n += came;
            if (came == 0) {
                assert_int_equal(poll(&pfd, 1, 10000), 1); /* a result of either wakes */
                io->ops->clear(io);
            }
        }
        assert_memory_equal(got, want, sizeof(got));
        waste_io_destroy(io);
    }
    close(other);
}

static void auto_is_one_mode_for_all_drives(void **state)
{
    (void)state;
    int other = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    int both[] = {files[0], other};
    const struct waste_io_drives_options options = {.mode = WASTE_IO_AUTO, .depth = 2};
    const struct waste_io_setup two = {.files = both, .file_count = 2, .depth = WASTE_IO_DEPTH};
    struct waste_error err, why_not;
    struct waste_io *io;
    use_fakes = true;
    for (refuse_uring_on = 0; other >= 0 && refuse_uring_on < 2; refuse_uring_on++) {
        made_count = 0;
        assert_int_equal(waste_io_drives_create(&options, &two, &io, &why_not, &err), 0);
        assert_int_equal(io->mode, WASTE_IO_PREAD);
        assert_string_equal(why_not.text, "refused by the test");
        waste_io_destroy(io);
    }
    refuse_uring_on = -1;
    use_fakes = false;
    close(other);
}

static void a_depth_is_measured_by_reading(void **state)
{
    (void)state;
    struct waste_error err;
    struct waste_io *io;
    uint64_t rate = 0;
    const struct waste_io_setup s = {.files = files, .file_count = 4, .depth = WASTE_IO_DEPTH};
    assert_int_equal(waste_io_create(WASTE_IO_PREAD, &s, &io, NULL, &err), 0);
    uint32_t depth = waste_io_probe_depth(io, files, 4, &rate);
    assert_true(depth >= 1 && depth <= 64 && rate > 0);
    assert_int_equal(io->in_flight, 0);
    waste_io_destroy(io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_is_read_in_pieces_that_cover_it_once),
        cmocka_unit_test(what_failed_makes_the_record_short_or_is_its_result),
        cmocka_unit_test(a_piece_that_was_interrupted_is_asked_again_by_itself),
        cmocka_unit_test(the_kernel_has_no_more_than_the_depth_and_is_fed_at_once),
        cmocka_unit_test(demand_goes_first_and_what_becomes_demand_too),
        cmocka_unit_test(what_has_not_begun_can_be_forgotten),
        cmocka_unit_test(no_more_than_its_depth_of_reads_is_taken),
        cmocka_unit_test(a_backend_that_is_full_for_a_moment_is_asked_again),
        cmocka_unit_test(slots_are_released_everywhere),
        cmocka_unit_test(depth_given_known_or_default),
        cmocka_unit_test(o_direct_that_is_forced_and_not_there_is_an_error),
        cmocka_unit_test(partitions_are_their_disk),
        cmocka_unit_test(two_drives_work_side_by_side),
        cmocka_unit_test(auto_is_one_mode_for_all_drives),
        cmocka_unit_test(a_depth_is_measured_by_reading),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
