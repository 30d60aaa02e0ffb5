#include "cli/attach.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* A restart takes as long as a step, and the start of a stage. */
enum { HELLO_SECONDS = 3, COMMAND_SECONDS = 180 };

static int connect_to(const char *dir, int32_t pid)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%.80s/%d.sock", dir, pid);
    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
        return fd;
    int err = -errno;
    close(fd);
    if (err == -ECONNREFUSED) /* its waste-run was killed */
        unlink(addr.sun_path);
    return err;
}

static int add_pid(int32_t **pids, size_t *count, int32_t pid)
{
    int32_t *more = realloc(*pids, (*count + 1) * sizeof(**pids));

    if (more == NULL)
        return -ENOMEM;
    *pids = more;
    more[(*count)++] = pid;
    return 0;
}

static int list_dir(const char *dir, int32_t **pids, size_t *count)
{
    DIR *d = opendir(dir);
    int rc = 0;

    if (d == NULL)
        return 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(d)) != NULL;) {
        int32_t pid;
        int end = 0;
        if (sscanf(entry->d_name, "%d.sock%n", &pid, &end) != 1 || end == 0 ||
            entry->d_name[end] != '\0' || pid <= 0)
            continue;
        int fd = connect_to(dir, pid);
        if (fd < 0)
            continue;
        close(fd);
        rc = add_pid(pids, count, pid);
    }
    closedir(d);
    return rc;
}

int waste_attach_list(int32_t **out, size_t *out_count)
{
    int32_t *pids = NULL;
    size_t count = 0;
    char dir[108];

    for (unsigned i = 0; i < WASTE_SOCKET_DIRS; i++) {
        if (!waste_socket_dir(i, dir, sizeof(dir)) || waste_socket_check_dir(dir, false) != 0)
            continue;
        if (list_dir(dir, &pids, &count) != 0) {
            free(pids);
            return -ENOMEM;
        }
    }
    *out = pids;
    *out_count = count;
    return 0;
}

/* One answer; *out_fd gets the descriptor that came with it, or -1. */
static int receive(int fd, char *text, size_t room, int *out_fd)
{
    struct iovec iov = {.iov_base = text, .iov_len = room - 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    ssize_t n;

    *out_fd = -1;
    do
        n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n < 0 ? -errno : -EPIPE;
    text[n] = '\0';
    const struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
    if (cmsg != NULL && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS &&
        cmsg->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(out_fd, CMSG_DATA(cmsg), sizeof(int));
    return 0;
}

/* A waste-run that is stopped itself does not answer for ever: -EAGAIN after `seconds`. */
static int exchange(struct waste_attached *a, const char *command, int seconds, char *text,
                    size_t room, int *out_fd, struct waste_error *err)
{
    struct timeval limit = {.tv_sec = seconds};

    setsockopt(a->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    *out_fd = -1;
    int rc = send(a->fd, command, strlen(command), MSG_NOSIGNAL) < 0 ? -errno : 0;

    if (rc == 0)
        rc = receive(a->fd, text, room, out_fd);
    if (rc != 0)
        return waste_error_set(err, 1, "waste-run %d does not answer: %s", a->pid,
                               rc == -EAGAIN ? "it may be stopped" : strerror(-rc));
    if (strncmp(text, "ok", 2) == 0)
        return 0;
    if (strncmp(text, "wrong ", 6) == 0)
        return waste_error_set(err, 2, "%s", text + 6);
    return waste_error_set(err, 1, "%s", strncmp(text, "error ", 6) == 0 ? text + 6 : text);
}

static int pick(uint32_t *pid, struct waste_error *err)
{
    int32_t *pids;
    size_t count;
    int rc = 0;

    if (waste_attach_list(&pids, &count) != 0)
        return waste_error_set(err, 1, "out of memory");
    if (count == 0)
        rc = waste_error_set(err, 1, "no pipeline is running");
    else if (count > 1)
        rc = waste_error_set(err, 2, "%zu pipelines are running: choose one with --pid (%d, %d%s)",
                             count, pids[0], pids[1], count > 2 ? ", ..." : "");
    else
        *pid = (uint32_t)pids[0];
    free(pids);
    return rc;
}

static int dial(struct waste_attached *a, uint32_t pid, struct waste_error *err)
{
    char dir[108];

    for (unsigned i = 0; i < WASTE_SOCKET_DIRS; i++) {
        if (!waste_socket_dir(i, dir, sizeof(dir)) || waste_socket_check_dir(dir, false) != 0)
            continue;
        a->fd = connect_to(dir, (int32_t)pid);
        if (a->fd >= 0)
            return 0;
    }
    return waste_error_set(err, 1, "no pipeline of waste-run %u is running", pid);
}

int waste_attach_open(uint32_t pid, struct waste_attached *out, struct waste_error *err)
{
    char text[WASTE_SOCKET_MESSAGE];
    int control = -1;

    *out = (struct waste_attached){.fd = -1};
    int rc = pid == 0 ? pick(&pid, err) : 0;
    if (rc == 0)
        rc = dial(out, pid, err);
    if (rc != 0)
        return rc;
    out->pid = (int32_t)pid;
    rc = exchange(out, "hello", HELLO_SECONDS, text, sizeof(text), &control, err);
    if (rc == 0) {
        snprintf(out->model_dir, sizeof(out->model_dir), "%s", text + 3);
        rc = waste_segment_map(control, WASTE_SEG_CONTROL, false, &out->map);
        if (rc == 0)
            rc = waste_control_attach(out->map.base, out->map.bytes, &out->shm);
        if (rc != 0)
            rc = waste_error_set(err, 1, "waste-run %u: its control segment %s", pid,
                                 rc == -EPROTO
                                     ? "is another version's: use the waste-run it was started with"
                                     : "makes no sense");
    }
    if (control >= 0)
        close(control);
    if (rc != 0)
        waste_attach_close(out);
    return rc;
}

void waste_attach_close(struct waste_attached *a)
{
    waste_segment_unmap(&a->map);
    if (a->fd >= 0)
        close(a->fd);
    a->fd = -1;
}

int waste_attach_command(struct waste_attached *a, const char *command, struct waste_error *err)
{
    char text[WASTE_SOCKET_MESSAGE];
    int fd;

    int rc = exchange(a, command, COMMAND_SECONDS, text, sizeof(text), &fd, err);
    if (fd >= 0)
        close(fd);
    return rc;
}
