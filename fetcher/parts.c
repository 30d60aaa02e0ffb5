#include "fetcher/parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/io.h"
#include "reader/container_int.h"

enum { TEXT_LIMIT = 256 << 20, STEP = 1 << 20 };

const char *const waste_parts_texts[] = {"tokenizer.model", "specials.json", "chat.json",
                                         "vision.json", NULL};

/* ---- fields of a manifest that nobody has checked ---- */

/* A whole number of [0, high]; false if it is none. */
static bool number(const json_t *object, const char *key, uint64_t high, uint64_t *out)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > high)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static int bad(const struct waste_part *part, const char *what)
{
    return waste_fetch_fail("%s/" WASTE_MANIFEST ": %s: it is no part that waste-fetch convert "
                            "made",
                            part->path, what);
}

/* The unit of a trunk tensor: 0, or its layer + 1. */
static uint32_t unit_of(const struct waste_part *part, const char *name)
{
    const char *prefix = json_string_value(json_object_get(part->manifest, "tensor_prefix"));
    size_t n = prefix ? strlen(prefix) : 0;
    unsigned layer;
    if (strncmp(name, prefix ? prefix : "", n) == 0 &&
        sscanf(name + n, "model.layers.%u.", &layer) == 1 && layer < WASTE_MAX_LAYERS)
        return layer + 1;
    return 0;
}

static int check_trunk(const struct waste_parts *p, const struct waste_part *part)
{
    const json_t *trunk = json_object_get(part->manifest, "trunk"), *e;
    size_t i;
    if (!json_is_array(trunk))
        return bad(part, "trunk is no list");
    json_array_foreach(trunk, i, e)
    {
        uint64_t off, bytes;
        const char *name = json_string_value(json_object_get(e, "name"));
        if (!name || !number(e, "off", p->trunk_bytes, &off) ||
            !number(e, "bytes", p->trunk_bytes - off, &bytes))
            return bad(part, "trunk has an entry that does not lie in trunk.bin");
        uint32_t unit = unit_of(part, name);
        if (unit > p->layers || !part->has[unit])
            return bad(part, "trunk has an entry of a layer that is not there");
    }
    return 0;
}

static int check_banks(const struct waste_parts *p, const struct waste_part *part)
{
    const json_t *layers = json_object_get(part->manifest, "layers");
    for (uint32_t l = 0; l < p->layers; l++) {
        char key[16], file[32];
        uint64_t bytes, base;
        snprintf(key, sizeof(key), "%u", l);
        snprintf(file, sizeof(file), "experts-L%u.bin", l);
        const json_t *bank = json_object_get(layers, key);
        if ((bank != NULL) != (l >= p->dense_layers && part->has[l + 1]))
            return bad(part, "layers and partial.layers do not say the same");
        const char *name = json_string_value(json_object_get(bank, "file"));
        if (bank &&
            (!name || strcmp(name, file) != 0 || !number(bank, "bytes", INT64_MAX, &bytes) ||
             !number(bank, "codebook_base", 65535, &base) ||
             base * p->book_bytes >
                 (uint64_t)(p->layers - p->dense_layers - 1) * p->layer_book_bytes))
            return bad(part, "a bank is described wrongly");
    }
    return 0;
}

/* ---- one part ---- */

static int read_units(struct waste_parts *p, struct waste_part *part)
{
    const json_t *partial = json_object_get(part->manifest, "partial"), *v;
    const json_t *config = json_object_get(part->manifest, "config");
    uint64_t layers, dense = 0;
    size_t i;
    if (!number(config, "num_hidden_layers", WASTE_MAX_LAYERS, &layers) || layers == 0)
        return bad(part, "config.num_hidden_layers is no number of layers");
    const json_t *first = json_object_get(config, "first_k_dense_replace");
    if (first && !json_is_null(first) && !number(config, "first_k_dense_replace", layers, &dense))
        return bad(part, "config.first_k_dense_replace is no number of layers");
    p->layers = (uint32_t)layers;
    p->dense_layers = (uint32_t)dense;
    part->has = calloc(layers + 1, 1);
    if (!part->has)
        return waste_fetch_fail("out of memory");
    memset(part->has, !partial, layers + 1); /* a whole container is a part, too */
    part->has[0] |= json_is_true(json_object_get(partial, "outer"));
    json_array_foreach(json_object_get(partial, "layers"), i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            (uint64_t)json_integer_value(v) >= layers)
            return bad(part, "partial.layers has what is no layer");
        part->has[json_integer_value(v) + 1] = 1;
    }
    return 0;
}

