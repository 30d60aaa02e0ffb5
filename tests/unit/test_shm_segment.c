#include "tests/unit/cm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/segment.h"

static int make(enum waste_segment_id id, uint64_t bytes)
{
    int fd = -1;

    assert_int_equal(waste_segment_create(id, bytes, &fd), 0);
    assert_true(fd >= 0);
    return fd;
}

static struct waste_mapping map(int fd, enum waste_segment_id id, bool writable)
{
    struct waste_mapping m = {0};

    assert_int_equal(waste_segment_map(fd, id, writable, &m), 0);
    return m;
}

static void a_segment_is_whole_zero_pages_of_fixed_size(void **state)
{
    int fd = make(WASTE_SEG_CONTROL, 5000);
    struct waste_mapping m = map(fd, WASTE_SEG_CONTROL, true);

    assert_int_equal(m.bytes, 8192);
    for (size_t i = 0; i < m.bytes; i++)
        assert_int_equal(((char *)m.base)[i], 0);
    assert_int_equal(ftruncate(fd, 4096), -1);
    assert_int_equal(ftruncate(fd, 16384), -1);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE),
                     F_SEAL_SHRINK | F_SEAL_GROW);
    waste_segment_unmap(&m);
    assert_null(m.base);
    waste_segment_unmap(&m);
    close(fd);
}

static void impossible_sizes_and_descriptors_are_refused(void **state)
{
    struct waste_mapping m = {0};
    int fd = -7;

    assert_int_equal(waste_segment_create(WASTE_SEG_CACHE, 0, &fd), -EINVAL);
    assert_int_equal(waste_segment_create(WASTE_SEG_CACHE, UINT64_MAX, &fd), -EINVAL);
    assert_int_equal(waste_segment_create(WASTE_SEG_CACHE, INT64_MAX, &fd), -EINVAL);
    assert_int_equal(waste_segment_create(WASTE_SEG_COUNT, 4096, &fd), -EINVAL);
    assert_int_equal(fd, -7);
    assert_int_equal(waste_segment_map(-1, WASTE_SEG_CACHE, true, &m), -EBADF);
    assert_null(m.base);
}

static void two_mappings_see_the_same_bytes(void **state)
{
    int fd = make(WASTE_SEG_SESSION, 4096);
    struct waste_mapping a = map(fd, WASTE_SEG_SESSION, true);
    struct waste_mapping b = map(fd, WASTE_SEG_SESSION, false);

    strcpy(a.base, "hello");
    assert_string_equal(b.base, "hello");
    waste_segment_unmap(&a);
    waste_segment_unmap(&b);
    close(fd);
}

