/* usage.waste: what is written is read, hostile files are refused, the cache warms from it. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "reader/cache.h"
#include "reader/usage.h"

static struct waste_model *model; /* layers 1 to 7 have 64 experts each */
static uint8_t data[65536];

static void put32(size_t at, uint32_t value)
{
    memcpy(data + at, &value, 4);
}

static size_t entry(size_t at, uint32_t layer, uint32_t expert, uint32_t hits)
{
    put32(at, layer | expert << 16);
    put32(at + 4, hits);
    put32(at + 8, 5);
    put32(at + 12, 0);
    return at + 16;
}

static size_t header(void)
{
    put32(0, 0x47535557);
    put32(4, 1);
    put32(8, 7);
    put32(12, 1);
    return 16;
}

static int parse(size_t bytes, struct waste_usage *u, struct waste_error *err)
{
    /* of exactly its size, so that a sanitizer sees a byte too far */
    uint8_t *copy = malloc(bytes + !bytes);
    memcpy(copy, data, bytes);
    int rc = waste_usage_parse(copy, bytes, "u", model, u, err);
    free(copy);
    return rc;
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct waste_habit h;
    struct waste_usage u;
    struct waste_error err;
    assert_int_equal(waste_habit_init(&h, 8, 64, 4, NULL), 0);
    for (uint32_t n = 0; n < 100; n++) {
        waste_habit_turn(&h, 3, (uint32_t[]){5, 6 + n % 2}, 2);
        waste_habit_turn(&h, 7, (uint32_t[]){60}, 1);
    }
    size_t bytes = waste_usage_encode(&h, 1000, data);
    assert_int_equal(bytes, 16 + 4 * 16);
    /* last seen: 5, then 6, whose last turn was the one before the last, then 7 and 60 */
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(data[16 + 16 * i + 8] | data[16 + 16 * i + 9] << 8, i == 1 ? 1099 : 1100);
    assert_int_equal(parse(bytes, &u, &err), 0);
    assert_int_equal(u.turns, 1100);
    assert_int_equal(u.count, 4);
    /* 5 and 60 at every turn, 6 and 7 at every second; one run of 100 turns is not for ever */
    assert_true(u.entry[0].expert == 5 || u.entry[0].expert == 60);
    assert_int_equal(u.entry[0].layer, u.entry[0].expert == 5 ? 3 : 7);
    assert_true(u.entry[0].share > 0.2f && u.entry[0].share < 0.3f);
    assert_true(u.entry[3].share > 0.4f * u.entry[0].share);
    assert_true(u.entry[3].share < 0.6f * u.entry[0].share);
    waste_usage_free(&u);
    waste_habit_finish(&h);
}

static void counts_of_any_scale_become_shares(void **state)
{
    (void)state;
    struct waste_usage u;
    struct waste_error err;
    size_t at = header();
    for (uint32_t e = 0; e < 8; e++)
        at = entry(at, 1, e, e < 4 ? 4000000000u : 10);
    assert_int_equal(parse(at, &u, &err), 0);
    assert_int_equal(u.turns, UINT64_C(0x100000007));
    assert_int_equal(u.count, 8);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(u.entry[i].expert, i); /* by share, then by number */
        assert_true(i < 4 ? u.entry[i].share > 0.99f : u.entry[i].share < 0.01f);
        assert_true(u.entry[i].share >= 0 && u.entry[i].share <= 1);
    }
    waste_usage_free(&u);
    assert_int_equal(parse(16, &u, &err), 0); /* nothing was used */
    assert_int_equal(u.count, 0);
    waste_usage_free(&u);
}

