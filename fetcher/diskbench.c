/* waste-fetch diskbench: what a drive gives at the size of expert records. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fetcher/disk.h"
#include "fetcher/fetch.h"
#include "fetcher/io.h"
#include "fetcher/progress.h"
#include "reader/container.h"

enum { FILES_MOST = 512, LEVELS = 6, CHUNK = 4 << 20, DEFAULT_SIZE = 4 << 20, BLOCK = 4096 };
#define TEMP_BYTES (UINT64_C(1) << 30)
#define LEAST_BYTES (UINT64_C(64) << 20) /* smaller files say little */

struct options {
    const char *dir, *model;
    double seconds; /* a depth */
    uint32_t size;  /* 0: the model's records */
    bool json, quiet;
};

struct bench {
    struct options o;
    struct waste_model *model;
    int fd[FILES_MOST];
    uint32_t files;
    bool temporary;
    uint64_t token_bytes; /* cold bytes a token of the model; 0: no model */
    struct waste_disk_rate rate[LEVELS];
    uint64_t pages, cached_before, cached_after, read_bytes, device_bytes;
};

static int open_file(int dir, const char *name, uint64_t least)
{
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);

    if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size < least)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Large files that are there, through links too; experts only if it is a container. */
static void use_files(struct bench *b, int dir)
{
    DIR *d = fdopendir(dup(dir));

    for (struct dirent *e; d && b->files < FILES_MOST && (e = readdir(d)) != NULL;) {
        if (b->model && strncmp(e->d_name, "experts-", 8) != 0)
            continue;
        int fd = open_file(dir, e->d_name, b->model ? b->o.size : LEAST_BYTES);
        if (fd >= 0)
            b->fd[b->files++] = fd;
    }
    if (d)
        closedir(d);
}

