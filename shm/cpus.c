#include "shm/cpus.h"

#include <sys/syscall.h>
#include <unistd.h>

int waste_cpus_usable(const uint64_t cpus[16], const cpu_set_t *home, cpu_set_t *out)
{
    bool any = false;

    CPU_ZERO(out);
    for (int c = 0; c < 1024 && c < CPU_SETSIZE; c++) {
        bool wanted = cpus[c / 64] >> (c % 64) & 1;
        any |= wanted;
        if (wanted && CPU_ISSET(c, home))
            CPU_SET(c, out);
    }
    if (!any)
        *out = *home;
    return CPU_COUNT(out);
}

void waste_cpus_only(const cpu_set_t *set, uint32_t n, cpu_set_t *out)
{
    CPU_ZERO(out);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (CPU_ISSET(c, set) && n-- == 0) {
            CPU_SET(c, out);
            return;
        }
    }
}

void waste_cpus_leave_first(uint32_t threads, const uint64_t cpus[16])
{
    cpu_set_t home, usable, first;

    if (sched_getaffinity(0, sizeof(home), &home) < 0 ||
        !waste_cpus_pinned(threads, waste_cpus_usable(cpus, &home, &usable)))
        return;
    waste_cpus_only(&usable, 0, &first);
    CPU_XOR(&home, &home, &first);
    if (CPU_COUNT(&home) > 0)
        sched_setaffinity(0, sizeof(home), &home); /* refused: as it was */
}

/* The kernel's struct sched_attr of the first size: its header and the C library's exclude each
 * other. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period; /* ns; runtime: the slice */
};
_Static_assert(sizeof(struct attributes) == 48, "the first size");

void waste_cpus_prompt(void)
{
    struct attributes a = {0};

    if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) < 0 || a.policy != SCHED_OTHER)
        return;
    a.runtime = 100000; /* the least there is */
    syscall(SYS_sched_setattr, 0, &a, 0);
}
