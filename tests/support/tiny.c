#include "tests/support/tiny.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct tiny_shape tiny_k3 = {
    .k3 = true,
    .nested = true,
    .expert_fmt = TINY_VQ3R,
    .trunk_fmt = TINY_Q4G,
    .layers = 4,
    .dense = 1,
    .hidden = 136,
    .vocab = 50,
    .experts = 5,
    .top_k = 2,
    .inner = 40,
    .latent = 72,
    .shared = 2,
    .mla_every = 2,
    .heads = 3,
    .head_dim = 16,
};
const struct tiny_shape tiny_linear = {
    .expert_fmt = TINY_VQ2R,
    .trunk_fmt = TINY_Q3G,
    .layers = 5,
    .dense = 2,
    .hidden = 72,
    .vocab = 33,
    .experts = 3,
    .top_k = 3,
    .inner = 64,
    .shared = 1,
    .mla_every = 3,
    .heads = 2,
    .head_dim = 8,
};

enum { NOPE = 12, ROPE = 4, V_DIM = 20, KV_LORA = 24, Q_LORA = 28, CONV = 4, DENSE_INNER = 56 };

static void require(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "tiny container: %s\n", what);
    abort();
}

char *tiny_path(const struct tiny *t, const char *name, char out[128])
{
    require(snprintf(out, 128, "%s/%s", t->dir, name) < 128, "path too long");
    return out;
}

static uint32_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = (a * 0x9e3779b97f4a7c15u + b) * 0xbf58476d1ce4e5b9u + c;
    h = (h ^ h >> 29) * 0x94d049bb133111ebu;
    return (uint32_t)(h >> 32);
}

float tiny_f32(uint32_t number, uint64_t row, uint64_t column)
{
    return (float)((int)(mix(number, row, column) % 4001) - 2000) / 1024.0f;
}

int tiny_int(uint32_t number, uint64_t row, uint64_t column, uint32_t fmt)
{
    uint32_t h = mix(number + 1000, row, column);
    return fmt == TINY_Q8G   ? (int)(h % 255) - 127
           : fmt == TINY_Q4G ? (int)(h % 16) - 8
                             : (int)(h % 8) - 4;
}

float tiny_scale(uint32_t number, uint64_t row, uint64_t group, uint16_t *bits)
{
    static const struct {
        uint16_t bits;
        float value;
    } scales[] = {
        {0x2c00, 0.0625f},  {0x1400, 0.0009765625f},           {0x3555, 0.333251953125f},
        {0xac00, -0.0625f}, {0x0003, 1.78813934326171875e-7f}, /* subnormal scales count */
    };
    uint32_t i = mix(number + 2000, row, group) % 5;
    *bits = scales[i].bits;
    return scales[i].value;
}

float tiny_codebook(uint32_t book, uint32_t value, uint16_t *bits)
{
    static const struct {
        uint16_t bits;
        float value;
    } values[] = {
        {0x3c00, 1.0f},
        {0xbc00, -1.0f},
        {0x3e00, 1.5f},
        {0x0000, 0},
        {0x0400, 6.103515625e-5f},
        {0x03ff, 0},
        {0x8001, 0}, /* subnormal entries read as zero */
        {0x7bff, 65504.0f},
        {0xb555, -0.333251953125f},
    };
    uint32_t i = mix(book + 3000, value, 0) % 9;
    *bits = values[i].bits;
    return values[i].value;
}

static void put(FILE *f, const void *data, size_t bytes)
{
    require(fwrite(data, 1, bytes, f) == bytes, "write");
}

/* One row of a quantised tensor, padded to whole groups; returns its bytes. */
static size_t pack_row(uint8_t *out, uint32_t number, uint64_t row, uint32_t cols, uint32_t fmt)
{
    uint32_t padded = (cols + 127) / 128 * 128;
    size_t bytes = fmt == TINY_Q8G ? padded : fmt == TINY_Q4G ? padded / 2 : padded / 8 * 3 + 1;
    memset(out, 0, bytes);
    for (uint32_t c = 0; c < padded; c++) {
        int q = c < cols ? tiny_int(number, row, c, fmt) : 0;
        if (fmt == TINY_Q8G)
            out[c] = (uint8_t)(int8_t)q;
        else if (fmt == TINY_Q4G)
            out[c / 2] |= (uint8_t)((q + 8) << (c % 2 * 4));
        else
            for (uint32_t b = 0; b < 3; b++)
                out[(3 * c + b) / 8] |= (uint8_t)(((q + 4) >> b & 1) << (3 * c + b) % 8);
    }
    return bytes;
}

