#include "cli/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

/* relaxed everywhere: flags alone, nothing is published with them */
static _Atomic int interrupts, ends;

static void on_signal(int number)
{
    _Atomic int *flag = number == SIGINT ? &interrupts : &ends;

    if (waste_signals_ended())
        _exit(128 + number);
    atomic_fetch_add_explicit(flag, 1, memory_order_relaxed);
}

void waste_signals_install(void)
{
    struct sigaction action = {.sa_handler = on_signal};

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
