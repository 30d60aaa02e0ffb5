/* Which shards a unit needs, and when nothing needs one any more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fetcher/convert_int.h"
#include "fetcher/io.h"
#include "fetcher/record.h"
#include "options/units.h"

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

int waste_conversion_index(struct waste_conversion *v)
{
    uint32_t shards = v->release.shards;
    v->needs = calloc(v->c.shape.layers + 1, shards + 1);
    if (!v->needs)
        return waste_fetch_fail("out of memory");
    for (uint32_t i = 0; i < v->release.tensors; i++) {
        const struct waste_release_tensor *t = &v->release.tensor[i];
        if (v->unit[i] == WASTE_UNIT_NONE)
            continue;
        uint8_t *needs = v->needs + (size_t)v->unit[i] * shards;
        needs[t->data.shard] = 1;
        if (t->scale.bytes)
            needs[t->scale.shard] = 1;
    }
    return 0;
}

static bool reads_from(const struct waste_conversion *v, uint32_t unit, uint32_t shard)
{
    return v->needs[(size_t)unit * v->release.shards + shard];
}

/* How far a conversion is: what it will be, played through to see what room it takes. */
struct state {
    uint8_t *done; /* [layers + 1] */
    uint8_t *here; /* [shards] */
};

static void close_state(struct state *s)
{
    free(s->done);
    free(s->here);
}

static bool open_state(const struct waste_conversion *v, struct state *s)
{
    s->done = calloc(v->c.shape.layers + 1, 1);
    s->here = calloc(v->release.shards + 1, 1);
    for (uint32_t i = 0; s->here && i < v->release.shards; i++)
        s->here[i] = v->release.shard[i].here;
    for (uint32_t u = 0; s->done && u <= v->c.shape.layers; u++)
        s->done[u] = waste_conversion_is_done(v, u);
    return s->done && s->here;
}

static bool is_left(const struct waste_conversion *v, const struct state *s, uint32_t unit)
{
    return !s->done[unit] && waste_conversion_is_wanted(v, unit);
}

/* Copies are needed for what this run does; others for what any run has to do. */
static bool is_needed(const struct waste_conversion *v, const struct state *s, uint32_t shard)
{
    for (uint32_t u = 0; u <= v->c.shape.layers; u++)
        if (reads_from(v, u, shard) && (v->release.copies ? is_left(v, s, u) : !s->done[u]))
            return true;
    return false;
}

static uint32_t next_unit(const struct waste_conversion *v, const struct state *s)
{
    uint32_t best = WASTE_UNIT_NONE;
    uint64_t fewest = UINT64_MAX;
    for (uint32_t u = 0; u <= v->c.shape.layers; u++) {
        uint64_t bytes = 0;
        if (!is_left(v, s, u))
            continue;
        for (uint32_t i = 0; i < v->release.shards; i++)
            bytes += reads_from(v, u, i) && !s->here[i] ? v->release.shard[i].bytes : 0;
        if (bytes < fewest) {
            fewest = bytes;
            best = u;
        }
    }
    return best;
}

uint32_t waste_conversion_next(const struct waste_conversion *v)
{
    struct state s;
    uint32_t unit = open_state(v, &s) ? next_unit(v, &s) : WASTE_UNIT_NONE;
    close_state(&s);
    return unit;
}

/* The shards of the unit after this one, as the order goes on. */
static void hint_next(struct waste_conversion *v, uint32_t unit)
{
    struct state s;
    uint32_t after = WASTE_UNIT_NONE;
    if (open_state(v, &s)) {
        s.done[unit] = 1;
        after = next_unit(v, &s);
    }
    close_state(&s);
    for (uint32_t i = 0; after != WASTE_UNIT_NONE && i < v->release.shards; i++)
        if (reads_from(v, after, i))
            waste_release_hint(&v->release, i);
}

int waste_conversion_want(struct waste_conversion *v, uint32_t unit)
{
    for (uint32_t i = 0; i < v->release.shards; i++) /* all of them at once */
        if (reads_from(v, unit, i))
            waste_release_hint(&v->release, i);
    for (uint32_t i = 0; i < v->release.shards; i++)
        if (reads_from(v, unit, i) && waste_release_want(&v->release, i))
            return -1;
    hint_next(v, unit);
    return 0;
}

int waste_conversion_release(struct waste_conversion *v)
{
    struct state now;
    int rc = open_state(v, &now) ? 0 : waste_fetch_fail("out of memory");
    char size[24];
    for (uint32_t i = 0; i < v->release.shards && rc == 0; i++) {
        struct waste_release_shard *s = &v->release.shard[i];
        if (s->over || is_needed(v, &now, i))
            continue;
        s->over = true;
        if (v->args->reclaim == WASTE_RECLAIM_DRY && !v->args->quiet)
            printf("%s/%s could be deleted now (%s)\n", v->release.path, s->name,
                   waste_units_format_size(s->bytes, size, sizeof(size)));
        rc = waste_release_done(&v->release, i);
    }
    close_state(&now);
    return rc;
}

static bool on_one_file_system(const struct waste_conversion *v)
{
    struct stat a, b;
    return v->release.path && !stat(v->release.path, &a) && !fstat(v->c.dir, &b) &&
           a.st_dev == b.st_dev;
}

/* Bytes of the shards that are here, or that nothing needs any more. */
static uint64_t shard_bytes(const struct waste_conversion *v, const struct state *s, bool needed)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < v->release.shards; i++)
        if (needed ? s->here[i] : !is_needed(v, s, i) && !v->release.shard[i].gone)
            bytes += v->release.shard[i].bytes;
    return bytes;
}

/* Shards that the unit needs come, and those of the next one. */
static void stage(const struct waste_conversion *v, struct state *s, uint32_t unit)
{
    for (uint32_t i = 0; unit != WASTE_UNIT_NONE && i < v->release.shards; i++)
        s->here[i] |= (uint8_t)reads_from(v, unit, i);
}

static void drop(const struct waste_conversion *v, struct state *s)
{
    for (uint32_t i = 0; i < v->release.shards; i++)
        s->here[i] &= (uint8_t)is_needed(v, s, i);
}

uint64_t waste_conversion_space(const struct waste_conversion *v)
{
    bool frees = v->args->reclaim == WASTE_RECLAIM_ON && on_one_file_system(v);
    uint64_t now = 0, most = 0, freed = 0, staged = 0;
    struct state s;
    bool ok = open_state(v, &s);
    uint64_t there = ok && v->release.copies ? shard_bytes(v, &s, true) : 0;
    for (uint32_t u = 0; u <= v->c.shape.layers && ok; u++)
        now += s.done[u] ? waste_conversion_writes(v, u) : 0;
    for (uint32_t u; ok && (u = next_unit(v, &s)) != WASTE_UNIT_NONE;) {
        now += waste_conversion_writes(v, u);
        stage(v, &s, u);
        s.done[u] = 1;
        if (v->release.copies) {
            stage(v, &s, next_unit(v, &s)); /* fetched ahead */
            staged = shard_bytes(v, &s, true);
            drop(v, &s);
        }
        most = now + staged - freed > most ? now + staged - freed : most;
        if (frees)
            freed = shard_bytes(v, &s, false);
        freed = freed < now ? freed : now;
    }
    close_state(&s);
    most = most > now ? most : now;
    return most > there ? most - there : 0;
}
