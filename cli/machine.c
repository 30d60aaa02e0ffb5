#include "cli/machine.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "options/units.h"

const struct waste_machine_paths waste_machine_proc = {
    .meminfo = "/proc/meminfo",
    .cgroup = "/proc/self/cgroup",
    .mountinfo = "/proc/self/mountinfo",
    .pressure = "/proc/pressure/memory",
};

/* A limit of this much or more is how the kernel says "none". */
#define NO_LIMIT (UINT64_C(1) << 60)

/* The number after `key` at the start of a line of `path`, times `unit`. */
static bool read_field(const char *path, const char *key, uint64_t unit, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    char line[512];
    bool found = false;
    size_t length = strlen(key);

    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), f) != NULL) {
        uint64_t value;
        if (strncmp(line, key, length) == 0 && sscanf(line + length, " %" SCNu64, &value) == 1) {
            *out = value * unit;
            found = true;
        }
    }
    fclose(f);
    return found;
}

static bool read_number(const char *dir, const char *name, uint64_t *out)
{
    char path[PATH_MAX + 64];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return read_field(path, "", 1, out); /* "max" is no number: no limit */
}

static uint64_t sub(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* One cgroup directory: its limit and what of it is left. */
static void apply_limit(struct waste_machine_memory *m, const char *dir, bool v2)
{
    char stat[PATH_MAX + 64];
    uint64_t limit, used = 0, active = 0, inactive = 0;

    if (!read_number(dir, v2 ? "memory.max" : "memory.limit_in_bytes", &limit) || limit >= NO_LIMIT)
        return;
    read_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes", &used);
    snprintf(stat, sizeof(stat), "%s/memory.stat", dir);
    read_field(stat, v2 ? "active_file " : "total_active_file ", 1, &active);
    read_field(stat, v2 ? "inactive_file " : "total_inactive_file ", 1, &inactive);
    used = sub(used, active + inactive); /* page cache goes when memory is wanted */
    if (limit < m->limit_bytes) {
        m->limit_bytes = limit;
        m->limit_used = used;
        snprintf(m->limit_path, sizeof(m->limit_path), "%s", dir);
    }
    if (sub(limit, used) < m->allowed_bytes) {
        m->allowed_bytes = sub(limit, used);
        snprintf(m->scarce_path, sizeof(m->scarce_path), "%s", v2 ? dir : "");
    }
}

/* One cgroup directory's CPU quota, in whole CPUs, rounded up. */
static void apply_quota(struct waste_machine_quota *q, const char *dir, bool v2)
{
    char path[PATH_MAX + 64], quota_text[32];
    uint64_t quota = 0, period = 100000;

    if (v2) {
        snprintf(path, sizeof(path), "%s/cpu.max", dir);
        FILE *f = fopen(path, "re");
        if (f == NULL)
            return;
        int n = fscanf(f, "%31s %" SCNu64, quota_text, &period);
        fclose(f);
        if (n != 2 || sscanf(quota_text, "%" SCNu64, &quota) != 1) /* "max" */
            return;
    } else if (!read_number(dir, "cpu.cfs_quota_us", &quota) ||
               !read_number(dir, "cpu.cfs_period_us", &period)) {
        return;
    }
    /* v1 says -1 for none, which reads as a huge number */
    if (quota == 0 || period == 0 || quota >= NO_LIMIT)
        return;
    uint64_t whole = (quota + period - 1) / period;
    if (whole < q->cpus) {
        q->cpus = (uint32_t)whole;
        snprintf(q->path, sizeof(q->path), "%s", dir);
    }
}

/* What is asked about every cgroup from the process's own up to the mount point. */
struct walk {
    const char *controller;
    struct waste_machine_memory *memory; /* or */
    struct waste_machine_quota *quota;
};

static void walk_up(const struct walk *w, const char *mount, const char *path, bool v2)
{
    char dir[PATH_MAX];
    size_t base = strlen(mount);

    /* a path that climbs out of a cgroup namespace cannot be seen: the mount point is the nearest
     */
    if (strncmp(path, "/..", 3) == 0)
        path = "";
    if (snprintf(dir, sizeof(dir), "%s%s", mount, path) >= (int)sizeof(dir))
        return;
    for (;;) {
        if (w->memory != NULL)
            apply_limit(w->memory, dir, v2);
        else
            apply_quota(w->quota, dir, v2);
        char *slash = strrchr(dir, '/');
        if (slash == NULL || (size_t)(slash - dir) < base)
            return;
        *slash = '\0';
    }
}

/* The value of a comma-separated option list holds `word`. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);

    for (const char *p = list; (p = strstr(p, word)) != NULL; p += length) {
        if ((p == list || p[-1] == ',') &&
            (p[length] == ',' || p[length] == '\0' || p[length] == '\n'))
            return true;
    }
    return false;
}

/* In mountinfo a blank is \040, and so are others. */
static void unescape(char *text)
{
    char *to = text;

    for (; *text != '\0'; to++) {
        if (text[0] == '\\' && strspn(text + 1, "01234567") >= 3) {
            *to = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
            text += 4;
        } else {
            *to = *text++;
        }
    }
    *to = '\0';
}

/*
 * Mount point of a controller and the part of the hierarchy mounted there. A mountinfo
 * line: id parent dev ROOT POINT options... - TYPE source SUPER-OPTIONS.
 */
static bool find_mount(const char *mountinfo, const char *controller, bool v2, char *root,
                       char *point)
{
    FILE *f = fopen(mountinfo, "re");
    char *line = NULL;
    size_t room = 0;
    bool found = false;

    if (f == NULL)
        return false;
    while (!found && getline(&line, &room, f) > 0) {
        char type[64], super[512];
        const char *dash = strstr(line, " - ");
        if (dash == NULL || sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) != 2 ||
            sscanf(dash, " - %63s %*s %511s", type, super) != 2)
            continue;
        found = v2 ? strcmp(type, "cgroup2") == 0
                   : strcmp(type, "cgroup") == 0 && has_word(super, controller);
    }
    if (found) {
        unescape(root);
        unescape(point);
    }
    free(line);
    fclose(f);
    return found;
}

