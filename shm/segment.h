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

enum {
    WASTE_HUGE_PAGE = 2 << 20,
    WASTE_SEGMENT_LARGE = 8 << 20, /* from here on huge pages are worth asking for */
};

struct waste_mapping {
    void *base;
    size_t bytes;
};

/* A new zero-filled segment of `bytes` (rounded up to a page), F_SEAL_SHRINK | F_SEAL_GROW,
 * close-on-exec. */
int waste_segment_create(enum waste_segment_id id, uint64_t bytes, int *out_fd);

/*
 * Maps all of it shared; the size comes from the descriptor. Large trunk and session segments ask
 * for huge pages; the cache refuses them, because punching a hole gives back whole huge pages only
 * (see waste_segment_punch). A read-only mapping goes through a read-only descriptor of the same
 * file, so it never stands in the way of waste_segment_seal and cannot be made writable.
 */
int waste_segment_map(int fd, enum waste_segment_id id, bool writable, struct waste_mapping *out);
/*
 * Puts huge page number `page` of the mapping (WASTE_HUGE_PAGE bytes each, whole ones only) into
 * one huge page, whatever the system's default for shared memory is; what it holds stays. For every
 * mapping of the segment, also later ones. 0; -EINVAL: not whole, nothing in it, or this kernel
 * cannot (before Linux 6.1); -ENOMEM, -EAGAIN: no huge page to be had now. Large trunk and session
 * mappings start on huge pages.
 *
 * The kernel makes nothing of a hole: waste_segment_touch sees to it that something is there. Touch
 * many before the first is made: it waits for what any CPU has newly touched, 2 to 10 ms, where
 * a page takes 0.1 to 0.2.
 */
void waste_segment_touch(const struct waste_mapping *map, uint64_t page);
int waste_segment_make_huge(const struct waste_mapping *map, uint64_t page);

void waste_segment_unmap(struct waste_mapping *map); /* zeroes *map; a zero map is fine */

/* What is mapped stays in memory: all of it now, or each page from when it is first used. 0 or
 * -errno (-ENOMEM, -EPERM, -EAGAIN: RLIMIT_MEMLOCK). */
int waste_segment_lock(const struct waste_mapping *map, bool when_used);

/* A new read-only, close-on-exec descriptor of the same segment: what observers are given. */
int waste_segment_open_readonly(int fd, int *out_fd);

/* No more writing by anybody, ever. All writable mappings must be gone (-EBUSY else). */
int waste_segment_seal(int fd);

/*
 * Throws the pages of [off, off + bytes) away; they read as zero afterwards, and a device write
 * still in flight to the old pages lands nowhere. Page-aligned and inside the segment (-EINVAL
 * else).
 */
int waste_segment_punch(int fd, uint64_t off, uint64_t bytes);

/* The same for who has a writable mapping and no descriptor any more: `at` inside it. */
int waste_segment_punch_mapped(void *at, uint64_t bytes);

#endif
