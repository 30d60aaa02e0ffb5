#include "fetcher/part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/io.h"

static void part_name(const char *name, char out[WASTE_PART_NAME])
{
    snprintf(out, WASTE_PART_NAME, "%s.part", name);
}

/* The directories on the way to the file. */
static int make_parents(int dir, const char *name)
{
    char path[WASTE_PART_NAME];

    for (const char *slash = strchr(name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(path, sizeof(path), "%.*s", (int)(slash - name), name);
        if (mkdirat(dir, path, 0777) != 0 && errno != EEXIST)
            return -errno;
    }
    return 0;
}

int waste_part_open(int dir, const char *name, struct waste_part *p)
{
    char path[WASTE_PART_NAME];
    struct stat st;
    int rc = make_parents(dir, name);

    if (rc != 0)
        return rc;
    part_name(name, path);
    int fd = openat(dir, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0 || fstat(fd, &st) != 0)
        rc = -errno;
    else if (!S_ISREG(st.st_mode))
        rc = -EINVAL;
    if (rc == 0)
        *p = (struct waste_part){.fd = fd, .bytes = (uint64_t)st.st_size};
    else if (fd >= 0)
        close(fd);
    return rc;
}

void waste_part_close(struct waste_part *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}

uint64_t waste_part_bytes(int dir, const char *name)
{
    char path[WASTE_PART_NAME];
    struct stat st;

    part_name(name, path);
    if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return 0;
    return (uint64_t)st.st_size;
}

int waste_part_append(struct waste_part *p, const void *data, size_t n)
{
    int rc = waste_io_pwrite(p->fd, data, n, p->bytes);

    if (rc == 0)
        p->bytes += n;
    return rc;
}

int waste_part_empty(struct waste_part *p)
{
    if (ftruncate(p->fd, 0) != 0)
        return -errno;
    p->bytes = 0;
    return 0;
}

/* The directory the file is in has its name on the disk. */
static int sync_parent(int dir, const char *name)
{
    char path[WASTE_PART_NAME] = ".";
    const char *slash = strrchr(name, '/');

    if (slash != NULL)
        snprintf(path, sizeof(path), "%.*s", (int)(slash - name), name);
    int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) != 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

int waste_part_publish(int dir, const char *name)
{
    char path[WASTE_PART_NAME];

    part_name(name, path);
    return renameat(dir, path, dir, name) != 0 ? -errno : sync_parent(dir, name);
}

void waste_part_remove(int dir, const char *name)
{
    char path[WASTE_PART_NAME];

    part_name(name, path);
    unlinkat(dir, path, 0);
}
