/* Which CPUs compute's workers get, on machines made up here as trees of /sys/devices. */
#include "cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/topology.h"
#include "options/units.h"

struct machine {
    char root[64];
    uint64_t allowed[WASTE_CPU_WORDS];
};

static void put(const struct machine *m, const char *text, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void put(const struct machine *m, const char *text, const char *format, ...)
{
    char full[512];
    va_list list;

    size_t n = (size_t)snprintf(full, sizeof(full), "%s/", m->root);
    va_start(list, format);
    vsnprintf(full + n, sizeof(full) - n, format, list);
    va_end(list);
    for (char *slash = full + n; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", text);
    fclose(f);
}

static int set_up(void **state)
{
    struct machine *m = calloc(1, sizeof(*m));

    snprintf(m->root, sizeof(m->root), "/tmp/waste-topology-XXXXXX");
    assert_non_null(mkdtemp(m->root));
    *state = m;
    return 0;
}

static int tear_down(void **state)
{
    struct machine *m = *state;
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", m->root);
    int rc = system(command);
    free(m);
    return rc;
}

static void allow(struct machine *m, const char *list)
{
    assert_int_equal(waste_units_parse_cpus(list, m->allowed, WASTE_CPU_WORDS), 0);
}

static struct waste_topology look(const struct machine *m)
{
    struct waste_topology t;

    waste_topology_read(m->root, m->allowed, &t);
    return t;
}

static void uses(const struct waste_topology *t, const char *list)
{
    uint64_t want[WASTE_CPU_WORDS];

    assert_int_equal(waste_units_parse_cpus(list, want, WASTE_CPU_WORDS), 0);
    assert_memory_equal(t->use, want, sizeof(want));
}

static void a_machine_that_says_nothing_has_as_many_cores_as_cpus(void **state)
{
    struct machine *m = *state;
    allow(m, "0-3,70");
    struct waste_topology t = look(m);
    uses(&t, "0-3,70");
    assert_int_equal(t.cpus, 5);
    assert_int_equal(t.cores, 5);
    assert_int_equal(t.l3_domains, 1);
    assert_int_equal(t.nodes, 1);
}

/* cpu and cpu + 4 are one core; `file` as the kernel of the time calls it. */
static void two_threads_a_core(const struct machine *m, const char *file)
{
    for (int cpu = 0; cpu < 8; cpu++) {
        char list[16];
        snprintf(list, sizeof(list), "%d,%d", cpu % 4, cpu % 4 + 4);
        put(m, list, "system/cpu/cpu%d/topology/%s", cpu, file);
    }
}

static void one_worker_a_core_not_a_thread(void **state)
{
    struct machine *m = *state;
    allow(m, "0-7");
    two_threads_a_core(m, "core_cpus_list");
    struct waste_topology t = look(m);
    uses(&t, "0-3");
    assert_int_equal(t.siblings, 4);
    /* a core of which only the second thread is ours still counts */
    allow(m, "2,3,5,7");
    t = look(m);
    uses(&t, "2,3,5");
    assert_int_equal(t.siblings, 1);
}

static void older_kernels_call_it_thread_siblings(void **state)
{
    struct machine *m = *state;
    allow(m, "0-7");
    two_threads_a_core(m, "thread_siblings_list");
    struct waste_topology t = look(m);
    uses(&t, "0-3");
}

/* Four performance cores of two threads each, then eight efficiency cores. */
static void hybrid(const struct machine *m)
{
    put(m, "0-7", "cpu_core/cpus");
    put(m, "8-15", "cpu_atom/cpus");
    for (int cpu = 0; cpu < 16; cpu++) {
        char list[16];
        snprintf(list, sizeof(list), cpu < 8 ? "%d-%d" : "%d", cpu < 8 ? cpu / 2 * 2 : cpu,
                 cpu / 2 * 2 + 1);
        put(m, list, "system/cpu/cpu%d/topology/core_cpus_list", cpu);
        /* their clocks are too near to tell them apart by */
        put(m, cpu < 8 ? "5000000" : "4200000", "system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu);
    }
}

static void a_hybrid_machine_works_with_its_performance_cores(void **state)
{
    struct machine *m = *state;
    char text[128];
    hybrid(m);
    allow(m, "0-15");
    struct waste_topology t = look(m);
    uses(&t, "0,2,4,6");
    assert_int_equal(t.siblings, 4);
    assert_int_equal(t.efficiency, 8);
    assert_string_equal(waste_topology_text(&t, text, sizeof(text)),
                        "4 performance cores of 16 CPUs (4 second threads, 8 efficiency cores)");
    /* confined to the others, it works with those */
    allow(m, "8-11");
    t = look(m);
    uses(&t, "8-11");
    assert_int_equal(t.efficiency, 0);
}

/* Capacities of a phone-like chip: little, big and one fastest core. */
static void little_cores_are_left_out_by_capacity(void **state)
{
    static const char *const capacity[] = {"290", "290", "290", "290", "760", "760", "760", "1024"};
    struct machine *m = *state;
    allow(m, "0-7");
    for (int cpu = 0; cpu < 8; cpu++) {
        put(m, capacity[cpu], "system/cpu/cpu%d/cpu_capacity", cpu);
        /* capacity knows better than the clock, which all share */
        put(m, "2000000", "system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu);
    }
    struct waste_topology t = look(m);
    uses(&t, "4-7");
    assert_int_equal(t.efficiency, 4);
}

static void without_capacities_the_clock_tells(void **state)
{
    struct machine *m = *state;
    allow(m, "0-5");
    for (int cpu = 0; cpu < 6; cpu++) /* 5.7 and 5.4 GHz are equal cores, 3.5 are not */
        put(m,
            cpu < 2   ? "5700000"
            : cpu < 4 ? "5400000"
                      : "3500000",
            "system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu);
    struct waste_topology t = look(m);
    uses(&t, "0-3");
}

static void domains_and_nodes_are_counted_where_the_workers_are(void **state)
{
    struct machine *m = *state;
    char text[128];
    for (int cpu = 0; cpu < 8; cpu++)
        put(m,
            cpu < 2   ? "0-1"
            : cpu < 4 ? "2-3"
                      : "4-7",
            "system/cpu/cpu%d/cache/index3/shared_cpu_list", cpu);
    put(m, "0-3", "system/node/node0/cpulist");
    put(m, "4-7", "system/node/node1/cpulist");
    put(m, "", "system/node/node2/cpulist"); /* memory alone */
    allow(m, "0-7");
    struct waste_topology t = look(m);
    assert_int_equal(t.l3_domains, 3);
    assert_int_equal(t.nodes, 2);
    assert_int_equal(t.node_mask, 3);
    assert_string_equal(waste_topology_text(&t, text, sizeof(text)),
                        "8 cores of 8 CPUs, 3 L3 domains, 2 memory nodes");
    allow(m, "1-3");
    t = look(m);
    assert_int_equal(t.l3_domains, 2);
    assert_int_equal(t.nodes, 1);
}

static void nonsense_in_the_tree_counts_as_silence(void **state)
{
    struct machine *m = *state;
    allow(m, "0-1");
    put(m, "0-99999999999", "system/cpu/cpu0/topology/core_cpus_list");
    put(m, "fast", "system/cpu/cpu0/cpu_capacity");
    put(m, "-", "cpu_core/cpus");
    put(m, "9,", "system/cpu/cpu0/cache/index3/shared_cpu_list");
    struct waste_topology t = look(m);
    uses(&t, "0-1");
    assert_int_equal(t.l3_domains, 1);
}

static enum waste_threads_by why; /* of the newest choose() */

static uint32_t choose(const struct waste_topology *t, const struct waste_args *a, uint32_t quota,
                       const char *list)
{
    uint64_t mask[WASTE_CPU_WORDS], want[WASTE_CPU_WORDS] = {0};
    uint32_t threads;

    why = waste_topology_choose(t, a, quota, &threads, mask);
    if (list != NULL)
        assert_int_equal(waste_units_parse_cpus(list, want, WASTE_CPU_WORDS), 0);
    assert_memory_equal(mask, want, sizeof(want));
    return threads;
}

static void options_and_quota_decide_over_the_default(void **state)
{
    struct machine *m = *state;
    struct waste_args a = {0};
    hybrid(m);
    allow(m, "0-15");
    struct waste_topology t = look(m);
    assert_int_equal(choose(&t, &a, 16, "0,2,4,6"), 4);
    assert_int_equal(why, WASTE_THREADS_CORES);
    assert_int_equal(choose(&t, &a, 3, "0,2,4,6"), 3); /* the scheduler spreads them */
    assert_int_equal(why, WASTE_THREADS_QUOTA);
    a.threads = 2;
    assert_int_equal(choose(&t, &a, 16, "0,2,4,6"), 2);
    assert_int_equal(why, WASTE_THREADS_OPTION);
    a.threads = 12; /* more than cores: all CPUs */
    assert_int_equal(choose(&t, &a, 16, NULL), 12);
    a.threads = 0;
    a.cpus[0] = 0x300; /* what is listed is taken, whatever kind it is */
    assert_int_equal(choose(&t, &a, 16, "8,9"), 2);
    assert_int_equal(why, WASTE_THREADS_CPUS);
    assert_int_equal(choose(&t, &a, 1, "8,9"), 1);
    a.threads = 5;
    assert_int_equal(choose(&t, &a, 16, "8,9"), 5);
}

static void equal_cores_need_no_mask(void **state)
{
    struct machine *m = *state;
    struct waste_args a = {0};
    allow(m, "0-3");
    struct waste_topology t = look(m);
    assert_int_equal(choose(&t, &a, 4, NULL), 4);
    assert_int_equal(choose(&t, &a, 2, NULL), 2);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_machine_that_says_nothing_has_as_many_cores_as_cpus),
        TEST(one_worker_a_core_not_a_thread),
        TEST(older_kernels_call_it_thread_siblings),
        TEST(a_hybrid_machine_works_with_its_performance_cores),
        TEST(little_cores_are_left_out_by_capacity),
        TEST(without_capacities_the_clock_tells),
        TEST(domains_and_nodes_are_counted_where_the_workers_are),
        TEST(nonsense_in_the_tree_counts_as_silence),
        TEST(options_and_quota_decide_over_the_default),
        TEST(equal_cores_need_no_mask),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
