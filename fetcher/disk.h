/* What a drive gives: reads of one size at random places, a number of them at once. */
#ifndef WASTE_FETCHER_DISK_H
#define WASTE_FETCHER_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "reader/io.h"

enum { WASTE_DISK_DEPTH = 32 };

struct waste_disk {
    int *files;       /* open for reading, O_DIRECT if it is to say anything about the drive */
    uint64_t *places; /* [count] reads of `size` that fit in each */
    uint32_t count;
    uint32_t size; /* bytes a read, a multiple of 4096 */
    uint64_t random;
    struct waste_io_setup setup;
    struct waste_io *io;
    uint8_t *data; /* [WASTE_DISK_DEPTH][size] */
};

struct waste_disk_rate {
    uint32_t depth;
    uint64_t bytes, reads;
    double seconds;
};

/* `files` is copied. Files that hold less than one read are left out. 0 or -errno with err. */
int waste_disk_open(struct waste_disk *d, const int *files, uint32_t count, uint32_t size,
                    struct waste_error *err);
void waste_disk_close(struct waste_disk *d);

/* Reads for `seconds`, `depth` (1 to WASTE_DISK_DEPTH) at once. 0 or -errno with err. */
int waste_disk_measure(struct waste_disk *d, uint32_t depth, double seconds,
                       struct waste_disk_rate *out, struct waste_error *err);

/* Pages of the files that are in the page cache, of *total. Looking brings none in. */
uint64_t waste_disk_cached_pages(const struct waste_disk *d, uint64_t *total);

/* Bytes this process had fetched from block devices so far (/proc/self/io); 0: not known. */
uint64_t waste_disk_device_bytes(void);

#endif