/* One line of /proc/self/cgroup: "N:controllers:path", "0::path" for v2. */
static void apply_line(const struct walk *w, const char *mountinfo, char *line)
{
    char root[PATH_MAX], point[PATH_MAX];
    char *controllers = strchr(line, ':');
    char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

    if (path == NULL)
        return;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    controllers++;
    bool v2 = *controllers == '\0';
    if ((!v2 && !has_word(controllers, w->controller)) ||
        !find_mount(mountinfo, w->controller, v2, root, point))
        return;
    size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(path, root, length) == 0 && strchr("/", path[length]) != NULL)
        path += length;
    if (strcmp(path, "/") == 0)
        path = (char *)"";
    walk_up(w, point, path, v2);
}

static void walk_cgroups(const struct waste_machine_paths *paths, const struct walk *w)
{
    FILE *f = fopen(paths->cgroup, "re");
    char *line = NULL;
    size_t room = 0;

    while (f != NULL && getline(&line, &room, f) > 0)
        apply_line(w, paths->mountinfo, line);
    free(line);
    if (f != NULL)
        fclose(f);
}

int waste_machine_memory(const struct waste_machine_paths *paths, struct waste_machine_memory *out)
{
    struct waste_machine_memory m = {.limit_bytes = UINT64_MAX};

    if (!read_field(paths->meminfo, "MemTotal:", 1024, &m.total_bytes))
        return -ENOENT;
    m.available_bytes = m.total_bytes;
    read_field(paths->meminfo, "MemAvailable:", 1024, &m.available_bytes);
    m.allowed_bytes = m.available_bytes;
    walk_cgroups(paths, &(struct walk){.controller = "memory", .memory = &m});
    *out = m;
    return 0;
}

