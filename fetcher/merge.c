/* waste-fetch merge: parts that convert --layers made become one container. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/fetch.h"
#include "fetcher/io.h"
#include "fetcher/jobs.h"
#include "fetcher/outdir.h"
#include "fetcher/parts.h"
#include "fetcher/seal.h"
#include "reader/container_int.h"

enum { STEP = 8 << 20 };

struct merge {
    struct waste_parts parts;
    const char *path; /* OUT */
    bool move;
    struct waste_progress progress;
};

/* ---- copying ---- */

/* A range of one file to the same place of another: in the kernel, which shares the blocks where
 * the file system can. 0 or -errno. */
static int copy_range(struct merge *m, int from, int to, uint64_t off, uint64_t bytes,
                      uint8_t *buffer)
{
    off_t in = (off_t)off, out = (off_t)off;
    for (uint64_t left = bytes; left;) {
        size_t n = left < STEP ? (size_t)left : STEP;
        ssize_t done = copy_file_range(from, &in, to, &out, n, 0);
        if (done < 0 &&
            (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS)) {
            done = pread(from, buffer, n, in);
            int e = done > 0 ? waste_io_pwrite(to, buffer, (size_t)done, (uint64_t)out) : 0;
            if (e)
                return e;
            in += done > 0 ? done : 0;
            out += done > 0 ? done : 0;
        }
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -ENODATA;
        left -= (uint64_t)done;
        atomic_fetch_add_explicit(&m->progress.done, (uint64_t)done, memory_order_relaxed);
    }
    return 0;
}

