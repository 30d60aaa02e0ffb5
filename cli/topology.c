#include "cli/topology.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "options/units.h"

enum { CPUS = WASTE_CPU_WORDS * 64, NODES = 64 };

/* Of the fastest: below, a core is an efficiency core. The capacities of one cluster differ by a
 * few per cent, the clocks of equal cores by what binning gives; little cores have about half. */
#define CAPACITY_SHARE 0.6
#define CLOCK_SHARE 0.75

static bool has(const uint64_t *mask, uint32_t cpu)
{
    return mask[cpu / 64] >> cpu % 64 & 1;
}

static void set(uint64_t *mask, uint32_t cpu)
{
    mask[cpu / 64] |= UINT64_C(1) << cpu % 64;
}

static void clear(uint64_t *mask, uint32_t cpu)
{
    mask[cpu / 64] &= ~(UINT64_C(1) << cpu % 64);
}

static uint32_t count(const uint64_t *mask)
{
    uint32_t n = 0;

    for (int i = 0; i < WASTE_CPU_WORDS; i++)
        n += (uint32_t)__builtin_popcountll(mask[i]);
    return n;
}

/* A file's first line, without its end; false if there is none. */
static bool read_line(const char *sys, const char *name, char *text, int size)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", sys, name);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    bool found = fgets(text, size, f) != NULL;
    fclose(f);
    if (found)
        text[strcspn(text, "\n")] = '\0';
    return found && text[0] != '\0';
}

/* The CPUs a file lists; none if it cannot be read. */
static void read_list(const char *sys, const char *name, uint64_t mask[WASTE_CPU_WORDS])
{
    char text[4096];

    memset(mask, 0, WASTE_CPU_WORDS * sizeof(*mask));
    if (read_line(sys, name, text, sizeof(text)) &&
        waste_units_parse_cpus(text, mask, WASTE_CPU_WORDS) != 0)
        memset(mask, 0, WASTE_CPU_WORDS * sizeof(*mask));
}

static const char *cpu_file(uint32_t cpu, const char *name, char path[128])
{
    snprintf(path, 128, "system/cpu/cpu%u/%s", cpu, name);
    return path;
}

static double read_cpu_number(const char *sys, uint32_t cpu, const char *name)
{
    char path[128], text[64];

    return read_line(sys, cpu_file(cpu, name, path), text, sizeof(text)) ? strtod(text, NULL) : 0;
}

/* Of the CPUs in `mask` that share a core, the lowest stays. Returns how many went. */
static uint32_t drop_siblings(const char *sys, uint64_t mask[WASTE_CPU_WORDS])
{
    uint32_t before = count(mask);

    for (uint32_t cpu = 0; cpu < CPUS; cpu++) {
        uint64_t siblings[WASTE_CPU_WORDS];
        char path[128];
        if (!has(mask, cpu))
            continue;
        read_list(sys, cpu_file(cpu, "topology/core_cpus_list", path), siblings);
        if (count(siblings) == 0) /* before Linux 5.3 */
            read_list(sys, cpu_file(cpu, "topology/thread_siblings_list", path), siblings);
        for (uint32_t other = cpu + 1; other < CPUS; other++)
            if (has(siblings, other))
                clear(mask, other);
    }
    return before - count(mask);
}

/* Drops what `name` says is slower than `share` of the fastest. False: it says nothing. */
static bool drop_slower(const char *sys, const char *name, double share,
                        uint64_t mask[WASTE_CPU_WORDS])
{
    double *speed = calloc(CPUS, sizeof(*speed));
    double fastest = 0;

    if (speed == NULL)
        return false;
    for (uint32_t cpu = 0; cpu < CPUS; cpu++) {
        if (has(mask, cpu))
            speed[cpu] = read_cpu_number(sys, cpu, name);
        fastest = speed[cpu] > fastest ? speed[cpu] : fastest;
    }
    for (uint32_t cpu = 0; cpu < CPUS; cpu++)
        if (has(mask, cpu) && speed[cpu] > 0 && speed[cpu] < share * fastest)
            clear(mask, cpu);
    free(speed);
    return fastest > 0;
}

/* Hybrid x86 names its kinds of cores; others give a capacity, or at least a clock. */
static uint32_t drop_efficiency(const char *sys, uint64_t mask[WASTE_CPU_WORDS])
{
    uint64_t fast[WASTE_CPU_WORDS], slow[WASTE_CPU_WORDS];
    uint32_t before = count(mask), left = 0;

    read_list(sys, "cpu_core/cpus", fast);
    read_list(sys, "cpu_atom/cpus", slow);
    for (int i = 0; i < WASTE_CPU_WORDS; i++)
        left += (uint32_t)__builtin_popcountll(mask[i] & fast[i]);
    if (left > 0 && count(slow) > 0) {
        for (int i = 0; i < WASTE_CPU_WORDS; i++)
            mask[i] &= ~slow[i];
    } else if (!drop_slower(sys, "cpu_capacity", CAPACITY_SHARE, mask)) {
        drop_slower(sys, "cpufreq/cpuinfo_max_freq", CLOCK_SHARE, mask);
    }
    return before - count(mask);
}

