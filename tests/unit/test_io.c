/* The backends: what they return is what the file holds. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "reader/io.h"
#include "reader_rig.h"
#include "shm/segment.h"

enum { FILES = 3, RECORDS = 40, RECORD = 12288, SLOTS = 16 };

static const struct {
    const char *name;
    int (*create)(const struct waste_io_setup *, struct waste_io **, struct waste_error *);
} backends[] = {{"io_uring", waste_io_uring_create}, {"pread", waste_io_pread_create}};

static size_t first_backend; /* 1: no io_uring here */
static char directory[] = "/tmp/waste-test-io-XXXXXX";
static int files[FILES];
static struct waste_mapping cache;
static struct waste_io_setup setup;

static uint8_t byte_at(uint32_t file, uint64_t off)
{
    uint64_t x = (off / 8 + 1) * UINT64_C(0x9e3779b97f4a7c15) + file;
    return (uint8_t)(x >> (off % 8 * 8));
}

static int make_files(void **state)
{
    (void)state;
    int fd;
    assert_non_null(mkdtemp(directory));
    for (uint32_t i = 0; i < FILES; i++) {
        char path[128];
        uint8_t *data = malloc(RECORDS * RECORD);
        for (uint64_t off = 0; off < RECORDS * RECORD; off++)
            data[off] = byte_at(i, off);
        snprintf(path, sizeof(path), "%s/%u", directory, i);
        fd = open(path, O_CREAT | O_WRONLY, 0644);
        assert_int_equal(write(fd, data, RECORDS * RECORD), RECORDS * RECORD);
        assert_int_equal(fsync(fd), 0);
        close(fd);
        free(data);
        files[i] = open(path, O_RDONLY | O_DIRECT);
        if (files[i] < 0)
            files[i] = open(path, O_RDONLY);
        assert_true(files[i] >= 0);
    }
    assert_int_equal(waste_segment_create(WASTE_SEG_CACHE, SLOTS * RECORD, &fd), 0);
    assert_int_equal(waste_segment_map(fd, WASTE_SEG_CACHE, true, &cache), 0);
    close(fd);
    setup = (struct waste_io_setup){.files = files,
                                    .file_count = FILES,
                                    .cache = cache.base,
                                    .slot_bytes = RECORD,
                                    .slot_count = SLOTS,
                                    .depth = 8};
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", directory);
    waste_segment_unmap(&cache);
    return system(command);
}

static struct waste_io *create(size_t b)
{
    struct waste_error err;
    struct waste_io *io;
    if (backends[b].create(&setup, &io, &err) < 0)
        fail_msg("%s: %s", backends[b].name, err.text);
    return io;
}

static struct waste_io_read record(uint32_t slot, uint32_t file, uint32_t number)
{
    return (struct waste_io_read){.tag = slot,
                                  .file = file,
                                  .off = (uint64_t)number * RECORD,
                                  .data = setup.cache + slot * RECORD,
                                  .bytes = RECORD,
                                  .buffer = slot};
}

static void assert_record(const struct waste_io_read *read)
{
    const uint8_t *data = read->data;
    for (uint32_t i = 0; i < read->bytes; i++)
        if (data[i] != byte_at(read->file, read->off + i))
            fail_msg("file %u, byte %llu is wrong", read->file, (unsigned long long)read->off + i);
}

/* Sleeps in poll() like the reader does, so a result that does not wake it shows. */
static uint32_t reap(struct waste_io *io, struct waste_io_done *done, uint32_t max)
{
    uint32_t n;
    while ((n = io->ops->reap(io, done, max)) == 0) {
        struct pollfd pfd = {.fd = io->fd, .events = POLLIN};
        assert_int_equal(poll(&pfd, 1, 10000), 1);
        io->ops->clear(io);
    }
    return n;
}

static void records_arrive_whole_and_once(void **state)
{
    (void)state;
    for (size_t b = first_backend; b < 2; b++) {
        struct waste_io *io = create(b);
        struct waste_io_read at[SLOTS];
        struct waste_io_done done[8];
        uint32_t started = 0, ended = 0, total = 3 * FILES * RECORDS;
        bool busy[SLOTS] = {false};
        while (ended < total) {
            for (uint32_t s = 0; s < SLOTS && started < total; s++) {
                if (busy[s])
                    continue;
                at[s] = record(s, started % FILES, started * 7 % RECORDS);
                memset(at[s].data, 0, RECORD);
                if (!io->ops->queue(io, &at[s])) {
                    assert_int_equal(io->in_flight, 8);
                    break;
                }
                busy[s] = true;
                started++;
            }
            assert_int_equal(io->ops->submit(io), 0);
            uint32_t n = reap(io, done, 8);
            for (uint32_t i = 0; i < n; i++, ended++) {
                assert_int_equal(done[i].result, RECORD);
                assert_true(busy[done[i].tag]);
                busy[done[i].tag] = false;
                assert_record(&at[done[i].tag]);
            }
        }
        assert_int_equal(io->in_flight, 0);
        waste_io_destroy(io);
    }
}

static int32_t one(struct waste_io *io, const struct waste_io_read *read)
{
    struct waste_io_done done;
    assert_true(io->ops->queue(io, read));
    assert_int_equal(io->ops->submit(io), 0);
    assert_int_equal(reap(io, &done, 1), 1);
    assert_int_equal(done.tag, read->tag);
    return done.result;
}

