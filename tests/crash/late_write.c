/*
 * crash_late_write FILE THROTTLE STAT punch|keep uring|pread: a late write of a dead reader.
 *
 * A child reads FILE with O_DIRECT into a slot of a cache segment and is killed while the read is
 * in flight on a slow device (its process has joined the throttled group THROTTLE). The parent then
 * does what the supervisor does (with `keep`: does not), gives the slot to somebody else (writes a
 * pattern into it) and waits until STAT, the device's /sys/block/.../stat, says that the read is
 * over. Exit 0: the pattern is whole; 3: the dead reader's bytes are in it; 4: no read was in
 * flight when the slot was given away, so nothing was tried; 1: something failed.
 */
#include <fcntl.h>
#include <liburing.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/segment.h"

enum { SLOT_BYTES = 4 << 20, SLOTS = 3, SLOT = 1, PATTERN = 0xa5 };

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int join_group(const char *path)
{
    char pid[16];
    int fd = open(path, O_WRONLY | O_CLOEXEC), n = snprintf(pid, sizeof(pid), "%d", (int)getpid());
    int rc = fd >= 0 && write(fd, pid, (size_t)n) == n ? 0 : -1;

    if (fd >= 0)
        close(fd);
    return rc;
}

/* The dead reader to be. Says on `ready` when its read is with the kernel. */
static int read_slowly(const char *file, const char *group, int segment, bool uring, int ready)
{
    struct waste_mapping map;
    struct io_uring ring;
    int fd = open(file, O_RDONLY | O_DIRECT | O_CLOEXEC);

    if (fd < 0 || join_group(group) < 0 ||
        waste_segment_map(segment, WASTE_SEG_CACHE, true, &map) < 0)
        return fail("the reader cannot start");
    char *slot = (char *)map.base + SLOT * SLOT_BYTES;
    struct iovec iov = {.iov_base = slot, .iov_len = SLOT_BYTES};
    if (!uring) {
        if (write(ready, "r", 1) != 1 || pread(fd, slot, SLOT_BYTES, 0) < 0)
            return fail("pread");
        return 0;
    }
    if (io_uring_queue_init(4, &ring, 0) < 0 || io_uring_register_buffers(&ring, &iov, 1) < 0)
        return fail("io_uring");
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_read_fixed(sqe, fd, slot, SLOT_BYTES, 0, 0);
    if (io_uring_submit(&ring) != 1 || write(ready, "r", 1) != 1)
        return fail("submit");
    pause();
    return 0;
}

/* Sectors the device has read; in flight is what is missing of the file. */
static long sectors_read(const char *stat)
{
    long field[3] = {-1, -1, -1};
    FILE *f = fopen(stat, "re");

    if (f != NULL) {
        if (fscanf(f, "%ld %ld %ld", &field[0], &field[1], &field[2]) != 3)
            field[2] = -1;
        fclose(f);
    }
    return field[2];
}

static void sleep_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

/* Waits until the device has delivered all of the slot. */
static bool wait_for_device(const char *stat, long start)
{
    for (int i = 0; i < 600; i++) {
        if (sectors_read(stat) - start >= SLOT_BYTES / 512) {
            sleep_ms(100); /* its completions too */
            return true;
        }
        sleep_ms(50);
    }
    return false;
}

int main(int argc, char **argv)
{
    struct waste_mapping map;
    int segment, ready[2];
    char c;

    if (argc != 6)
        return 1;
    bool punch = strcmp(argv[4], "punch") == 0, uring = strcmp(argv[5], "uring") == 0;
    if (waste_segment_create(WASTE_SEG_CACHE, SLOTS * SLOT_BYTES, &segment) < 0 ||
        pipe(ready) < 0 || waste_segment_map(segment, WASTE_SEG_CACHE, true, &map) < 0)
        return fail("setting up");
    memset(map.base, 1, map.bytes);
    long start = sectors_read(argv[3]);
    pid_t child = fork();
    if (child == 0)
        _exit(read_slowly(argv[1], argv[2], segment, uring, ready[1]));
    close(ready[1]);
    if (child < 0 || read(ready[0], &c, 1) != 1)
        return fail("the reader did not start");
    sleep_ms(100);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0); /* of a pread: not before the device has answered */
    long done = sectors_read(argv[3]) - start;
    if (punch && waste_segment_punch(segment, SLOT * SLOT_BYTES, SLOT_BYTES) < 0)
        return fail("punch");
    unsigned char *slot = (unsigned char *)map.base + SLOT * SLOT_BYTES;
    memset(slot, PATTERN, SLOT_BYTES);
    bool in_flight = done < SLOT_BYTES / 512;
    printf("%ld of %d sectors read when the slot was given away\n", done, SLOT_BYTES / 512);
    if (!wait_for_device(argv[3], start))
        return fail("the device did not end the read");
    for (int i = 0; i < SLOT_BYTES; i++)
        if (slot[i] != PATTERN)
            return 3;
    return in_flight ? 0 : 4;
}
