#include "reader/read.h"

#include <errno.h>
#include <unistd.h>

enum { TRIES = 3 /* of a read that fails with an I/O error */ };

ssize_t waste_read_at(int fd, void *to, size_t bytes, uint64_t off)
{
    size_t done = 0;
    int tries = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)(off + done));
        if (n > 0)
            done += (size_t)n;
        else if (n == 0)
            break;
        else if (errno == EIO && ++tries < TRIES)
            continue;
        else if (errno != EINTR)
            return -errno;
    }
    return (ssize_t)done;
}