static void the_kernels_word_comes_back_unchanged(void **state)
{
    (void)state;
    for (size_t b = first_backend; b < 2; b++) {
        struct waste_io *io = create(b);
        struct waste_io_read read = record(3, 1, RECORDS);
        assert_int_equal(one(io, &read), 0); /* behind the end */
        read = record(3, 1, RECORDS - 1);
        read.off += 4096;
        assert_int_equal(one(io, &read), RECORD - 4096); /* over the end */
        read = record(3, 1, 5);
        read.data = (void *)4096; /* no memory of ours */
        read.buffer = WASTE_IO_NO_BUFFER;
        assert_int_equal(one(io, &read), -EFAULT);
        read = record(2, 2, 5); /* the middle of a slot: how a short read goes on */
        read.off += 4096;
        read.data = (uint8_t *)read.data + 4096;
        read.bytes -= 4096;
        assert_int_equal(one(io, &read), RECORD - 4096);
        assert_record(&read);
        waste_io_destroy(io);
    }
}

/* In a child: whatever it does to itself is gone afterwards. Its exit code. */
static int in_child(int (*body)(const void *), const void *arg)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(body(arg));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* From here on io_uring_setup fails with *(int *)arg, as container runtimes make it. */
static bool forbid_io_uring(int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int without_io_uring(const void *arg)
{
    int error = *(const int *)arg;
    if (first_backend == 1)
        return 77;
    struct waste_error why_not, err;
    struct waste_io *io;
    if (!forbid_io_uring(error))
        return 77;
    if (waste_io_create(WASTE_IO_URING, &setup, &io, NULL, &err) != -error)
        return 1;
    if (!strstr(err.text, "io_uring is not available: ") || !strstr(err.text, "use --io pread") ||
        !strstr(err.text, strerror(error)))
        return 2;
    if (waste_io_create(WASTE_IO_AUTO, &setup, &io, &why_not, &err) != 0)
        return 3;
    if (io->mode != WASTE_IO_PREAD || !strstr(why_not.text, strerror(error)))
        return 4;
    waste_io_destroy(io);
    return 0;
}

static void io_uring_refused_means_pread_or_an_error(void **state)
{
    (void)state;
    const int errors[] = {EPERM, ENOSYS};
    for (int i = 0; i < 2; i++) {
        int rc = in_child(without_io_uring, &errors[i]);
        if (rc == 77)
            skip(); /* neither seccomp nor io_uring here */
        assert_int_equal(rc, 0);
    }
}

/* What the kernel itself says to a ring of that depth: 0 or -errno. */
static int plain_ring(uint32_t depth)
{
    char params[256] = {0}; /* struct io_uring_params */
    long fd = syscall(SYS_io_uring_setup, depth, params);
    if (fd < 0)
        return -errno;
    close((int)fd);
    return 0;
}

/* An ordinary user with next to no lockable memory: slots cannot be registered, reads go on. */
static int with_no_memlock(const void *arg)
{
    (void)arg;
    const struct rlimit none = {65536, 65536};
    struct waste_error err;
    struct waste_io *io;
    if (setrlimit(RLIMIT_MEMLOCK, &none) < 0 || (getuid() == 0 && setresuid(65534, 65534, 65534)))
        return 77;
    if (plain_ring(setup.depth) != 0)
        return 78; /* not for this user, or (before Linux 5.12) its own memory counts */
    int rc = waste_io_create(WASTE_IO_URING, &setup, &io, NULL, &err);
    for (int i = 0; rc == -ENOMEM && i < 100; i++) { /* the plain one is taken apart some time later */
        usleep(20000);
        rc = waste_io_create(WASTE_IO_URING, &setup, &io, NULL, &err);
    }
    if (rc != 0)
        return 2;
    for (uint32_t s = 0; s < SLOTS; s++) {
        struct waste_io_read read = record(s, s % FILES, s);
        if (one(io, &read) != RECORD)
            return 1;
        assert_record(&read);
    }
    waste_io_destroy(io);
    return 0;
}

static void without_lockable_memory_reads_go_unregistered(void **state)
{
    (void)state;
    int rc = in_child(with_no_memlock, NULL);
    if (rc == 77 || rc == 78) {
        print_message(rc == 77 ? "cannot give up privileges here\n" : "no ring for this user\n");
        skip();
    }
    assert_int_equal(rc, 0);
}

static void auto_takes_io_uring_where_it_works(void **state)
{
    (void)state;
    struct waste_error why_not, err;
    struct waste_io *io;
    assert_int_equal(waste_io_create(WASTE_IO_AUTO, &setup, &io, &why_not, &err), 0);
    if (io->mode == WASTE_IO_URING)
        assert_string_equal(why_not.text, "");
    else
        print_message("io_uring is not available here: %s\n", why_not.text);
    waste_io_destroy(io);
    assert_int_equal(waste_io_create(WASTE_IO_PREAD, &setup, &io, &why_not, &err), 0);
    assert_int_equal(io->mode, WASTE_IO_PREAD);
    waste_io_destroy(io);
}

int main(void)
{
    enum waste_io_mode modes[2];
    first_backend = 2 - rig_io_modes(modes);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_arrive_whole_and_once),
        cmocka_unit_test(the_kernels_word_comes_back_unchanged),
        cmocka_unit_test(io_uring_refused_means_pread_or_an_error),
        cmocka_unit_test(without_lockable_memory_reads_go_unregistered),
        cmocka_unit_test(auto_takes_io_uring_where_it_works),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
