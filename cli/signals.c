#include "cli/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

/* relaxed everywhere: flags alone, nothing is published with them */
static _Atomic int interrupts, ends;

static char left_file[WASTE_SIGNALS_PATH];
static _Atomic int has_left_file; /* release behind left_file; pairs with the handler's acquire */

static void unlink_left_file(void)
{
    if (atomic_load_explicit(&has_left_file, memory_order_acquire))
        unlink(left_file);
}

void waste_signals_unlink(const char *path)
{
    atomic_store_explicit(&has_left_file, 0, memory_order_relaxed);
    if (path == NULL)
        return;
    snprintf(left_file, sizeof(left_file), "%s", path);
    atomic_store_explicit(&has_left_file, 1, memory_order_release);
}

static void on_signal(int number)
{
    _Atomic int *flag = number == SIGINT ? &interrupts : &ends;

    if (waste_signals_ended()) {
        unlink_left_file();
        _exit(128 + number);
    }
    atomic_fetch_add_explicit(flag, 1, memory_order_relaxed);
}

/* The default action follows: SA_RESETHAND has put it back. */
static void on_fatal(int number)
{
    unlink_left_file();
    raise(number);
}

void waste_signals_install(void)
{
    static const int fatal[] = {SIGQUIT, SIGABRT, SIGXCPU,   SIGALRM,
                                SIGUSR1, SIGUSR2, SIGVTALRM, SIGPROF};
    struct sigaction action = {.sa_handler = on_fatal, .sa_flags = SA_RESETHAND};

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        sigaction(fatal[i], &action, NULL);
    action = (struct sigaction){.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed stdout is an error like another */
    signal(SIGXFSZ, SIG_IGN); /* so is a file that may not grow */
}

bool waste_signals_terminated(void)
{
    return atomic_load_explicit(&ends, memory_order_relaxed) > 0;
}

bool waste_signals_ended(void)
{
    return atomic_load_explicit(&interrupts, memory_order_relaxed) > 0 ||
           waste_signals_terminated();
}

void waste_signals_raise(void)
{
    atomic_fetch_add_explicit(&ends, 1, memory_order_relaxed);
}

bool waste_signals_forget_interrupt(void)
{
    atomic_store_explicit(&interrupts, 0, memory_order_relaxed);
    return waste_signals_ended();
}
