#include "fetcher/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/fill.h"
#include "fetcher/io.h"
#include "shm/model.h"

/* Norm weights of a `subnormal` shape; the matrices behind them are that much smaller, which makes
 * their f16 scales subnormal while the activations stay where they were. */
#define SUBNORMAL_GAIN 1024.0

enum { SMALL = 65536 }; /* tensors of fewer elements stay F32 */

enum source { RAW, NORMED }; /* what a matrix reads: NORMED = straight behind a layer's RMSNorm */

static struct waste_plan_tensor *room_for_one(struct waste_plan *p)
{
    if (p->tensor_count == p->tensor_room) {
        uint32_t room = p->tensor_room ? 2 * p->tensor_room : 256;
        void *grown = realloc(p->tensor, room * sizeof(*p->tensor));
        if (!grown)
            abort();
        p->tensor = grown;
        p->tensor_room = room;
    }
    struct waste_plan_tensor *t = &p->tensor[p->tensor_count++];
    memset(t, 0, sizeof(*t));
    return t;
}

static struct waste_plan_tensor *add(struct waste_plan *p, int layer, const char *name,
                                     uint32_t axes, uint64_t a, uint64_t b, uint64_t c)
{
    struct waste_plan_tensor *t = room_for_one(p);
    t->layer = layer;
    if (layer < 0)
        snprintf(t->name, sizeof(t->name), "%s%s", p->prefix, name);
    else
        snprintf(t->name, sizeof(t->name), "%smodel.layers.%d.%s", p->prefix, layer, name);
    t->axes = axes;
    t->shape[0] = (uint32_t)a;
    t->shape[1] = (uint32_t)b;
    t->shape[2] = (uint32_t)c;
    t->cols = t->shape[axes - 1];
    t->rows = axes == 1 ? 1 : axes == 2 ? t->shape[0] : t->shape[0] * t->shape[1];
    return t;
}

static void range(struct waste_plan *p, int layer, const char *name, uint64_t n, double low,
                  double high)
{
    struct waste_plan_tensor *t = add(p, layer, name, 1, n, 0, 0);
    t->low = low;
    t->high = high;
}

/* A matrix that keeps the size of what it multiplies, times `gain`. */
static void matrix(struct waste_plan *p, const struct waste_shape *s, int layer, const char *name,
                   uint64_t rows, uint64_t cols, double gain, enum source source)
{
    struct waste_plan_tensor *t = add(p, layer, name, 2, rows, cols, 0);
    if (s->subnormal && source == NORMED)
        gain /= SUBNORMAL_GAIN;
    t->high = gain * sqrt(3.0 / (double)cols);
    t->low = -t->high;
}

static void norm(struct waste_plan *p, const struct waste_shape *s, int layer, const char *name,
                 uint64_t n, enum source source)
{
    double gain = s->subnormal && source == NORMED ? SUBNORMAL_GAIN : 1;
    range(p, layer, name, n, 0.75 * gain, 1.25 * gain);
}

/* The two halves of an attention residual; scores of a mix spread by about 1.5. */
static void residual(struct waste_plan *p, const struct waste_shape *s, int layer, const char *name)
{
    char full[64];
    if (!s->res_block)
        return;
    snprintf(full, sizeof(full), "%s_norm.weight", name);
    range(p, layer, full, s->hidden, 0.75, 1.25);
    snprintf(full, sizeof(full), "%s_proj.weight", name);
    matrix(p, s, layer, full, 1, s->hidden, 1.5, RAW);
}

