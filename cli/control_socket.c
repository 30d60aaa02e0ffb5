#include "cli/control_socket.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli/signals.h"
#include "cli/supervisor_int.h"
#include "options/units.h"

struct client {
    int fd;                                  /* -1: free */
    uint32_t waiting;                        /* stages whose restart it waits for */
    uint32_t incarnation[WASTE_STAGE_COUNT]; /* when it asked */
};

struct waste_control_socket {
    struct waste_supervisor *s;
    int fd;
    int control_ro; /* read-only descriptor of the control segment */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct client client[WASTE_SOCKET_CLIENTS];
    unsigned next_victim;
};

bool waste_socket_dir(unsigned index, char *out, size_t room)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    /* room for "/<pid>.sock" in a sockaddr_un */
    size_t most = sizeof(((struct sockaddr_un *)0)->sun_path) - sizeof("/2147483647.sock");
    int n = -1;

    if (index == 0 && runtime != NULL && runtime[0] == '/')
        n = snprintf(out, room, "%s/waste", runtime);
    else if (index == 1)
        n = snprintf(out, room, "/tmp/waste-%u", (unsigned)geteuid());
    return n > 0 && (size_t)n < room && (size_t)n <= most;
}

int waste_socket_check_dir(const char *dir, bool create)
{
    struct stat st;

    if (create && mkdir(dir, 0700) != 0 && errno != EEXIST)
        return -errno;
    if (lstat(dir, &st) != 0)
        return -errno;
    if (!S_ISDIR(st.st_mode))
        return -ENOTDIR;
    return st.st_uid == geteuid() && (st.st_mode & 077) == 0 ? 0 : -EPERM;
}

/* Somebody listens there: a process of our number, of another pid namespace that has the same
 * directory. */
static bool is_served(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memcpy(addr.sun_path, path, sizeof(addr.sun_path));
    bool served = fd >= 0 && (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0 ||
                              errno == EAGAIN); /* and others wait for it */
    if (fd >= 0)
        close(fd);
    return served;
}

/*
 * Whoever finds a socket that nobody listens at removes it, so ours gets its name only when we do.
 */
static int bind_in(struct waste_control_socket *cs, const char *dir)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    int rc = waste_socket_check_dir(dir, true);
    if (rc != 0)
        return rc;
    snprintf(cs->path, sizeof(cs->path), "%.80s/%d.sock", dir, (int)getpid());
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%.80s/%d.new", dir, (int)getpid());
    if (is_served(cs->path)) {
        cs->path[0] = '\0';
        return -EADDRINUSE;
    }
    unlink(addr.sun_path); /* left by an earlier process of our number */
    waste_signals_unlink(cs->path);
    /* before bind: the file never exists with a wider mode */
    if (fchmod(cs->fd, 0600) != 0 || bind(cs->fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        chmod(addr.sun_path, 0600) != 0 || listen(cs->fd, WASTE_SOCKET_CLIENTS) != 0 ||
        rename(addr.sun_path, cs->path) != 0) {
        rc = -errno;
        unlink(addr.sun_path);
        waste_signals_unlink(NULL);
        cs->path[0] = '\0';
    }
    return rc;
}

int waste_control_socket_open(struct waste_supervisor *s, struct waste_control_socket **out,
                              struct waste_error *err)
{
    struct waste_control_socket *cs = calloc(1, sizeof(*cs));
    char dir[108];

    if (cs == NULL)
        return waste_error_set(err, -ENOMEM, "out of memory");
    cs->s = s;
    cs->control_ro = -1;
    for (int i = 0; i < WASTE_SOCKET_CLIENTS; i++)
        cs->client[i].fd = -1;
    cs->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = cs->fd >= 0 ? waste_segment_open_readonly(s->p->fd[WASTE_SEG_CONTROL], &cs->control_ro)
                         : -errno;
    if (rc == 0) {
        rc = -ENOENT;
        /* in another directory the other would still be found first */
        for (unsigned i = 0; i < WASTE_SOCKET_DIRS && rc != 0 && rc != -EADDRINUSE; i++)
            if (waste_socket_dir(i, dir, sizeof(dir)))
                rc = bind_in(cs, dir);
    }
    if (rc != 0) {
        waste_control_socket_close(cs);
        return waste_error_set(
            err, rc, "no control socket (ps, stats, restart cannot reach this): %s", strerror(-rc));
    }
    *out = cs;
    return 0;
}

void waste_control_socket_close(struct waste_control_socket *cs)
{
    if (cs == NULL)
        return;
    if (cs->path[0] != '\0')
        unlink(cs->path);
    waste_signals_unlink(NULL);
    for (int i = 0; i < WASTE_SOCKET_CLIENTS; i++)
        if (cs->client[i].fd >= 0)
            close(cs->client[i].fd);
    if (cs->fd >= 0)
        close(cs->fd);
    if (cs->control_ro >= 0)
        close(cs->control_ro);
    free(cs);
}

static void drop(struct client *c)
{
    close(c->fd);
    c->fd = -1;
    c->waiting = 0;
}

/* Never blocks: a client that does not read loses its answer. */
static void answer(struct client *c, int send_fd, const char *text)
{
    struct iovec iov = {.iov_base = (char *)text, .iov_len = strlen(text)};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (send_fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(cmsg), &send_fd, sizeof(int));
    }
    if (sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        drop(c);
}