static void bad_files_are_refused_with_a_reason(void **state)
{
    (void)state;
    struct waste_usage u;
    struct waste_error err;
    size_t good = entry(entry(header(), 1, 2, 3), 7, 63, 3);
    assert_int_equal(parse(good, &u, &err), 0);
    waste_usage_free(&u);
    for (size_t bytes = 0; bytes < good; bytes++) {
        int rc = parse(bytes, &u, &err);
        assert_int_equal(rc, bytes == 16 || bytes == 32 ? 0 : -22);
        waste_usage_free(&u);
    }
    static const struct {
        size_t at;
        uint32_t value;
        const char *says;
    } cases[] = {
        {0, 0x47535558, "not a usage file"},
        {4, 2, "not a usage file"},
        {16, 0 | 2 << 16, "layer 0 has no expert 2"},
        {16, 8 | 2 << 16, "layer 8"},
        {16, 65535 | 2 << 16, "layer 65535"},
        {16, 1 | 64 << 16, "expert 64"},
        {28, 1, "reserved word"},
        {32, 1 | 2 << 16, "a second time"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        entry(entry(header(), 1, 2, 3), 7, 63, 3);
        put32(cases[i].at, cases[i].value);
        assert_int_equal(parse(good, &u, &err), -22);
        assert_non_null(strstr(err.text, cases[i].says));
        assert_null(u.entry);
    }
    size_t many = header(); /* more entries than the model has experts */
    while (many <= waste_usage_room(model))
        many = entry(many, 1, 2, 3);
    assert_int_equal(parse(many, &u, &err), -22);
    assert_non_null(strstr(err.text, "at most"));
}

static void a_file_is_replaced_whole_or_not_at_all(void **state)
{
    (void)state;
    char dir[] = "/tmp/waste-usage-XXXXXX", text[8] = "";
    struct waste_usage u;
    struct waste_error err;
    assert_non_null(mkdtemp(dir));
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(waste_usage_load(fd, "u", model, &u, &err), -2);
    assert_int_equal(waste_usage_write(fd, "u", (const uint8_t *)"first", 5), 0);
    assert_int_equal(waste_usage_write(fd, "u", (const uint8_t *)"next", 4), 0);
    int file = openat(fd, "u", O_RDONLY);
    assert_int_equal(read(file, text, 8), 4);
    close(file);
    assert_string_equal(text, "next");
    assert_int_equal(waste_usage_load(fd, "u", model, &u, &err), -22);
    assert_int_equal(unlinkat(fd, "u", 0), 0);
    /* what is no file is not waited for */
    assert_int_equal(mkfifoat(fd, "u", 0600), 0);
    assert_int_equal(waste_usage_load(fd, "u", model, &u, &err), -22);
    assert_int_equal(unlinkat(fd, "u", 0), 0);
    assert_int_equal(mkdirat(fd, "u", 0700), 0);
    assert_true(waste_usage_write(fd, "u", (const uint8_t *)"x", 1) < 0); /* a directory stays */
    assert_int_equal(unlinkat(fd, "u", AT_REMOVEDIR), 0);
    assert_int_equal(rmdir(dir), 0); /* nothing temporary is left */
    assert_int_equal(waste_usage_write(fd, "u", (const uint8_t *)"x", 1), -2);
    close(fd);
}

static void touch(int dir, const char *name, time_t age)
{
    const struct timespec then = {.tv_sec = time(NULL) - age};
    int fd = openat(dir, name, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(futimens(fd, (struct timespec[]){then, then}), 0);
    close(fd);
}

static bool is_there(int dir, const char *name)
{
    return faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* All of this program's processes have one number, as those of several pid namespaces may. */
pid_t getpid(void)
{
    return 1;
}

/* Each writes files of its own in the same directory. */
static void writers_of_the_same_number_do_not_meet(void **state)
{
    (void)state;
    enum { WRITERS = 8, WRITES = 100, BYTES = 30000 };
    char dir[] = "/tmp/waste-usage-XXXXXX";
    static uint8_t whole[BYTES];
    assert_non_null(mkdtemp(dir));
    int fd = open(dir, O_RDONLY | O_DIRECTORY), status;
    for (int w = 0; w < WRITERS; w++) {
        if (fork() != 0)
            continue;
        int failed = 0;
        memset(whole, w, BYTES);
        for (int i = 0; i < WRITES; i++)
            failed |= waste_usage_write(fd, "u", whole, BYTES);
        _exit(failed != 0);
    }
    for (int w = 0; w < WRITERS; w++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    int file = openat(fd, "u", O_RDONLY);
    assert_int_equal(read(file, whole, BYTES), BYTES);
    close(file);
    for (int i = 1; i < BYTES; i++)
        assert_int_equal(whole[i], whole[0]);
    assert_int_equal(unlinkat(fd, "u", 0), 0);
    assert_int_equal(rmdir(dir), 0); /* nothing temporary is left */
    close(fd);
}

static void what_a_dead_writer_left_goes_and_nothing_else(void **state)
{
    (void)state;
    enum { HOUR = 3600 };
    static const char *const others[] = {
        "u",
        "u.0123456789abcde.new",   /* a digit short */
        "u.0123456789abcdef0.new", /* one too many */
        "u.0123456789ABCDEF.new",
        "u.0123456789abcdef",
        "u.0123456789abcdef.newer",
        "u0123456789abcdef.new",
        "v.0123456789abcdef.new",
        "u.1234",
        "u.new",
        "u.old",
    };
    char dir[] = "/tmp/waste-usage-XXXXXX";
    assert_non_null(mkdtemp(dir));
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        touch(fd, others[i], 2 * HOUR);
    touch(fd, "u.0123456789abcdef.new", 2 * HOUR);
    touch(fd, "u.fedcba9876543210.new", 2 * HOUR);
    touch(fd, "u.1111111111111111.new", HOUR / 2); /* somebody may be writing it */
    touch(fd, "u.2222222222222222.new", -HOUR);    /* a clock that was wrong */
    assert_int_equal(mkdirat(fd, "u.3333333333333333.new", 0700), 0);
    assert_int_equal(symlinkat("u", fd, "u.4444444444444444.new"), 0);
    waste_usage_sweep(fd, "u");
    assert_false(is_there(fd, "u.0123456789abcdef.new"));
    assert_false(is_there(fd, "u.fedcba9876543210.new"));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_true(is_there(fd, others[i]));
    assert_true(is_there(fd, "u.1111111111111111.new"));
    assert_true(is_there(fd, "u.2222222222222222.new"));
    assert_true(is_there(fd, "u.3333333333333333.new"));
    assert_true(is_there(fd, "u.4444444444444444.new"));
    assert_int_equal(openat(fd, "u.0123456789abcdef.new", O_RDONLY), -1);
    char command[64];
    snprintf(command, sizeof(command), "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
    waste_usage_sweep(fd, "u"); /* a directory that is gone */
    waste_usage_sweep(-1, "u");
    close(fd);
}

static void the_thread_writes_what_is_due_before_it_ends(void **state)
{
    (void)state;
    char dir[] = "/tmp/waste-usage-XXXXXX";
    struct waste_habit h;
    struct waste_usage u;
    struct waste_error err;
    struct waste_usage_saver s = {0};
    assert_int_equal(waste_usage_saver_stop(&s), 0);
    assert_non_null(mkdtemp(dir));
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(waste_habit_init(&h, 8, 64, 4, NULL), 0);
    waste_habit_turn(&h, 2, (uint32_t[]){9}, 1);
    assert_int_equal(waste_usage_saver_start(&s, fd, "u", model), 0);
    waste_usage_saver_save(&s, &h, 41);
    assert_int_equal(waste_usage_saver_stop(&s), 0);
    assert_int_equal(waste_usage_saver_stop(&s), 0);
    assert_int_equal(waste_usage_load(fd, "u", model, &u, &err), 0);
    assert_int_equal(u.turns, 42);
    assert_int_equal(u.count, 1);
    assert_int_equal(u.entry[0].expert, 9);
    waste_usage_free(&u);
    waste_habit_finish(&h);
    unlinkat(fd, "u", 0);
    rmdir(dir);
    close(fd);
}

static void warming_fills_free_slots_and_evicts_nothing(void **state)
{
    (void)state;
    enum { SLOTS = 20 };
    const struct waste_options options = {.threads = 1, .ctx = 64};
    uint64_t bytes = waste_control_bytes(model, SLOTS);
    void *base = aligned_alloc(64, bytes);
    struct waste_shm shm;
    struct waste_cache c;
    struct waste_cache_repair repair;
    struct waste_cache_read read[64];
    union {
        struct waste_want want;
        uint32_t room[64];
    } u = {.want = {.layer = 1, .count = 4}};
    memset(base, 0, bytes);
    waste_control_init(base, bytes, model, SLOTS, &options, 1, &shm);
    assert_int_equal(waste_cache_init(&c, &shm, 8, -1, &repair), 0);
    for (uint32_t i = 0; i < 12; i++) {
        assert_int_equal(waste_cache_warm(&c, 2, i, &read[0]), 1);
        assert_int_equal(waste_cache_warm(&c, 2, i, &read[1]), 0); /* on its way */
        if (i < 6)
            waste_cache_ready(&c, read[0].slot);
    }
    /* 2 x top_k of 4 stay for demand */
    assert_int_equal(waste_cache_warm(&c, 2, 12, &read[0]), -28);
    for (uint32_t n = 0; n < 2; n++) {
        u.want.layer = 3 + n;
        for (uint32_t i = 0; i < 4; i++)
            u.want.expert[i] = i;
        waste_cache_demand(&c, &u.want);
        assert_int_equal(waste_cache_plan(&c, read, 64), 4);
        for (uint32_t i = 0; i < 4; i++)
            waste_cache_ready(&c, read[i].slot);
    }
    for (uint32_t i = 0; i < 6; i++)
        assert_int_not_equal(c.slot_of[2 * 64 + i], WASTE_SLOT_NONE);
    assert_int_equal(waste_cache_warm(&c, 2, 12, &read[0]), -28);
    /* demand for what is being warmed waits for that read */
    u.want.layer = 2;
    for (uint32_t i = 0; i < 4; i++)
        u.want.expert[i] = 6 + i;
    waste_cache_demand(&c, &u.want);
    assert_int_equal(waste_cache_plan(&c, read, 64), 0);
    waste_cache_failed(&c, c.slot_of[2 * 64 + 11], WASTE_SLOT_EIO, 5); /* nobody's: gone */
    assert_int_equal(c.slot_of[2 * 64 + 11], WASTE_SLOT_NONE);
    waste_cache_finish(&c);
    free(base);
}

int main(void)
{
    struct waste_error err;
    if (waste_container_open(WASTE_DEMO_MODEL, &model, &err) < 0) {
        printf("%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(counts_of_any_scale_become_shares),
        cmocka_unit_test(bad_files_are_refused_with_a_reason),
        cmocka_unit_test(a_file_is_replaced_whole_or_not_at_all),
        cmocka_unit_test(writers_of_the_same_number_do_not_meet),
        cmocka_unit_test(what_a_dead_writer_left_goes_and_nothing_else),
        cmocka_unit_test(the_thread_writes_what_is_due_before_it_ends),
        cmocka_unit_test(warming_fills_free_slots_and_evicts_nothing),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(model);
    return rc;
}