static void kda(struct waste_plan *p, const struct waste_shape *s, int l)
{
    uint64_t d = s->hidden, c = (uint64_t)s->kda_heads * s->kda_dim, k = s->kda_dim;
    static const char *const proj[] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                       "self_attn.v_proj.weight"};
    static const char *const conv[] = {"self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight",
                                       "self_attn.v_conv1d.weight"};
    for (int i = 0; i < 3; i++) {
        matrix(p, s, l, proj[i], c, d, 1, NORMED);
        struct waste_plan_tensor *t = add(p, l, conv[i], 3, c, 1, s->conv_width);
        t->low = -1;
        t->high = 1;
    }
    matrix(p, s, l, "self_attn.f_a_proj.weight", k, d, 1, NORMED);
    matrix(p, s, l, "self_attn.f_b_proj.weight", c, k, 0.5, RAW);
    matrix(p, s, l, "self_attn.b_proj.weight", s->kda_heads, d, 1, NORMED);
    if (s->full_gate) {
        matrix(p, s, l, "self_attn.g_proj.weight", c, d, 1, NORMED);
    } else {
        matrix(p, s, l, "self_attn.g_a_proj.weight", k, d, 1, NORMED);
        matrix(p, s, l, "self_attn.g_b_proj.weight", c, k, 1, RAW);
    }
    /* K3 pads A_log to head_dim; what stands behind the heads is never used, so it is not zero
     * here: an engine that reads it shows */
    uint32_t rates = s->k3 && s->kda_dim > s->kda_heads ? s->kda_dim : s->kda_heads;
    range(p, l, "self_attn.A_log", rates, 0, 1.4);
    range(p, l, "self_attn.dt_bias", c, -4, -1);
    range(p, l, "self_attn.o_norm.weight", k, 0.75, 1.25);
    matrix(p, s, l, "self_attn.o_proj.weight", d, c, 1, RAW);
}

static void mla(struct waste_plan *p, const struct waste_shape *s, int l)
{
    uint64_t d = s->hidden, h = s->mla_heads, q = h * (s->nope_dim + s->rope_dim);
    if (s->q_lora) {
        matrix(p, s, l, "self_attn.q_a_proj.weight", s->q_lora, d, 1, NORMED);
        range(p, l, "self_attn.q_a_layernorm.weight", s->q_lora, 0.75, 1.25);
        matrix(p, s, l, "self_attn.q_b_proj.weight", q, s->q_lora, 1, RAW);
    } else {
        matrix(p, s, l, "self_attn.q_proj.weight", q, d, 1, NORMED);
    }
    matrix(p, s, l, "self_attn.kv_a_proj_with_mqa.weight", s->kv_lora + s->rope_dim, d, 1, NORMED);
    range(p, l, "self_attn.kv_a_layernorm.weight", s->kv_lora, 0.75, 1.25);
    matrix(p, s, l, "self_attn.kv_b_proj.weight", h * (s->nope_dim + s->v_dim), s->kv_lora, 1, RAW);
    if (s->out_gate)
        matrix(p, s, l, "self_attn.g_proj.weight", h * s->v_dim, d, 1, NORMED);
    matrix(p, s, l, "self_attn.o_proj.weight", d, h * s->v_dim, 1, RAW);
}

static void moe(struct waste_plan *p, const struct waste_shape *s, int l)
{
    static const char base[] = "block_sparse_moe.";
    uint64_t d = s->hidden, shared = (uint64_t)s->shared_experts * s->expert_inner;
    char name[80];
#define NAME(rest) (snprintf(name, sizeof(name), "%s%s", base, rest), name)
    matrix(p, s, l, NAME("gate.weight"), s->experts, d, 1.5, NORMED);
    range(p, l, NAME("gate.e_score_correction_bias"), s->experts, -0.1, 0.1);
    if (s->latent) {
        matrix(p, s, l, NAME("routed_expert_down_proj.weight"), s->expert_width, d, 1, NORMED);
        if (s->latent_norm)
            range(p, l, NAME("routed_expert_norm.weight"), s->expert_width, 0.75, 1.25);
        matrix(p, s, l, NAME("routed_expert_up_proj.weight"), d, s->expert_width, 0.7, RAW);
    }
    if (shared) {
        matrix(p, s, l, NAME("shared_experts.gate_proj.weight"), shared, d, 1, NORMED);
        matrix(p, s, l, NAME("shared_experts.up_proj.weight"), shared, d, 1, NORMED);
        matrix(p, s, l, NAME("shared_experts.down_proj.weight"), d, shared, 1, RAW);
    }
#undef NAME
}

