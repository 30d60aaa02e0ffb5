/*
 * Memory segments: anonymous (memfd), sized once, sealed against resizing, inherited as file
 * descriptors. Nothing has a name in a file system. Functions return 0 or -errno.
 */
#ifndef WASTE_SHM_SEGMENT_H
#define WASTE_SHM_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum waste_segment_id {
    WASTE_SEG_CONTROL,
    WASTE_SEG_TRUNK,
    WASTE_SEG_CACHE,
    WASTE_SEG_SESSION,
    WASTE_SEG_COUNT,
};

/* Stages find their inherited descriptors at these numbers (dup2 before exec). */
enum {
    WASTE_FD_SEGMENT_BASE = 10, /* + enum waste_segment_id */
    WASTE_FD_READER_EVENT = 14, /* eventfd of the reader's bell */
};

extern const char *const waste_segment_name[WASTE_SEG_COUNT];

struct waste_mapping {
    void *base;
    size_t bytes;
};

/* A new zero-filled segment of `bytes` (rounded up to a page), F_SEAL_SHRINK | F_SEAL_GROW,
 * close-on-exec. */
int waste_segment_create(enum waste_segment_id id, uint64_t bytes, int *out_fd);

/* Maps all of it shared; the size comes from the descriptor. Asks for huge pages (MADV_HUGEPAGE)
 * when it is large. */
int waste_segment_map(int fd, bool writable, struct waste_mapping *out);
void waste_segment_unmap(struct waste_mapping *map);

/* No more writing by anybody, ever. All writable mappings must be gone (-EBUSY else). */
int waste_segment_seal(int fd);

/* Throws the pages of [off, off + bytes) away; they read as zero afterwards. Page-aligned. */
int waste_segment_punch(int fd, uint64_t off, uint64_t bytes);

#endif
