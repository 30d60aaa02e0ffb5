/* Memory limits, found in trees made up here: v1 and v2, ancestors, namespaces. */
#include "cm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/machine.h"

#define MIB (UINT64_C(1) << 20)

struct tree {
    char root[64];
    char meminfo[128], cgroup[128], mountinfo[128], pressure[128];
    struct waste_machine_paths paths;
};

static void put(const struct tree *t, const char *path, const char *text)
{
    char full[512];

    snprintf(full, sizeof(full), "%s/%s", t->root, path);
    for (char *slash = full + strlen(t->root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* 8 GiB, 6 of them free; the mounts of a machine with both versions. */
static int set_up(void **state)
{
    struct tree *t = calloc(1, sizeof(*t));
    char mounts[1024];

    snprintf(t->root, sizeof(t->root), "/tmp/waste-machine-XXXXXX");
    assert_non_null(mkdtemp(t->root));
    snprintf(t->meminfo, sizeof(t->meminfo), "%s/meminfo", t->root);
    snprintf(t->cgroup, sizeof(t->cgroup), "%s/cgroup", t->root);
    snprintf(t->mountinfo, sizeof(t->mountinfo), "%s/mountinfo", t->root);
    snprintf(t->pressure, sizeof(t->pressure), "%s/pressure", t->root);
    t->paths = (struct waste_machine_paths){t->meminfo, t->cgroup, t->mountinfo, t->pressure};
    put(t, "meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\nMemAvailable:    6291456 kB\n");
    snprintf(mounts, sizeof(mounts),
             "22 1 0:5 / /proc rw - proc proc rw\n"
             "30 23 0:26 / %s/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
             "31 23 0:27 / %s/memory rw,nosuid shared:10 - cgroup cgroup rw,memory\n"
             "32 23 0:28 / %s/unified rw,nosuid - cgroup2 cgroup2 rw\n",
             t->root, t->root, t->root);
    put(t, "mountinfo", mounts);
    *state = t;
    return 0;
}

static int tear_down(void **state)
{
    struct tree *t = *state;
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", t->root);
    int rc = system(command);
    free(t);
    return rc;
}

static struct waste_machine_memory look(const struct tree *t)
{
    struct waste_machine_memory m;

    assert_int_equal(waste_machine_memory(&t->paths, &m), 0);
    assert_int_equal(m.total_bytes, 8192 * MIB);
    assert_int_equal(m.available_bytes, 6144 * MIB);
    return m;
}

static void without_limits_the_free_memory_counts(void **state)
{
    struct tree *t = *state;
    put(t, "cgroup", "4:memory:/a\n0::/b\n");
    put(t, "memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    put(t, "unified/b/memory.max", "max\n");
    struct waste_machine_memory m = look(t);
    assert_true(m.limit_bytes == UINT64_MAX);
    assert_int_equal(m.allowed_bytes, 6144 * MIB);
    assert_string_equal(m.limit_path, "");
}

static void a_v1_limit_counts_without_its_page_cache(void **state)
{
    struct tree *t = *state;
    put(t, "cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n");
    put(t, "memory/a/b/memory.limit_in_bytes", "1073741824\n");
    put(t, "memory/a/b/memory.usage_in_bytes", "314572800\n");
    put(t, "memory/a/b/memory.stat",
        "cache 1\nactive_file 5\ntotal_inactive_file 104857600\ntotal_active_file 104857600\n");
    struct waste_machine_memory m = look(t);
    assert_int_equal(m.limit_bytes, 1024 * MIB);
    assert_int_equal(m.limit_used, 100 * MIB);
    assert_int_equal(m.allowed_bytes, 924 * MIB);
}

static void the_tightest_ancestor_decides(void **state)
{
    struct tree *t = *state;
    put(t, "cgroup", "0::/a/b/c\n");
    put(t, "unified/a/b/c/memory.max", "2147483648\n");
    put(t, "unified/a/b/memory.max", "max\n");
    put(t, "unified/a/memory.max", "536870912\n");
    put(t, "unified/a/memory.current", "0\n");
    put(t, "unified/memory.max", "4294967296\n");
    struct waste_machine_memory m = look(t);
    assert_int_equal(m.limit_bytes, 512 * MIB);
    assert_int_equal(m.allowed_bytes, 512 * MIB);
    assert_non_null(strstr(m.limit_path, "/unified/a"));
    assert_null(strstr(m.limit_path, "/unified/a/"));
}

/* A wide limit of which nearly all is taken leaves less than a narrow one that is free. */
static void what_is_left_decides_not_the_limit(void **state)
{
    struct tree *t = *state;
    put(t, "cgroup", "0::/a/b\n");
    put(t, "unified/a/b/memory.max", "1073741824\n");
    put(t, "unified/a/b/memory.current", "0\n");
    put(t, "unified/a/memory.max", "2147483648\n");
    put(t, "unified/a/memory.current", "2042626048\n");
    struct waste_machine_memory m = look(t);
    assert_int_equal(m.limit_bytes, 1024 * MIB);
    assert_int_equal(m.allowed_bytes, 100 * MIB);
}

static void a_mount_of_a_part_of_the_hierarchy_is_understood(void **state)
{
    struct tree *t = *state;
    char mounts[512];
    snprintf(mounts, sizeof(mounts),
             "31 23 0:27 /docker/1234 %s/memory rw - cgroup cgroup rw,memory\n", t->root);
    put(t, "mountinfo", mounts);
    put(t, "cgroup", "4:memory:/docker/1234/job\n");
    put(t, "memory/job/memory.limit_in_bytes", "268435456\n");
    assert_int_equal(look(t).limit_bytes, 256 * MIB);
}

static void a_path_outside_the_namespace_means_the_mount_point(void **state)
{
    struct tree *t = *state;
    put(t, "cgroup", "0::/../../sibling\n");
    put(t, "memory.max", "1048576\n"); /* what a careless walk would find */
    put(t, "unified/memory.max", "268435456\n");
    assert_int_equal(look(t).limit_bytes, 256 * MIB);
}

static void a_machine_without_cgroups_is_fine(void **state)
{
    struct tree *t = *state;
    unlink(t->mountinfo);
    assert_int_equal(look(t).allowed_bytes, 6144 * MIB);
    struct waste_machine_memory m;
    unlink(t->meminfo);
    assert_int_equal(waste_machine_memory(&t->paths, &m), -ENOENT);
}

static struct waste_machine_stalls stalls(const struct tree *t)
{
    struct waste_machine_memory m = look(t);
    struct waste_machine_stalls s;

    memset(&s, 0xff, sizeof(s));
    waste_machine_stalls(&t->paths, &m, &s);
    return s;
}

#define PSI(total)                                                                                 \
    "some avg10=0.12 avg60=0.00 avg300=1.00 total=" total                                          \
    "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"

static void stalls_are_those_of_the_limit_that_is_nearest(void **state)
{
    struct tree *t = *state;
    put(t, "cgroup", "0::/a/b\n");
    put(t, "pressure", PSI("1000"));
    put(t, "unified/memory.pressure", PSI("20"));
    put(t, "unified/a/memory.pressure", PSI("30"));
    put(t, "unified/a/b/memory.pressure", PSI("40"));
    /* no limit: who shares the machine's memory counts */
    struct waste_machine_stalls s = stalls(t);
    assert_int_equal(s.us, 1000);
    assert_string_equal(s.path, t->pressure);
    put(t, "unified/a/b/memory.max", "1073741824\n");
    s = stalls(t);
    assert_int_equal(s.us, 40);
    assert_non_null(strstr(s.path, "/unified/a/b/memory.pressure"));
    /* an ancestor's limit, of which less is left, others share */
    put(t, "unified/a/memory.max", "2147483648\n");
    put(t, "unified/a/memory.current", "2042626048\n");
    assert_int_equal(stalls(t).us, 30);
    /* limits wider than what the machine has left do not matter */
    put(t, "unified/a/memory.current", "0\n");
    put(t, "unified/a/memory.max", "7516192768\n");
    put(t, "unified/a/b/memory.max", "7516192768\n");
    assert_int_equal(stalls(t).us, 1000);
}

static void without_a_file_of_its_own_the_machines_counts(void **state)
{
    struct tree *t = *state;
    put(t, "cgroup", "0::/a\n4:memory:/x\n");
    put(t, "pressure", PSI("1000"));
    put(t, "unified/a/memory.max", "1073741824\n");
    assert_int_equal(stalls(t).us, 1000);
    put(t, "unified/a/memory.pressure", PSI("40"));
    assert_int_equal(stalls(t).us, 40);
    /* a tighter limit of v1, which has no such file, whatever is there by that name */
    put(t, "memory/x/memory.limit_in_bytes", "268435456\n");
    put(t, "memory/x/memory.pressure", PSI("50"));
    assert_int_equal(stalls(t).us, 1000);
    unlink(t->pressure);
    assert_int_equal(stalls(t).us, 0);
    assert_string_equal(stalls(t).path, "");
}

static void a_pressure_file_of_nonsense_is_as_good_as_none(void **state)
{
    struct tree *t = *state;
    static const char *const nonsense[] = {
        "",
        "\n",
        "some",
        "some \n",
        "some avg10=0.00 total=\n",
        "some avg10=0.00 total=-1\n",
        "some avg10=0.00 total=1x\n",
        "some avg10=0.00 total=99999999999999999999\n",
        "some avg10=0.00 total= 7\n",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        "sometotal=7\n",
    };
    put(t, "cgroup", "0::/a\n");
    put(t, "unified/a/memory.max", "1073741824\n");
    put(t, "pressure", PSI("1000"));
    for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++) {
        put(t, "unified/a/memory.pressure", nonsense[i]);
        assert_int_equal(stalls(t).us, 1000);
    }
    char endless[5000];
    memset(endless, 'x', sizeof(endless) - 1);
    endless[sizeof(endless) - 1] = '\0';
    memcpy(endless, "some ", 5);
    put(t, "unified/a/memory.pressure", endless);
    assert_int_equal(stalls(t).us, 1000);
    put(t, "pressure", endless);
    assert_int_equal(stalls(t).us, 0);
    put(t, "unified/a/memory.pressure", "some total=18446744073709551615");
    assert_true(stalls(t).us == UINT64_MAX);
}

/* Lines as no kernel writes them: nothing is found, nothing breaks. */
static void cgroup_files_of_nonsense_mean_no_limit(void **state)
{
    struct tree *t = *state;
    char *endless = malloc(20001), line[20100];
    memset(endless, 'a', 20000);
    endless[20000] = '\0';
    put(t, "pressure", PSI("1000"));
    static const char *const cgroups[] = {
        "", ":", "::", "0:", "0::", "0::/../..", "\n\n", "0::\n:::::\n"};
    for (size_t i = 0; i < sizeof(cgroups) / sizeof(cgroups[0]); i++) {
        put(t, "cgroup", cgroups[i]);
        assert_int_equal(look(t).allowed_bytes, 6144 * MIB);
        assert_int_equal(stalls(t).us, 1000);
    }
    snprintf(line, sizeof(line), "0::/%s\n", endless);
    put(t, "cgroup", line);
    assert_int_equal(look(t).allowed_bytes, 6144 * MIB);
    put(t, "cgroup", "0::/a\n");
    put(t, "unified/a/memory.max", "1073741824\n");
    static const char *const mounts[] = {"", " - cgroup2 x y\n", "1 2 3 / - cgroup2\n",
                                         "1 2 3 / \\ - cgroup2 x y\n",
                                         "1 2 3 \\777\\1 / - cgroup2 x y\n"};
    for (size_t i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++) {
        put(t, "mountinfo", mounts[i]);
        assert_int_equal(look(t).allowed_bytes, 6144 * MIB);
    }
    snprintf(line, sizeof(line), "1 2 3 / /%s rw - cgroup2 cgroup2 rw\n", endless);
    put(t, "mountinfo", line);
    assert_int_equal(look(t).allowed_bytes, 6144 * MIB);
    free(endless);
}

static void a_mount_point_with_blanks_is_found(void **state)
{
    struct tree *t = *state;
    char mounts[512];
    snprintf(mounts, sizeof(mounts), "32 23 0:28 / %s/my\\040cgroups rw - cgroup2 cgroup2 rw\n",
             t->root);
    put(t, "mountinfo", mounts);
    put(t, "cgroup", "0::/a\n");
    put(t, "my cgroups/a/memory.max", "268435456\n");
    assert_int_equal(look(t).limit_bytes, 256 * MIB);
}

/* A mount of /docker/12 says nothing about /docker/1234. */
static void another_part_of_the_hierarchy_is_not_ours(void **state)
{
    struct tree *t = *state;
    char mounts[512];
    snprintf(mounts, sizeof(mounts),
             "31 23 0:27 /docker/12 %s/memory rw - cgroup cgroup rw,memory\n", t->root);
    put(t, "mountinfo", mounts);
    put(t, "cgroup", "4:memory:/docker/1234/job\n");
    put(t, "memory34/job/memory.limit_in_bytes", "268435456\n");
    assert_true(look(t).limit_bytes == UINT64_MAX);
}

/* The machine the test runs on has one CPU at least; quotas below that show. */
static void a_quota_limits_the_threads(void **state)
{
    struct tree *t = *state;
    put(t, "cgroup", "5:cpu,cpuacct:/x\n0::/b\n");
    put(t, "cpu/x/cpu.cfs_period_us", "100000\n");
    put(t, "cpu/x/cpu.cfs_quota_us", "-1\n");
    struct waste_machine_quota q;
    waste_machine_quota(&t->paths, &q);
    assert_int_equal(q.cpus, UINT32_MAX);
    put(t, "unified/b/cpu.max", "max 100000\n");
    waste_machine_quota(&t->paths, &q);
    assert_int_equal(q.cpus, UINT32_MAX);
    put(t, "unified/b/cpu.max", "50000 100000\n");
    waste_machine_quota(&t->paths, &q);
    assert_int_equal(q.cpus, 1); /* half of one */
    assert_non_null(strstr(q.path, "/unified/b"));
    put(t, "unified/b/cpu.max", "max 100000\n");
    put(t, "cpu/cpu.cfs_period_us", "100000\n");
    put(t, "cpu/cpu.cfs_quota_us", "100000\n");
    waste_machine_quota(&t->paths, &q);
    assert_int_equal(q.cpus, 1);
    assert_string_equal(strrchr(q.path, '/'), "/cpu");
    put(t, "cpu/cpu.cfs_quota_us", "100001\n");
    waste_machine_quota(&t->paths, &q);
    assert_int_equal(q.cpus, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_limits_the_free_memory_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_v1_limit_counts_without_its_page_cache, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(the_tightest_ancestor_decides, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_left_decides_not_the_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_mount_of_a_part_of_the_hierarchy_is_understood, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_path_outside_the_namespace_means_the_mount_point, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(stalls_are_those_of_the_limit_that_is_nearest, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(without_a_file_of_its_own_the_machines_counts, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_pressure_file_of_nonsense_is_as_good_as_none, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(cgroup_files_of_nonsense_mean_no_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_mount_point_with_blanks_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(another_part_of_the_hierarchy_is_not_ours, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_quota_limits_the_threads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_machine_without_cgroups_is_fine, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
