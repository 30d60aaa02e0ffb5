/*
 * two_drives GROUP SLOW DEPTH FAST DEPTH uring|pread: files on two drives, read by one backend.
 *
 * Joins the control group whose file of processes is GROUP, so that a throttle holds, and asks for
 * as much of both files, all of SLOW's first. Prints what came of it as JSON: the drives and how
 * many reads of each were in the kernel at most; how many reads of the slow one were still to come
 * when the fast one had given all. Exit 1 if a byte is wrong.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reader/io_drives.h"

enum { READS = 6, READ_BYTES = 3 * WASTE_IO_PIECE, BYTES = READS * READ_BYTES };

struct drive {
    const char *path;
    int fd;
    uint32_t depth, to_come;
    uint64_t most;
    uint8_t *data;
};

static struct drive drive[2]; /* slow, fast */
static struct waste_drive_meter meter[WASTE_DRIVES_MAX];

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int join_group(const char *path)
{
    FILE *f = fopen(path, "we");
    int rc = f && fprintf(f, "%d", (int)getpid()) > 0 ? 0 : -1;
    return f && fclose(f) == 0 ? rc : -1;
}

static void look(void)
{
    for (int i = 0; i < 2; i++) {
        uint64_t now = atomic_load(&meter[i].in_flight);
        drive[i].most = now > drive[i].most ? now : drive[i].most;
    }
}

static bool ask(struct waste_io *io)
{
    bool all = true;
    for (uint32_t n = 0; n < 2 * READS; n++) {
        struct drive *d = &drive[n / READS];
        uint32_t off = n % READS * READ_BYTES;
        const struct waste_io_read read = {.tag = n,
                                           .file = n / READS,
                                           .off = off,
                                           .data = d->data + off,
                                           .bytes = READ_BYTES,
                                           .buffer = WASTE_IO_NO_BUFFER,
                                           .urgent = true};
        all &= io->ops->queue(io, &read);
        d->to_come++;
    }
    return all && io->ops->submit(io) == 0;
}

/* Until all is there. How many of the slow one's were to come when the fast one's were there; -1:
 * a read failed. */
static int take(struct waste_io *io)
{
    int left = -1;
    while (drive[0].to_come + drive[1].to_come > 0) {
        struct waste_io_done done[4];
        struct pollfd pfd = {.fd = io->fd, .events = POLLIN};
        look();
        uint32_t n = io->ops->reap(io, done, 4);
        for (uint32_t i = 0; i < n; i++) {
            if (done[i].result != READ_BYTES)
                return -1;
            drive[done[i].tag / READS].to_come--;
        }
        if (n == 0 && poll(&pfd, 1, 30000) != 1)
            return -1;
        if (n == 0)
            io->ops->clear(io);
        if (left < 0 && drive[1].to_come == 0)
            left = (int)drive[0].to_come;
    }
    return left;
}

static bool right(void)
{
    uint8_t *want = malloc(BYTES);
    bool same = want != NULL;
    for (int i = 0; i < 2 && same; i++) {
        int fd = open(drive[i].path, O_RDONLY | O_CLOEXEC);
        same = fd >= 0 && pread(fd, want, BYTES, 0) == BYTES &&
               memcmp(want, drive[i].data, BYTES) == 0;
        close(fd);
    }
    free(want);
    return same;
}

int main(int argc, char **argv)
{
    struct waste_io_drive known[2] = {0};
    struct waste_drive found[WASTE_DRIVES_MAX];
    struct waste_error err;
    struct waste_io *io;
    uint32_t of_file[2];
    int files[2];

    if (argc != 7 || join_group(argv[1]) < 0)
        return fail(argc != 7 ? "arguments" : argv[1]);
    for (int i = 0; i < 2; i++) {
        drive[i] = (struct drive){.path = argv[2 + 2 * i],
                                  .depth = (uint32_t)atoi(argv[3 + 2 * i]),
                                  .data = aligned_alloc(4096, BYTES)};
        files[i] = drive[i].fd = open(drive[i].path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (files[i] < 0 || !drive[i].data)
            return fail(drive[i].path);
    }
    if (waste_drives_find(files, 2, found, of_file) != 2 || of_file[0] != 0 || of_file[1] != 1) {
        fprintf(stderr, "not two drives\n");
        return 1;
    }
    for (int i = 0; i < 2; i++)
        known[i] = (struct waste_io_drive){.drive = found[i], .depth = drive[i].depth};
    const struct waste_io_setup setup = {
        .files = files, .file_count = 2, .depth = WASTE_IO_DEPTH, .meter = meter};
    const struct waste_io_drives_options options = {
        .mode = strcmp(argv[6], "pread") == 0 ? WASTE_IO_PREAD : WASTE_IO_URING,
        .known = known,
        .known_count = 2};
    if (waste_io_drives_create(&options, &setup, &io, NULL, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int left = ask(io) ? take(io) : -1;
    printf("{\"drives\": [\"%s\", \"%s\"], \"most_in_flight\": [%d, %d], \"slow_to_come\": %d}\n",
           found[0].name, found[1].name, (int)drive[0].most, (int)drive[1].most, left);
    waste_io_destroy(io);
    return left >= 0 && right() ? 0 : 1;
}