/* "some avg10=0.00 avg60=0.00 avg300=0.00 total=776805" is its first line. */
static bool read_stalls(const char *path, uint64_t *us)
{
    char line[256] = "";
    FILE *f = fopen(path, "re");
    bool got = f != NULL && fgets(line, sizeof(line), f) != NULL;

    if (f != NULL)
        fclose(f);
    char *total = got && strncmp(line, "some ", 5) == 0 ? strstr(line, " total=") : NULL;
    if (total == NULL)
        return false;
    total += strlen(" total=");
    total[strcspn(total, "\n")] = '\0';
    return waste_units_parse_u64(total, us) == 0;
}

void waste_machine_stalls(const struct waste_machine_paths *paths,
                          const struct waste_machine_memory *memory,
                          struct waste_machine_stalls *out)
{
    *out = (struct waste_machine_stalls){0};
    if (memory->scarce_path[0] != '\0' &&
        snprintf(out->path, sizeof(out->path), "%s/memory.pressure", memory->scarce_path) <
            (int)sizeof(out->path) &&
        read_stalls(out->path, &out->us))
        return;
    snprintf(out->path, sizeof(out->path), "%s", paths->pressure);
    if (!read_stalls(out->path, &out->us))
        out->path[0] = '\0';
}

void waste_machine_rss(int32_t pid, struct waste_machine_rss *out)
{
    char path[64];

    *out = (struct waste_machine_rss){0};
    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    read_field(path, "VmRSS:", 1024, &out->rss);
    read_field(path, "RssAnon:", 1024, &out->anon);
    read_field(path, "RssFile:", 1024, &out->file);
    read_field(path, "RssShmem:", 1024, &out->shmem);
    snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
    read_field(path, "Pss:", 1024, &out->pss);
}

double waste_machine_cpu_seconds(int32_t pid)
{
    char path[64], line[1024] = "";
    unsigned long long user, system;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return 0;
    size_t n = fread(line, 1, sizeof(line) - 1, f);
    line[n] = '\0';
    fclose(f);
    const char *end = strrchr(line, ')'); /* the program's name may hold anything */
    if (end == NULL || sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
                              &user, &system) != 2)
        return 0;
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

uint64_t waste_machine_oom_kills(void)
{
    uint64_t kills = 0;

    read_field("/proc/vmstat", "oom_kill ", 1, &kills);
    return kills;
}

void waste_machine_segments(int32_t pid, uint64_t resident[WASTE_SEG_COUNT])
{
    static const char prefix[] = "/memfd:waste-";
    char dir[64], path[PATH_MAX], target[128];

    memset(resident, 0, WASTE_SEG_COUNT * sizeof(*resident));
    snprintf(dir, sizeof(dir), "/proc/%d/fd", pid);
    DIR *d = opendir(dir);
    if (d == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        if (n < 0 || strncmp(target, prefix, strlen(prefix)) != 0 || stat(path, &st) != 0)
            continue;
        target[n] = '\0';
        for (int i = 0; i < WASTE_SEG_COUNT; i++) {
            size_t length = strlen(waste_segment_name[i]);
            if (strncmp(target + strlen(prefix), waste_segment_name[i], length) == 0 &&
                strchr(" ", target[strlen(prefix) + length]) != NULL)
                resident[i] = (uint64_t)st.st_blocks * 512;
        }
    }
    closedir(d);
}

void waste_machine_quota(const struct waste_machine_paths *paths, struct waste_machine_quota *out)
{
    *out = (struct waste_machine_quota){.cpus = UINT32_MAX};
    walk_cgroups(paths, &(struct walk){.controller = "cpu", .quota = out});
}

uint32_t waste_machine_foreign_cpu(const uint64_t *mask, size_t words)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return UINT32_MAX;
    for (uint32_t cpu = 0; cpu < words * 64; cpu++)
        if ((mask[cpu / 64] >> cpu % 64 & 1) && (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &set)))
            return cpu;
    return UINT32_MAX;
}
