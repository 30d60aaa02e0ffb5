/* The file that holds a conversation's state: what goes in comes out, and nothing else does. */
#include "tests/unit/cm.h"

#include <errno.h>
#include <libdeflate.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/beside.h"
#include "cli/snapshot_int.h"

enum {
    CTX = 40,
    TOKENS = 23,
    POSITION = 22,
    LAYERS = 3,
    ROW = 20,
    BANK = 1000,
    STRIDE = CTX * ROW
};

static const struct waste_snapshot_shape shape = {
    .fingerprint = 0x1234567890abcdef,
    .bank_bytes = BANK,
    .mla_layers = LAYERS,
    .row_bytes = ROW,
    .vocab = 500,
};
static const char text[] = "{\"messages\": []}";

struct world {
    char dir[64], path[80];
    uint32_t ids[TOKENS];
    char bank[BANK], rows[LAYERS * STRIDE];
    struct waste_snapshot snapshot;
    char file[8192]; /* as it was written */
    size_t bytes;
};

static size_t slurp(const char *path, char *to, size_t room)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(to, 1, room, f);
    assert_true(n < room);
    fclose(f);
    return n;
}

static void spill(const char *path, const void *from, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(from, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void make(struct world *w)
{
    struct waste_error err;

    memset(w, 0, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/waste-snapshot-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->path, sizeof(w->path), "%s/s", w->dir);
    for (unsigned i = 0; i < TOKENS; i++)
        w->ids[i] = i * 7 % 500;
    for (unsigned i = 0; i < BANK; i++)
        w->bank[i] = (char)(i * i);
    for (unsigned i = 0; i < sizeof(w->rows); i++)
        w->rows[i] = (char)(i * 13 + i / 256);
    w->snapshot = (struct waste_snapshot){
        .ids = w->ids,
        .count = TOKENS,
        .position = POSITION,
        .state = {.bank = w->bank, .rows = w->rows, .layer_stride = STRIDE},
        .text = text,
        .text_bytes = strlen(text),
    };
    assert_int_equal(waste_snapshot_write(w->path, &shape, &w->snapshot, true, &err), 0);
    w->bytes = slurp(w->path, w->file, sizeof(w->file));
}

static void gone(struct world *w)
{
    static const char *const ends[] = {"", ".old", ".new"};
    char path[100];

    for (unsigned i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s%s", w->path, ends[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(w->dir), 0);
}

/* Opens and loads; 0 or what the first of the two said. All that was not asked for stays. */
static int read_back(const struct world *w, const struct waste_snapshot_shape *of, uint32_t most,
                     struct waste_error *err)
{
    struct waste_snapshot_file *f = NULL;
    char bank[BANK + 8], rows[LAYERS * STRIDE + 8];
    struct waste_snapshot_place to = {.bank = bank, .rows = rows, .layer_stride = STRIDE};

    memset(err, 0, sizeof(*err));
    int ret = waste_snapshot_open(w->path, of, most, &f, err);
    if (ret < 0) {
        assert_null(f);
        assert_non_null(strstr(err->text, w->path));
        assert_null(strchr(err->text, '\n'));
        return ret;
    }
    memset(bank, 0x5a, sizeof(bank));
    memset(rows, 0x5a, sizeof(rows));
    ret = waste_snapshot_load(f, &to, err);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(bank[BANK + i], 0x5a);
        assert_int_equal(rows[LAYERS * STRIDE + i], 0x5a);
    }
    if (ret == 0) {
        assert_int_equal(waste_snapshot_position(f), POSITION);
        assert_int_equal(waste_snapshot_ids(f)->count, TOKENS);
        assert_memory_equal(waste_snapshot_ids(f)->id, w->ids, sizeof(w->ids));
        assert_string_equal(waste_snapshot_text(f)->data, text);
        assert_memory_equal(bank, w->bank, BANK);
        for (unsigned l = 0; l < LAYERS; l++) {
            assert_memory_equal(rows + l * STRIDE, w->rows + l * STRIDE, POSITION * ROW);
            for (unsigned i = POSITION * ROW; i < STRIDE; i++)
                assert_int_equal(rows[l * STRIDE + i], 0x5a);
        }
    }
    waste_snapshot_close(f);
    return ret;
}

static void what_was_written_is_read(void **state)
{
    struct waste_error err;
    struct world w;
    struct stat st;

    make(&w);
    assert_int_equal(read_back(&w, &shape, TOKENS, &err), 0);
    assert_int_equal(stat(w.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600); /* a conversation is nobody else's business */
    gone(&w);
}

static void nothing_but_text_is_a_file_too(void **state)
{
    struct waste_snapshot_file *f;
    struct waste_error err;
    struct world w;

    make(&w);
    w.snapshot.count = w.snapshot.position = 0;
    w.snapshot.text = NULL;
    w.snapshot.text_bytes = 0;
    assert_int_equal(waste_snapshot_write(w.path, &shape, &w.snapshot, false, &err), 0);
    assert_int_equal(waste_snapshot_open(w.path, &shape, 0, &f, &err), 0);
    assert_int_equal(waste_snapshot_ids(f)->count, 0);
    assert_int_equal(waste_snapshot_text(f)->bytes, 0);
    assert_int_equal(waste_snapshot_load(f, &(struct waste_snapshot_place){0}, &err), 0);
    waste_snapshot_close(f);
    gone(&w);
}

static void every_damaged_byte_is_seen(void **state)
{
    struct waste_error err;
    struct world w;

    make(&w);
    for (size_t i = 0; i < w.bytes; i++) {
        w.file[i] ^= (char)(1 << i % 8);
        spill(w.path, w.file, w.bytes);
        int ret = read_back(&w, &shape, TOKENS, &err);
        if (ret != -EBADMSG)
            fail_msg("byte %zu of %zu: %d, \"%s\"", i, w.bytes, ret, err.text);
        w.file[i] ^= (char)(1 << i % 8);
    }
    gone(&w);
}

static void every_other_length_is_seen(void **state)
{
    struct waste_error err;
    struct world w;

    make(&w);
    for (size_t n = 0; n < w.bytes; n++) {
        spill(w.path, w.file, n);
        if (read_back(&w, &shape, TOKENS, &err) != -EBADMSG)
            fail_msg("%zu of %zu bytes: \"%s\"", n, w.bytes, err.text);
    }
    spill(w.path, w.file, w.bytes + 1);
    assert_int_equal(read_back(&w, &shape, TOKENS, &err), -EBADMSG);
    gone(&w);
}

/* The file with another header, whose checksum is right. */
static int with_header(struct world *w, const struct waste_snapshot_header *h,
                       struct waste_error *err)
{
    struct waste_snapshot_header sealed = *h;

    sealed.crc = libdeflate_crc32(0, &sealed, offsetof(struct waste_snapshot_header, crc));
    memcpy(w->file, &sealed, sizeof(sealed));
    spill(w->path, w->file, w->bytes);
    return read_back(w, &shape, TOKENS, err);
}

static void a_header_that_lies_is_refused(void **state)
{
    struct waste_snapshot_header h, good;
    struct waste_error err;
    struct world w;

    make(&w);
    memcpy(&good, w.file, sizeof(good));
    assert_int_equal(with_header(&w, &good, &err), 0);
#define LIE(field, value, code)                                                                    \
    do {                                                                                           \
        h = good;                                                                                  \
        h.field = (value);                                                                         \
        int ret = with_header(&w, &h, &err);                                                       \
        if (ret != (code))                                                                         \
            fail_msg("%s: %d, \"%s\"", #field, ret, err.text);                                     \
    } while (0)
    LIE(fingerprint, good.fingerprint + 1, -ESTALE);
    LIE(version, 7, -ESTALE);
    LIE(header_bytes, 0, -EBADMSG);
    LIE(bank_bytes, UINT64_MAX, -EBADMSG);
    LIE(mla_layers, UINT32_MAX, -EBADMSG);
    LIE(row_bytes, ROW + 4, -EBADMSG);
    LIE(position, TOKENS + 1, -EBADMSG);
    LIE(position, POSITION - 1, -EBADMSG);
    LIE(position, 0, -EBADMSG);
    LIE(tokens, TOKENS + 1, -EFBIG);
    LIE(tokens, TOKENS - 1, -EBADMSG);
    LIE(text_bytes, 0, -EBADMSG);
    LIE(text_bytes, good.text_bytes + 1, -EBADMSG);
    LIE(text_bytes, UINT64_MAX, -EBADMSG);
    for (unsigned i = 0; i < WASTE_SNAPSHOT_SECTIONS; i++) {
        LIE(section[i].packed_bytes, UINT64_MAX, -EBADMSG);
        LIE(section[i].packed_bytes, UINT64_MAX - 127, -EBADMSG);
        LIE(section[i].packed_bytes, good.section[i].packed_bytes - 1, -EBADMSG);
        LIE(section[i].crc, 0, -EBADMSG);
    }
#undef LIE
    gone(&w);
}

/* Bytes of the frames change and their checksums with them: nothing is left but to unpack. */
static void a_file_made_to_harm_does_none(void **state)
{
    struct waste_snapshot_header h, good;
    struct waste_error err;
    struct world w;
    uint32_t random = 1;
    char saved[sizeof(w.file)];

    make(&w);
    memcpy(&good, w.file, sizeof(good));
    memcpy(saved, w.file, w.bytes);
    for (unsigned round = 0; round < 2000; round++) {
        memcpy(w.file, saved, w.bytes);
        for (unsigned k = 0; k <= round % 5; k++) {
            random = random * 1664525 + 1013904223;
            w.file[sizeof(h) + (random >> 8) % (w.bytes - sizeof(h))] = (char)random;
        }
        h = good;
        size_t at = sizeof(h);
        for (unsigned i = 0; i < WASTE_SNAPSHOT_SECTIONS; i++) {
            h.section[i].crc = libdeflate_crc32(0, w.file + at, h.section[i].packed_bytes);
            at += h.section[i].packed_bytes;
        }
        /* 0 where the same bytes came out of it after all: read_back compares */
        int ret = with_header(&w, &h, &err);
        if (ret != 0 && ret != -EBADMSG)
            fail_msg("round %u: %d, \"%s\"", round, ret, err.text);
    }
    gone(&w);
}

static void another_context_or_no_file_is_told(void **state)
{
    struct waste_snapshot_shape few = shape;
    struct waste_error err;
    struct world w;

    make(&w);
    assert_int_equal(read_back(&w, &shape, TOKENS - 1, &err), -EFBIG);
    assert_non_null(strstr(err.text, "23 tokens"));
    few.vocab = 100;
    assert_int_equal(read_back(&w, &few, TOKENS, &err), -EBADMSG);
    unlink(w.path);
    assert_int_equal(read_back(&w, &shape, TOKENS, &err), -ENOENT);
    assert_int_equal(mkfifo(w.path, 0600), 0);
    assert_int_equal(read_back(&w, &shape, TOKENS, &err), -EINVAL);
    gone(&w);
}

static void the_older_file_is_kept_when_that_is_wanted(void **state)
{
    char old[100], buf[8192];
    struct waste_error err;
    struct world w;

    make(&w);
    snprintf(old, sizeof(old), "%s.old", w.path);
    assert_int_equal(access(old, F_OK), -1); /* there was none */
    w.snapshot.text_bytes = 3;
    assert_int_equal(waste_snapshot_write(w.path, &shape, &w.snapshot, false, &err), 0);
    assert_int_equal(access(old, F_OK), -1);
    spill(w.path, w.file, w.bytes);
    assert_int_equal(waste_snapshot_write(w.path, &shape, &w.snapshot, true, &err), 0);
    assert_int_equal(slurp(old, buf, sizeof(buf)), w.bytes);
    assert_memory_equal(buf, w.file, w.bytes);
    gone(&w);
}

/* At every byte the disk may be full. */
static void a_write_that_fails_leaves_the_old_file(void **state)
{
    struct rlimit limit, old;
    char beside[100], buf[8192];
    struct waste_error err;
    struct world w;

    make(&w);
    snprintf(beside, sizeof(beside), "%s.new", w.path);
    w.snapshot.text_bytes = 3;
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    for (size_t room = 0; room + 40 < w.bytes; room += 7) {
        limit = (struct rlimit){.rlim_cur = room, .rlim_max = old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
        int ret = waste_snapshot_write(w.path, &shape, &w.snapshot, true, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(ret, -EFBIG);
        assert_non_null(strstr(err.text, w.path));
        assert_int_equal(access(beside, F_OK), -1);
        assert_int_equal(slurp(w.path, buf, sizeof(buf)), w.bytes);
        assert_memory_equal(buf, w.file, w.bytes);
    }
    gone(&w);
}

/* Whatever has the name of the file that is written beside it: nothing waits, nothing else is
 * written to. */
static void what_is_beside_it_is_in_nobodys_way(void **state)
{
    enum { NOTHING, LEFTOVER, FIFO, LINK, NAME, KINDS };
    char beside[100], other[100], buf[8192];
    struct waste_error err;
    struct world w;

    make(&w);
    snprintf(beside, sizeof(beside), "%s.new", w.path);
    snprintf(other, sizeof(other), "%s.old", w.path);
    for (int kind = NOTHING; kind < KINDS; kind++) {
        spill(other, "mine", 4);
        spill(w.path, "", 0);
        if (kind == LEFTOVER)
            spill(beside, buf, sizeof(buf));
        else if (kind == FIFO)
            assert_int_equal(mkfifo(beside, 0600), 0);
        else if (kind == LINK)
            assert_int_equal(symlink(other, beside), 0);
        else if (kind == NAME)
            assert_int_equal(link(other, beside), 0);
        assert_int_equal(waste_snapshot_write(w.path, &shape, &w.snapshot, false, &err), 0);
        assert_int_equal(slurp(w.path, buf, sizeof(buf)), w.bytes);
        assert_memory_equal(buf, w.file, w.bytes);
        assert_int_equal(slurp(other, buf, sizeof(buf)), 4);
        assert_memory_equal(buf, "mine", 4);
        assert_int_equal(access(beside, F_OK), -1);
    }
    /* a directory is told */
    assert_int_equal(mkdir(beside, 0700), 0);
    assert_int_equal(waste_snapshot_write(w.path, &shape, &w.snapshot, false, &err), -EISDIR);
    assert_non_null(strstr(err.text, w.path));
    assert_int_equal(rmdir(beside), 0);
    gone(&w);
}

/* Of two writers of one file one writes, and what it has written stays as it is. */
static void two_writers_do_not_mix(void **state)
{
    struct waste_beside first;
    struct waste_error err;
    struct world w;
    char buf[8192];

    make(&w);
    assert_int_equal(waste_beside_open(&first, w.path), 0);
    assert_int_equal(waste_beside_put(&first, "one", 3), 0);
    w.snapshot.text_bytes = 3;
    assert_int_equal(waste_snapshot_write(w.path, &shape, &w.snapshot, true, &err), -EBUSY);
    assert_int_equal(slurp(w.path, buf, sizeof(buf)), w.bytes);
    assert_int_equal(waste_beside_put(&first, "two", 3), 0);
    assert_int_equal(waste_beside_move_in(&first, true), 0);
    waste_beside_drop(&first);
    assert_int_equal(slurp(w.path, buf, sizeof(buf)), 6);
    assert_memory_equal(buf, "onetwo", 6);
    assert_int_equal(waste_snapshot_write(w.path, &shape, &w.snapshot, true, &err), 0);
    gone(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(nothing_but_text_is_a_file_too),
        cmocka_unit_test(every_damaged_byte_is_seen),
        cmocka_unit_test(every_other_length_is_seen),
        cmocka_unit_test(a_header_that_lies_is_refused),
        cmocka_unit_test(a_file_made_to_harm_does_none),
        cmocka_unit_test(another_context_or_no_file_is_told),
        cmocka_unit_test(the_older_file_is_kept_when_that_is_wanted),
        cmocka_unit_test(a_write_that_fails_leaves_the_old_file),
        cmocka_unit_test(what_is_beside_it_is_in_nobodys_way),
        cmocka_unit_test(two_writers_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
