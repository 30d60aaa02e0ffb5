#include "shm/cpus.h"

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
