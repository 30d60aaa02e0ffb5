#include "fetcher/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/io.h"
#include "fetcher/record.h"
#include "reader/container_int.h"

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
static json_t *read_manifest(int dir, const char *path, int *rc)
{
    json_error_t error;
    char *text;
    size_t bytes;
    int e = waste_io_read_file(dir, WASTE_MANIFEST, WASTE_MANIFEST_LIMIT, &text, &bytes);
    *rc = 0;
    if (e == -ENOENT)
        return NULL;
    json_t *root = e ? NULL : json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        *rc = waste_fetch_fail("cannot read %s/" WASTE_MANIFEST ": %s", path,
                               e ? strerror(-e) : error.text);
    if (!e)
        free(text);
    return root;
}

/* What a manifest says is done. */
static void read_done(struct waste_ledger *l, const json_t *root)
{
    const json_t *partial = json_object_get(root, "partial"), *n;
    size_t i;
    l->done.outer = !partial || json_is_true(json_object_get(partial, "outer"));
    memset(l->done.layer, !partial, l->shape->layers);
    json_array_foreach(json_object_get(partial, "layers"), i, n)
    {
        json_int_t layer = json_integer_value(n);
        if (layer >= 0 && layer < l->shape->layers)
            l->done.layer[layer] = 1;
    }
}

/* Whether a manifest is the one that is published when this much is done. */
static bool is_ours(const struct waste_ledger *l, const json_t *root)
{
    char *text = waste_plan_manifest(l->plan, l->shape, &l->done);
    json_t *ours = text ? json_loads(text, 0, NULL) : NULL;
    bool same = ours && json_equal(ours, root);
    json_decref(ours);
    free(text);
    return same;
}

int waste_ledger_open(struct waste_ledger *l, int dir, const char *path,
                      const struct waste_plan *plan, const struct waste_shape *shape)
{
    int rc;
    *l = (struct waste_ledger){.plan = plan, .shape = shape, .dir = dir};
    l->done.layer = calloc(shape->layers, 1);
    if (!l->done.layer)
        return waste_fetch_fail("out of memory");
    json_t *root = read_manifest(dir, path, &rc);
    if (!root)
        return rc;
    read_done(l, root);
    if (!is_ours(l, root))
        rc = waste_fetch_fail("%s/" WASTE_MANIFEST " is not what this conversion writes: nothing "
                              "is overwritten",
                              path);
    json_decref(root);
    bool trunk = has_file(dir, "trunk.bin", plan->trunk_bytes) &&
                 has_file(dir, "codebooks.bin", plan->codebook_bytes);
    l->done.outer = l->done.outer && trunk;
    for (uint32_t i = 0; i < shape->layers; i++)
        l->done.layer[i] = l->done.layer[i] && trunk && has_layer(l, i);
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
