#include "reader/direct.h"
#include "reader/read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int waste_direct_open(struct waste_direct *d, int dir_fd, const char *name)
{
    struct stat st;
    *d = WASTE_DIRECT_NONE;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (fd < 0)
        return -errno;
    int rc = fstat(fd, &st) < 0 ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
    if (rc < 0) {
        close(fd);
        return rc;
    }
    d->buffered = fd;
    d->direct = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_DIRECT);
    return 0;
}

void waste_direct_close(struct waste_direct *d)
{
    if (d->direct >= 0)
        close(d->direct);
    if (d->buffered >= 0)
        close(d->buffered);
    *d = WASTE_DIRECT_NONE;
}

static bool aligned(uint64_t n)
{
    return n % WASTE_DIRECT_ALIGN == 0;
}

int waste_direct_read(const struct waste_direct *d, uint64_t off, size_t bytes, uint8_t *to,
                      uint8_t *bounce)
{
    ssize_t n = -EINVAL;
    if (d->direct >= 0 && aligned(off) && aligned(bytes) && aligned((uintptr_t)to)) {
        n = waste_read_at(d->direct, to, bytes, off);
    } else if (d->direct >= 0) {
        size_t skip = off % WASTE_DIRECT_ALIGN;
        size_t want =
            (skip + bytes + WASTE_DIRECT_ALIGN - 1) / WASTE_DIRECT_ALIGN * WASTE_DIRECT_ALIGN;
        n = waste_read_at(d->direct, bounce, want, off - skip);
        if (n >= 0) {
            n = n > (ssize_t)skip ? n - (ssize_t)skip : 0;
            n = n > (ssize_t)bytes ? (ssize_t)bytes : n;
            memcpy(to, bounce + skip, (size_t)n);
        }
    }
    if (n == -EINVAL || (n >= 0 && (size_t)n < bytes)) {
        /* no O_DIRECT here, or it stops at an unaligned end of file: the page cache has the rest */
        n = waste_read_at(d->buffered, to, bytes, off);
        posix_fadvise(d->buffered, (off_t)off, (off_t)bytes, POSIX_FADV_DONTNEED);
    }
    return n < 0 ? (int)n : (size_t)n < bytes ? -ENODATA : 0;
}
