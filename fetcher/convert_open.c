/* What is to be converted: release, config, plan, the experts' tensors. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/address.h"
#include "fetcher/convert_int.h"
#include "fetcher/io.h"
#include "fetcher/layers.h"
#include "shm/model.h"

enum { CONFIG_LIMIT = 16 << 20 };

static int load_shape(struct waste_conversion *v)
{
    struct waste_release *r = &v->release;
    struct waste_shape *s = &v->c.shape;
    const struct waste_fetch_args *a = v->args;
    char *text = NULL;
    size_t bytes;
    int rc = r->ops->small(r, "config.json", CONFIG_LIMIT, &text, &bytes);
    if (rc == -ENOENT)
        rc = waste_fetch_fail("%s has no config.json", r->path);
    else if (rc == 0)
        rc = waste_shape_load_release(s, r->path, text);
    free(text);
    if (rc)
        return -1;
    s->expert_fmt = waste_fetch_expert_fmt(a, WASTE_FMT_VQ3R);
    s->trunk_bits = waste_fetch_trunk_bits(a, 4);
    s->prefix =
        waste_release_find(r, "language_model.model.embed_tokens.weight") ? "language_model." : "";
    return 0;
}

/* Releases that keep it beside the config only. */
static int add_end_token(struct waste_conversion *v)
{
    json_t *config = v->c.shape.config, *outer = json_object_get(config, "_outer");
    char *text = NULL;
    size_t bytes;
    if (json_object_get(config, "eos_token_id") || json_object_get(outer, "eos_token_id"))
        return 0;
    int rc =
        v->release.ops->small(&v->release, "generation_config.json", CONFIG_LIMIT, &text, &bytes);
    json_error_t error;
    json_t *g = rc ? NULL : json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (rc == 0 && !json_is_object(g))
        rc = waste_fetch_fail("%s/generation_config.json: %s", v->release.path,
                              g ? "is no object" : error.text);
    json_t *eos = json_object_get(g, "eos_token_id");
    if (eos)
        json_object_set(config, "eos_token_id", eos);
    json_decref(g);
    free(text);
    return rc == -ENOENT ? 0 : rc;
}

