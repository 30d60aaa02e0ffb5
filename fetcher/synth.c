/* waste-fetch synth: a container, or a release, with random weights. The manifest (the index of the
 * shards) is written last, so what has one is whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fetcher/checkpoint.h"
#include "fetcher/fetch.h"
#include "fetcher/hollow.h"
#include "fetcher/io.h"
#include "fetcher/outdir.h"
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
    bool checkpoint, json, quiet;
    enum waste_source_type type;
    uint64_t shard_bytes; /* 0: as releases have */
};
#define SHARD_BYTES UINT64_C(5000000000)

/* In the order of the words of --dtype. */
static const struct {
    const char *name;
    enum waste_source_type type;
} types[] = {{"bf16", WASTE_SOURCE_BF16},
             {"f16", WASTE_SOURCE_F16},
             {"f32", WASTE_SOURCE_F32},
             {"mxfp4", WASTE_SOURCE_MXFP4}};

static const char *type_name(enum waste_source_type type)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].type == type)
            return types[i].name;
    return "";
}

/* What the container is made from. It is written first: a second run with the same recipe may go on
 * in the same directory, any other may not. */
static char *recipe(const struct options *o, const struct waste_shape *s)
{
    json_t *j = json_pack("{s:s, s:I, s:b, s:O}", "made_by", "waste-fetch synth", "seed",
                          (json_int_t)o->seed, "subnormal", s->subnormal, "config", s->config);
    if (o->checkpoint)
        json_object_update_new(j, json_pack("{s:s, s:I}", "dtype", type_name(o->type),
                                            "shard_bytes", (json_int_t)o->shard_bytes));
    else
        json_object_update_new(j, json_pack("{s:i, s:i}", "expert_fmt", (int)s->expert_fmt,
                                            "trunk_bits", (int)s->trunk_bits));
    char *text = j ? json_dumps(j, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
    json_decref(j);
    return text;
}

static int write_manifest(int dir, const struct waste_plan *p, const struct waste_shape *s)
{
    char *text = waste_plan_manifest(p, s, NULL);
    int e = text ? waste_io_write_file(dir, "manifest.json", text, strlen(text))
                 : waste_fetch_fail("out of memory");
    free(text);
    return e;
}

/* Before anything is written: the reader must be able to take what comes of the shape. */
static int check_shape(const struct options *o, const struct waste_shape *s,
                       const struct waste_plan *plan, int dir)
{
    struct waste_model *model = NULL;
    int rc = waste_hollow_check(plan, s, dir, o->out, o->shape, &model);
    free(model);
    return rc;
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

static int write_container(const struct options *o, const struct waste_shape *s,
                           const struct waste_plan *plan, struct waste_outdir *out, int dir)
{
    struct waste_weights w = {.shape = s,
                              .plan = plan,
                              .path = o->out,
                              .dir = dir,
                              .seed = o->seed,
                              .threads = o->threads,
                              .quiet = o->quiet};
    int e = waste_texts_write(dir, s);
    if (!e)
        e = waste_weights_write_codebooks(&w);
    if (!e)
        e = waste_weights_write(&w);
    out->bytes = plan->total_bytes;
    out->seconds = w.seconds;
    if (!e)
        e = write_manifest(dir, plan, s);
    return e ? e : check(o->out);
}

static int write_checkpoint(const struct options *o, const struct waste_shape *s,
                            const struct waste_plan *plan, struct waste_outdir *out, int dir)
{
    return waste_checkpoint_write(&(struct waste_checkpoint){.shape = s,
                                                             .plan = plan,
                                                             .type = o->type,
                                                             .out = out,
                                                             .dir = dir,
                                                             .seed = o->seed,
                                                             .shard_bytes = o->shard_bytes,
                                                             .threads = o->threads,
                                                             .quiet = o->quiet});
}

static int write_all(const struct options *o, const struct waste_shape *s, struct waste_outdir *out,
                     int dir)
{
    struct waste_plan plan;
    if (waste_plan_init(&plan, s))
        return -1;
    int e = check_shape(o, s, &plan, dir);
    if (!e)
        e = o->checkpoint ? write_checkpoint(o, s, &plan, out, dir)
                          : waste_outdir_begin(out, dir, plan.total_bytes);
    if (!e && !o->checkpoint)
        e = write_container(o, s, &plan, out, dir);
    waste_plan_finish(&plan);
    return e;
}

static int synthesise(struct options *o)
{
    struct waste_shape shape;
    char *text = NULL;
    int dir = -1, rc = WASTE_EXIT_USAGE; /* a name or a config.json that will not do */
    if (waste_shape_load(&shape, o->shape, o->layers) ||
        (o->checkpoint && waste_checkpoint_type(&shape, &o->type)))
        goto out;
    if (o->expert_fmt)
        shape.expert_fmt = o->expert_fmt;
    if (o->trunk_bits)
        shape.trunk_bits = o->trunk_bits;
    waste_texts_set_ids(&shape);
    text = recipe(o, &shape);
    rc = -1;
    if (!text) {
        waste_fetch_fail("out of memory");
        goto out;
    }
    struct waste_outdir made = {.path = o->out,
                                .name = "synth.json",
                                .recipe = text,
                                .last = o->checkpoint ? "model.safetensors.index.json"
                                                      : "manifest.json"};
    dir = waste_outdir_open(&made);
    if (dir < 0)
        goto out;
    rc = made.whole ? 0 : write_all(o, &shape, &made, dir);
    if (rc)
        waste_outdir_abandon(&made);
    else
        rc = waste_outdir_report(&made, o->checkpoint ? "release" : "container", o->json, o->quiet);
out:
    if (dir >= 0)
        close(dir);
    free(text);
    waste_shape_finish(&shape);
    return rc;
}

static int list_shapes(bool json)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < waste_named_shape_count; i++) {
        struct waste_shape s;
        struct waste_plan p;
        const struct waste_named_shape *n = &waste_named_shapes[i];
        if (waste_shape_load(&s, n->name, 0))
            return -1;
        if (waste_plan_init(&p, &s))
            return -1;
        bool large = p.total_bytes >= UINT64_C(1) << 30;
        if (json)
            json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "name", n->name, "bytes",
                                                  (json_int_t)p.total_bytes, "help", n->help));
        else
            printf("%-16s %7.1f %s  %s\n", n->name,
                   (double)p.total_bytes / (large ? 0x1p30 : 0x1p20), large ? "GiB" : "MiB",
                   n->help);
        waste_plan_finish(&p);
        waste_shape_finish(&s);
    }
    if (json)
        return waste_fetch_print_json(json_pack("{s:o}", "shapes", list));
    json_decref(list);
    return 0;
}

