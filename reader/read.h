/* Reading a part of a file, whole. */
#ifndef WASTE_READER_READ_H
#define WASTE_READER_READ_H

#include <stdint.h>
#include <sys/types.h>

/* Up to `bytes` from `off` on, through EINTR, short reads and a passing EAGAIN or EIO: fewer only
 * at the end of the file. The count, or -errno. Any thread. */
ssize_t waste_read_at(int fd, void *to, size_t bytes, uint64_t off);

#endif
