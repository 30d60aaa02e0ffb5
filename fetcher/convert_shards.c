/* Which shards a unit needs, and when nothing needs one any more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fetcher/convert_int.h"
#include "fetcher/io.h"
#include "fetcher/record.h"

bool waste_conversion_is_done(const struct waste_conversion *v, uint32_t unit)
{
    return unit ? v->ledger.done.layer[unit - 1] : v->ledger.done.outer;
}

bool waste_conversion_is_wanted(const struct waste_conversion *v, uint32_t unit)
{
    bool mine = unit ? unit - 1 >= v->first && unit - 1 <= v->last : v->first == 0;
    return mine && !waste_conversion_is_done(v, unit);
}

uint64_t waste_conversion_reads(const struct waste_conversion *v, uint32_t unit)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < v->release.tensors; i++)
        if (v->unit[i] == unit)
            bytes += v->release.tensor[i].data.bytes + v->release.tensor[i].scale.bytes;
    return bytes;
}

uint64_t waste_conversion_writes(const struct waste_conversion *v, uint32_t unit)
{
    const struct waste_plan *p = &v->c.plan;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->tensor_count; i++)
        if (p->tensor[i].layer + 1 == (int)unit)
            bytes += p->tensor[i].bytes;
    if (unit > v->c.shape.dense_layers)
        bytes += p->bank_bytes + 3 * p->stages * waste_book_bytes(p);
    return bytes;
}

/* use[shard] = 1 where a tensor of a unit that `takes` lies. */
static void mark(const struct waste_conversion *v, uint8_t *use,
                 bool (*takes)(const struct waste_conversion *v, uint32_t unit, uint32_t with),
                 uint32_t with)
{
    for (uint32_t i = 0; i < v->release.tensors; i++) {
        const struct waste_release_tensor *t = &v->release.tensor[i];
        if (v->unit[i] == WASTE_UNIT_NONE || !takes(v, v->unit[i], with))
            continue;
        use[t->data.shard] = 1;
        if (t->scale.bytes)
            use[t->scale.shard] = 1;
    }
}

static bool is_unit(const struct waste_conversion *v, uint32_t unit, uint32_t with)
{
    return unit == with;
}

/* Not done, and not before `with` either. */
static bool is_needed(const struct waste_conversion *v, uint32_t unit, uint32_t with)
{
    return !waste_conversion_is_done(v, unit) &&
           (unit >= with || !waste_conversion_is_wanted(v, unit));
}

int waste_conversion_want(struct waste_conversion *v, uint32_t unit)
{
    uint8_t *use = calloc(v->release.shards + 1, 1);
    int rc = use ? 0 : waste_fetch_fail("out of memory");
    if (use)
        mark(v, use, is_unit, unit);
    for (uint32_t i = 0; i < v->release.shards && rc == 0; i++)
        rc = use[i] ? waste_release_want(&v->release, i) : 0;
    free(use);
    return rc;
}

int waste_conversion_release(struct waste_conversion *v)
{
    uint8_t *use = calloc(v->release.shards + 1, 1);
    int rc = use ? 0 : waste_fetch_fail("out of memory");
    if (use)
        mark(v, use, is_needed, 0);
    for (uint32_t i = 0; i < v->release.shards && rc == 0; i++) {
        struct waste_release_shard *s = &v->release.shard[i];
        if (use[i] || s->over)
            continue;
        s->over = true;
        if (v->args->reclaim == WASTE_RECLAIM_DRY && !v->args->quiet)
            printf("%s/%s could be deleted now (%.2f GiB)\n", v->release.path, s->name,
                   (double)s->bytes / 0x1p30);
        rc = waste_release_done(&v->release, i);
    }
    free(use);
    return rc;
}

static bool on_one_file_system(const struct waste_conversion *v)
{
    struct stat a, b;
    return v->release.path && !stat(v->release.path, &a) && !fstat(v->c.dir, &b) &&
           a.st_dev == b.st_dev;
}

uint64_t waste_conversion_space(const struct waste_conversion *v)
{
    bool frees = v->args->reclaim == WASTE_RECLAIM_ON && on_one_file_system(v);
    uint64_t now = 0, most = 0, freed = 0;
    for (uint32_t unit = 0; unit <= v->c.shape.layers; unit++) {
        uint8_t *use = frees ? calloc(v->release.shards + 1, 1) : NULL;
        if (waste_conversion_is_wanted(v, unit) || waste_conversion_is_done(v, unit))
            now += waste_conversion_writes(v, unit);
        most = now - freed > most ? now - freed : most;
        if (use) {
            mark(v, use, is_needed, unit + 1);
            freed = 0;
            for (uint32_t i = 0; i < v->release.shards; i++)
                freed += use[i] || v->release.shard[i].gone ? 0 : v->release.shard[i].bytes;
            freed = freed < now ? freed : now;
        }
        free(use);
    }
    return most;
}