static void a_readonly_mapping_cannot_be_made_writable(void **state)
{
    int fd = make(WASTE_SEG_TRUNK, 4096), ro;
    struct waste_mapping m = map(fd, WASTE_SEG_TRUNK, false);

    assert_int_equal(mprotect(m.base, m.bytes, PROT_READ | PROT_WRITE), -1);
    waste_segment_unmap(&m);
    assert_int_equal(waste_segment_open_readonly(fd, &ro), 0);
    assert_int_equal(fcntl(ro, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(write(ro, "x", 1), -1);
    assert_int_equal(waste_segment_map(ro, WASTE_SEG_TRUNK, true, &m), -EACCES);
    close(ro);
    close(fd);
}

static void sealing_waits_for_writers_but_not_for_readers(void **state)
{
    int fd = make(WASTE_SEG_TRUNK, 4096);
    struct waste_mapping writer = map(fd, WASTE_SEG_TRUNK, true);
    struct waste_mapping reader = map(fd, WASTE_SEG_TRUNK, false);
    struct waste_mapping late = {0};

    strcpy(writer.base, "weights");
    assert_int_equal(waste_segment_seal(fd), -EBUSY);
    waste_segment_unmap(&writer);
    assert_int_equal(waste_segment_seal(fd), 0);
    assert_string_equal(reader.base, "weights");
    assert_int_equal(waste_segment_map(fd, WASTE_SEG_TRUNK, true, &late), -EPERM);
    assert_null(late.base);
    late = map(fd, WASTE_SEG_TRUNK, false);
    assert_string_equal(late.base, "weights");
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(waste_segment_punch(fd, 0, 4096), -EPERM);
    waste_segment_unmap(&late);
    waste_segment_unmap(&reader);
    close(fd);
}

static void a_punched_hole_reads_as_zero_and_spares_its_neighbours(void **state)
{
    int fd = make(WASTE_SEG_CACHE, 4 * 4096);
    struct waste_mapping m = map(fd, WASTE_SEG_CACHE, true);
    unsigned char *p = m.base;

    memset(p, 0xa5, m.bytes);
    assert_int_equal(waste_segment_punch(fd, 4096, 2 * 4096), 0);
    for (size_t i = 0; i < m.bytes; i++)
        assert_int_equal(p[i], i >= 4096 && i < 3 * 4096 ? 0 : 0xa5);
    assert_int_equal(waste_segment_punch(fd, 1, 4096), -EINVAL);
    assert_int_equal(waste_segment_punch(fd, 0, 100), -EINVAL);
    assert_int_equal(waste_segment_punch(fd, 0, 0), -EINVAL);
    assert_int_equal(waste_segment_punch(fd, 3 * 4096, 2 * 4096), -EINVAL);
    assert_int_equal(waste_segment_punch(fd, UINT64_MAX - 4095, 4096), -EINVAL);
    waste_segment_unmap(&m);
    close(fd);
}

/* VmFlags of the mapping that starts at `base`, or "" if /proc does not say. */
static void vm_flags(const void *base, char *out, size_t size)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[512], head[32];
    bool here = false;

    out[0] = 0;
    snprintf(head, sizeof(head), "%lx-", (unsigned long)base);
    while (f && fgets(line, sizeof(line), f)) {
        if (strstr(line, " r") && strchr(line, '-') && line[0] != 'V')
            here = strncmp(line, head, strlen(head)) == 0;
        if (here && strncmp(line, "VmFlags:", 8) == 0)
            snprintf(out, size, "%s", line + 8);
    }
    if (f)
        fclose(f);
}

static void the_cache_refuses_huge_pages_and_the_trunk_asks_for_them(void **state)
{
    int cache = make(WASTE_SEG_CACHE, 16 << 20), trunk = make(WASTE_SEG_TRUNK, 16 << 20);
    struct waste_mapping c = map(cache, WASTE_SEG_CACHE, true);
    struct waste_mapping t = map(trunk, WASTE_SEG_TRUNK, false);
    char flags[512];

    vm_flags(c.base, flags, sizeof(flags));
    if (flags[0] == 0)
        skip();
    assert_non_null(strstr(flags, " nh"));
    assert_non_null(strstr(flags, " dd"));
    vm_flags(t.base, flags, sizeof(flags));
    assert_non_null(strstr(flags, " hg"));
    assert_non_null(strstr(flags, " dd"));
    waste_segment_unmap(&c);
    waste_segment_unmap(&t);
    close(cache);
    close(trunk);
}

static void a_huge_page_keeps_what_it_holds(void **state)
{
    int fd = make(WASTE_SEG_TRUNK, 5 * WASTE_HUGE_PAGE + 4096);
    struct waste_mapping m = map(fd, WASTE_SEG_TRUNK, true), reader;
    char *at = m.base;

    assert_int_equal((uintptr_t)m.base % WASTE_HUGE_PAGE, 0);
    memset(at + WASTE_HUGE_PAGE + 4096, 7, 3 * 4096);
    int err = waste_segment_make_huge(&m, 1);
    waste_segment_touch(&m, 3); /* else it were a hole */
    if (err == 0) {
        assert_int_equal(waste_segment_make_huge(&m, 1), 0); /* again is fine */
        assert_int_equal(waste_segment_make_huge(&m, 3), 0);
    }
    for (size_t i = 0; i < WASTE_HUGE_PAGE; i++)
        assert_int_equal(at[WASTE_HUGE_PAGE + i], i >= 4096 && i < 4 * 4096 ? 7 : 0);
    waste_segment_touch(&m, 5); /* not a whole one */
    waste_segment_touch(&m, UINT64_MAX);
    assert_int_equal(waste_segment_make_huge(&m, 5), -EINVAL);
    assert_int_equal(waste_segment_make_huge(&m, UINT64_MAX), -EINVAL);
    reader = map(fd, WASTE_SEG_TRUNK, false);
    assert_int_equal(((char *)reader.base)[WASTE_HUGE_PAGE + 2 * 4096], 7);
    waste_segment_unmap(&reader);
    waste_segment_unmap(&m);
    close(fd);
    if (err != 0)
        skip(); /* an older kernel, or no huge page to be had */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_segment_is_whole_zero_pages_of_fixed_size),
        cmocka_unit_test(impossible_sizes_and_descriptors_are_refused),
        cmocka_unit_test(two_mappings_see_the_same_bytes),
        cmocka_unit_test(a_readonly_mapping_cannot_be_made_writable),
        cmocka_unit_test(sealing_waits_for_writers_but_not_for_readers),
        cmocka_unit_test(a_punched_hole_reads_as_zero_and_spares_its_neighbours),
        cmocka_unit_test(a_huge_page_keeps_what_it_holds),
        cmocka_unit_test(the_cache_refuses_huge_pages_and_the_trunk_asks_for_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
