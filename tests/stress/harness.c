#include "tests/stress/stress.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/segment.h"

struct stress_options stress_options = {.scale = 1, .watchdog_s = 60};

uint64_t stress_count(uint64_t n)
{
    double scaled = (double)n * stress_options.scale;

    return scaled < 1 ? 1 : (uint64_t)scaled;
}

void stress_fail(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    _exit(1);
}

void *stress_shared(size_t bytes, int *out_fd)
{
    struct waste_mapping map;
    int fd;

    if (waste_segment_create(WASTE_SEG_CACHE, bytes, &fd) < 0 ||
        waste_segment_map(fd, WASTE_SEG_CACHE, true, &map) < 0)
        stress_fail("no shared memory");
    if (out_fd)
        *out_fd = fd;
    else
        close(fd);
    return map.base;
}

uint64_t stress_mix(uint64_t x)
{
    x = (x ^ x >> 31) * UINT64_C(0x7fb5d329728ea185);
    x = (x ^ x >> 27) * UINT64_C(0x81dadef4bc2dd44d);
    return x ^ x >> 33;
}

struct stress_rng stress_rng(uint64_t salt)
{
    return (struct stress_rng){stress_mix(stress_options.seed + salt * 977 + 1) | 1};
}

uint64_t stress_random(struct stress_rng *rng)
{
    rng->state ^= rng->state << 13;
    rng->state ^= rng->state >> 7;
    rng->state ^= rng->state << 17;
    return rng->state >> 8;
}

void stress_pause(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        __asm__ __volatile__("" ::: "memory");
#endif
}

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void sleep_us(uint64_t us)
{
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

    nanosleep(&ts, NULL);
}

struct thread_arg {
    stress_side side;
    void *shared;
};

static void *run_thread(void *p)
{
    struct thread_arg *arg = p;

    arg->side(arg->shared);
    return NULL;
}

static void on_watchdog(int sig)
{
    static const char text[] = "hung: a side did not end before the watchdog\n";

    if (write(2, text, sizeof(text) - 1) < 0)
        _exit(2);
    _exit(1);
}

static int pair_of_threads(void *shared, stress_side a, stress_side b)
{
    struct thread_arg arg[2] = {{a, shared}, {b, shared}};
    pthread_t thread[2];

    signal(SIGALRM, on_watchdog);
    alarm((unsigned)stress_options.watchdog_s);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, run_thread, &arg[i]) != 0)
            stress_fail("no thread");
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    alarm(0);
    return 0;
}

static pid_t spawn(stress_side side, void *shared)
{
    pid_t parent = getpid(), pid = fork();

    if (pid < 0)
        stress_fail("fork: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        side(shared);
        _exit(0);
    }
    return pid;
}

static void kill_rest(pid_t pid[2])
{
    for (int i = 0; i < 2; i++)
        if (pid[i] > 0) {
            kill(pid[i], SIGKILL);
            waitpid(pid[i], NULL, 0);
            pid[i] = 0;
        }
}

/* Waits for both to exit 0 before the watchdog; else kills what is left. */
static int wait_for_both(pid_t pid[2])
{
    double deadline = now() + stress_options.watchdog_s;

    while (pid[0] || pid[1]) {
        for (int i = 0; i < 2; i++) {
            int status;

            if (pid[i] == 0 || waitpid(pid[i], &status, WNOHANG) != pid[i])
                continue;
            pid[i] = 0;
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                fprintf(stderr, "side %d failed (wait status %d)\n", i, status);
                kill_rest(pid);
                return 1;
            }
        }
        if (now() > deadline) {
            fprintf(stderr, "hung:%s%s still there at the watchdog\n", pid[0] ? " side 0" : "",
                    pid[1] ? " side 1" : "");
            kill_rest(pid);
            return 1;
        }
        sleep_us(1000);
    }
    return 0;
}

int stress_pair(void *shared, stress_side a, stress_side b)
{
    pid_t pid[2];

    if (stress_options.threads)
        return pair_of_threads(shared, a, b);
    pid[0] = spawn(a, shared);
    pid[1] = spawn(b, shared);
    return wait_for_both(pid);
}

int stress_kill(void *shared, stress_side a, stress_side b, int kills,
                void (*after)(void *shared, int side), void (*finish)(void *shared))
{
    const stress_side side[2] = {a, b};
    struct stress_rng rng = stress_rng(5);
    pid_t pid[2];

    pid[0] = spawn(a, shared);
    pid[1] = spawn(b, shared);
    for (int n = 0; n < kills; n++) {
        int victim = (int)(stress_random(&rng) & 1), status;

        sleep_us(stress_random(&rng) % 3000);
        kill(pid[victim], SIGKILL);
        waitpid(pid[victim], &status, 0);
        pid[victim] = 0;
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
            fprintf(stderr, "side %d failed before it was killed (wait status %d)\n", victim,
                    status);
            kill_rest(pid);
            return 1;
        }
        after(shared, victim);
        pid[victim] = spawn(side[victim], shared);
    }
    finish(shared);
    return wait_for_both(pid);
}