static int file_bytes(const struct waste_part *part, const char *name, uint64_t *bytes)
{
    struct stat st;
    if (fstatat(part->dir, name, &st, 0))
        return waste_fetch_fail("cannot open %s/%s: %s", part->path, name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return waste_fetch_fail("%s/%s is no regular file", part->path, name);
    *bytes = (uint64_t)st.st_size;
    return 0;
}

static int read_text(const struct waste_part *part, const char *name, size_t limit, bool optional,
                     char **text, size_t *bytes)
{
    struct waste_error err;
    *text = NULL;
    *bytes = 0;
    int rc = waste_container_read_file(part->path, name, limit, text, bytes, &err);
    if (rc == 0 || (optional && rc == -ENOENT))
        return 0;
    return waste_fetch_fail("%s", err.text);
}

static int open_part(struct waste_parts *p, struct waste_part *part, const char *path)
{
    char *text = NULL;
    size_t bytes;
    json_error_t error;
    uint64_t stages = 0, entries = 0;
    part->path = path;
    part->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (part->dir < 0)
        return waste_fetch_cannot("open", path, errno);
    if (read_text(part, WASTE_MANIFEST, WASTE_MANIFEST_LIMIT, false, &text, &bytes))
        return -1;
    part->manifest = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!json_is_object(part->manifest))
        return waste_fetch_fail("%s/" WASTE_MANIFEST ": line %d: %s", path, error.line,
                                part->manifest ? "no object" : error.text);
    const json_t *quant = json_object_get(part->manifest, "expert_quant");
    if (!number(quant, "stages", 4, &stages) || !number(quant, "entries", 256, &entries) ||
        !stages || !entries)
        return bad(part, "expert_quant has no stages and entries");
    p->book_bytes = WASTE_CODEBOOK_HEADER + entries * WASTE_VEC_DIM * 2;
    p->layer_book_bytes = 3 * stages * p->book_bytes;
    return read_units(p, part);
}

/* ---- parts among each other ---- */

/* No part twice, and none that another process is at work in. */
static int check_alone(const struct waste_parts *p, const struct waste_part *part, bool move)
{
    struct stat a, b;
    for (const struct waste_part *q = p->part; q < part; q++)
        if (!fstat(q->dir, &a) && !fstat(part->dir, &b) && a.st_dev == b.st_dev &&
            a.st_ino == b.st_ino)
            return waste_fetch_fail("%s and %s are one part", q->path, part->path);
    return waste_io_lock(part->dir, !move)
               ? 0
               : waste_fetch_fail("another waste-fetch is at work in %s", part->path);
}

static int differ(const struct waste_parts *p, const struct waste_part *part, const char *what)
{
    return waste_fetch_fail("%s and %s are not parts of one conversion: %s differs",
                            p->part[0].path, part->path, what);
}

