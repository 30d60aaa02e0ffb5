/* What convert says: the plan of --dry-run, the summary. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "fetcher/convert_int.h"
#include "fetcher/io.h"
#include "options/units.h"

static const char *const kinds[] = {"gate", "up", "down"};

/* Free bytes where OUT is, or will be. */
static int free_bytes(const char *path, uint64_t *out)
{
    struct statvfs s;
    char *parent = strdup(path);
    int rc = statvfs(path, &s);
    while (rc && errno == ENOENT && parent && *parent) {
        char *slash = strrchr(parent, '/');
        if (slash == parent || !slash)
            strcpy(parent, slash ? "/" : ".");
        else
            *slash = 0;
        rc = statvfs(parent, &s);
        if (!slash || slash == parent)
            break;
    }
    free(parent);
    if (rc)
        return waste_fetch_fail("cannot ask for free space at %s: %s", path, strerror(errno));
    *out = (uint64_t)s.f_bavail * s.f_frsize;
    return 0;
}

/* A text that lives as long as the block around it. */
#define SIZE(n) waste_units_format_size(n, (char[24]){0}, 24)

int waste_conversion_show_plan(const struct waste_conversion *v)
{
    const struct waste_plan *p = &v->c.plan;
    const struct waste_shape *s = &v->c.shape;
    uint64_t room = 0, banks = p->moe_layers * p->bank_bytes, reads = 0;
    if (free_bytes(v->c.path, &room))
        return -1;
    for (uint32_t i = 0; i < v->release.shards; i++)
        reads += v->release.shard[i].gone ? 0 : v->release.shard[i].bytes;
    if (v->args->json)
        return waste_fetch_print_json(json_pack(
            "{s:o, s:o, s:i, s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:b, s:i}", "release",
            waste_io_json(v->release.path), "container", waste_io_json(v->c.path), "shards",
            (int)v->release.shards, "shard_bytes", (json_int_t)reads, "tensors",
            (int)p->tensor_count, "trunk_bytes", (json_int_t)p->trunk_bytes, "codebook_bytes",
            (json_int_t)p->codebook_bytes, "expert_bytes", (json_int_t)banks, "total_bytes",
            (json_int_t)p->total_bytes, "free_bytes", (json_int_t)room, "fits",
            room >= p->total_bytes, "skipped_tensors", (int)v->skipped));
    printf("%s: %u shards, %s\n", v->release.path, v->release.shards, SIZE(reads));
    printf("trunk.bin      %10s  %u tensors\n", SIZE(p->trunk_bytes), p->tensor_count);
    printf("codebooks.bin  %10s  %u books\n", SIZE(p->codebook_bytes), p->books);
    printf("experts-L*.bin %10s  %u layers of %u experts\n", SIZE(banks), p->moe_layers,
           s->experts);
    if (v->skipped)
        printf("left out: %u tensors of layers from %u on\n", v->skipped, s->layers);
    printf("%s: %s needed, %s free%s\n", v->c.path, SIZE(p->total_bytes), SIZE(room),
           room >= p->total_bytes ? "" : ": too little");
    return 0;
}

/* Relative error of a kind over the layers of this run; the worst layer's in *worst, *at. */
static double error_of(const struct waste_conversion *v, uint32_t kind, double *worst, uint32_t *at)
{
    double sum[2] = {0};
    *worst = 0;
    for (uint32_t l = 0; l < v->c.shape.layers; l++) {
        const double *e = v->c.error[l].error[kind];
        double one = e[1] > 0 ? sqrt(e[0] / e[1]) : 0;
        if (one > *worst) {
            *worst = one;
            *at = l;
        }
        sum[0] += e[0];
        sum[1] += e[1];
    }
    return sum[1] > 0 ? sqrt(sum[0] / sum[1]) : 0;
}

static json_t *errors_json(const struct waste_conversion *v)
{
    json_t *all = json_object();
    for (uint32_t k = 0; k < 3; k++) {
        double worst;
        uint32_t at = 0;
        double mean = error_of(v, k, &worst, &at);
        json_t *layers = json_object();
        for (uint32_t l = 0; l < v->c.shape.layers; l++) {
            const double *e = v->c.error[l].error[k];
            char key[16];
            snprintf(key, sizeof(key), "%u", l);
            if (e[1] > 0)
                json_object_set_new(layers, key, json_real(sqrt(e[0] / e[1])));
        }
        json_object_set_new(all, kinds[k], json_pack("{s:f, s:o}", "all", mean, "layers", layers));
    }
    return all;
}

void waste_conversion_already_there(const struct waste_conversion *v)
{
    if (v->args->json)
        waste_fetch_print_json(json_pack("{s:o, s:b, s:b}", "container", waste_io_json(v->c.path),
                                         "whole", true, "already_there", true));
    else if (!v->args->quiet)
        printf("%s: already there\n", v->c.path);
}

void waste_conversion_summary(const struct waste_conversion *v)
{
    bool whole = waste_ledger_complete(&v->ledger);
    uint32_t done = 0;
    for (uint32_t l = 0; l < v->c.shape.layers; l++)
        done += v->ledger.done.layer[l];
    if (v->was_whole) {
        waste_conversion_already_there(v);
        return;
    }
    if (v->args->json) {
        waste_fetch_print_json(json_pack(
            "{s:o, s:b, s:i, s:i, s:I, s:f, s:i, s:s, s:o}", "container", waste_io_json(v->c.path),
            "whole", whole, "layers_done", (int)done, "layers", (int)v->c.shape.layers,
            "read_bytes", (json_int_t)v->read_bytes, "seconds", v->seconds, "skipped_tensors",
            (int)v->skipped, "level", v->c.search.level, "weight_error", errors_json(v)));
        return;
    }
    if (v->args->quiet)
        return;
    printf("%s: %.1f MiB of weights in %.2f s, %.0f MiB/s\n", v->c.path,
           (double)v->read_bytes / 0x1p20, v->seconds,
           (double)v->read_bytes / 0x1p20 / (v->seconds > 0 ? v->seconds : 1));
    for (uint32_t k = 0; k < 3; k++) {
        double worst;
        uint32_t at = 0;
        double mean = error_of(v, k, &worst, &at);
        if (mean > 0)
            printf("%-4s weights: relative error %.2f %%, at most %.2f %% (layer %u)\n", kinds[k],
                   100 * mean, 100 * worst, at);
    }
    if (v->skipped)
        printf("left out: %u tensors of layers from %u on\n", v->skipped, v->c.shape.layers);
    if (!whole)
        printf("%s: partial, %u of %u layers: the same command without --layers, or waste-fetch "
               "merge, makes it whole\n",
               v->c.path, done, v->c.shape.layers);
}
