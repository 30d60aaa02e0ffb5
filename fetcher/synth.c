/* waste-fetch synth: a container with random weights. The manifest is written last, so what has one
 * is whole. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fetcher/fetch.h"
#include "fetcher/io.h"
#include "fetcher/plan.h"
#include "fetcher/shape.h"
#include "fetcher/texts.h"
#include "fetcher/weights.h"
#include "reader/container.h"
#include "shm/model.h"

struct options {
    const char *shape, *out;
    uint64_t seed;
    uint32_t expert_fmt, trunk_bits, layers, threads; /* 0: as the shape says */
    bool quiet;
};

/* In the order of the words of --fmt and --trunk-bits. */
static const uint32_t formats[] = {WASTE_FMT_VQ3R, WASTE_FMT_VQ2R, WASTE_FMT_VQ4P};
static const uint32_t trunk_bits[] = {3, 4, 8};

/* What the container is made from. It is written first: a second run with the same recipe may go on
 * in the same directory, any other may not. */
static char *recipe(const struct options *o, const struct waste_shape *s)
{
    json_t *j = json_pack("{s:s, s:I, s:i, s:i, s:b, s:O}", "made_by", "waste-fetch synth", "seed",
                          (json_int_t)o->seed, "expert_fmt", (int)s->expert_fmt, "trunk_bits",
                          (int)s->trunk_bits, "subnormal", s->subnormal, "config", s->config);
    char *text = j ? json_dumps(j, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
    json_decref(j);
    return text;
}

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

static bool is_empty(int dir)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    bool empty = d != NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            empty = false;
    if (d)
        closedir(d);
    return empty;
}

/* Opens the directory, making it if need be. *whole: this very container stands there already. */
static int open_directory(const char *path, const char *text, bool *whole)
{
    if (mkdir(path, 0755) && errno != EEXIST)
        return waste_fetch_fail("cannot make %s: %s", path, strerror(errno));
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return waste_fetch_fail("cannot open %s: %s", path, strerror(errno));
    bool same = holds(dir, "synth.json", text);
    *whole = same && !faccessat(dir, "manifest.json", R_OK, 0);
    if (same || is_empty(dir))
        return dir;
    close(dir);
    return waste_fetch_fail("%s has other content, nothing is overwritten: choose another "
                            "directory or remove it",
                            path);
}

/* Bytes the container still needs, less what a broken run left there. */
static int check_space(int dir, const char *path, const struct waste_plan *p)
{
    struct statvfs v;
    if (fstatvfs(dir, &v))
        return waste_fetch_fail("cannot ask for free space at %s: %s", path, strerror(errno));
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize, need = p->total_bytes + (8 << 20);
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
    return waste_fetch_fail("%s needs %.2f GiB, the file system has %.2f GiB free", path,
                            (double)need / 0x1p30, (double)room / 0x1p30);
}

static int write_manifest(int dir, const struct waste_plan *p, const struct waste_shape *s)
{
    char *text = waste_plan_manifest(p, s);
    int e = text ? waste_io_write_file(dir, "manifest.json", text, strlen(text))
                 : waste_fetch_fail("out of memory");
    free(text);
    return e;
}

/* What the reader would refuse must not be called done. */
static int check(const char *path)
{
    struct waste_model *model = NULL;
    struct waste_error err;
    if (waste_container_open(path, &model, &err))
        return waste_fetch_fail("the container just written is not accepted: %s", err.text);
    free(model);
    return 0;
}

static int write_all(const struct options *o, struct waste_shape *s, int dir, const char *text)
{
    struct waste_plan plan;
    if (waste_plan_init(&plan, s))
        return -1;
    struct waste_weights w = {.shape = s,
                              .plan = &plan,
                              .path = o->out,
                              .dir = dir,
                              .seed = o->seed,
                              .threads = o->threads,
                              .quiet = o->quiet};
    int e = check_space(dir, o->out, &plan);
    if (!e)
        e = waste_io_write_file(dir, "synth.json", text, strlen(text));
    if (!e)
        e = waste_texts_write(dir, s);
    if (!e)
        e = waste_weights_write_codebooks(&w);
    if (!e)
        e = waste_weights_write(&w);
    if (!e)
        e = write_manifest(dir, &plan, s);
    if (!e)
        e = check(o->out);
    waste_plan_finish(&plan);
    return e;
}

static int synthesise(const struct options *o)
{
    struct waste_shape shape;
    char *text = NULL;
    bool whole = false;
    int dir = -1, e = 0, code = 1;
    if (waste_shape_load(&shape, o->shape, o->layers)) {
        code = 2; /* a name or a config.json that will not do */
        e = -1;
        goto out;
    }
    if (o->expert_fmt)
        shape.expert_fmt = o->expert_fmt;
    if (o->trunk_bits)
        shape.trunk_bits = o->trunk_bits;
    waste_texts_set_ids(&shape);
    text = recipe(o, &shape);
    e = -1;
    if (!text) {
        waste_fetch_fail("out of memory");
        goto out;
    }
    dir = open_directory(o->out, text, &whole);
    if (dir < 0)
        goto out;
    if (whole && !o->quiet)
        printf("%s: already there\n", o->out);
    e = whole ? 0 : write_all(o, &shape, dir, text);
out:
    if (dir >= 0)
        close(dir);
    free(text);
    waste_shape_finish(&shape);
    return e ? code : 0;
}

static int list_shapes(void)
{
    for (uint32_t i = 0; i < waste_named_shape_count; i++) {
        struct waste_shape s;
        struct waste_plan p;
        const struct waste_named_shape *n = &waste_named_shapes[i];
        if (waste_shape_load(&s, n->name, 0))
            return 1;
        if (waste_plan_init(&p, &s))
            return 1;
        bool large = p.total_bytes >= UINT64_C(1) << 30;
        printf("%-16s %7.1f %s  %s\n", n->name, (double)p.total_bytes / (large ? 0x1p30 : 0x1p20),
               large ? "GiB" : "MiB", n->help);
        waste_plan_finish(&p);
        waste_shape_finish(&s);
    }
    return 0;
}

int waste_fetch_synth(const struct waste_fetch_args *args)
{
    struct options o = {.shape = args->shape,
                        .out = args->line.positional[0],
                        .seed = args->seed,
                        .layers = args->layers,
                        .threads = args->threads,
                        .quiet = args->quiet};

    if (args->list)
        return list_shapes();
    if (!o.out || !o.shape) {
        waste_fetch_fail("synth needs %s: see waste-fetch synth --help",
                         o.shape ? "a directory OUT" : "--shape NAME");
        return 2;
    }
    if (args->expert_fmt)
        o.expert_fmt = formats[args->expert_fmt - 1];
    if (args->trunk_bits)
        o.trunk_bits = trunk_bits[args->trunk_bits - 1];
    return synthesise(&o);
}
