#include "fetcher/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int waste_fetch_fail(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
    fprintf(stderr, "waste-fetch: %s\n", text);
    return -1;
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

int waste_io_write_file(int dir, const char *name, const void *data, size_t n)
{
    char temp[160];
    snprintf(temp, sizeof(temp), "%s.tmp", name);
    int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int e = fd < 0 ? -errno : waste_io_pwrite(fd, data, n, 0);
    if (!e && fsync(fd))
        e = -errno;
    if (fd >= 0 && close(fd) && !e)
        e = -errno;
    if (!e && (renameat(dir, temp, dir, name) || fsync(dir)))
        e = -errno;
    if (e)
        return waste_fetch_fail("cannot write %s: %s", name, strerror(-e));
    return 0;
}