/* Everything of two manifests but what is there. */
static int compare_manifests(const struct waste_parts *p, const struct waste_part *part)
{
    static const char *const keys[] = {"format_version", "arch", "tensor_prefix", "config",
                                       "expert_quant"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (!json_equal(json_object_get(p->part[0].manifest, keys[i]),
                        json_object_get(part->manifest, keys[i])))
            return differ(p, part, keys[i]);
    return 0;
}

static int compare_text(struct waste_parts *p, const struct waste_part *part, const char *name)
{
    char *a = NULL, *b = NULL;
    size_t n, m;
    int rc = read_text(&p->part[0], name, TEXT_LIMIT, true, &a, &n);
    if (rc == 0)
        rc = read_text(part, name, TEXT_LIMIT, true, &b, &m);
    if (rc == 0 && (!a != !b || n != m || (a && memcmp(a, b, n) != 0)))
        rc = differ(p, part, name);
    free(a);
    free(b);
    return rc;
}

static int compare_sizes(struct waste_parts *p, const struct waste_part *part)
{
    uint64_t trunk, books, first_books;
    if (file_bytes(part, WASTE_TRUNK_FILE, &trunk) ||
        file_bytes(part, WASTE_CODEBOOK_FILE, &books) ||
        file_bytes(&p->part[0], WASTE_CODEBOOK_FILE, &first_books))
        return -1;
    if (part == &p->part[0])
        p->trunk_bytes = trunk;
    if (trunk != p->trunk_bytes)
        return differ(p, part, "the size of " WASTE_TRUNK_FILE);
    if (books != first_books)
        return differ(p, part, "the size of " WASTE_CODEBOOK_FILE);
    uint64_t moe = p->layers - p->dense_layers;
    if (books != moe * p->layer_book_bytes)
        return waste_fetch_fail("%s/" WASTE_CODEBOOK_FILE ": size is %llu, must be %llu",
                                part->path, (unsigned long long)books,
                                (unsigned long long)(moe * p->layer_book_bytes));
    return 0;
}

/* The same bytes at the same place of a file of two directories. 1: yes, 0: no, -1 printed. */
static int same_bytes(int a_dir, const struct waste_part *b, const char *name, uint64_t off,
                      uint64_t bytes)
{
    uint8_t *buffer = malloc(2 * STEP);
    int x = openat(a_dir, name, O_RDONLY | O_CLOEXEC),
        y = openat(b->dir, name, O_RDONLY | O_CLOEXEC);
    int same = buffer && x >= 0 && y >= 0 ? 1 : -1;
    for (uint64_t at = 0; at < bytes && same == 1; at += STEP) {
        size_t n = bytes - at < STEP ? (size_t)(bytes - at) : STEP;
        ssize_t have = pread(x, buffer, n, (off_t)(off + at));
        ssize_t got = pread(y, buffer + STEP, n, (off_t)(off + at));
        same = have != (ssize_t)n || got != (ssize_t)n ? -1 : memcmp(buffer, buffer + STEP, n) == 0;
    }
    if (same < 0)
        waste_fetch_fail("cannot read %s/%s: %s", b->path, name, strerror(errno ? errno : EIO));
    if (x >= 0)
        close(x);
    if (y >= 0)
        close(y);
    free(buffer);
    return same;
}

struct overlap {
    const struct waste_parts *p;
    const struct waste_part *first, *again;
    const char *file;
};

static int compare_range(void *ctx, uint64_t off, uint64_t bytes)
{
    struct overlap *o = ctx;
    int same = same_bytes(o->first->dir, o->again, o->file, off, bytes);
    if (same == 0)
        return waste_fetch_fail("%s and %s both have %s at %llu, and differ", o->first->path,
                                o->again->path, o->file, (unsigned long long)off);
    return same < 0 ? -1 : 0;
}

/* A unit that two parts have: trunk entries and books. Banks: waste_parts_check_banks. */
static int compare_unit(const struct waste_parts *p, uint32_t a, uint32_t b, uint32_t unit)
{
    struct overlap o = {p, &p->part[a], &p->part[b], WASTE_TRUNK_FILE};
    int rc = waste_parts_entries(p, b, unit, compare_range, &o);
    uint64_t bytes, book;
    if (rc || !unit || !waste_parts_bank(p, b, unit - 1, &bytes, &book))
        return rc;
    o.file = WASTE_CODEBOOK_FILE;
    return compare_range(&o, book, p->layer_book_bytes);
}

static int assign_units(struct waste_parts *p)
{
    char missing[256] = "";
    size_t n = 0;
    p->first = calloc(p->layers + 1, sizeof(*p->first));
    if (!p->first)
        return waste_fetch_fail("out of memory");
    for (uint32_t u = 0; u <= p->layers; u++) {
        uint32_t found = UINT32_MAX;
        for (uint32_t i = 0; i < p->count; i++) {
            if (!p->part[i].has[u])
                continue;
            if (found != UINT32_MAX && compare_unit(p, found, i, u))
                return -1;
            found = found == UINT32_MAX ? i : found;
        }
        p->first[u] = (uint16_t)(found == UINT32_MAX ? 0 : found);
        if (found == UINT32_MAX && n + 24 < sizeof(missing))
            n +=
                (size_t)(u ? snprintf(missing + n, sizeof(missing) - n, "%slayer %u", n ? ", " : "",
                                      u - 1)
                           : snprintf(missing + n, sizeof(missing) - n, "all that is in no layer"));
    }
    return n ? waste_fetch_fail("parts are missing: no part has %s", missing) : 0;
}

int waste_parts_open(struct waste_parts *p, const char *const *paths, uint32_t count, bool move)
{
    size_t bytes;
    *p = (struct waste_parts){.part = calloc(count + 1, sizeof(*p->part)), .out = -1};
    if (!p->part)
        return waste_fetch_fail("out of memory");
    for (uint32_t i = 0; i < count; i++) {
        struct waste_part *part = &p->part[p->count++];
        part->dir = -1;
        if (open_part(p, part, paths[i]) || check_alone(p, part, move) ||
            compare_manifests(p, part) || compare_text(p, part, "convert.json") ||
            compare_sizes(p, part) || check_trunk(p, part) || check_banks(p, part))
            return -1;
        for (int t = 0; waste_parts_texts[t]; t++)
            if (compare_text(p, part, waste_parts_texts[t]))
                return -1;
    }
    if (read_text(&p->part[0], "convert.json", TEXT_LIMIT, false, &p->recipe, &bytes))
        return -1;
    return assign_units(p);
}

void waste_parts_close(struct waste_parts *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        json_decref(p->part[i].manifest);
        free(p->part[i].has);
        if (p->part[i].dir >= 0)
            close(p->part[i].dir);
    }
    if (p->out >= 0)
        close(p->out);
    free(p->part);
    free(p->recipe);
    free(p->first);
}