/* `what`: "error", or "wrong" of a command that asks for what cannot be. */
static void answer_error(struct client *c, const char *what, const struct waste_error *err)
{
    char text[sizeof(err->text) + 16];

    snprintf(text, sizeof(text), "%s %s", what, err->text);
    c->waiting = 0;
    answer(c, -1, text);
}

static void do_restart(struct waste_control_socket *cs, struct client *c, const char *name)
{
    struct waste_error err;
    uint32_t mask = 0;

    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        bool all =
            strcmp(name, "all") == 0 && !(i == WASTE_STAGE_ROUTER && cs->s->options.no_router);
        if (all || strcmp(name, waste_stage_name[i]) == 0)
            mask |= UINT32_C(1) << i;
        c->incarnation[i] = cs->s->child[i].incarnation;
    }
    if (mask == 0) {
        waste_error_set(&err, 0, "there is no stage '%.40s'", name);
        answer_error(c, "wrong", &err);
    } else if (waste_supervisor_ask_restart(cs->s, mask, &err) != 0) {
        answer_error(c, "error", &err);
    } else {
        c->waiting = mask; /* answered by check_waiting */
    }
}

/* "budget BYTES" (or WASTE_BUDGET_MAX): answered at once, the reader follows. */
static void do_budget(struct waste_control_socket *cs, struct client *c, const char *number)
{
    struct waste_error err;
    uint64_t bytes, total;
    uint32_t slots;
    char text[80];

    if (waste_units_parse_u64(number, &bytes) != 0) {
        answer(c, -1, "error budget is no number of bytes");
    } else if (waste_supervisor_budget(cs->s, bytes, &slots, &total, &err) != 0) {
        answer_error(c, "wrong", &err);
    } else {
        snprintf(text, sizeof(text), "ok %u %" PRIu64, slots, total);
        answer(c, -1, text);
    }
}

static void do_command(struct waste_control_socket *cs, struct client *c, const char *command)
{
    char text[WASTE_SOCKET_MESSAGE];

    if (strcmp(command, "hello") == 0) {
        snprintf(text, sizeof(text), "ok %s", cs->s->p->model_dir);
        answer(c, cs->control_ro, text);
    } else if (strcmp(command, "stop") == 0) {
        answer(c, -1, "ok");
        cs->s->options.on_stop(cs->s->options.on_stop_arg);
    } else if (strncmp(command, "budget ", 7) == 0) {
        do_budget(cs, c, command + 7);
    } else if (strncmp(command, "restart ", 8) == 0) {
        do_restart(cs, c, command + 8);
    } else {
        answer(c, -1, "error unknown command");
    }
}

static void check_waiting(struct waste_control_socket *cs, struct client *c)
{
    struct waste_error err;

    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        if (!(c->waiting >> i & 1))
            continue;
        int done =
            waste_supervisor_restarted(cs->s, (enum waste_stage_id)i, c->incarnation[i], &err);
        if (done < 0) {
            answer_error(c, "error", &err);
            return;
        }
        if (done == 0)
            return;
        c->waiting &= ~(UINT32_C(1) << i);
    }
    answer(c, -1, "ok");
}

static void receive(struct waste_control_socket *cs, struct client *c)
{
    char command[128];
    ssize_t n = recv(c->fd, command, sizeof(command) - 1, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop(c);
        return;
    }
    command[n] = '\0';
    do_command(cs, c, command);
}

static void accept_client(struct waste_control_socket *cs)
{
    struct ucred cred;
    socklen_t length = sizeof(cred);
    int fd = accept4(cs->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int at = -1;

    if (fd < 0)
        return;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &length) != 0 ||
        (cred.uid != geteuid() && cred.uid != 0)) {
        close(fd);
        return;
    }
    for (int i = 0; i < WASTE_SOCKET_CLIENTS && at < 0; i++)
        if (cs->client[i].fd < 0)
            at = i;
    if (at < 0) { /* the one that has been there longest makes room */
        at = (int)(cs->next_victim++ % WASTE_SOCKET_CLIENTS);
        drop(&cs->client[at]);
    }
    cs->client[at] = (struct client){.fd = fd};
}

unsigned waste_control_socket_poll(struct waste_control_socket *cs, struct pollfd *fds)
{
    if (cs == NULL)
        return 0;
    fds[0] = (struct pollfd){.fd = cs->fd, .events = POLLIN};
    for (int i = 0; i < WASTE_SOCKET_CLIENTS; i++)
        fds[1 + i] = (struct pollfd){.fd = cs->client[i].fd, .events = POLLIN};
    return WASTE_SOCKET_FDS;
}

void waste_control_socket_work(struct waste_control_socket *cs, const struct pollfd *fds,
                               unsigned count)
{
    if (cs == NULL || count != WASTE_SOCKET_FDS)
        return;
    for (int i = 0; i < WASTE_SOCKET_CLIENTS; i++) {
        struct client *c = &cs->client[i];
        if (c->fd >= 0 && fds[1 + i].revents != 0)
            receive(cs, c);
        if (c->fd >= 0 && c->waiting != 0)
            check_waiting(cs, c);
    }
    if (fds[0].revents != 0)
        accept_client(cs);
}