/* The kind of matrix "w1.weight" is: 0 gate, 1 up, 2 down; -1 none. */
static int kind_of(const char *name)
{
    static const char *const names[] = {"w1.weight", "w3.weight", "w2.weight"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

/* Puts a tensor named "...experts.<e>.<rest>" into its place. */
static int take_expert(struct waste_conversion *v, const struct waste_release_tensor *t, int layer,
                       const char *number)
{
    const struct waste_shape *s = &v->c.shape;
    char *rest;
    unsigned long e = strtoul(number, &rest, 10);
    int kind = rest > number && *rest == '.' ? kind_of(rest + 1) : -1;
    if (kind < 0 || !isdigit((unsigned char)*number) || e >= s->experts ||
        (uint32_t)layer < s->dense_layers)
        return waste_fetch_fail("%s: %s is no w1, w2 or w3 of an expert under %u in a MoE layer",
                                v->release.path, t->name, s->experts);
    uint32_t rows = waste_convert_rows(&v->c, (uint32_t)kind);
    uint32_t cols = waste_convert_cols(&v->c, (uint32_t)kind);
    if (t->axes != 2 || t->shape[0] != rows || t->shape[1] != cols)
        return waste_fetch_fail("%s: %s has not the shape [%u, %u] that the config gives",
                                v->release.path, t->name, rows, cols);
    const struct waste_release_tensor **place =
        &v->c.expert[(((size_t)layer - s->dense_layers) * s->experts + e) * 3 + (size_t)kind];
    if (*place)
        return waste_fetch_fail("%s: %s and %s are the same matrix", v->release.path,
                                (*place)->name, t->name);
    *place = t;
    return 0;
}

/* Trunk tensors are the plan's, experts' have their own table, tensors behind the last layer (of
 * multi-token prediction) have no place in a container. */
static int pick(void *ctx, const struct waste_release_tensor *t, int layer)
{
    static const char middle[] = ".block_sparse_moe.experts.";
    struct waste_conversion *v = ctx;
    const char *at = layer >= 0 ? strstr(t->name, middle) : NULL;
    uint32_t *unit = &v->unit[t - v->release.tensor];
    *unit = (uint32_t)(layer + 1);
    if (layer >= (int)v->c.shape.layers) {
        *unit = WASTE_UNIT_NONE;
        v->skipped++;
        return 0;
    }
    return at ? take_expert(v, t, layer, at + sizeof(middle) - 1) : 1;
}

static int check_experts(const struct waste_conversion *v)
{
    static const char *const names[] = {"w1", "w3", "w2"};
    const struct waste_shape *s = &v->c.shape;
    size_t n = (size_t)(s->layers - s->dense_layers) * s->experts * 3, missing = 0, at = 0;
    for (size_t i = n; i-- > 0;)
        if (!v->c.expert[i]) {
            missing++;
            at = i;
        }
    if (!missing)
        return 0;
    return waste_fetch_fail("%s: %zu expert matrices are missing, the first is "
                            "%smodel.layers.%zu.block_sparse_moe.experts.%zu.%s.weight",
                            v->release.path, missing, s->prefix,
                            at / 3 / s->experts + s->dense_layers, at / 3 % s->experts,
                            names[at % 3]);
}

static int check_types(const struct waste_conversion *v)
{
    const struct waste_plan *p = &v->c.plan;
    for (uint32_t i = 0; i < p->tensor_count; i++)
        if (p->tensor[i].source->type == WASTE_RELEASE_OTHER)
            return waste_fetch_fail(
                "%s: %s is of no type that can be converted: BF16, F16, F32 and "
                "MXFP4 pairs can",
                v->release.path, p->tensor[i].name);
    return 0;
}

static int open_release(struct waste_conversion *v, const char *cached)
{
    const struct waste_fetch_args *a = v->args;
    const char *source = a->line.positional[0];
    const struct waste_release_remote remote = {.source = source,
                                                .revision = a->revision,
                                                .out = v->c.path,
                                                .jobs = a->jobs,
                                                .retries = a->retries,
                                                .stall_seconds = a->stall_seconds,
                                                .retry_wait = a->retry_wait,
                                                .quiet = a->quiet};
    if (!waste_address_is_remote(source))
        return waste_release_open_local(&v->release, source, cached);
    if (a->reclaim != WASTE_RECLAIM_OFF)
        return waste_fetch_refuse(
            "--reclaim is for a directory: what is fetched is deleted anyway");
    return waste_release_open_remote(&v->release, &remote, cached);
}

/* Deleting a link frees nothing, and deleting what it stands for is not ours to do. */
static int check_links(const struct waste_conversion *v)
{
    const struct waste_release *r = &v->release;
    for (uint32_t i = 0; i < r->shards && v->args->reclaim != WASTE_RECLAIM_OFF; i++)
        if (r->shard[i].link)
            return waste_fetch_fail("%s/%s is a symbolic link: --reclaim deletes shards that are "
                                    "in the directory themselves",
                                    r->path, r->shard[i].name);
    return 0;
}

int waste_conversion_open(struct waste_conversion *v, const char *cached)
{
    struct waste_shape *s = &v->c.shape;
    if (open_release(v, cached) || check_links(v) || load_shape(v))
        return -1;
    if (waste_layers_parse(v->args->layer_range, s->layers, &v->first, &v->last))
        return -1;
    if (add_end_token(v))
        return -1;
    v->c.release = &v->release;
    v->unit = calloc(v->release.tensors + 1, sizeof(*v->unit));
    v->c.expert =
        calloc((size_t)(s->layers - s->dense_layers) * s->experts * 3, sizeof(*v->c.expert));
    v->c.error = calloc(s->layers, sizeof(*v->c.error));
    if (!v->unit || !v->c.expert || !v->c.error)
        return waste_fetch_fail("out of memory");
    if (waste_plan_init_release(&v->c.plan, s, &v->release, pick, v) || check_experts(v))
        return -1;
    return check_types(v) ? -1 : waste_conversion_index(v);
}
