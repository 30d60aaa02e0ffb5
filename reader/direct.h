/*
 * Reading a file once, past the page cache: with O_DIRECT where the file system has it, and what
 * goes through the page cache does not stay there. One object may be used by many threads.
 */
#ifndef WASTE_READER_DIRECT_H
#define WASTE_READER_DIRECT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { WASTE_DIRECT_ALIGN = 4096 };

struct waste_direct {
    int direct;   /* -1: no O_DIRECT here */
    int buffered; /* -1: not open */
};
#define WASTE_DIRECT_NONE                                                                          \
    (struct waste_direct)                                                                          \
    {                                                                                              \
        -1, -1                                                                                     \
    }

/* DIRFD/name; regular files only. 0 or -errno. close takes one that is not open. */
int waste_direct_open(struct waste_direct *d, int dir_fd, const char *name);
void waste_direct_close(struct waste_direct *d);

/*
 * [off, off + bytes) to `to`. `bounce` is aligned to 4096 and holds bytes + 8192; it is not touched
 * if off, bytes and `to` are multiples of 4096 (then it may be NULL). 0, -ENODATA (the file ends
 * before) or -errno.
 */
int waste_direct_read(const struct waste_direct *d, uint64_t off, size_t bytes, uint8_t *to,
                      uint8_t *bounce);

#endif