const char *waste_parts_bank(const struct waste_parts *p, uint32_t part, uint32_t layer,
                             uint64_t *bytes, uint64_t *first_book_byte)
{
    char key[16];
    snprintf(key, sizeof(key), "%u", layer);
    const json_t *bank = json_object_get(json_object_get(p->part[part].manifest, "layers"), key);
    if (!bank)
        return NULL;
    *bytes = (uint64_t)json_integer_value(json_object_get(bank, "bytes"));
    *first_book_byte =
        (uint64_t)json_integer_value(json_object_get(bank, "codebook_base")) * p->book_bytes;
    return json_string_value(json_object_get(bank, "file"));
}

int waste_parts_entries(const struct waste_parts *p, uint32_t part, uint32_t unit,
                        int (*each)(void *ctx, uint64_t off, uint64_t bytes), void *ctx)
{
    const json_t *e;
    size_t i;
    json_array_foreach(json_object_get(p->part[part].manifest, "trunk"), i, e)
    {
        if (unit_of(&p->part[part], json_string_value(json_object_get(e, "name"))) != unit)
            continue;
        int rc = each(ctx, (uint64_t)json_integer_value(json_object_get(e, "off")),
                      (uint64_t)json_integer_value(json_object_get(e, "bytes")));
        if (rc)
            return rc;
    }
    return 0;
}

/* The size of dir/name if it is a regular file, or -1. */
static int64_t size_in(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, 0) || !S_ISREG(st.st_mode) ? -1 : st.st_size;
}

int waste_parts_check_banks(const struct waste_parts *p)
{
    for (uint32_t l = p->dense_layers; l < p->layers; l++) {
        uint64_t bytes, book, again_bytes;
        uint32_t first = p->first[l + 1];
        const char *name = waste_parts_bank(p, first, l, &bytes, &book);
        bool merged = size_in(p->out, name) == (int64_t)bytes; /* by a run that was broken off */
        int dir = merged ? p->out : p->part[first].dir;
        if (size_in(dir, name) != (int64_t)bytes)
            return waste_fetch_fail("%s/%s: is not there with its %llu bytes", p->part[first].path,
                                    name, (unsigned long long)bytes);
        for (uint32_t i = first + 1; i < p->count; i++) {
            if (!p->part[i].has[l + 1] || size_in(p->part[i].dir, name) < 0)
                continue;
            waste_parts_bank(p, i, l, &again_bytes, &book);
            int same = again_bytes == bytes ? same_bytes(dir, &p->part[i], name, 0, bytes) : 0;
            if (same == 0)
                waste_fetch_fail("%s and %s both have %s, and differ", p->part[first].path,
                                 p->part[i].path, name);
            if (same != 1)
                return -1;
        }
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "off"));
    json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "off"));
    return x < y ? -1 : x > y;
}

/* The entries of all units, in the order of the file, as a converter lists them. */
static json_t *whole_trunk(const struct waste_parts *p)
{
    json_t *out = json_array(), **list, *e;
    size_t room = 0, n = 0, i;
    for (uint32_t k = 0; k < p->count; k++)
        room += json_array_size(json_object_get(p->part[k].manifest, "trunk"));
    list = calloc(room + 1, sizeof(*list));
    if (!list)
        abort();
    for (uint32_t k = 0; k < p->count; k++)
        json_array_foreach(json_object_get(p->part[k].manifest, "trunk"), i, e)
        {
            uint32_t unit = unit_of(&p->part[k], json_string_value(json_object_get(e, "name")));
            if (p->first[unit] == k)
                list[n++] = e;
        }
    qsort(list, n, sizeof(*list), by_offset);
    for (i = 0; i < n; i++)
        json_array_append(out, list[i]);
    free(list);
    return out;
}

static json_t *whole_layers(const struct waste_parts *p)
{
    json_t *out = json_object();
    for (uint32_t l = p->dense_layers; l < p->layers; l++) {
        char key[16];
        snprintf(key, sizeof(key), "%u", l);
        json_object_set(
            out, key,
            json_object_get(json_object_get(p->part[p->first[l + 1]].manifest, "layers"), key));
    }
    return out;
}

char *waste_parts_manifest(const struct waste_parts *p)
{
    json_t *m = json_copy(p->part[0].manifest);
    json_object_del(m, "partial");
    json_object_set_new(m, "layers", whole_layers(p));
    json_object_set_new(m, "trunk", whole_trunk(p));
    char *text = json_dumps(m, JSON_INDENT(1));
    json_decref(m);
    return text;
}