/* Sets of CPUs that share a last-level cache. */
static uint32_t count_domains(const char *sys, const uint64_t mask[WASTE_CPU_WORDS])
{
    uint64_t left[WASTE_CPU_WORDS];
    uint32_t domains = 0;

    memcpy(left, mask, sizeof(left));
    for (uint32_t cpu = 0; cpu < CPUS; cpu++) {
        uint64_t shared[WASTE_CPU_WORDS];
        char path[128];
        if (!has(left, cpu))
            continue;
        read_list(sys, cpu_file(cpu, "cache/index3/shared_cpu_list", path), shared);
        if (!has(shared, cpu)) /* not said, or none: one for all */
            return domains + 1;
        for (int i = 0; i < WASTE_CPU_WORDS; i++)
            left[i] &= ~shared[i];
        domains++;
    }
    return domains;
}

static void find_nodes(const char *sys, struct waste_topology *t)
{
    for (uint32_t node = 0; node < NODES; node++) {
        uint64_t cpus[WASTE_CPU_WORDS], any = 0;
        char path[128];
        snprintf(path, sizeof(path), "system/node/node%u/cpulist", node);
        read_list(sys, path, cpus);
        for (int i = 0; i < WASTE_CPU_WORDS; i++)
            any |= cpus[i] & t->use[i];
        if (any != 0)
            t->node_mask |= UINT64_C(1) << node;
    }
    t->nodes = t->node_mask != 0 ? (uint32_t)__builtin_popcountll(t->node_mask) : 1;
}

void waste_topology_read(const char *sys, const uint64_t allowed[WASTE_CPU_WORDS],
                         struct waste_topology *out)
{
    struct waste_topology t = {.cpus = count(allowed)};

    memcpy(t.use, allowed, sizeof(t.use));
    t.siblings = drop_siblings(sys, t.use);
    t.efficiency = drop_efficiency(sys, t.use);
    t.cores = count(t.use);
    t.l3_domains = count_domains(sys, t.use);
    find_nodes(sys, &t);
    *out = t;
}

void waste_topology_allowed(uint64_t mask[WASTE_CPU_WORDS])
{
    cpu_set_t cpus;

    memset(mask, 0, WASTE_CPU_WORDS * sizeof(*mask));
    if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0)
        CPU_ZERO(&cpus);
    for (uint32_t cpu = 0; cpu < CPUS && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus))
            set(mask, cpu);
    if (count(mask) == 0)
        set(mask, 0);
}

const char *const waste_threads_by_name[] = {
    [WASTE_THREADS_CORES] = "cores",
    [WASTE_THREADS_OPTION] = "--threads",
    [WASTE_THREADS_CPUS] = "--cpus",
    [WASTE_THREADS_QUOTA] = "quota",
};

enum waste_threads_by waste_topology_choose(const struct waste_topology *t, const struct waste_args *a,
                           uint32_t quota, uint32_t *threads, uint64_t mask[WASTE_CPU_WORDS])
{
    uint32_t listed = count(a->cpus), most = listed > 0 ? listed : t->cores;

    *threads = a->threads > 0 ? a->threads : most < quota ? most : quota;
    memset(mask, 0, WASTE_CPU_WORDS * sizeof(*mask));
    if (listed > 0)
        memcpy(mask, a->cpus, WASTE_CPU_WORDS * sizeof(*mask));
    else if (*threads <= t->cores && t->cores < t->cpus)
        memcpy(mask, t->use, WASTE_CPU_WORDS * sizeof(*mask));
    return a->threads > 0 ? WASTE_THREADS_OPTION
           : quota < most ? WASTE_THREADS_QUOTA
           : listed > 0   ? WASTE_THREADS_CPUS
                          : WASTE_THREADS_CORES;
}

void waste_topology_interleave(const struct waste_topology *t)
{
    unsigned long nodes = (unsigned long)t->node_mask;
    int policy;

    if (t->nodes > 1 && syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) == 0 &&
        policy == MPOL_DEFAULT)
        syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &nodes, sizeof(nodes) * CHAR_BIT);
}

const char *waste_topology_text(const struct waste_topology *t, char *text, size_t size)
{
    bool both = t->siblings > 0 && t->efficiency > 0;
    char idle[96] = "", domains[48] = "", nodes[48] = "", siblings[32] = "", efficiency[32] = "";

    if (t->siblings > 0)
        snprintf(siblings, sizeof(siblings), "%u second threads", t->siblings);
    if (t->efficiency > 0)
        snprintf(efficiency, sizeof(efficiency), "%u efficiency cores", t->efficiency);
    if (t->siblings > 0 || t->efficiency > 0)
        snprintf(idle, sizeof(idle), " (%s%s%s)", siblings, both ? ", " : "", efficiency);
    if (t->l3_domains > 1)
        snprintf(domains, sizeof(domains), ", %u L3 domains", t->l3_domains);
    if (t->nodes > 1)
        snprintf(nodes, sizeof(nodes), ", %u memory nodes", t->nodes);
    snprintf(text, size, "%u %s of %u CPUs%s%s%s", t->cores,
             t->efficiency > 0 ? "performance cores" : "cores", t->cpus, idle, domains, nodes);
    return text;
}
