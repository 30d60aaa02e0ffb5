/*
 * To be preloaded: a pread that gives half of what it could (WASTE_TEST_PREAD=short), or ends every
 * second time with EINTR or EAGAIN, or with EIO the Kth time (eintr, eagain, eio=K), in every
 * process that inherits the environment.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static _Atomic unsigned long calls;

static int error_of(const char *fault, unsigned long call)
{
    if (strncmp(fault, "eio=", 4) == 0)
        return call == strtoul(fault + 4, NULL, 10) ? EIO : 0;
    if (call % 2 != 0)
        return 0;
    return strcmp(fault, "eintr") == 0 ? EINTR : strcmp(fault, "eagain") == 0 ? EAGAIN : 0;
}

__attribute__((visibility("default"))) ssize_t pread(int fd, void *to, size_t bytes, off_t off)
{
    static ssize_t (*real)(int, void *, size_t, off_t);
    const char *fault = getenv("WASTE_TEST_PREAD");
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "pread64");
    unsigned long call = 1 + atomic_fetch_add(&calls, 1);
    int error = fault != NULL ? error_of(fault, call) : 0;
    if (error != 0) {
        errno = error;
        return -1;
    }
    ssize_t n = real(fd, to, bytes, off);
    return fault != NULL && strcmp(fault, "short") == 0 && n > 1 ? n / 2 : n;
}