/* Writes the payload and scales of a tensor; returns the payload's bytes. */
static uint64_t write_tensor(struct tiny *t, uint32_t number, uint64_t rows, uint32_t cols,
                             uint32_t fmt)
{
    uint64_t payload = 0;
    uint8_t *row = calloc(1, (size_t)cols * 4 + 256);
    for (uint64_t r = 0; r < rows; r++) {
        size_t bytes = (size_t)cols * 4;
        if (fmt == TINY_F32)
            for (uint32_t c = 0; c < cols; c++) {
                float v = tiny_f32(number, r, c);
                memcpy(row + (size_t)c * 4, &v, 4);
            }
        else
            bytes = pack_row(row, number, r, cols, fmt);
        put(t->trunk, row, bytes);
        payload += bytes;
    }
    for (uint64_t r = 0; r < rows && fmt != TINY_F32; r++)
        for (uint32_t g = 0; g < (cols + 127) / 128; g++) {
            uint16_t bits;
            tiny_scale(number, r, g, &bits);
            put(t->trunk, &bits, 2);
        }
    free(row);
    return payload;
}

static void add_named(struct tiny *t, const char *name, uint32_t fmt, uint32_t axes,
                      const uint32_t *shape)
{
    json_t *trunk = json_object_get(t->manifest, "trunk"), *dims = json_array();
    uint32_t number = (uint32_t)json_array_size(trunk), cols = shape[axes - 1];
    uint64_t rows = 1;
    for (uint32_t i = 0; i < axes; i++) {
        json_array_append_new(dims, json_integer(shape[i]));
        rows *= i + 1 < axes ? shape[i] : 1;
    }
    uint64_t groups = fmt == TINY_F32 ? 0 : (cols + 127) / 128;
    uint64_t row_bytes = fmt == TINY_F32   ? (uint64_t)cols * 4
                         : fmt == TINY_Q8G ? groups * 128
                         : fmt == TINY_Q4G ? groups * 64
                                           : groups * 48 + 1;
    uint64_t payload = rows * row_bytes, scales = rows * groups * 2;
    if (t->shape.sparse)
        require(fseek(t->trunk, (long)(payload + scales), SEEK_CUR) == 0, "seek");
    else
        require(write_tensor(t, number, rows, cols, fmt) == payload, "payload size");
    json_t *e = json_pack("{s:s, s:i, s:I, s:o, s:I}", "name", name, "fmt", (int)fmt, "off",
                          (json_int_t)t->trunk_bytes, "shape", dims, "bytes",
                          (json_int_t)(payload + scales));
    if (groups) {
        json_object_set_new(e, "group", json_integer(128));
        json_object_set_new(e, "scale_off", json_integer((json_int_t)(t->trunk_bytes + payload)));
    }
    json_array_append_new(trunk, e);
    t->trunk_bytes += payload + scales;
}

/* Adds "<prefix>model.layers.<l>.<name>", or without the layer when l < 0. */
static void add(struct tiny *t, int l, const char *name, uint32_t fmt, uint32_t axes, ...)
{
    char full[200];
    const char *prefix = t->shape.k3 ? "language_model." : "";
    uint32_t shape[4];
    va_list args;
    va_start(args, axes);
    for (uint32_t i = 0; i < axes; i++)
        shape[i] = va_arg(args, uint32_t);
    va_end(args);
    if (l < 0)
        snprintf(full, sizeof(full), "%s%s", prefix, name);
    else
        snprintf(full, sizeof(full), "%smodel.layers.%d.%s", prefix, l, name);
    add_named(t, full, fmt, axes, shape);
}

static bool is_mla(const struct tiny_shape *s, uint32_t l)
{
    return (l + 1) % s->mla_every == 0;
}

