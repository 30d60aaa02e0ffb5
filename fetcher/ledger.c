#include "fetcher/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/io.h"
#include "fetcher/record.h"

static bool has_file(int dir, const char *name, uint64_t bytes)
{
    struct stat st;
    return !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
           (uint64_t)st.st_size == bytes;
}

static bool has_layer(const struct waste_ledger *l, uint32_t layer)
{
    char name[32];
    waste_bank_name(name, layer);
    return layer < l->shape->dense_layers || has_file(l->dir, name, l->plan->bank_bytes);
}

/* The manifest, a new reference; NULL if there is none or it cannot be read, with *rc set. */
static json_t *read_manifest(int dir, int *rc)
{
    json_error_t error;
    int fd = openat(dir, "manifest.json", O_RDONLY | O_CLOEXEC);
    *rc = 0;
    if (fd < 0 && errno == ENOENT)
        return NULL;
    json_t *root = fd < 0 ? NULL : json_loadfd(fd, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        *rc = waste_fetch_fail("cannot read manifest.json: %s",
                               fd < 0 ? strerror(errno) : error.text);
    if (fd >= 0)
        close(fd);
    return root;
}

int waste_ledger_open(struct waste_ledger *l, int dir, const struct waste_plan *plan,
                      const struct waste_shape *shape)
{
    int rc;
    *l = (struct waste_ledger){.plan = plan, .shape = shape, .dir = dir};
    l->done.layer = calloc(shape->layers, 1);
    if (!l->done.layer)
        return waste_fetch_fail("out of memory");
    json_t *root = read_manifest(dir, &rc), *partial = json_object_get(root, "partial");
    bool whole = root && !partial;
    bool trunk = has_file(dir, "trunk.bin", plan->trunk_bytes) &&
                 has_file(dir, "codebooks.bin", plan->codebook_bytes);
    json_t *layers = json_object_get(partial, "layers");
    l->done.outer = trunk && (whole || json_is_true(json_object_get(partial, "outer")));
    for (uint32_t i = 0; i < shape->layers; i++)
        l->done.layer[i] = whole && trunk && has_layer(l, i);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        json_int_t n = json_integer_value(json_array_get(layers, i));
        if (n >= 0 && n < shape->layers)
            l->done.layer[n] = trunk && has_layer(l, (uint32_t)n);
    }
    json_decref(root);
    return rc;
}

void waste_ledger_close(struct waste_ledger *l)
{
    free(l->done.layer);
    memset(l, 0, sizeof(*l));
}

bool waste_ledger_complete(const struct waste_ledger *l)
{
    bool all = l->done.outer;
    for (uint32_t i = 0; i < l->shape->layers; i++)
        all = all && l->done.layer[i];
    return all;
}

int waste_ledger_publish(const struct waste_ledger *l)
{
    char *text = waste_plan_manifest(l->plan, l->shape, &l->done);
    int rc = text ? waste_io_write_file(l->dir, "manifest.json", text, strlen(text))
                  : waste_fetch_fail("out of memory");
    free(text);
    return rc;
}