static void layer(struct waste_plan *p, const struct waste_shape *s, int l)
{
    norm(p, s, l, "input_layernorm.weight", s->hidden, NORMED);
    norm(p, s, l, "post_attention_layernorm.weight", s->hidden, NORMED);
    residual(p, s, l, "self_attention_res");
    residual(p, s, l, "mlp_res");
    if (s->is_kda[l])
        kda(p, s, l);
    else
        mla(p, s, l);
    if ((uint32_t)l >= s->dense_layers) {
        moe(p, s, l);
    } else {
        matrix(p, s, l, "mlp.gate_proj.weight", s->dense_inner, s->hidden, 1, NORMED);
        matrix(p, s, l, "mlp.up_proj.weight", s->dense_inner, s->hidden, 1, NORMED);
        matrix(p, s, l, "mlp.down_proj.weight", s->hidden, s->dense_inner, 1, RAW);
    }
}

/* The writer's rule. */
static uint32_t format_of(const struct waste_plan_tensor *t, uint32_t trunk_bits)
{
    uint64_t elements = (uint64_t)t->rows * t->cols;
    if (t->axes == 1 || elements < SMALL)
        return WASTE_FMT_F32;
    if (strstr(t->name, "embed_tokens") || strstr(t->name, "lm_head") || t->vision ||
        trunk_bits == 8)
        return WASTE_FMT_Q8G;
    return trunk_bits == 3 ? WASTE_FMT_Q3G : WASTE_FMT_Q4G;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct waste_plan_tensor *)a)->name,
                  ((const struct waste_plan_tensor *)b)->name);
}

static void place_trunk(struct waste_plan *p, const struct waste_shape *s)
{
    uint64_t off = 0;
    qsort(p->tensor, p->tensor_count, sizeof(*p->tensor), by_name);
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        struct waste_plan_tensor *t = &p->tensor[i];
        uint64_t groups = (t->cols + WASTE_GROUP - 1) / WASTE_GROUP;
        t->fmt = format_of(t, s->trunk_bits);
        t->off = off;
        t->payload_bytes = t->rows * (uint64_t)waste_fill_row_bytes(t->fmt, t->cols);
        t->bytes = t->payload_bytes + (t->fmt ? t->rows * groups * 2 : 0);
        t->scale_off = off + t->payload_bytes;
        off += t->bytes;
    }
    p->trunk_bytes = off;
}

static int place_records(struct waste_plan *p, const struct waste_shape *s)
{
    uint64_t n = s->expert_width, in = s->expert_inner;
    p->stages = s->expert_fmt == WASTE_FMT_VQ3R ? 3 : s->expert_fmt == WASTE_FMT_VQ2R ? 2 : 4;
    p->entries = s->expert_fmt == WASTE_FMT_VQ4P ? 64 : 256;
    p->index_bits = s->expert_fmt == WASTE_FMT_VQ4P ? 6 : 8;
    p->index_bytes = s->expert_fmt == WASTE_FMT_VQ2R ? 2 : 3;
    uint64_t gate = (in + 63) / 64 * 64 * (n / 8) * p->index_bytes;
    uint64_t down = (n + 63) / 64 * 64 * (in / 8) * p->index_bytes;
    uint64_t end = 48 + 2 * gate + down + (2 * in + n) * 2;
    if (end > (UINT64_C(1) << 30))
        return waste_fetch_fail("an expert record of %llu bytes: the limit is 1 GiB",
                                (unsigned long long)end);
    p->gate_off = 48;
    p->up_off = (uint32_t)(48 + gate);
    p->down_off = (uint32_t)(48 + 2 * gate);
    p->scale_off = (uint32_t)(48 + 2 * gate + down);
    p->crc_end = (uint32_t)end;
    p->record_bytes = (uint32_t)((end + 4095) / 4096 * 4096);
    p->moe_layers = s->layers - s->dense_layers;
    p->books = p->moe_layers * 3 * p->stages;
    if (p->books - 3 * p->stages > UINT16_MAX)
        return waste_fetch_fail("%u codebooks: a record's codebook number has 16 bits", p->books);
    p->codebook_bytes = (uint64_t)p->books * (16 + p->entries * 16);
    p->bank_bytes = (uint64_t)s->experts * p->record_bytes;
    return 0;
}