static void add_kda(struct tiny *t, int l)
{
    const struct tiny_shape *s = &t->shape;
    uint32_t q = s->trunk_fmt, d = s->hidden, h = s->heads, k = s->head_dim, c = h * k;
    add(t, l, "self_attn.q_proj.weight", q, 2, c, d);
    add(t, l, "self_attn.k_proj.weight", q, 2, c, d);
    add(t, l, "self_attn.v_proj.weight", q, 2, c, d);
    add(t, l, "self_attn.q_conv1d.weight", TINY_F32, 3, c, 1u, (uint32_t)CONV);
    add(t, l, "self_attn.k_conv1d.weight", TINY_F32, 3, c, 1u, (uint32_t)CONV);
    add(t, l, "self_attn.v_conv1d.weight", TINY_F32, 2, c, (uint32_t)CONV);
    add(t, l, "self_attn.f_a_proj.weight", TINY_F32, 2, k, d);
    add(t, l, "self_attn.f_b_proj.weight", q, 2, c, k);
    add(t, l, "self_attn.b_proj.weight", TINY_F32, 2, h, d);
    if (s->k3) {
        add(t, l, "self_attn.g_proj.weight", q, 2, c, d);
        add(t, l, "self_attn.A_log", TINY_F32, 1, k);
    } else {
        add(t, l, "self_attn.g_a_proj.weight", q, 2, k, d);
        add(t, l, "self_attn.g_b_proj.weight", q, 2, c, k);
        add(t, l, "self_attn.A_log", TINY_F32, 4, 1u, 1u, h, 1u);
    }
    add(t, l, "self_attn.dt_bias", TINY_F32, 1, c);
    add(t, l, "self_attn.o_norm.weight", TINY_F32, 1, k);
    add(t, l, "self_attn.o_proj.weight", q, 2, d, c);
}

static void add_mla(struct tiny *t, int l)
{
    const struct tiny_shape *s = &t->shape;
    uint32_t q = s->trunk_fmt, d = s->hidden, h = s->heads;
    if (s->k3) {
        add(t, l, "self_attn.q_a_proj.weight", q, 2, (uint32_t)Q_LORA, d);
        add(t, l, "self_attn.q_a_layernorm.weight", TINY_F32, 1, (uint32_t)Q_LORA);
        add(t, l, "self_attn.q_b_proj.weight", q, 2, h * (NOPE + ROPE), (uint32_t)Q_LORA);
        add(t, l, "self_attn.g_proj.weight", q, 2, h * V_DIM, d);
    } else {
        add(t, l, "self_attn.q_proj.weight", q, 2, h * (NOPE + ROPE), d);
    }
    add(t, l, "self_attn.kv_a_proj_with_mqa.weight", q, 2, (uint32_t)(KV_LORA + ROPE), d);
    add(t, l, "self_attn.kv_a_layernorm.weight", TINY_F32, 1, (uint32_t)KV_LORA);
    add(t, l, "self_attn.kv_b_proj.weight", q, 2, h * (NOPE + V_DIM), (uint32_t)KV_LORA);
    add(t, l, "self_attn.o_proj.weight", q, 2, d, h * V_DIM);
}

static void add_layer(struct tiny *t, int l)
{
    const struct tiny_shape *s = &t->shape;
    uint32_t q = s->trunk_fmt, d = s->hidden, shared = s->shared * s->inner;
    add(t, l, "input_layernorm.weight", TINY_F32, 1, d);
    add(t, l, "post_attention_layernorm.weight", TINY_F32, 1, d);
    if (s->k3) {
        add(t, l, "self_attention_res_norm.weight", TINY_F32, 1, d);
        add(t, l, "self_attention_res_proj.weight", TINY_F32, 2, 1u, d);
        add(t, l, "mlp_res_norm.weight", TINY_F32, 1, d);
        add(t, l, "mlp_res_proj.weight", TINY_F32, 2, 1u, d);
    }
    if (is_mla(s, (uint32_t)l))
        add_mla(t, l);
    else
        add_kda(t, l);
    if ((uint32_t)l < s->dense) {
        add(t, l, "mlp.gate_proj.weight", q, 2, (uint32_t)DENSE_INNER, d);
        add(t, l, "mlp.up_proj.weight", q, 2, (uint32_t)DENSE_INNER, d);
        add(t, l, "mlp.down_proj.weight", q, 2, d, (uint32_t)DENSE_INNER);
        return;
    }
    add(t, l, "block_sparse_moe.gate.weight", TINY_F32, 2, s->experts, d);
    add(t, l, "block_sparse_moe.gate.e_score_correction_bias", TINY_F32, 1, s->experts);
    if (s->latent) {
        add(t, l, "block_sparse_moe.routed_expert_down_proj.weight", q, 2, s->latent, d);
        add(t, l, "block_sparse_moe.routed_expert_norm.weight", TINY_F32, 1, s->latent);
        add(t, l, "block_sparse_moe.routed_expert_up_proj.weight", q, 2, d, s->latent);
    }
    add(t, l, "block_sparse_moe.shared_experts.gate_proj.weight", q, 2, shared, d);
    add(t, l, "block_sparse_moe.shared_experts.up_proj.weight", q, 2, shared, d);
    add(t, l, "block_sparse_moe.shared_experts.down_proj.weight", q, 2, d, shared);
}

