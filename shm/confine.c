#include "shm/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

#include "shm/segment.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#undef WASTE_SECCOMP
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#undef WASTE_SECCOMP
#endif
#endif

#ifdef WASTE_SECCOMP
#include <seccomp.h>

/*
 * The first call that was refused, and whether it was said already. A process is one stage, so this
 * is the process's own. relaxed everywhere: a number and nothing else.
 */
static _Atomic int refused = -1, told = -1;

/* What the C library does for a program that only computes, sleeps, dies or ends. */
static const char *const of_all[] = {
    "brk",
    "munmap",
    "mremap",
    "madvise",
    "futex",
    "sched_yield",
    "clock_gettime",
    "nanosleep",
    "getpid",
    "clock_nanosleep",
    "gettid",
    "getppid",
    "rt_sigreturn",
    "rt_sigaction",
    "rt_sigprocmask",
    "getrandom",
    "exit",
    "exit_group",
    "close",
    "write",
    "rseq",
    "set_robust_list",
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_setscheduler",
    "restart_syscall",
};

static const char *const of_reader[] = {"read",           "pread64",           "ppoll",    "poll",
                                        "io_uring_enter", "io_uring_register", "fallocate"};

/*
 * What nobody calls by accident: refused with a word in the log. It comes by a signal, which kills
 * a thread that has it blocked; so the rest, a harmless call that a library may try, fails
 * silently.
 */
static const char *const told_of[] = {
    "open", "openat2",        "creat", "socket", "connect", "execve", "execveat",
    "fork", "vfork",          "clone", "clone3", "kill",    "ptrace", "process_vm_writev",
    "bpf",  "io_uring_setup",
};

/* On aarch64 and x86-64 alike: the call did not happen and says EPERM. */
static void on_refused(int number, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    int none = -1;

    (void)number;
    atomic_compare_exchange_strong_explicit(&refused, &none, info->si_syscall, memory_order_relaxed,
                                            memory_order_relaxed);
#if defined(__x86_64__)
    uc->uc_mcontext.gregs[REG_RAX] = -EPERM;
#elif defined(__aarch64__)
    uc->uc_mcontext.regs[0] = (unsigned long long)-EPERM;
#else
#error "where does this machine return a system call's result?"
#endif
}

static int trap(scmp_filter_ctx filter, const char *name, unsigned args,
                const struct scmp_arg_cmp *arg)
{
    int call = seccomp_syscall_resolve_name(name);

    return call < 0 ? 0 : seccomp_rule_add_array(filter, SCMP_ACT_TRAP, call, args, arg);
}

static int trap_all(scmp_filter_ctx filter, int dir_fd)
{
    const struct scmp_arg_cmp code = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC);
    const struct scmp_arg_cmp elsewhere = SCMP_A0(SCMP_CMP_NE, (scmp_datum_t)dir_fd, 0);
    int rc = 0;

    for (size_t i = 0; i < sizeof(told_of) / sizeof(told_of[0]) && rc == 0; i++)
        rc = trap(filter, told_of[i], 0, NULL);
    if (rc == 0)
        rc = trap(filter, "mmap", 1, &code);
    if (rc == 0)
        rc = trap(filter, "mprotect", 1, &code);
    if (rc == 0)
        rc = trap(filter, "openat", dir_fd >= 0, &elsewhere);
    return rc;
}

static int allow(scmp_filter_ctx filter, const char *name, unsigned args,
                 const struct scmp_arg_cmp *arg)
{
    int call = seccomp_syscall_resolve_name(name);

    return call < 0 ? 0 : seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, call, args, arg);
}

static int allow_all(scmp_filter_ctx filter, const char *const *names, size_t count)
{
    int rc = 0;

    for (size_t i = 0; i < count && rc == 0; i++)
        rc = allow(filter, names[i], 0, NULL);
    return rc;
}

/* Calls that are fine with some arguments: memory that is not code, signals to ourselves. */
static int allow_some(scmp_filter_ctx filter)
{
    const struct scmp_arg_cmp no_code = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
    const struct scmp_arg_cmp myself = SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0);
    int rc = allow(filter, "mmap", 1, &no_code);

    if (rc == 0)
        rc = allow(filter, "mprotect", 1, &no_code);
    if (rc == 0)
        rc = allow(filter, "tgkill", 1, &myself);
    return rc;
}