static int place(struct waste_plan *p, const struct waste_shape *s)
{
    place_trunk(p, s);
    if (place_records(p, s))
        return -1;
    p->total_bytes = p->trunk_bytes + p->codebook_bytes + p->moe_layers * p->bank_bytes;
    return 0;
}

int waste_plan_init(struct waste_plan *p, const struct waste_shape *s)
{
    memset(p, 0, sizeof(*p));
    p->prefix = s->prefix;
    matrix(p, s, -1, "model.embed_tokens.weight", s->vocab, s->hidden, sqrt((double)s->hidden),
           RAW);
    matrix(p, s, -1, "lm_head.weight", s->vocab, s->hidden, 3, NORMED);
    norm(p, s, -1, "model.norm.weight", s->hidden, NORMED);
    residual(p, s, -1, "model.output_attn_res");
    for (uint32_t l = 0; l < s->layers; l++)
        layer(p, s, (int)l);
    return place(p, s);
}

/* The layer a name has behind the prefix, or -1. */
static int layer_of(const char *name, const char *prefix)
{
    static const char middle[] = "model.layers.";
    size_t n = strlen(prefix), m = sizeof(middle) - 1;
    if (strncmp(name, prefix, n) != 0 || strncmp(name + n, middle, m) != 0)
        return -1;
    char *end;
    unsigned long layer = strtoul(name + n + m, &end, 10);
    return end > name + n + m && *end == '.' && layer < WASTE_MAX_LAYERS ? (int)layer : -1;
}

/* Quantised vision tensors are matrices: rows = the first axis, columns = all others. */
static void flatten(struct waste_plan_tensor *t)
{
    uint64_t cols = 1;
    for (uint32_t a = 1; a < t->axes; a++)
        cols *= t->shape[a];
    t->axes = 2;
    t->rows = t->shape[0];
    t->cols = t->shape[1] = (uint32_t)cols;
}

static int add_from(struct waste_plan *p, const struct waste_release_tensor *source, int layer)
{
    struct waste_plan_tensor *t = room_for_one(p);
    uint64_t rows = waste_release_rows(source), all = rows * waste_release_cols(source);
    snprintf(t->name, sizeof(t->name), "%s", source->name);
    t->source = source;
    t->layer = layer;
    t->vision = strncmp(t->name, p->prefix, strlen(p->prefix)) != 0;
    t->axes = source->axes ? source->axes : 1;
    t->shape[0] = 1;
    if (source->axes)
        memcpy(t->shape, source->shape, sizeof(t->shape));
    t->rows = (uint32_t)rows;
    t->cols = waste_release_cols(source);
    if (!all || all > UINT32_MAX * (uint64_t)WASTE_GROUP || rows > UINT32_MAX)
        return waste_fetch_fail("%s has %llu rows of %u values, which no container holds", t->name,
                                (unsigned long long)rows, t->cols);
    if (t->vision && t->axes > 2 && all >= SMALL)
        flatten(t);
    return 0;
}

int waste_plan_init_release(struct waste_plan *p, const struct waste_shape *s,
                            const struct waste_release *r,
                            int (*pick)(void *ctx, const struct waste_release_tensor *t, int layer),
                            void *ctx)
{
    memset(p, 0, sizeof(*p));
    p->prefix = s->prefix;
    for (uint32_t i = 0; i < r->tensors; i++) {
        int layer = layer_of(r->tensor[i].name, p->prefix);
        int take = pick(ctx, &r->tensor[i], layer);
        if (take < 0 || (take && add_from(p, &r->tensor[i], layer)))
            return -1;
    }
    return place(p, s);
}