static void write_trunk(struct tiny *t)
{
    const struct tiny_shape *s = &t->shape;
    char path[128];
    t->trunk = fopen(tiny_path(t, "trunk.bin", path), "wb");
    require(t->trunk != NULL, path);
    put(t->trunk, "odd", 3); /* no offset is aligned */
    t->trunk_bytes = 3;
    add(t, -1, "lm_head.weight", TINY_Q8G, 2, s->vocab, s->hidden);
    add(t, -1, "model.embed_tokens.weight", TINY_Q8G, 2, s->vocab, s->hidden);
    add(t, -1, "model.norm.weight", TINY_F32, 1, s->hidden);
    if (s->k3) {
        add(t, -1, "model.output_attn_res_norm.weight", TINY_F32, 1, s->hidden);
        add(t, -1, "model.output_attn_res_proj.weight", TINY_F32, 2, 1u, s->hidden);
    }
    add(t, -1, "model.not_of_this_engine.weight", TINY_F32, 1, 7u);
    for (uint32_t l = 0; l < s->layers; l++)
        add_layer(t, (int)l);
    /* a vision tensor: more axes, rows flattened in another way, beyond every limit of ours */
    if (s->k3) {
        uint64_t rows = 6, groups = 5, payload = rows * groups * 128;
        json_t *e = json_pack("{s:s, s:i, s:I, s:[iiii], s:I, s:i, s:I}", "name",
                              "vision_tower.patch_embed.proj.weight", "fmt", TINY_Q8G, "off",
                              (json_int_t)t->trunk_bytes, "shape", 6, 3, 14, 14, "bytes",
                              (json_int_t)(payload + rows * groups * 2), "group", 128, "scale_off",
                              (json_int_t)(t->trunk_bytes + payload));
        json_array_append_new(json_object_get(t->manifest, "trunk"), e);
        for (uint64_t i = 0; i < payload + rows * groups * 2; i++)
            fputc(0x55, t->trunk);
        t->trunk_bytes += payload + rows * groups * 2;
    }
    require(fflush(t->trunk) == 0 && ftruncate(fileno(t->trunk), (off_t)t->trunk_bytes) == 0 &&
                fclose(t->trunk) == 0,
            "trunk.bin");
}

static void put16(uint8_t *b, uint32_t v)
{
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}

static void put32(uint8_t *b, uint32_t v)
{
    put16(b, v);
    put16(b + 2, v >> 16);
}

static uint32_t crc32_bitwise(const uint8_t *data, size_t bytes)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int b = 0; b < 8; b++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static uint32_t stages_of(uint32_t fmt)
{
    return fmt == TINY_VQ3R ? 3 : fmt == TINY_VQ2R ? 2 : 4;
}

