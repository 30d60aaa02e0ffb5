/* waste-fetch synth: a container with random weights. The manifest is written last, so what has one
 * is whole. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
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

static const struct {
    const char *name;
    uint32_t fmt;
} formats[] = {{"VQ3R", WASTE_FMT_VQ3R}, {"VQ2R", WASTE_FMT_VQ2R}, {"VQ4P", WASTE_FMT_VQ4P}};

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

static int help(FILE *to, int code)
{
    fputs("usage: waste-fetch synth --shape NAME|CONFIG.json [options] OUT\n"
          "\n"
          "Writes a container with random centred weights to the new directory OUT. What it holds\n"
          "depends on the shape, the formats and the seed, not on the machine or the threads.\n"
          "\n"
          "  --shape NAME       one of --list, or the path of a release's config.json\n"
          "  --list             the shapes that have a name, and their sizes\n"
          "  --seed S           a whole number (default 1)\n"
          "  --fmt F            experts: VQ3R, VQ2R or VQ4P (default: the shape's, else VQ3R)\n"
          "  --trunk-bits N     trunk matrices: 3, 4 or 8 bits (default: the shape's, else 4)\n"
          "  --layers N         only the first N layers\n"
          "  --threads N        default: one a CPU\n"
          "  -q, --quiet        no progress, no summary\n"
          "  -h, --help\n"
          "\n"
          "A directory with other content is refused; one that a broken run of the same command\n"
          "left is completed. Exit codes: 0 done, 1 failed, 2 usage.\n",
          to);
    return code;
}

static int whole_number(uint64_t *out, const char *option, const char *text, uint64_t low,
                        uint64_t high)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || n < low || n > high)
        return waste_fetch_fail("%s %s: a whole number from %llu to %llu is wanted", option, text,
                                (unsigned long long)low, (unsigned long long)high);
    *out = n;
    return 0;
}

enum { OPT_SHAPE = 256, OPT_LIST, OPT_SEED, OPT_FMT, OPT_BITS, OPT_LAYERS, OPT_THREADS };

static int set_format(struct options *o, const char *text)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (!strcmp(text, formats[i].name)) {
            o->expert_fmt = formats[i].fmt;
            return 0;
        }
    return waste_fetch_fail("--fmt %s: VQ3R, VQ2R or VQ4P is wanted", text);
}

static int set_option(struct options *o, int c, const char *text)
{
    uint64_t n = 0;
    int e = 0;
    switch (c) {
    case OPT_SHAPE:
        o->shape = text;
        return 0;
    case OPT_SEED:
        return whole_number(&o->seed, "--seed", text, 0, INT64_MAX);
    case OPT_FMT:
        return set_format(o, text);
    case OPT_BITS:
        e = whole_number(&n, "--trunk-bits", text, 3, 8);
        if (!e && n != 3 && n != 4 && n != 8)
            return waste_fetch_fail("--trunk-bits %s: 3, 4 or 8 is wanted", text);
        o->trunk_bits = (uint32_t)n;
        return e;
    case OPT_LAYERS:
        e = whole_number(&n, "--layers", text, 1, WASTE_MAX_LAYERS);
        o->layers = (uint32_t)n;
        return e;
    case OPT_THREADS:
        e = whole_number(&n, "--threads", text, 1, WASTE_WEIGHTS_THREADS);
        o->threads = (uint32_t)n;
        return e;
    case 'q':
        o->quiet = true;
        return 0;
    default:
        return -1;
    }
}

int waste_fetch_synth(int argc, char **argv)
{
    static const struct option longs[] = {{"shape", 1, NULL, OPT_SHAPE},
                                          {"list", 0, NULL, OPT_LIST},
                                          {"seed", 1, NULL, OPT_SEED},
                                          {"fmt", 1, NULL, OPT_FMT},
                                          {"trunk-bits", 1, NULL, OPT_BITS},
                                          {"layers", 1, NULL, OPT_LAYERS},
                                          {"threads", 1, NULL, OPT_THREADS},
                                          {"quiet", 0, NULL, 'q'},
                                          {"help", 0, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct options o = {.seed = 1};
    for (int c; (c = getopt_long(argc, argv, "qh", longs, NULL)) != -1;) {
        if (c == 'h')
            return help(stdout, 0);
        if (c == OPT_LIST)
            return list_shapes();
        if (set_option(&o, c, optarg))
            return 2;
    }
    if (argc - optind != 1 || !o.shape) {
        waste_fetch_fail("synth needs %s: see waste-fetch synth --help",
                         o.shape ? "one directory OUT" : "--shape NAME");
        return 2;
    }
    o.out = argv[optind];
    return synthesise(&o);
}
