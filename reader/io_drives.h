/*
 * The backend the reader uses: one ring (or pool of threads) a drive, each at a depth of its own,
 * records read in pieces.
 *
 * A drive gives more to several reads than to one, up to some depth, and beyond that only makes
 * each wait longer. So a record is read in pieces of about WASTE_IO_PIECE, at most `depth` of a
 * drive's pieces are in the kernel at once, and they go there record by record: a lone record is
 * read by several reads, and of several records the first is there early. What has not gone to the
 * kernel yet can be overtaken by demand, or forgotten.
 *
 * For its user it is one backend: a read has one result, the bytes that are there from its start
 * on, so a piece that failed makes a short read, and asking for the rest says why.
 */
#ifndef WASTE_READER_IO_DRIVES_H
#define WASTE_READER_IO_DRIVES_H

#include "reader/drives.h"
#include "reader/io.h"

enum {
    WASTE_IO_PIECE = 512 << 10, /* the most that one request of most drives holds */
    WASTE_IO_PARTS = 32,        /* at most; of larger records the pieces are larger */
    WASTE_IO_DEPTH_DEFAULT = 16,
    WASTE_IO_DEPTH_LEAST = 8, /* that a measurement may choose */
};

struct waste_io_drive {
    struct waste_drive drive;
    uint32_t depth; /* pieces in the kernel at most */
    uint32_t direct_files;
    uint64_t bytes_per_s; /* measured at that depth; 0: not measured */
};

struct waste_io_drives_options {
    enum waste_io_mode mode; /* AUTO, URING or PREAD */
    bool direct;             /* O_DIRECT must be granted */
    uint32_t depth;          /* 0: measured, or the default where there is little to read */
    /* What another incarnation of the reader measured, [known_count]: not measured again. */
    const struct waste_io_drive *known;
    uint32_t known_count;
};

/* `setup` must outlive it. `why_not` as in waste_io_create. 0 or -errno with err. */
int waste_io_drives_create(const struct waste_io_drives_options *options,
                           const struct waste_io_setup *setup, struct waste_io **out,
                           struct waste_error *why_not, struct waste_error *err);

/* What it found, *count of them. `io` is one that waste_io_drives_create made. */
const struct waste_io_drive *waste_io_drives_list(const struct waste_io *io, uint32_t *count);

/*
 * The least depth that reaches 95 % of what the best reaches, by reads of pieces at random places
 * of `files`, in some 60 ms (more on a slow drive, but never deeper than it takes). 0 if it could
 * not be measured.
 */
uint32_t waste_io_probe_depth(struct waste_io *io, const int *files, uint32_t count,
                              uint64_t *bytes_per_s);

/* "uring+direct", "uring", "pread+direct", "pread"; "auto" if mode is neither. */
const char *waste_io_rung_name(enum waste_io_mode mode, bool direct);

#endif
