#include "fetcher/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fetcher/fill.h"
#include "fetcher/io.h"
#include "fetcher/jobs.h"
#include "fetcher/source.h"
#include "fetcher/texts.h"

enum { JOB_BYTES = 16 << 20, PAGE = 4096, MXFP4_GROUP = 32, TRUNK = UINT32_MAX };

/* One tensor of the release: a trunk tensor of the plan, or a part of an expert. K3 has 497,220. */
struct tensor {
    uint32_t layer, expert; /* expert TRUNK: of the trunk */
    uint32_t index;         /* in the plan; of an expert: matrix 0 w1, 1 w2, 2 w3 */
    uint32_t shard;
    bool scales; /* weight_scale of an MXFP4 pair */
    uint64_t off, bytes;
};

struct shard {
    uint32_t first, end;      /* its tensors */
    uint64_t data_off, bytes; /* of the data in the file: a multiple of PAGE, and how much */
    uint64_t first_job;
};

/* What a tensor looks like. */
struct look {
    char name[WASTE_SAFETENSORS_NAME];
    enum waste_dtype type;
    uint32_t axes, shape[3];
    uint64_t rows, cols; /* of the stored values */
};

struct writer {
    const struct waste_checkpoint *c;
    enum waste_source_type type;
    struct tensor *tensor;
    uint32_t tensors, tensor_room, shards;
    struct shard *shard;
    uint64_t bytes, row_bytes; /* all data; the largest row */
    struct waste_progress progress;
};

static bool sides_are_grouped(const struct waste_shape *s)
{
    return s->expert_width % MXFP4_GROUP == 0 && s->expert_inner % MXFP4_GROUP == 0;
}

int waste_checkpoint_type(const struct waste_shape *s, enum waste_source_type *type)
{
    if (*type == WASTE_SOURCE_DEFAULT)
        *type = s->k3 && sides_are_grouped(s) ? WASTE_SOURCE_MXFP4 : WASTE_SOURCE_BF16;
    if (*type == WASTE_SOURCE_MXFP4 && !sides_are_grouped(s))
        return waste_fetch_fail("--dtype mxfp4: an expert's sides are %u and %u, both must be "
                                "multiples of %d",
                                s->expert_width, s->expert_inner, MXFP4_GROUP);
    return 0;
}