/* A file without a name, of bytes that no drive can make smaller. */
static int make_file(struct bench *b, int dir)
{
    struct statvfs fs;
    uint64_t bytes = TEMP_BYTES, x = 88172645463325252;
    uint64_t *data = aligned_alloc(BLOCK, CHUNK);
    int rc = 0, fd;

    if (fstatvfs(dir, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize / 4 < bytes)
        bytes = (uint64_t)fs.f_bavail * fs.f_frsize / 4 / CHUNK * CHUNK;
    if (!data || bytes < b->o.size) {
        free(data);
        return waste_fetch_fail("%s: no room for a file to read", b->o.dir);
    }
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d/.waste-diskbench-XXXXXX", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        b->fd[0] = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        rc = b->fd[0] < 0 ? -errno : 0;
        unlink(path); /* gone whatever happens from here on */
    } else {
        rc = -errno;
    }
    b->files = fd >= 0 && rc == 0;
    struct waste_progress progress;
    waste_progress_init(&progress, "a file to read", bytes, b->o.quiet);
    for (uint64_t off = 0; off < bytes && rc == 0; off += CHUNK) {
        for (size_t i = 0; i < CHUNK / sizeof(*data); i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            data[i] = x;
        }
        rc = waste_io_pwrite(fd, data, CHUNK, off);
        atomic_store_explicit(&progress.done, off + CHUNK, memory_order_relaxed); /* only shown */
        waste_progress_show(&progress);
    }
    waste_progress_finish(&progress);
    if (rc == 0 && fsync(fd) < 0)
        rc = -errno;
    if (fd >= 0) {
        /* read what is on the drive, not what is still in memory */
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    free(data);
    b->temporary = true;
    return rc == 0 ? 0
                   : waste_fetch_fail(
                         "%s: cannot make a file to read past the page cache (O_DIRECT): %s",
                         b->o.dir, strerror(-rc));
}

static int open_model(struct bench *b)
{
    struct waste_error err;
    const char *path = b->o.model ? b->o.model : b->o.dir;

    if (waste_container_open(path, &b->model, &err) < 0) {
        b->model = NULL;
        if (b->o.model)
            return waste_fetch_refuse("%s", err.text);
        b->o.size = b->o.size ? b->o.size : DEFAULT_SIZE;
        return 0;
    }
    if (b->o.size == 0)
        b->o.size = (b->model->expert.record_bytes + BLOCK - 1) / BLOCK * BLOCK;
    for (uint32_t i = 0; i < b->model->config.layers; i++)
        if (waste_model_layer(b->model, i)->is_moe)
            b->token_bytes += (uint64_t)b->model->config.top_k * b->model->expert.record_bytes;
    return 0;
}

static double rate_of(const struct waste_disk_rate *r)
{
    return (double)r->bytes / r->seconds;
}

static void print_header(const struct bench *b)
{
    printf("%s: %u %sfile%s, reads of %.2f MB at random places, O_DIRECT\n\n", b->o.dir, b->files,
           b->temporary ? "temporary " : "", b->files == 1 ? "" : "s", b->o.size / 1e6);
    printf("  depth      GB/s   ms a read%s\n", b->token_bytes ? "   tokens/s, all cold" : "");
    fflush(stdout);
}

/* A row of the table as soon as it is known: that is its progress. */
static void print_row(const struct bench *b, const struct waste_disk_rate *r)
{
    printf("  %5u  %8.2f  %10.2f", r->depth, rate_of(r) / 1e9,
           r->seconds * 1e3 * r->depth / (double)r->reads);
    if (b->token_bytes)
        printf("  %19.2f", rate_of(r) / (double)b->token_bytes);
    putchar('\n');
    fflush(stdout);
}

/* Where stdout is one object at the end, and it takes a while. */
static void note_row(const struct bench *b, const struct waste_disk_rate *r)
{
    if (!b->o.quiet && LEVELS * b->o.seconds > 2)
        fprintf(stderr, "depth %u: %.2f GB/s\n", r->depth, rate_of(r) / 1e9);
}

static int measure(struct bench *b)
{
    struct waste_disk disk;
    struct waste_error err;

    int rc = waste_disk_open(&disk, b->fd, b->files, b->o.size, &err);
    for (uint32_t i = 0; i < disk.count && rc == 0; i++)
        if (!(fcntl(disk.files[i], F_GETFL) & O_DIRECT))
            rc = waste_error_set(&err, -EINVAL,
                                 "the file system takes O_DIRECT back at the "
                                 "first read: nothing could be said of the drive");
    if (rc == 0) {
        b->cached_before = waste_disk_cached_pages(&disk, &b->pages);
        b->device_bytes = waste_disk_device_bytes();
    }
    if (rc == 0 && !b->o.json)
        print_header(b);
    for (uint32_t i = 0; i < LEVELS && rc == 0; i++) {
        rc = waste_disk_measure(&disk, 1u << i, b->o.seconds, &b->rate[i], &err);
        if (rc != 0)
            break;
        b->read_bytes += b->rate[i].bytes;
        (b->o.json ? note_row : print_row)(b, &b->rate[i]);
    }
    if (rc == 0) {
        b->device_bytes = waste_disk_device_bytes() - b->device_bytes;
        b->cached_after = waste_disk_cached_pages(&disk, &b->pages);
    }
    waste_disk_close(&disk);
    return rc == 0 ? 0 : waste_fetch_fail("%s: %s", b->o.dir, err.text);
}

/* All bytes came from the device and none stayed in the page cache: it is the drive that was
 * measured. */
static bool bypassed(const struct bench *b)
{
    return b->device_bytes >= b->read_bytes && b->cached_after <= b->cached_before;
}

static int print_json(const struct bench *b)
{
    json_t *depths = json_array();

    for (uint32_t i = 0; i < LEVELS; i++) {
        const struct waste_disk_rate *r = &b->rate[i];
        json_t *row =
            json_pack("{s:i, s:I, s:f, s:f}", "depth", (int)r->depth, "reads", (json_int_t)r->reads,
                      "seconds", r->seconds, "gb_per_s", rate_of(r) / 1e9);
        if (b->token_bytes)
            json_object_set_new(row, "tok_per_s", json_real(rate_of(r) / (double)b->token_bytes));
        json_array_append_new(depths, row);
    }
    json_t *object =
        json_pack("{s:o, s:b, s:i, s:i, s:o, s:I, s:I, s:I, s:I, s:I, s:b}", "dir",
                  waste_io_json(b->o.dir), "temporary_file", (int)b->temporary, "files",
                  (int)b->files, "read_bytes", (int)b->o.size, "depths", depths, "bytes_read",
                  (json_int_t)b->read_bytes, "device_bytes", (json_int_t)b->device_bytes, "pages",
                  (json_int_t)b->pages, "pages_cached_before", (json_int_t)b->cached_before,
                  "pages_cached_after", (json_int_t)b->cached_after, "bypassed", (int)bypassed(b));
    if (object && b->token_bytes)
        json_object_set_new(object, "token_bytes", json_integer((json_int_t)b->token_bytes));
    return waste_fetch_print_json(object);
}

static void print_proof(const struct bench *b)
{
    printf("\n  page cache   %" PRIu64 " of %" PRIu64 " pages of the files before, %" PRIu64
           " after\n",
           b->cached_before, b->pages, b->cached_after);
    printf("  device       %" PRIu64 " of %" PRIu64 " bytes read came from it (/proc/self/io)\n",
           b->device_bytes, b->read_bytes);
    if (!bypassed(b))
        printf("  not proven   these are not the figures of a drive: reads did not all go past the "
               "page cache\n");
    if (b->token_bytes)
        printf("  token        %.1f MB when nothing is cached\n", (double)b->token_bytes / 1e6);
}

static int run(struct bench *b)
{
    int dir = open(b->o.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (dir < 0)
        return waste_fetch_cannot("open", b->o.dir, errno);
    int rc = open_model(b);
    if (rc == 0)
        use_files(b, dir);
    if (rc == 0 && b->files == 0)
        rc = make_file(b, dir);
    if (rc == 0)
        rc = measure(b);
    if (rc == 0 && b->o.json)
        rc = print_json(b);
    else if (rc == 0)
        print_proof(b);
    for (uint32_t i = 0; i < b->files; i++)
        close(b->fd[i]);
    close(dir);
    free(b->model);
    return rc;
}

int waste_fetch_diskbench(const struct waste_fetch_args *args)
{
    static struct bench b;

    if (args->read_bytes % BLOCK)
        return waste_fetch_refuse("--size: a multiple of %d is wanted", BLOCK);
    b.o = (struct options){.dir = args->line.positional[0],
                           .model = args->model,
                           .seconds = args->seconds,
                           .size = (uint32_t)args->read_bytes,
                           .json = args->json,
                           .quiet = args->quiet};
    return run(&b);
}