/* On the disk, and no longer in the page cache. */
static int settle(int fd)
{
    if (fsync(fd))
        return -errno;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

/* A bank under another name, then under its own: one that is there is whole. */
static int copy_bank(struct merge *m, const struct waste_part *part, const char *name,
                     uint64_t bytes, uint8_t *buffer)
{
    char temp[64];
    snprintf(temp, sizeof(temp), "%s.part", name);
    int from = openat(part->dir, name, O_RDONLY | O_CLOEXEC);
    int to =
        from < 0 ? -1 : openat(m->parts.out, temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int rc = to < 0 ? -errno : 0;
    if (rc == 0 && ioctl(to, FICLONE, from) == 0)
        atomic_fetch_add_explicit(&m->progress.done, bytes, memory_order_relaxed);
    else if (rc == 0)
        rc = copy_range(m, from, to, 0, bytes, buffer);
    if (rc == 0)
        rc = settle(to);
    if (from >= 0) {
        posix_fadvise(from, 0, 0, POSIX_FADV_DONTNEED);
        close(from);
    }
    if (to >= 0 && close(to) && rc == 0)
        rc = -errno;
    return rc == 0 && renameat(m->parts.out, temp, m->parts.out, name) ? -errno : rc;
}

static int take_bank(struct merge *m, uint32_t layer, uint8_t *buffer)
{
    struct stat st;
    uint64_t bytes, book;
    uint32_t first = m->parts.first[layer + 1];
    const struct waste_part *part = &m->parts.part[first];
    const char *name = waste_parts_bank(&m->parts, first, layer, &bytes, &book);
    if (!fstatat(m->parts.out, name, &st, 0) && (uint64_t)st.st_size == bytes) {
        atomic_fetch_add_explicit(&m->progress.done, bytes, memory_order_relaxed);
        return 0; /* by a run that was broken off */
    }
    if (m->move && renameat(part->dir, name, m->parts.out, name) == 0) {
        atomic_fetch_add_explicit(&m->progress.done, bytes, memory_order_relaxed);
        return 0;
    }
    int rc = m->move && errno != EXDEV ? -errno : copy_bank(m, part, name, bytes, buffer);
    if (rc == 0 && m->move && unlinkat(part->dir, name, 0))
        rc = -errno;
    return rc < 0 ? waste_fetch_fail("cannot merge %s/%s: %s", part->path, name, strerror(-rc)) : 0;
}

/* What of trunk.bin and codebooks.bin is of one unit. */
struct unit {
    struct merge *m;
    int from, to;
    uint8_t *buffer;
};

static int copy_entry(void *ctx, uint64_t off, uint64_t bytes)
{
    struct unit *u = ctx;
    return copy_range(u->m, u->from, u->to, off, bytes, u->buffer);
}

static int take_unit(struct merge *m, uint32_t unit, const char *name, uint8_t *buffer)
{
    uint32_t first = m->parts.first[unit];
    const struct waste_part *part = &m->parts.part[first];
    struct unit u = {m, openat(part->dir, name, O_RDONLY | O_CLOEXEC),
                     openat(m->parts.out, name, O_WRONLY | O_CLOEXEC), buffer};
    uint64_t bytes, book;
    int rc = u.from < 0 || u.to < 0 ? -errno : 0;
    if (rc == 0 && strcmp(name, WASTE_TRUNK_FILE) == 0)
        rc = waste_parts_entries(&m->parts, first, unit, copy_entry, &u);
    else if (rc == 0 && waste_parts_bank(&m->parts, first, unit - 1, &bytes, &book))
        rc = copy_entry(&u, book, m->parts.layer_book_bytes);
    if (u.from >= 0)
        close(u.from);
    if (u.to >= 0 && close(u.to) && rc == 0)
        rc = -errno;
    return rc < 0 ? waste_fetch_fail("cannot merge %s/%s: %s", part->path, name, strerror(-rc)) : 0;
}

/* One unit of all: the trunk's, the books', the bank. */
static int run(void *ctx, uint64_t unit, uint8_t *buffer)
{
    struct merge *m = ctx;
    bool moe = unit > m->parts.dense_layers;
    if (take_unit(m, (uint32_t)unit, WASTE_TRUNK_FILE, buffer) ||
        (moe && take_unit(m, (uint32_t)unit, WASTE_CODEBOOK_FILE, buffer)) ||
        (moe && take_bank(m, (uint32_t)unit - 1, buffer)))
        return -EIO;
    return 0;
}

/* ---- all of it ---- */

static int add_bytes(void *ctx, uint64_t off, uint64_t bytes)
{
    (void)off;
    *(uint64_t *)ctx += bytes;
    return 0;
}

/* Bytes to copy; *room: those that need space. */
static uint64_t count_bytes(const struct merge *m, uint64_t *room)
{
    uint64_t total = 0, banks = 0;
    for (uint32_t u = 0; u <= m->parts.layers; u++) {
        uint64_t bytes, book;
        waste_parts_entries(&m->parts, m->parts.first[u], u, add_bytes, &total);
        if (u && waste_parts_bank(&m->parts, m->parts.first[u], u - 1, &bytes, &book)) {
            total += m->parts.layer_book_bytes;
            banks += bytes;
        }
    }
    *room = total + (m->move ? 0 : banks);
    return total + banks;
}

static int make_file(struct merge *m, const char *name, uint64_t bytes)
{
    int fd = openat(m->parts.out, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    int rc = fd < 0 || ftruncate(fd, (off_t)bytes) ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc < 0 ? waste_fetch_fail("cannot make %s/%s: %s", m->path, name, strerror(-rc)) : 0;
}

static int settle_file(struct merge *m, const char *name)
{
    int fd = openat(m->parts.out, name, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 ? -errno : settle(fd);
    if (fd >= 0)
        close(fd);
    return rc < 0 ? waste_fetch_fail("cannot write %s/%s: %s", m->path, name, strerror(-rc)) : 0;
}

static int copy_texts(struct merge *m)
{
    for (int i = 0; waste_parts_texts[i]; i++) {
        struct waste_error err;
        char *text = NULL;
        size_t bytes;
        int rc = waste_container_read_file(m->parts.part[0].path, waste_parts_texts[i], 256 << 20,
                                           &text, &bytes, &err);
        if (rc == 0)
            rc = waste_io_write_file(m->parts.out, waste_parts_texts[i], text, bytes);
        else if (rc == -ENOENT)
            rc = 0;
        else
            rc = waste_fetch_fail("%s", err.text);
        free(text);
        if (rc)
            return -1;
    }
    return 0;
}

/* Checksums and the manifest, when all they speak of is on the disk. */
static int publish(struct merge *m)
{
    struct waste_model *model = NULL;
    struct waste_error err;
    char *text = waste_parts_manifest(&m->parts);
    int rc = text ? 0 : waste_fetch_fail("out of memory");
    if (rc == 0 && (settle_file(m, WASTE_TRUNK_FILE) || settle_file(m, WASTE_CODEBOOK_FILE)))
        rc = -1;
    if (rc == 0)
        rc = waste_seal_write(m->path, text, 0, true);
    if (rc == 0)
        rc = waste_io_write_file(m->parts.out, WASTE_MANIFEST, text, strlen(text));
    free(text);
    if (rc == 0 && waste_container_open(m->path, &model, &err)) {
        rc = waste_fetch_fail("the container just merged is not accepted: %s", err.text);
        unlinkat(m->parts.out, WASTE_MANIFEST, 0); /* it would be "already there" */
    }
    free(model);
    return rc;
}

static int merge_into(struct merge *m, struct waste_outdir *out,
                      const struct waste_fetch_args *args)
{
    uint64_t room, total = count_bytes(m, &room);
    uint64_t moe = m->parts.layers - m->parts.dense_layers;
    if (waste_parts_check_banks(&m->parts) || waste_outdir_begin(out, m->parts.out, room) ||
        copy_texts(m) || make_file(m, WASTE_TRUNK_FILE, m->parts.trunk_bytes) ||
        make_file(m, WASTE_CODEBOOK_FILE, moe * m->parts.layer_book_bytes))
        return -1;
    waste_progress_init(&m->progress, "merge", total, args->quiet);
    int rc = waste_jobs_run(&(struct waste_jobs){.count = m->parts.layers + 1,
                                                 .run = run,
                                                 .ctx = m,
                                                 .buffer_bytes = STEP,
                                                 .threads = args->threads,
                                                 .progress = &m->progress});
    if (rc == 0)
        rc = publish(m);
    out->seconds = waste_progress_finish(&m->progress);
    out->bytes = total;
    return rc ? -1 : 0;
}

/* OUT that is one of the parts would be merged into itself. */
static int check_out(const struct merge *m)
{
    struct stat out, part;
    if (stat(m->path, &out))
        return 0; /* it is made */
    for (uint32_t i = 0; i < m->parts.count; i++)
        if (!fstat(m->parts.part[i].dir, &part) && part.st_dev == out.st_dev &&
            part.st_ino == out.st_ino)
            return waste_fetch_fail("%s is one of the parts: choose another directory for the "
                                    "whole",
                                    m->path);
    return 0;
}

int waste_fetch_merge(const struct waste_fetch_args *args)
{
    struct merge m = {.path = args->line.positional[0], .move = args->move};
    int rc = waste_parts_open(&m.parts, args->line.positional + 1, args->line.positional_count - 1,
                              m.move);
    if (rc == 0)
        rc = check_out(&m);
    if (rc == 0) {
        struct waste_outdir out = {.path = m.path,
                                   .name = "convert.json",
                                   .recipe = m.parts.recipe,
                                   .last = WASTE_MANIFEST};
        m.parts.out = waste_outdir_open(&out);
        rc = m.parts.out < 0 ? -1 : 0;
        if (rc == 0 && !out.whole)
            rc = merge_into(&m, &out, args);
        if (rc == 0)
            rc = waste_outdir_report(&out, "container", args->json, args->quiet);
        else
            waste_outdir_abandon(&out);
    }
    waste_parts_close(&m.parts);
    return rc;
}