static enum waste_dtype dense_type(const struct writer *w)
{
    return w->type == WASTE_SOURCE_F16   ? WASTE_DTYPE_F16
           : w->type == WASTE_SOURCE_F32 ? WASTE_DTYPE_F32
                                         : WASTE_DTYPE_BF16;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static void look_at_trunk(const struct writer *w, const struct tensor *t, struct look *out)
{
    const struct waste_plan_tensor *p = &w->c->plan->tensor[t->index];
    bool always = ends_with(p->name, ".A_log") || ends_with(p->name, ".e_score_correction_bias");
    snprintf(out->name, sizeof(out->name), "%s", p->name);
    out->type = always ? WASTE_DTYPE_F32 : dense_type(w);
    out->axes = p->axes;
    memcpy(out->shape, p->shape, sizeof(out->shape));
    out->rows = p->rows;
    out->cols = p->cols;
}

static uint32_t expert_rows(const struct waste_shape *s, uint32_t matrix)
{
    return matrix == 1 ? s->expert_width : s->expert_inner;
}

static uint32_t expert_cols(const struct waste_shape *s, uint32_t matrix)
{
    return matrix == 1 ? s->expert_inner : s->expert_width;
}

static void look_at_expert(const struct writer *w, const struct tensor *t, struct look *out)
{
    bool packed = w->type == WASTE_SOURCE_MXFP4;
    const char *what = !packed ? "weight" : t->scales ? "weight_scale" : "weight_packed";
    uint32_t cols = expert_cols(w->c->shape, t->index);
    snprintf(out->name, sizeof(out->name), "%smodel.layers.%u.block_sparse_moe.experts.%u.w%u.%s",
             w->c->plan->prefix, t->layer, t->expert, t->index + 1, what);
    out->type = packed ? WASTE_DTYPE_U8 : dense_type(w);
    out->axes = 2;
    out->rows = out->shape[0] = expert_rows(w->c->shape, t->index);
    out->cols = out->shape[1] = !packed ? cols : t->scales ? cols / MXFP4_GROUP : cols / 2;
}

static void look_at(const struct writer *w, const struct tensor *t, struct look *out)
{
    if (t->expert == TRUNK)
        look_at_trunk(w, t, out);
    else
        look_at_expert(w, t, out);
}

static uint64_t row_bytes(const struct look *l)
{
    return l->cols * waste_dtype_bytes(l->type);
}

/* The next tensor of the release; a shard that is full ends before it. */
static void add(struct writer *w, struct tensor t)
{
    struct look look;
    look_at(w, &t, &look);
    struct tensor *last = w->tensors ? &w->tensor[w->tensors - 1] : NULL;
    t.bytes = look.rows * row_bytes(&look);
    t.shard = last ? last->shard : 0;
    t.off = last ? last->off + last->bytes : 0;
    if (t.off && t.off + t.bytes > w->c->shard_bytes) {
        t.shard++;
        t.off = 0;
    }
    if (w->tensors == w->tensor_room) {
        w->tensor_room = w->tensor_room ? 2 * w->tensor_room : 1024;
        w->tensor = realloc(w->tensor, w->tensor_room * sizeof(*w->tensor));
        if (!w->tensor)
            abort();
    }
    w->tensor[w->tensors++] = t;
    w->shards = t.shard + 1;
    w->row_bytes = row_bytes(&look) > w->row_bytes ? row_bytes(&look) : w->row_bytes;
    w->bytes += t.bytes;
}

/* The layer of a trunk tensor; UINT32_MAX: of none. */
static uint32_t layer_of(const struct waste_plan *p, uint32_t index)
{
    unsigned layer;
    const char *name = p->tensor[index].name + strlen(p->prefix);
    return sscanf(name, "model.layers.%u.", &layer) == 1 ? layer : UINT32_MAX;
}

static void add_experts(struct writer *w, uint32_t layer)
{
    for (uint32_t e = 0; e < w->c->shape->experts; e++)
        for (uint32_t m = 0; m < 3; m++)
            for (int s = 0; s < (w->type == WASTE_SOURCE_MXFP4 ? 2 : 1); s++)
                add(w, (struct tensor){.layer = layer, .expert = e, .index = m, .scales = s});
}

/* The embedding, the layers one after the other, then what stands behind them. */
static void list_tensors(struct writer *w)
{
    const struct waste_plan *p = w->c->plan;
    for (uint32_t i = 0; i < p->tensor_count; i++)
        if (strstr(p->tensor[i].name, "embed_tokens"))
            add(w, (struct tensor){.expert = TRUNK, .index = i});
    for (uint32_t l = 0; l < w->c->shape->layers; l++) {
        for (uint32_t i = 0; i < p->tensor_count; i++)
            if (layer_of(p, i) == l)
                add(w, (struct tensor){.layer = l, .expert = TRUNK, .index = i});
        if (l >= w->c->shape->dense_layers)
            add_experts(w, l);
    }
    for (uint32_t i = 0; i < p->tensor_count; i++)
        if (layer_of(p, i) == UINT32_MAX && !strstr(p->tensor[i].name, "embed_tokens"))
            add(w, (struct tensor){.expert = TRUNK, .index = i});
}

/* Shards as runs of tensors, and which jobs fill them. */
static int list_shards(struct writer *w, uint64_t *jobs)
{
    *jobs = 0;
    w->shard = calloc(w->shards, sizeof(*w->shard));
    if (!w->shard)
        return waste_fetch_fail("out of memory");
    for (uint32_t i = 0; i < w->tensors; i++) {
        struct shard *s = &w->shard[w->tensor[i].shard];
        s->first = s->bytes ? s->first : i;
        s->end = i + 1;
        s->bytes = w->tensor[i].off + w->tensor[i].bytes;
    }
    for (uint32_t i = 0; i < w->shards; i++) {
        w->shard[i].first_job = *jobs;
        *jobs += (w->shard[i].bytes + JOB_BYTES - 1) / JOB_BYTES;
    }
    return 0;
}

/* Row `row` of a tensor. */
static void make_row(const struct writer *w, const struct tensor *t, const struct look *l,
                     uint64_t row, uint8_t *dst)
{
    const char *name = l->name + strlen(w->c->plan->prefix);
    uint64_t key = waste_fill_key(w->c->seed, name, row);
    if (t->expert == TRUNK) {
        const struct waste_plan_tensor *p = &w->c->plan->tensor[t->index];
        if (p->low + p->high == 0)
            waste_source_matrix(dst, l->type, l->cols, p->high / sqrt(3.0), key);
        else
            waste_source_vector(dst, l->type, l->cols, p->low, p->high, key);
        return;
    }
    double deviation = 1 / sqrt((double)expert_cols(w->c->shape, t->index));
    if (l->type != WASTE_DTYPE_U8)
        waste_source_matrix(dst, l->type, l->cols, deviation, key);
    else if (t->scales)
        waste_source_exponents(dst, l->cols, deviation, key);
    else
        waste_fill_bytes(dst, l->cols, key);
}

static void shard_name(const struct writer *w, uint32_t shard, char out[48])
{
    snprintf(out, 48, "model-%05u-of-%05u.safetensors", shard + 1, w->shards);
}

/* What of a tensor lies in [at, at + bytes) of its shard's data. `row` has room for one. */
static void make_part(const struct writer *w, const struct tensor *t, uint64_t at, uint64_t bytes,
                      uint8_t *dst, uint8_t *row)
{
    struct look look;
    look_at(w, t, &look);
    uint64_t per = row_bytes(&look), end = at + bytes;
    uint64_t r = at > t->off ? (at - t->off) / per : 0;
    for (; r < look.rows && t->off + r * per < end; r++) {
        uint64_t from = t->off + r * per, to = from + per;
        if (from >= at && to <= end) {
            make_row(w, t, &look, r, dst + (from - at));
            continue;
        }
        make_row(w, t, &look, r, row);
        uint64_t a = from > at ? from : at, b = to < end ? to : end;
        memcpy(dst + (a - at), row + (a - from), b - a);
    }
}

/* Past the page cache where that is possible, but for the last bytes of a shard. */
static int write_part(const struct writer *w, uint32_t shard, const uint8_t *data, uint64_t bytes,
                      uint64_t off)
{
    char name[48];
    shard_name(w, shard, name);
    int fd = openat(w->c->dir, name, O_WRONLY | O_CLOEXEC);
    int direct = openat(w->c->dir, name, O_WRONLY | O_CLOEXEC | O_DIRECT);
    uint64_t pages = direct < 0 ? 0 : bytes / PAGE * PAGE;
    int e = fd < 0 ? -errno : 0;
    if (!e && pages)
        e = waste_io_pwrite(direct, data, pages, off);
    if (!e && pages < bytes)
        e = waste_io_pwrite(fd, data + pages, bytes - pages, off + pages);
    if (direct >= 0)
        close(direct);
    if (fd >= 0 && close(fd) && !e)
        e = -errno;
    return e;
}

static int run(void *ctx, uint64_t job, uint8_t *buffer)
{
    struct writer *w = ctx;
    uint32_t n = 0;
    while (n + 1 < w->shards && w->shard[n + 1].first_job <= job)
        n++;
    const struct shard *s = &w->shard[n];
    uint64_t at = (job - s->first_job) * JOB_BYTES;
    uint64_t bytes = s->bytes - at < JOB_BYTES ? s->bytes - at : JOB_BYTES;
    uint32_t low = s->first, high = s->end; /* the last tensor that begins at or before `at` */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        *(w->tensor[middle].off <= at ? &low : &high) = middle;
    }
    for (; low < s->end && w->tensor[low].off < at + bytes; low++)
        make_part(w, &w->tensor[low], at, bytes, buffer, buffer + JOB_BYTES);
    int e = write_part(w, n, buffer, bytes, s->data_off + at);
    atomic_fetch_add_explicit(&w->progress.done, bytes, memory_order_relaxed);
    return e;
}

