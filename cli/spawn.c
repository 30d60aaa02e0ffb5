#include "cli/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static bool try_path(char *out, const char *dir, const char *middle, const char *name)
{
    int n = snprintf(out, PATH_MAX, "%s%swaste-%s", dir, middle, name);

    return n > 0 && n < PATH_MAX && access(out, X_OK) == 0;
}

int waste_spawn_find(struct waste_programs *out, struct waste_error *err)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n < 0)
        return waste_error_set(err, -errno, "cannot read /proc/self/exe: %s", strerror(errno));
    self[n] = '\0';
    *(strrchr(self, '/') + 1) = '\0';
    for (int s = 0; s < WASTE_STAGE_COUNT; s++) {
        const char *name = waste_stage_name[s];
        char folder[64];
        snprintf(folder, sizeof(folder), "../%s/", name);
        if (!try_path(out->path[s], self, "", name) &&
            !try_path(out->path[s], self, folder, name) &&
            !try_path(out->path[s], self, "../libexec/waste/", name) &&
            !try_path(out->path[s], WASTE_LIBEXECDIR, "/", name))
            return waste_error_set(err, -ENOENT, "program waste-%s is neither in %s nor in %s",
                                   name, self, WASTE_LIBEXECDIR);
    }
    return 0;
}

/*
 * When memory runs out the kernel kills the process with the highest score. A stage is to go before
 * anything else: that costs a pause, and the cache gives way (budget.c), while the death of waste-run
 * would cost everything. Less than the most would not do: in a small cgroup the pages that waste-run
 * shares with its stages count as much as what a lower score takes off.
 */
static void offer_to_oom_killer(void)
{
    static const char most[] = "1000";
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    ssize_t n = write(fd, most, sizeof(most) - 1);
    (void)n; /* without it the stage runs all the same */
    close(fd);
}

/* In the child of a process with threads: system calls only. */
static void become(const struct waste_pipeline *p, enum waste_stage_id stage, const char *program,
                   pid_t parent, int null)
{
    sigset_t none;

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(1);
    offer_to_oom_killer();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    dup2(null, 0);
    dup2(2, 1); /* stdout is the user's text, and waste-run's alone */
    for (int s = 0; s < WASTE_SEG_COUNT; s++)
        dup2(p->fd[s], WASTE_FD_SEGMENT_BASE + s);
    dup2(p->reader_event, WASTE_FD_READER_EVENT);
    bool keeps = stage == WASTE_STAGE_READER && p->usage_name != NULL;
    char *const argv[] = {(char *)program, (char *)p->model_dir,
                          keeps ? (char *)p->usage_dir : NULL, (char *)p->usage_name, NULL};
    execv(program, argv);
    /* relaxed: read when this process has been reaped */
    atomic_store_explicit(&p->shm.control->stage[stage].exec_error, (uint32_t)errno,
                          memory_order_relaxed);
    _exit(127);
}

static int cannot(struct waste_error *err, enum waste_stage_id stage, const char *what)
{
    int rc = -errno;

    return waste_error_set(err, rc, "cannot start %s: %s: %s", waste_stage_name[stage], what,
                           strerror(-rc));
}

int waste_spawn(const struct waste_pipeline *p, enum waste_stage_id stage, const char *program,
                pid_t *out_pid, int *out_pidfd, struct waste_error *err)
{
    pid_t parent = getpid();
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (null < 0)
        return cannot(err, stage, "/dev/null");
    pid_t pid = fork();
    if (pid == 0)
        become(p, stage, program, parent, null);
    int rc = pid < 0 ? cannot(err, stage, "fork") : 0;
    close(null);
    if (rc != 0)
        return rc;
    /* the child cannot be reaped by anybody else meanwhile, so its number still means it */
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        rc = cannot(err, stage, "pidfd_open");
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return rc;
    }
    *out_pid = pid;
    *out_pidfd = pidfd;
    return 0;
}
