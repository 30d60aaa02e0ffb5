#include "cli/background.h"

#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NICE = 10 };

int waste_background_start(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return -rc;
}

void waste_background_nice(void)
{
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); /* on Linux a thread's own */
}
