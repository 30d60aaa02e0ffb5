#include "reader/read.h"

#include <errno.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

enum {
    TRIES = 3,      /* of a read that fails with an I/O error */
    PATIENCE = 1000 /* times that a file is busy, a millisecond each */
};

/* Whether it is worth another try. */
static bool passes(int error, int *failures, int *waits)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    if (error == EIO)
        return ++*failures < TRIES;
    if (error == EAGAIN && ++*waits < PATIENCE)
        return nanosleep(&pause, NULL) == 0 || errno == EINTR;
    return error == EINTR;
}

ssize_t waste_read_at(int fd, void *to, size_t bytes, uint64_t off)
{
    size_t done = 0;
    int failures = 0, waits = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)(off + done));
        if (n > 0)
            done += (size_t)n;
        else if (n == 0)
            break;
        else if (!passes(errno, &failures, &waits))
            return -errno;
    }
    return (ssize_t)done;
}
