/* Reading a part of a file, whole, from a file that does not give it at once. */
#include "cm.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "reader/read.h"

/* What pread does, a call a letter: as it should (.), one byte (1), EINTR (i), EAGAIN (a), EIO (e),
 * the end (0). The last letter goes on for ever. */
static const char *script;

__attribute__((visibility("default"))) ssize_t pread(int fd, void *to, size_t bytes, off_t off)
{
    (void)fd;
    char what = script[0];
    if (script[1] != '\0')
        script++;
    errno = what == 'i' ? EINTR : what == 'a' ? EAGAIN : EIO;
    if (strchr("iae", what))
        return -1;
    size_t n = what == '0' ? 0 : what == '1' ? 1 : bytes;
    for (size_t i = 0; i < n; i++)
        ((char *)to)[i] = (char)(off + (off_t)i);
    return (ssize_t)n;
}

static ssize_t read_with(const char *what)
{
    char data[100];
    script = what;
    memset(data, -1, sizeof(data));
    ssize_t n = waste_read_at(3, data, sizeof(data), 7);
    for (ssize_t i = 0; i < n; i++)
        assert_int_equal(data[i], (char)(7 + i));
    return n;
}

static void what_passes_is_not_noticed(void **state)
{
    (void)state;
    static const char *const good[] = {
        ".", "1", "111.", "i.", "iii1i1i.", "a.", "aaaa1a1aaaa.", "e.", "ee.", "1e1e.", "ieaiea."};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(read_with(good[i]), 100);
}

static void an_end_is_fewer_bytes(void **state)
{
    (void)state;
    assert_int_equal(read_with("0"), 0);
    assert_int_equal(read_with("1i1a10"), 3);
}

static void what_does_not_pass_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(read_with("e"), -EIO);
    assert_int_equal(read_with("1e"), -EIO);
    assert_int_equal(read_with("a"), -EAGAIN); /* a second later */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_passes_is_not_noticed),
        cmocka_unit_test(an_end_is_fewer_bytes),
        cmocka_unit_test(what_does_not_pass_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