/* {"name":{"dtype":..,"shape":..,"data_offsets":..},..}, padded with spaces so that the data begin
 * on a page. */
static char *header_text(const struct writer *w, const struct shard *s, size_t *bytes)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, bytes);
    if (!f)
        return NULL;
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    for (uint32_t i = s->first; i < s->end; i++) {
        const struct tensor *t = &w->tensor[i];
        struct look look;
        look_at(w, t, &look);
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", look.name, waste_dtype_name(look.type));
        for (uint32_t a = 0; a < look.axes; a++)
            fprintf(f, "%s%u", a ? "," : "", look.shape[a]);
        fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->off,
                (unsigned long long)(t->off + t->bytes));
    }
    fputc('}', f);
    for (long at = ftell(f) + 8; at % PAGE; at++)
        fputc(' ', f);
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}

/* Length and header of a shard, and the size it will have. */
static int write_header(struct writer *w, uint32_t number)
{
    struct shard *s = &w->shard[number];
    char name[48];
    size_t n = 0;
    char *text = header_text(w, s, &n);
    if (!text)
        return waste_fetch_fail("out of memory");
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)n >> 8 * i);
    s->data_off = 8 + n;
    shard_name(w, number, name);
    int fd = openat(w->c->dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int e = fd < 0 ? -errno : waste_io_pwrite(fd, length, 8, 0);
    if (!e)
        e = waste_io_pwrite(fd, text, n, 8);
    if (!e && ftruncate(fd, (off_t)(s->data_off + s->bytes)))
        e = -errno;
    if (fd >= 0 && close(fd) && !e)
        e = -errno;
    free(text);
    return e ? waste_fetch_fail("cannot write %s/%s: %s", w->c->out->path, name, strerror(-e)) : 0;
}

