#include "fetcher/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "options/options.h"

static void say(const char *format, va_list args)
{
    char text[1024];
    vsnprintf(text, sizeof(text), format, args);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
    fprintf(stderr, "waste-fetch: %s\n", text);
}

static _Atomic int exit_code; /* of the first line; 0: none was said */

static void end(int code, const char *format, va_list args)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&exit_code, &none, code))
        say(format, args);
}

int waste_fetch_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    end(WASTE_EXIT_FAILED, format, args);
    va_end(args);
    return -1;
}

int waste_fetch_refuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    end(WASTE_EXIT_USAGE, format, args);
    va_end(args);
    return -1;
}

int waste_fetch_cannot(const char *what, const char *path, int error)
{
    return (waste_exit_of_path(error) == WASTE_EXIT_USAGE ? waste_fetch_refuse : waste_fetch_fail)(
        "cannot %s %s: %s", what, path, strerror(error));
}

int waste_fetch_exit_code(void)
{
    int code = atomic_load(&exit_code);
    return code ? code : WASTE_EXIT_FAILED;
}

void waste_fetch_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

bool waste_io_lock(int dir, bool shared)
{
    return flock(dir, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

int waste_io_pwrite(int fd, const void *data, size_t n, uint64_t off)
{
    const char *p = data;
    while (n) {
        ssize_t done = pwrite(fd, p, n, (off_t)off);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -ENOSPC;
        p += done;
        n -= (size_t)done;
        off += (uint64_t)done;
    }
    return 0;
}

int waste_io_replace_file(int dir, const char *name, const void *data, size_t n)
{
    char temp[160];
    snprintf(temp, sizeof(temp), "%s.tmp", name);
    unlinkat(dir, temp, 0); /* of one that died, or anything */
    int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    int e = fd < 0 ? -errno : waste_io_pwrite(fd, data, n, 0);
    if (!e && fsync(fd))
        e = -errno;
    if (fd >= 0 && close(fd) && !e)
        e = -errno;
    if (!e && (renameat(dir, temp, dir, name) || fsync(dir)))
        e = -errno;
    if (e && fd >= 0)
        unlinkat(dir, temp, 0);
    return e;
}

int waste_io_write_file(int dir, const char *name, const void *data, size_t n)
{
    int e = waste_io_replace_file(dir, name, data, n);
    return e ? waste_fetch_fail("cannot write %s: %s", name, strerror(-e)) : 0;
}

static int read_whole(int fd, size_t n, char *text)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, text + done, n - done, (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -EIO; /* it became shorter */
        done += (size_t)got;
    }
    text[n] = 0;
    return 0;
}

int waste_io_read_file(int dir, const char *name, size_t most, char **out, size_t *bytes)
{
    struct stat st;
    char *text = NULL;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int e = fd < 0 || fstat(fd, &st) ? -errno : 0;
    if (!e && !S_ISREG(st.st_mode))
        e = -EINVAL;
    if (!e && (uint64_t)st.st_size > most)
        e = -EFBIG;
    if (!e && !(text = malloc((size_t)st.st_size + 1)))
        e = -ENOMEM;
    if (!e)
        e = read_whole(fd, (size_t)st.st_size, text);
    if (fd >= 0)
        close(fd);
    if (e) {
        free(text);
        return e;
    }
    *out = text;
    *bytes = (size_t)st.st_size;
    return 0;
}