static void write_bank(struct tiny *t, uint32_t l, uint32_t base)
{
    const struct tiny_shape *s = &t->shape;
    uint64_t width = s->latent ? s->latent : s->hidden;
    uint64_t per = s->expert_fmt == TINY_VQ2R ? 2 : 3;
    uint64_t up = (s->inner + 63) / 64 * 64 * (width / 8) * per;
    uint64_t down = (width + 63) / 64 * 64 * (s->inner / 8) * per;
    uint64_t end = 48 + 2 * up + down + 2 * (2 * (uint64_t)s->inner + width);
    uint64_t stride = (end + 4095) / 4096 * 4096;
    char file[32], path[128], key[16];
    snprintf(file, sizeof(file), "experts-L%u.bin", l);
    snprintf(key, sizeof(key), "%u", l);
    json_object_set_new(json_object_get(t->manifest, "layers"), key,
                        json_pack("{s:s, s:i, s:I, s:i}", "file", file, "experts", (int)s->experts,
                                  "bytes", (json_int_t)(stride * s->experts), "codebook_base",
                                  (int)base));
    FILE *f = fopen(tiny_path(t, file, path), "wb");
    require(f != NULL, path);
    uint8_t *r = calloc(1, stride);
    for (uint32_t e = 0; e < s->experts && !s->sparse; e++) {
        for (uint64_t i = 48; i < end; i++)
            r[i] = (uint8_t)mix(l * 1000 + e, i, 5);
        for (uint64_t i = 48 + 2 * up + down; i < end; i += 2)
            put16(r + i, 0x2c00);
        put32(r, 0x50584557);
        put16(r + 4, l);
        put16(r + 6, e);
        r[8] = (uint8_t)s->expert_fmt;
        put16(r + 10, base);
        put32(r + 16, (uint32_t)(stride / 4096));
        put32(r + 20, 48);
        put32(r + 24, (uint32_t)(48 + up));
        put32(r + 28, (uint32_t)(48 + 2 * up));
        put32(r + 32, (uint32_t)(48 + 2 * up + down));
        put32(r + 36, crc32_bitwise(r + 48, end - 48));
        put(f, r, stride);
    }
    require(fflush(f) == 0 && ftruncate(fileno(f), (off_t)(stride * s->experts)) == 0 &&
                fclose(f) == 0,
            file);
    free(r);
}

static void write_codebooks(struct tiny *t, uint32_t count)
{
    uint32_t entries = t->shape.expert_fmt == TINY_VQ4P ? 64 : 256;
    char path[128];
    FILE *f = fopen(tiny_path(t, "codebooks.bin", path), "wb");
    require(f != NULL, path);
    for (uint32_t b = 0; b < count; b++) {
        uint8_t h[16] = {0};
        put32(h, 0x4B424357);
        put16(h + 4, b);
        h[6] = (uint8_t)t->shape.expert_fmt;
        h[7] = 8;
        put32(h + 8, entries);
        put(f, h, sizeof(h));
        for (uint32_t i = 0; i < entries * 8; i++) {
            uint16_t bits;
            tiny_codebook(b, i, &bits);
            put(f, &bits, 2);
        }
    }
    require(fclose(f) == 0, "codebooks.bin");
}

static json_t *make_config(const struct tiny_shape *s)
{
    json_t *kda = json_array(), *full = json_array();
    for (uint32_t l = 0; l < s->layers; l++)
        json_array_append_new(is_mla(s, l) ? full : kda, json_integer(l + 1));
    json_t *c = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i, s:i, s:i, s:i, s:i, s:f, s:n,"
        " s:s, s:i, s:i, s:b, s:{s:i, s:i, s:i, s:o, s:o}}",
        "model_type", "kimi_linear", "num_hidden_layers", (int)s->layers, "first_k_dense_replace",
        (int)s->dense, "hidden_size", (int)s->hidden, "vocab_size", (int)s->vocab,
        "intermediate_size", (int)DENSE_INNER, "num_experts", (int)s->experts,
        "num_experts_per_token", (int)s->top_k, "moe_intermediate_size", (int)s->inner,
        "num_shared_experts", (int)s->shared, "routed_scaling_factor", 2.5, "num_attention_heads",
        (int)s->heads, "qk_nope_head_dim", (int)NOPE, "qk_rope_head_dim", (int)ROPE, "v_head_dim",
        (int)V_DIM, "kv_lora_rank", (int)KV_LORA, "rms_norm_eps", 1e-5, "rope_scaling",
        "moe_router_activation_func", "sigmoid", "num_expert_group", 1, "topk_group", 1,
        "tie_word_embeddings", 0, "linear_attn_config", "num_heads", (int)s->heads, "head_dim",
        (int)s->head_dim, "short_conv_kernel_size", (int)CONV, "kda_layers", kda,
        "full_attn_layers", full);
    require(c != NULL, "config");
    json_t *linear = json_object_get(c, "linear_attn_config");
    if (s->k3) {
        json_object_update_new(
            c,
            json_pack("{s:b, s:i, s:i, s:b, s:s, s:f, s:f, s:i, s:b, s:b, s:[ii], s:i}",
                      "moe_renormalize", 0, "q_lora_rank", (int)Q_LORA, "routed_expert_hidden_size",
                      (int)s->latent, "latent_moe_use_norm", 1, "hidden_act", "situ",
                      "activation_situ_beta", 4.0, "activation_situ_linear_beta", 25.0,
                      "attn_res_block_size", 2, "mla_use_output_gate", 1, "mla_use_nope", 1,
                      "eos_token_id", 7, 9, "max_position_embeddings", 4096));
        json_object_set_new(linear, "use_full_rank_gate", json_true());
        json_object_set_new(linear, "gate_lower_bound", json_real(-5));
    } else {
        json_object_update_new(c, json_pack("{s:s, s:n, s:i, s:i}", "hidden_act", "silu",
                                            "q_lora_rank", "eos_token_id", 3, "model_max_length",
                                            1048576));
    }
    return c;
}