int waste_fetch_synth(const struct waste_fetch_args *args)
{
    struct options o = {.shape = args->shape,
                        .out = args->line.positional[0],
                        .seed = args->seed,
                        .expert_fmt = waste_fetch_expert_fmt(args, 0),
                        .trunk_bits = waste_fetch_trunk_bits(args, 0),
                        .layers = args->layers,
                        .threads = args->threads,
                        .checkpoint = args->checkpoint,
                        .json = args->json,
                        .quiet = args->quiet,
                        .shard_bytes = args->shard_bytes ? args->shard_bytes : SHARD_BYTES};

    if (args->list)
        return list_shapes(args->json);
    if (!o.out || !o.shape)
        return waste_fetch_refuse("synth needs %s: see waste-fetch synth --help",
                                  o.shape ? "a directory OUT" : "--shape NAME");
    if (o.checkpoint && (args->expert_fmt || args->trunk_bits))
        return waste_fetch_refuse("--experts and --trunk-bits are of a container, not of a release "
                                  "(--checkpoint)");
    if (!o.checkpoint && (args->dtype || args->shard_bytes))
        return waste_fetch_refuse("--dtype and --shard-size are of a release: add --checkpoint");
    if (args->dtype)
        o.type = types[args->dtype - 1].type;
    return synthesise(&o);
}