/* Half a million names: written as text, no value in memory for each. */
static int write_index(const struct writer *w)
{
    char *text = NULL, shard[48];
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return waste_fetch_fail("out of memory");
    fprintf(f, "{\n \"metadata\": {\n  \"total_size\": %llu\n },\n \"weight_map\": {",
            (unsigned long long)w->bytes);
    for (uint32_t i = 0; i < w->tensors; i++) {
        struct look look;
        look_at(w, &w->tensor[i], &look);
        shard_name(w, w->tensor[i].shard, shard);
        fprintf(f, "%s\n  \"%s\": \"%s\"", i ? "," : "", look.name, shard);
    }
    fputs("\n }\n}\n", f);
    int e = fclose(f) ? waste_fetch_fail("out of memory")
                      : waste_io_write_file(w->c->dir, "model.safetensors.index.json", text, n);
    free(text);
    return e;
}

/* The config as each family nests it. */
static int write_config(const struct writer *w)
{
    static const char *const dtypes[] = {[WASTE_DTYPE_BF16] = "bfloat16",
                                         [WASTE_DTYPE_F16] = "float16",
                                         [WASTE_DTYPE_F32] = "float32"};
    json_t *text = json_copy(w->c->shape->config), *top = text;
    const char *dtype = dtypes[dense_type(w)];
    if (w->c->shape->k3)
        top = json_pack("{s:[s], s:s, s:s, s:o}", "architectures", "KimiK3ForConditionalGeneration",
                        "model_type", "kimi_k3", "dtype", dtype, "text_config", text);
    else if (top)
        json_object_update_new(top, json_pack("{s:[s], s:s}", "architectures",
                                              "KimiLinearForCausalLM", "dtype", dtype));
    char *out = top ? json_dumps(top, JSON_INDENT(1)) : NULL;
    int e = out ? waste_io_write_file(w->c->dir, "config.json", out, strlen(out))
                : waste_fetch_fail("out of memory");
    free(out);
    json_decref(top);
    return e;
}

static int write_shards(struct writer *w)
{
    uint64_t jobs;
    int e = list_shards(w, &jobs);
    for (uint32_t i = 0; !e && i < w->shards; i++)
        e = write_header(w, i);
    if (e)
        return e;
    waste_progress_init(&w->progress, "synth", w->bytes, w->c->quiet);
    e = waste_jobs_run(&(struct waste_jobs){.count = jobs,
                                            .run = run,
                                            .ctx = w,
                                            .buffer_bytes = JOB_BYTES + w->row_bytes,
                                            .threads = w->c->threads,
                                            .progress = &w->progress});
    w->c->out->seconds = waste_progress_finish(&w->progress);
    w->c->out->bytes = w->bytes;
    return e ? waste_fetch_fail("cannot write %s: %s", w->c->out->path, strerror(-e)) : 0;
}

int waste_checkpoint_write(const struct waste_checkpoint *c)
{
    struct writer w = {.c = c, .type = c->type};
    int e = waste_checkpoint_type(c->shape, &w.type);
    if (e)
        return e;
    list_tensors(&w);
    e = waste_outdir_begin(c->out, c->dir, w.bytes);
    if (!e)
        e = waste_texts_write_release(c->dir, c->shape);
    if (!e)
        e = write_config(&w);
    if (!e)
        e = write_shards(&w);
    if (!e)
        e = write_index(&w);
    free(w.tensor);
    free(w.shard);
    return e;
}