void waste_plan_finish(struct waste_plan *plan)
{
    free(plan->tensor);
    memset(plan, 0, sizeof(*plan));
}

static json_t *tensor_json(const struct waste_plan_tensor *t)
{
    json_t *shape = json_array();
    for (uint32_t a = 0; a < t->axes; a++)
        json_array_append_new(shape, json_integer(t->shape[a]));
    json_t *j = json_pack("{s:s, s:i, s:I, s:o, s:I}", "name", t->name, "fmt", (int)t->fmt, "off",
                          (json_int_t)t->off, "shape", shape, "bytes", (json_int_t)t->bytes);
    if (t->fmt) {
        json_object_set_new(j, "group", json_integer(WASTE_GROUP));
        json_object_set_new(j, "scale_off", json_integer((json_int_t)t->scale_off));
    }
    return j;
}

static json_t *layers_json(const struct waste_plan *p, const struct waste_shape *s,
                           const struct waste_plan_done *done)
{
    json_t *layers = json_object();
    for (uint32_t l = s->dense_layers; l < s->layers; l++) {
        char key[16], file[32];
        if (done && !done->layer[l])
            continue;
        snprintf(key, sizeof(key), "%u", l);
        snprintf(file, sizeof(file), "experts-L%u.bin", l);
        json_object_set_new(layers, key,
                            json_pack("{s:s, s:i, s:I, s:i}", "file", file, "experts",
                                      (int)s->experts, "bytes", (json_int_t)p->bank_bytes,
                                      "codebook_base",
                                      (int)((l - s->dense_layers) * 3 * p->stages)));
    }
    return layers;
}

/* NULL if all is there. */
static json_t *partial_json(const struct waste_shape *s, const struct waste_plan_done *done)
{
    json_t *layers = json_array();
    for (uint32_t l = 0; l < s->layers; l++)
        if (done->layer[l])
            json_array_append_new(layers, json_integer(l));
    if (done->outer && json_array_size(layers) == s->layers) {
        json_decref(layers);
        return NULL;
    }
    return json_pack("{s:b, s:o, s:i}", "outer", done->outer, "layers", layers, "of",
                     (int)s->layers);
}

char *waste_plan_manifest(const struct waste_plan *p, const struct waste_shape *s,
                          const struct waste_plan_done *done)
{
    static const char *const names[WASTE_FMT_COUNT] = {
        [WASTE_FMT_VQ3R] = "VQ3R", [WASTE_FMT_VQ2R] = "VQ2R", [WASTE_FMT_VQ4P] = "VQ4P"};
    json_t *trunk = json_array();
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        int layer = p->tensor[i].layer;
        if (!done || (layer < 0 ? done->outer : done->layer[layer]))
            json_array_append_new(trunk, tensor_json(&p->tensor[i]));
    }
    double bits = p->index_bits * p->stages / 8.0;
    json_t *quant =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:f}", "fmt", names[s->expert_fmt], "stages",
                  (int)p->stages, "vec_dim", 8, "entries", (int)p->entries, "index_block", 64,
                  "index_bits", (int)p->index_bits, "bits_per_weight", bits);
    json_t *m = json_pack("{s:i, s:s, s:s, s:O, s:o, s:o, s:o}", "format_version", 0, "arch",
                          s->arch, "tensor_prefix", p->prefix, "config", s->config, "expert_quant",
                          quant, "layers", layers_json(p, s, done), "trunk", trunk);
    json_t *partial = done ? partial_json(s, done) : NULL;
    if (partial)
        json_object_set_new(m, "partial", partial);
    char *text = m ? json_dumps(m, JSON_INDENT(1)) : NULL;
    json_decref(m);
    return text;
}
