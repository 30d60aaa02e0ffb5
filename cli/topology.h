/*
 * Which CPUs compute's workers run on unless the options say so: one for each physical performance
 * core. Products stream weights faster than two threads of one core could use, and one slow core
 * keeps all others waiting at the end of a phase.
 */
#ifndef WASTE_CLI_TOPOLOGY_H
#define WASTE_CLI_TOPOLOGY_H

#include <stddef.h>
#include <stdint.h>

#include "cli/options.h"

struct waste_topology {
    uint32_t cpus;              /* that the process may use */
    uint32_t siblings;          /* of them, second threads of a core */
    uint32_t efficiency;        /* of the rest, cores that are markedly slower than the fastest */
    uint32_t cores;             /* what is left: `use` */
    uint32_t l3_domains, nodes; /* that those cores are in, at least 1 */
    uint64_t use[WASTE_CPU_WORDS];
    uint64_t node_mask; /* the first 64 nodes */
};

/*
 * Looks at the CPUs of `allowed` in `sys` (/sys/devices, or a tree that looks like it). What cannot
 * be read counts as the same for all, so a machine that says nothing has as many cores as CPUs.
 */
void waste_topology_read(const char *sys, const uint64_t allowed[WASTE_CPU_WORDS],
                         struct waste_topology *out);

/* The CPUs this process may use. */
void waste_topology_allowed(uint64_t mask[WASTE_CPU_WORDS]);

/* What decided about the number of threads. */
enum waste_threads_by {
    WASTE_THREADS_CORES,
    WASTE_THREADS_OPTION,
    WASTE_THREADS_CPUS,
    WASTE_THREADS_QUOTA
};
extern const char *const waste_threads_by_name[]; /* "cores", "--threads", "--cpus", "quota" */

/*
 * Threads and their CPUs: a->threads and a->cpus as far as they are given. Else a core each, at
 * most `quota` threads; more threads than cores share all CPUs. An empty mask means all.
 */
enum waste_threads_by waste_topology_choose(const struct waste_topology *t,
                                            const struct waste_args *a, uint32_t quota,
                                            uint32_t *threads, uint64_t mask[WASTE_CPU_WORDS]);

/*
 * Memory of this process and of those it starts is spread over the nodes of the cores in use, since
 * all workers read all weights; unless there is but one, or a policy was set by whoever started us.
 */
void waste_topology_interleave(const struct waste_topology *t);

/* "8 performance cores of 24 CPUs (8 second threads, 8 efficiency cores), 2 L3 domains" */
const char *waste_topology_text(const struct waste_topology *t, char *text, size_t size);

#endif
