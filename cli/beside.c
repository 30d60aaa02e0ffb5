#include "cli/beside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/lockfile.h"
#include "shm/inject.h"

int waste_beside_open(struct waste_beside *b, const char *place)
{
    b->fd = -1;
    if (snprintf(b->place, sizeof(b->place), "%s", place) >= (int)sizeof(b->place) ||
        snprintf(b->path, sizeof(b->path), "%s.new", place) >= (int)sizeof(b->path))
        return -ENAMETOOLONG;
    int fd = waste_lockfile_open(b->path);
    if (fd < 0)
        return fd == -EWOULDBLOCK ? -EBUSY : fd;
    b->fd = fd;
    return ftruncate(fd, 0) == 0 ? 0 : -errno; /* what a dead writer has left */
}

int waste_beside_put(const struct waste_beside *b, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t n = write(b->fd, at, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* A rename lasts when its directory was flushed. */
static int flush_directory(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int fd, ret;

    if (slash == NULL)
        strcpy(dir, ".");
    else
        snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ret = fsync(fd) == 0 || errno == EINVAL ? 0 : -errno; /* EINVAL: not on this file system */
    close(fd);
    return ret;
}

/* PLACE.old becomes what is in the place. */
static int keep(const char *place)
{
    char old[PATH_MAX];

    if (snprintf(old, sizeof(old), "%s.old", place) >= (int)sizeof(old) || access(place, F_OK) != 0)
        return 0;
    unlink(old);
    /* a file system without hard links has no older file */
    return link(place, old) == 0 || errno == EPERM || errno == EOPNOTSUPP || errno == EMLINK
               ? 0
               : -errno;
}

int waste_beside_move_in(struct waste_beside *b, bool keep_old)
{
    int ret = fsync(b->fd) == 0 ? 0 : -errno;

    WASTE_POINT(SAVE_FLUSHED);
    if (ret == 0 && keep_old)
        ret = keep(b->place);
    WASTE_POINT(SAVE_LINKED);
    if (ret == 0 && rename(b->path, b->place) != 0)
        ret = -errno;
    if (ret < 0) {
        waste_beside_drop(b);
        return ret;
    }
    WASTE_POINT(SAVE_RENAMED);
    close(b->fd); /* that it was written is known from fsync */
    b->fd = -1;
    return flush_directory(b->place);
}

void waste_beside_drop(struct waste_beside *b)
{
    if (b->fd < 0)
        return;
    unlink(b->path);
    close(b->fd);
    b->fd = -1;
}
