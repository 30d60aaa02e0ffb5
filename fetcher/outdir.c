#include "fetcher/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fetcher/hollow.h"
#include "fetcher/io.h"
#include "options/units.h"

/* True if dir/name holds exactly this text. */
static bool holds(int dir, const char *name, const char *text)
{
    size_t n = strlen(text);
    char *have = malloc(n + 1);
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    bool same = have && fd >= 0 && read(fd, have, n + 1) == (ssize_t)n && !memcmp(have, text, n);
    if (fd >= 0)
        close(fd);
    free(have);
    return same;
}

/* Nothing is in it, or what a run left that was killed before the recipe was there. */
static bool is_empty(int dir, const char *recipe)
{
    size_t n = strlen(recipe);
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    bool empty = d != NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") &&
            strcmp(e->d_name, WASTE_HOLLOW_PLACE) &&
            (strncmp(e->d_name, recipe, n) != 0 || strcmp(e->d_name + n, ".tmp") != 0))
            empty = false;
    if (d)
        closedir(d);
    return empty;
}

int waste_outdir_open(struct waste_outdir *out)
{
    out->fresh = mkdir(out->path, 0755) == 0;
    if (!out->fresh && errno != EEXIST)
        return waste_fetch_cannot("make", out->path, errno);
    int dir = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return waste_fetch_cannot("open", out->path, errno);
    if (!waste_io_lock(dir, false)) {
        close(dir);
        return waste_fetch_fail("another waste-fetch is at work in %s", out->path);
    }
    bool same = holds(dir, out->name, out->recipe);
    out->whole = same && !faccessat(dir, out->last, R_OK, 0);
    if (same || is_empty(dir, out->name))
        return dir;
    close(dir);
    return waste_fetch_fail("%s has other content, nothing is overwritten: choose another "
                            "directory or remove it",
                            out->path);
}

static int check_space(int dir, const char *path, uint64_t bytes)
{
    struct statvfs v;
    if (fstatvfs(dir, &v))
        return waste_fetch_fail("cannot ask for free space at %s: %s", path, strerror(errno));
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize, need = bytes + (8 << 20);
    DIR *d = fdopendir(openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (!fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
            room += (uint64_t)st.st_blocks * 512;
    }
    if (d)
        closedir(d);
    if (room >= need)
        return 0;
    char wanted[24], left[24];
    return waste_fetch_fail("%s needs %s, the file system has %s free", path,
                            waste_units_format_size(need, wanted, sizeof(wanted)),
                            waste_units_format_size(room, left, sizeof(left)));
}

int waste_outdir_begin(const struct waste_outdir *out, int dir, uint64_t bytes)
{
    int e = check_space(dir, out->path, bytes);
    return e ? e : waste_io_write_file(dir, out->name, out->recipe, strlen(out->recipe));
}

void waste_outdir_abandon(const struct waste_outdir *out)
{
    if (out->fresh)
        rmdir(out->path); /* which has no effect on one that got something */
}

int waste_outdir_report(const struct waste_outdir *out, const char *kind, bool json, bool quiet)
{
    if (json)
        return waste_fetch_print_json(json_pack("{s:o, s:b, s:b, s:I, s:f}", kind,
                                                waste_io_json(out->path), "whole", true,
                                                "already_there", (int)out->whole, "bytes",
                                                (json_int_t)out->bytes, "seconds", out->seconds));
    if (quiet)
        return 0;
    double mib = (double)out->bytes / 0x1p20;
    if (out->whole)
        printf("%s: already there\n", out->path);
    else
        printf("%s: %.1f MiB in %.2f s, %.0f MiB/s\n", out->path, mib, out->seconds,
               mib / out->seconds);
    return 0;
}
