#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3; older kernels answer EINVAL */
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

const char *const waste_segment_name[WASTE_SEG_COUNT] = {
    [WASTE_SEG_CONTROL] = "control",
    [WASTE_SEG_TRUNK] = "trunk",
    [WASTE_SEG_CACHE] = "cache",
    [WASTE_SEG_SESSION] = "session",
};

static int create_memfd(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd < 0 ? -errno : fd;
}

int waste_segment_create(enum waste_segment_id id, uint64_t bytes, int *out_fd)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    char name[32];
    int fd, err = 0;

    if (id >= WASTE_SEG_COUNT || bytes == 0 || bytes > INT64_MAX - page)
        return -EINVAL;
    bytes = (bytes + page - 1) & ~(page - 1);
    snprintf(name, sizeof(name), "waste-%s", waste_segment_name[id]);
    fd = create_memfd(name);
    if (fd < 0)
        return fd;
    if (ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        err = -errno;
    if (err < 0)
        close(fd);
    else
        *out_fd = fd;
    return err;
}

int waste_segment_open_readonly(int fd, int *out_fd)
{
    char path[40];
    int ro;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ro = open(path, O_RDONLY | O_CLOEXEC);
    if (ro < 0)
        return -errno;
    *out_fd = ro;
    return 0;
}

static bool wants_huge(enum waste_segment_id id, size_t bytes)
{
    return (id == WASTE_SEG_TRUNK || id == WASTE_SEG_SESSION) && bytes >= WASTE_SEGMENT_LARGE;
}

/* Advice only: a kernel that refuses it gives the same memory with other costs. */
static void advise(const struct waste_mapping *map, enum waste_segment_id id)
{
    if (id == WASTE_SEG_CACHE)
        madvise(map->base, map->bytes, MADV_NOHUGEPAGE);
    else if (wants_huge(id, map->bytes))
        madvise(map->base, map->bytes, MADV_HUGEPAGE);
    /* A core file of a crashed stage shall hold neither the model nor the conversation. (Its own
     * stack and heap it may: the user's RLIMIT_CORE says whether there is one.) */
    if (id != WASTE_SEG_CONTROL)
        madvise(map->base, map->bytes, MADV_DONTDUMP);
}

/* As mmap, at the start of a huge page. The room around it is given back. */
static void *map_aligned(size_t bytes, int prot, int fd)
{
    size_t room = bytes + WASTE_HUGE_PAGE, page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (bytes + page - 1) / page * page;
    char *base = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *start;
    void *map;

    if (base == MAP_FAILED)
        return MAP_FAILED;
    start = (char *)(((uintptr_t)base + WASTE_HUGE_PAGE - 1) & ~(uintptr_t)(WASTE_HUGE_PAGE - 1));
    map = mmap(start, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0);
    if (map == MAP_FAILED) {
        int err = errno;
        munmap(base, room);
        errno = err;
        return MAP_FAILED;
    }
    if (start > base)
        munmap(base, (size_t)(start - base));
    if (start + whole < base + room)
        munmap(start + whole, (size_t)(base + room - (start + whole)));
    return map;
}

int waste_segment_map(int fd, enum waste_segment_id id, bool writable, struct waste_mapping *out)
{
    struct waste_mapping map;
    struct stat st;
    int map_fd = fd, err;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (id >= WASTE_SEG_COUNT || st.st_size <= 0)
        return -EINVAL;
    if (!writable) {
        /* Without /proc the caller's descriptor must do. */
        err = waste_segment_open_readonly(fd, &map_fd);
        if (err < 0 && err != -ENOENT)
            return err;
    }
    map.bytes = (size_t)st.st_size;
    int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    map.base = wants_huge(id, map.bytes) ? map_aligned(map.bytes, prot, map_fd)
                                         : mmap(NULL, map.bytes, prot, MAP_SHARED, map_fd, 0);
    err = map.base == MAP_FAILED ? -errno : 0;
    if (map_fd != fd)
        close(map_fd);
    if (err < 0)
        return err;
    advise(&map, id);
    *out = map;
    return 0;
}

void waste_segment_touch(const struct waste_mapping *map, uint64_t page)
{
    if (page < map->bytes / WASTE_HUGE_PAGE)
        (void)*((volatile char *)map->base + page * WASTE_HUGE_PAGE);
}

int waste_segment_make_huge(const struct waste_mapping *map, uint64_t page)
{
    char *start = (char *)map->base + page * WASTE_HUGE_PAGE;

    if (page >= map->bytes / WASTE_HUGE_PAGE || (uintptr_t)start % WASTE_HUGE_PAGE)
        return -EINVAL;
    return madvise(start, WASTE_HUGE_PAGE, MADV_COLLAPSE) < 0 ? -errno : 0;
}

void waste_segment_unmap(struct waste_mapping *map)
{
    if (map->base)
        munmap(map->base, map->bytes);
    map->base = NULL;
    map->bytes = 0;
}

int waste_segment_lock(const struct waste_mapping *map, bool when_used)
{
    return mlock2(map->base, map->bytes, when_used ? MLOCK_ONFAULT : 0) < 0 ? -errno : 0;
}

int waste_segment_punch_mapped(void *at, uint64_t bytes)
{
    return madvise(at, bytes, MADV_REMOVE) < 0 ? -errno : 0;
}

int waste_segment_seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 ? -errno : 0;
}

int waste_segment_punch(int fd, uint64_t off, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (bytes == 0 || (off | bytes) % page != 0 || off > (uint64_t)st.st_size ||
        bytes > (uint64_t)st.st_size - off)
        return -EINVAL;
    while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)bytes) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}