void tiny_save_manifest(const struct tiny *t)
{
    char path[128];
    require(json_dump_file(t->manifest, tiny_path(t, "manifest.json", path), JSON_INDENT(1)) == 0,
            path);
}

void tiny_build(struct tiny *t, const struct tiny_shape *shape)
{
    uint32_t stages = stages_of(shape->expert_fmt);
    *t = (struct tiny){.shape = *shape, .dir = "/tmp/waste-tiny-XXXXXX"};
    require(mkdtemp(t->dir) != NULL, "mkdtemp");
    json_t *config = make_config(shape);
    if (shape->nested)
        config = json_pack("{s:o, s:s, s:{s:s}}", "text_config", config, "model_type", "kimi_k3",
                           "_outer", "dtype", "bfloat16");
    t->manifest =
        json_pack("{s:i, s:s, s:s, s:o, s:{s:i, s:i, s:i, s:i, s:f}, s:{}, s:[]}", "format_version",
                  0, "arch", shape->k3 ? "kimi-k3" : "kimi-linear", "tensor_prefix",
                  shape->k3 ? "language_model." : "", "config", config, "expert_quant", "stages",
                  (int)stages, "vec_dim", 8, "entries", shape->expert_fmt == TINY_VQ4P ? 64 : 256,
                  "index_block", 64, "bits_per_weight", 3.0, "layers", "trunk");
    require(t->manifest != NULL, "manifest");
    if (shape->expert_fmt == TINY_VQ4P) /* absent means 8 */
        json_object_set_new(json_object_get(t->manifest, "expert_quant"), "index_bits",
                            json_integer(6));
    write_trunk(t);
    uint32_t books = 0;
    for (uint32_t l = shape->dense; l < shape->layers; l++, books += 3 * stages)
        write_bank(t, l, books);
    write_codebooks(t, books);
    tiny_save_manifest(t);
}

void tiny_free(struct tiny *t)
{
    DIR *dir = opendir(t->dir);
    struct dirent *e;
    char path[128];
    while (dir && (e = readdir(dir)))
        if (e->d_name[0] != '.')
            remove(tiny_path(t, e->d_name, path));
    if (dir)
        closedir(dir);
    rmdir(t->dir);
    json_decref(t->manifest);
}

uint32_t tiny_number(const struct tiny *t, const char *name)
{
    const json_t *trunk = json_object_get(t->manifest, "trunk");
    size_t prefix = t->shape.k3 ? strlen("language_model.") : 0;
    for (size_t i = 0; i < json_array_size(trunk); i++) {
        const char *full = json_string_value(json_object_get(json_array_get(trunk, i), "name"));
        if (strlen(full) > prefix && strcmp(full + prefix, name) == 0)
            return (uint32_t)i;
    }
    require(false, name);
    return 0;
}

json_t *tiny_entry(const struct tiny *t, const char *name)
{
    return json_array_get(json_object_get(t->manifest, "trunk"), tiny_number(t, name));
}