/* A bank that turns out to know no O_DIRECT loses the flag; fstat comes as newfstatat. */
static int allow_of_reader(scmp_filter_ctx filter)
{
    const struct scmp_arg_cmp get = SCMP_A1(SCMP_CMP_EQ, F_GETFL, 0);
    const struct scmp_arg_cmp set = SCMP_A1(SCMP_CMP_EQ, F_SETFL, 0);
    const struct scmp_arg_cmp no_path = SCMP_A3(SCMP_CMP_EQ, AT_EMPTY_PATH, 0);
    int rc = allow_all(filter, of_reader, sizeof(of_reader) / sizeof(of_reader[0]));

    if (rc == 0)
        rc = allow(filter, "fcntl", 1, &get);
    if (rc == 0)
        rc = allow(filter, "fcntl", 1, &set);
    if (rc == 0)
        rc = allow(filter, "fstat", 0, NULL);
    if (rc == 0)
        rc = allow(filter, "newfstatat", 1, &no_path);
    return rc;
}

/* New files only: with O_EXCL no path, however it goes, leads to one that exists. */
static int allow_new_files(scmp_filter_ctx filter, int dir_fd)
{
    const struct scmp_arg_cmp create[] = {
        SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)dir_fd, 0),
        SCMP_A2(SCMP_CMP_EQ, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0),
    };
    const struct scmp_arg_cmp within[] = {
        SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)dir_fd, 0),
        SCMP_A2(SCMP_CMP_EQ, (scmp_datum_t)dir_fd, 0),
    };
    const struct scmp_arg_cmp in_dir = SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)dir_fd, 0);
    int rc = allow(filter, "openat", 2, create);

    if (rc == 0)
        rc = allow(filter, "renameat", 2, within);
    if (rc == 0)
        rc = allow(filter, "renameat2", 2, within);
    if (rc == 0)
        rc = allow(filter, "unlinkat", 1, &in_dir);
    if (rc == 0)
        rc = allow(filter, "fsync", 0, NULL);
    return rc;
}

static int load_filter(enum waste_stage_id stage, int dir_fd)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    int rc = filter ? seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1) : -ENOMEM;

    if (rc == 0)
        rc = trap_all(filter, stage == WASTE_STAGE_READER ? dir_fd : -1);
    if (rc == 0)
        rc = allow_all(filter, of_all, sizeof(of_all) / sizeof(of_all[0]));
    if (rc == 0)
        rc = allow_some(filter);
    if (rc == 0 && stage == WASTE_STAGE_READER) {
        rc = allow_of_reader(filter);
        if (rc == 0 && dir_fd >= 0)
            rc = allow_new_files(filter, dir_fd);
    }
    if (rc == 0)
        rc = seccomp_load(filter);
    seccomp_release(filter);
    return rc;
}

static void filter_calls(enum waste_stage_id stage, int dir_fd, struct waste_log *log)
{
    struct sigaction action = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO | SA_NODEFER};

    sigemptyset(&action.sa_mask);
    sigaction(SIGSYS, &action, NULL);
    int rc = load_filter(stage, dir_fd);
    if (rc < 0)
        waste_log_write(log, WASTE_LOG_WARNING,
                        "%s: the kernel takes no seccomp filter, going on without: %s",
                        waste_stage_name[stage], strerror(-rc));
}

void waste_confine_report(enum waste_stage_id stage, struct waste_log *log)
{
    int call = atomic_load_explicit(&refused, memory_order_relaxed);

    if (call == atomic_load_explicit(&told, memory_order_relaxed))
        return;
    atomic_store_explicit(&told, call, memory_order_relaxed);
    char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, call);
    waste_log_write(log, WASTE_LOG_WARNING,
                    "%s: system call %d (%s) is not one a stage needs, refused",
                    waste_stage_name[stage], call, name ? name : "unknown");
    free(name);
}
#else
static void filter_calls(enum waste_stage_id stage, int dir_fd, struct waste_log *log)
{
    (void)stage;
    (void)dir_fd;
    (void)log;
}

void waste_confine_report(enum waste_stage_id stage, struct waste_log *log)
{
    (void)stage;
    (void)log;
}
#endif

void waste_confine(enum waste_stage_id stage, int dir_fd, struct waste_log *log)
{
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        if (stage != WASTE_STAGE_READER || i != WASTE_SEG_CACHE) /* it punches slots */
            close(WASTE_FD_SEGMENT_BASE + i);
    filter_calls(stage, dir_fd, log);
}
