#include "cli/lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is there under our name and is no file of ours alone. */
static void remove_other(const char *path)
{
    struct stat st;

    if (lstat(path, &st) == 0 && !S_ISDIR(st.st_mode) && (!S_ISREG(st.st_mode) || st.st_nlink > 1))
        unlink(path);
}

static bool is_named(int fd, const char *path)
{
    struct stat ours, named;

    return fstat(fd, &ours) == 0 && lstat(path, &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
}

int waste_lockfile_open(const char *path)
{
    for (;;) {
        remove_other(path);
        int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
        if (fd < 0)
            return -errno;
        int ret = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : -errno;
        if (ret == 0 && is_named(fd, path))
            return fd;
        close(fd);
        if (ret < 0 && ret != -EINTR)
            return ret;
    }
}
