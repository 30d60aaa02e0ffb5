/* waste-fetch convert: a release to a container, layer by layer. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fetcher/convert_int.h"
#include "fetcher/fetch.h"
#include "fetcher/hollow.h"
#include "fetcher/io.h"
#include "fetcher/jobs.h"
#include "fetcher/outdir.h"
#include "fetcher/seal.h"
#include "reader/container.h"
#include "shm/model.h"

enum { HEADERS_LIMIT = 1 << 30 };
static const char headers_file[] = "convert.source"; /* of shards that --reclaim deletes */

static const struct waste_effort efforts[] = {
    {1 << 16, 3, 4, 1, 4, 4, 1},
    {1 << 17, 4, 12, 1, 8, 16, 1},
    {1 << 18, 4, 40, 4, 16, 16, 2},
    {1 << 19, 8, 120, 10, 16, 16, 4},
};

/* What the container is made from: parts of one conversion have the same. */
static char *recipe(const struct waste_conversion *v)
{
    char source[24];
    snprintf(source, sizeof(source), "%016llx",
             (unsigned long long)waste_release_fingerprint(&v->release));
    json_t *j = json_pack("{s:s, s:s, s:i, s:i, s:i, s:O}", "made_by", "waste-fetch convert",
                          "source", source, "expert_fmt", (int)v->c.shape.expert_fmt, "trunk_bits",
                          (int)v->c.shape.trunk_bits, "effort", (int)v->args->effort, "config",
                          v->c.shape.config);
    char *text = j ? json_dumps(j, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
    json_decref(j);
    return text;
}

/* Once, before anything is deleted. */
static int keep_headers(struct waste_conversion *v)
{
    if ((!v->release.reclaim && !v->release.copies) || !faccessat(v->c.dir, headers_file, R_OK, 0))
        return 0;
    char *text = waste_release_headers(&v->release);
    int rc = text ? waste_io_write_file(v->c.dir, headers_file, text, strlen(text)) : -1;
    free(text);
    return rc;
}

static void tick(void *arg)
{
    struct waste_conversion *v = arg;
    uint32_t coded = atomic_load_explicit(&v->c.coded, memory_order_relaxed);
    if (!v->at)
        snprintf(v->what, sizeof(v->what), "embeddings and the like");
    else if (v->at <= v->c.shape.dense_layers)
        snprintf(v->what, sizeof(v->what), "layer %u of %u", v->at - 1, v->c.shape.layers);
    else
        snprintf(v->what, sizeof(v->what), "layer %u of %u, %u of %u experts", v->at - 1,
                 v->c.shape.layers, coded, v->c.shape.experts);
    waste_progress_show(&v->c.progress);
}

static int convert_unit(struct waste_conversion *v, uint32_t unit)
{
    struct waste_convert *c = &v->c;
    v->at = unit;
    atomic_store_explicit(&c->coded, 0, memory_order_relaxed);
    if (waste_conversion_want(v, unit))
        return -1;
    if (unit > c->shape.dense_layers && waste_convert_experts(c, unit - 1))
        return -1;
    if (waste_convert_trunk(c, (int)unit - 1) || waste_release_unchanged(&v->release))
        return -1;
    if (unit)
        v->ledger.done.layer[unit - 1] = 1;
    else
        v->ledger.done.outer = true;
    if (waste_ledger_complete(&v->ledger))
        return 0; /* the manifest of the whole container comes last */
    return waste_ledger_publish(&v->ledger) ? -1 : waste_conversion_release(v);
}

/* What is left to do once the whole container is published. */
static int clean_up(struct waste_conversion *v)
{
    int rc = waste_conversion_release(v);
    bool there = !faccessat(v->c.dir, headers_file, F_OK, AT_SYMLINK_NOFOLLOW);
    if (rc == 0 && there && unlinkat(v->c.dir, headers_file, 0))
        rc = waste_fetch_fail("cannot remove %s/%s: %s", v->c.path, headers_file, strerror(errno));
    v->release.used_up = rc == 0;
    return rc;
}

/* The manifest of the whole container, after all it speaks of and the checksums. */
static int finish(struct waste_conversion *v)
{
    struct waste_convert *c = &v->c;
    struct waste_model *model = NULL;
    struct waste_error err;
    char *text = waste_plan_manifest(&c->plan, &c->shape, NULL);
    int rc = text ? waste_seal_write(c->path, text, v->args->threads, true)
                  : waste_fetch_fail("out of memory");
    if (rc == 0)
        rc = waste_io_write_file(c->dir, "manifest.json", text, strlen(text));
    free(text);
    if (rc == 0 && waste_container_open(c->path, &model, &err))
        rc = waste_fetch_fail("the container just written is not accepted: %s", err.text);
    free(model);
    return rc ? rc : clean_up(v);
}

static int convert_all(struct waste_conversion *v)
{
    struct waste_convert *c = &v->c;
    static const uint64_t any_cpu[16];
    uint32_t units = c->shape.layers + 1, threads = v->args->threads;
    int rc = waste_team_create(&c->team, threads ? threads : waste_jobs_cpus(), any_cpu);
    if (rc)
        return waste_fetch_fail("cannot start threads: %s", strerror(-rc));
    for (uint32_t u = 0; u < units; u++)
        v->read_bytes += waste_conversion_is_wanted(v, u) ? waste_conversion_reads(v, u) : 0;
    waste_progress_init(&c->progress, v->what, v->read_bytes, v->args->quiet);
    waste_team_set_tick(c->team, tick, v);
    rc = waste_conversion_release(v); /* what a killed run had no time for */
    for (uint32_t u; rc == 0 && (u = waste_conversion_next(v)) != WASTE_UNIT_NONE;)
        rc = convert_unit(v, u);
    if (rc == 0 && waste_ledger_complete(&v->ledger))
        rc = finish(v);
    v->seconds = waste_progress_finish(&c->progress);
    waste_team_destroy(c->team);
    return rc;
}

static int prepare(struct waste_conversion *v, const struct waste_outdir *out)
{
    struct waste_convert *c = &v->c;
    struct waste_model *model = NULL;
    int rc = waste_hollow_check(&c->plan, &c->shape, c->dir, c->path, v->release.path, &model);
    if (rc == 0)
        rc = waste_outdir_begin(out, c->dir, waste_conversion_space(v));
    if (rc == 0)
        rc = waste_convert_texts(c, &model->config);
    free(model);
    if (rc == 0)
        rc = waste_hollow_make(&c->plan, &c->shape, c->dir, c->path);
    return rc ? rc : keep_headers(v);
}

static int convert_into(struct waste_conversion *v)
{
    char *text = recipe(v);
    struct waste_outdir out = {
        .path = v->c.path, .name = "convert.json", .recipe = text, .last = "manifest.json"};
    int rc = text ? 0 : waste_fetch_fail("out of memory");
    if (rc == 0) {
        v->c.dir = waste_outdir_open(&out);
        rc = v->c.dir < 0 ? -1 : 0;
    }
    if (rc == 0)
        rc = waste_ledger_open(&v->ledger, v->c.dir, v->c.path, &v->c.plan, &v->c.shape);
    if (rc == 0 && !waste_ledger_complete(&v->ledger)) {
        rc = prepare(v, &out);
        if (rc == 0)
            rc = convert_all(v);
    } else if (rc == 0) {
        v->was_whole = true;
        rc = clean_up(v); /* the run that published it may have been killed */
    }
    if (rc)
        waste_outdir_abandon(&out);
    free(text);
    return rc;
}

static void close_all(struct waste_conversion *v)
{
    waste_ledger_close(&v->ledger);
    waste_plan_finish(&v->c.plan);
    waste_shape_finish(&v->c.shape);
    free(v->c.expert);
    free(v->c.error);
    free(v->unit);
    free(v->needs);
    if (v->release.path)
        waste_release_close(&v->release);
    if (v->c.dir >= 0)
        close(v->c.dir);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* --reclaim on has left nothing of the release, and the container is whole: all was done. */
static bool is_used_up(const struct waste_fetch_args *args)
{
    struct waste_model *model = NULL;
    struct waste_error err;
    const char *release = args->line.positional[0];
    DIR *d = args->reclaim == WASTE_RECLAIM_ON ? opendir(release) : NULL;
    bool shards = false;
    for (struct dirent *e; d && (e = readdir(d));)
        shards = shards || ends_with(e->d_name, ".safetensors");
    if (d)
        closedir(d);
    if (!d || shards || waste_container_open(args->line.positional[1], &model, &err))
        return false;
    free(model);
    return true;
}

int waste_fetch_convert(const struct waste_fetch_args *args)
{
    struct waste_conversion v = {.args = args};
    struct waste_error err;
    char *cached = NULL;
    size_t bytes;
    v.c.path = args->line.positional[1];
    v.c.dir = -1;
    v.c.effort = &efforts[args->effort];
    if (waste_container_read_file(v.c.path, headers_file, HEADERS_LIMIT, &cached, &bytes, &err))
        cached = NULL;
    if (!cached && is_used_up(args)) {
        waste_conversion_already_there(&v);
        return 0;
    }
    int rc = waste_search_init(&v.c.search);
    if (rc == 0)
        rc = waste_conversion_open(&v, cached);
    free(cached);
    v.release.reclaim = args->reclaim == WASTE_RECLAIM_ON;
    if (rc == 0 && args->dry_run)
        rc = waste_conversion_show_plan(&v);
    else if (rc == 0 && (rc = convert_into(&v)) == 0)
        waste_conversion_summary(&v);
    close_all(&v);
    return rc;
}
