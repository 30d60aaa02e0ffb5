#include "fetcher/shape.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/io.h"
#include "shm/model.h"

/* Which layers are KDA is added by rule where a config does not list them: all but every fourth and
 * the last. clang-format off: configs read best as they are. */
/* clang-format off */
static const char kimi_linear_48b[] =
    "{\"model_type\": \"kimi_linear\", \"hidden_size\": 2304, \"num_hidden_layers\": 27,"
    " \"first_k_dense_replace\": 1, \"intermediate_size\": 9216, \"moe_intermediate_size\": 1024,"
    " \"num_experts\": 256, \"num_experts_per_token\": 8, \"num_shared_experts\": 1,"
    " \"moe_renormalize\": true, \"moe_router_activation_func\": \"sigmoid\", \"moe_layer_freq\": 1,"
    " \"num_expert_group\": 1, \"topk_group\": 1, \"routed_scaling_factor\": 2.446,"
    " \"num_attention_heads\": 32, \"num_key_value_heads\": 32, \"qk_nope_head_dim\": 128,"
    " \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"kv_lora_rank\": 512, \"q_lora_rank\": null,"
    " \"mla_use_nope\": true, \"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": false,"
    " \"hidden_act\": \"silu\", \"num_nextn_predict_layers\": 0, \"model_max_length\": 1048576,"
    " \"linear_attn_config\": {\"head_dim\": 128, \"num_heads\": 32, \"short_conv_kernel_size\": 4},"
    " \"vocab_size\": 163840}";

static const char kimi_k3[] =
    "{\"model_type\": \"kimi_linear\", \"hidden_size\": 7168, \"num_hidden_layers\": 93,"
    " \"first_k_dense_replace\": 1, \"intermediate_size\": 33792, \"moe_intermediate_size\": 3072,"
    " \"num_experts\": 896, \"num_experts_per_token\": 16, \"num_shared_experts\": 2,"
    " \"moe_renormalize\": true, \"moe_router_activation_func\": \"sigmoid\","
    " \"num_expert_group\": 1, \"topk_group\": 1, \"routed_scaling_factor\": 1.0,"
    " \"num_attention_heads\": 96, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,"
    " \"v_head_dim\": 128, \"kv_lora_rank\": 512, \"q_lora_rank\": 1536, \"mla_use_nope\": true,"
    " \"mla_use_output_gate\": true, \"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": false,"
    " \"routed_expert_hidden_size\": 3584, \"latent_moe_use_norm\": true, \"hidden_act\": \"situ\","
    " \"activation_situ_beta\": 4.0, \"activation_situ_linear_beta\": 25.0,"
    " \"attn_res_block_size\": 12, \"num_nextn_predict_layers\": 0,"
    " \"linear_attn_config\": {\"head_dim\": 128, \"num_heads\": 96, \"short_conv_kernel_size\": 4,"
    "  \"use_full_rank_gate\": true, \"gate_lower_bound\": -5.0},"
    " \"vocab_size\": 163840}";

static const char tiny_k3[] =
    "{\"hidden_size\": 256, \"num_hidden_layers\": 6, \"intermediate_size\": 512,"
    " \"moe_intermediate_size\": 96, \"num_experts\": 24, \"num_experts_per_token\": 4,"
    " \"num_attention_heads\": 8, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 16,"
    " \"v_head_dim\": 32, \"kv_lora_rank\": 64, \"q_lora_rank\": 96,"
    " \"routed_expert_hidden_size\": 128, \"attn_res_block_size\": 4,"
    " \"linear_attn_config\": {\"head_dim\": 32, \"num_heads\": 8}, \"vocab_size\": 512}";

static const char tiny_linear[] =
    "{\"hidden_size\": 256, \"num_hidden_layers\": 6, \"intermediate_size\": 512,"
    " \"moe_intermediate_size\": 96, \"num_experts\": 24, \"num_experts_per_token\": 4,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 8, \"qk_nope_head_dim\": 32,"
    " \"qk_rope_head_dim\": 16, \"v_head_dim\": 32, \"kv_lora_rank\": 64,"
    " \"linear_attn_config\": {\"head_dim\": 32, \"num_heads\": 8}, \"vocab_size\": 512}";

static const char odd[] =
    "{\"hidden_size\": 200, \"num_hidden_layers\": 5, \"intermediate_size\": 328,"
    " \"moe_intermediate_size\": 72, \"num_experts\": 13, \"num_experts_per_token\": 3,"
    " \"num_attention_heads\": 7, \"num_key_value_heads\": 7, \"qk_nope_head_dim\": 24,"
    " \"qk_rope_head_dim\": 8, \"v_head_dim\": 40, \"kv_lora_rank\": 72,"
    " \"linear_attn_config\": {\"head_dim\": 40, \"num_heads\": 9, \"short_conv_kernel_size\": 3},"
    " \"vocab_size\": 389}";

static const char odd_k3[] =
    "{\"hidden_size\": 200, \"num_hidden_layers\": 5, \"intermediate_size\": 328,"
    " \"moe_intermediate_size\": 72, \"num_experts\": 13, \"num_experts_per_token\": 3,"
    " \"num_shared_experts\": 3, \"routed_expert_hidden_size\": 136, \"attn_res_block_size\": 3,"
    " \"num_attention_heads\": 7, \"qk_nope_head_dim\": 24, \"qk_rope_head_dim\": 8,"
    " \"v_head_dim\": 40, \"kv_lora_rank\": 72, \"q_lora_rank\": 88,"
    " \"linear_attn_config\": {\"head_dim\": 40, \"num_heads\": 9}, \"vocab_size\": 389}";
/* clang-format on */

const struct waste_named_shape waste_named_shapes[] = {
    {"kimi-linear-48b", NULL, kimi_linear_48b, "Kimi-Linear 48B", 0, 0, false},
    {"kimi-k3", NULL, kimi_k3, "Kimi K3 (cut it with --layers)", 0, 0, false},
    {"tiny-k3", "kimi-k3", tiny_k3, "K3's parts, residual blocks of 4 in 6 layers", 0, 0, false},
    {"tiny-linear", "kimi-linear-48b", tiny_linear, "Kimi-Linear's parts", 0, 0, false},
    {"tiny-odd", "tiny-linear", odd, "hidden 200, inner 72: nothing a multiple of 64", 0, 0, false},
    {"tiny-odd-k3", "tiny-k3", odd_k3, "the same with K3's parts", 0, 0, false},
    {"tiny-odd-vq2r", "tiny-odd", "{}", "odd sizes, VQ2R experts", WASTE_FMT_VQ2R, 0, false},
    {"tiny-odd-vq4p", "tiny-odd-k3", "{}", "odd sizes, VQ4P experts", WASTE_FMT_VQ4P, 0, false},
    {"tiny-vq2r", "tiny-k3", "{}", "VQ2R experts", WASTE_FMT_VQ2R, 0, false},
    {"tiny-vq4p", "tiny-linear", "{}", "VQ4P experts", WASTE_FMT_VQ4P, 0, false},
    {"tiny-q3", "tiny-k3", "{}", "3-bit trunk", 0, 3, false},
    {"tiny-q8", "tiny-linear", "{}", "8-bit trunk", 0, 8, false},
    {"tiny-odd-q3", "tiny-odd", "{}", "odd sizes, 3-bit trunk", 0, 3, false},
    {"tiny-dense3", "tiny-k3", "{\"first_k_dense_replace\": 3, \"attn_res_block_size\": 5}",
     "three dense layers before the first MoE layer", 0, 0, false},
    {"tiny-dense0", "tiny-linear", "{\"first_k_dense_replace\": 0}", "no dense layer", 0, 0, false},
    {"tiny-one", "tiny-linear", "{\"num_experts_per_token\": 1, \"moe_renormalize\": false}",
     "one expert chosen, its weight not renormalised", 0, 0, false},
    {"tiny-all", "tiny-k3", "{\"num_experts\": 6, \"num_experts_per_token\": 6}",
     "all experts chosen", 0, 0, false},
    {"tiny-few", "tiny-all", "{\"num_hidden_layers\": 2}",
     "one MoE layer: fewer experts than two layers choose", 0, 0, false},
    {"tiny-unshared", "tiny-linear", "{\"num_shared_experts\": 0}", "no shared experts", 0, 0,
     false},
    {"tiny-unshared-k3", "tiny-odd-k3", "{\"num_shared_experts\": 0}",
     "no shared experts, odd sizes, K3's parts", 0, 0, false},
    {"tiny-subnormal", "tiny-k3", "{}", "subnormal f16 scales and codebook entries", 0, 0, true},
};
const uint32_t waste_named_shape_count = sizeof(waste_named_shapes) / sizeof(waste_named_shapes[0]);

static const struct waste_named_shape *named(const char *name)
{
    for (uint32_t i = 0; i < waste_named_shape_count; i++)
        if (!strcmp(name, waste_named_shapes[i].name))
            return &waste_named_shapes[i];
    return NULL;
}

/* The config of a named shape, its base underneath. The tables above are right by construction. */
static json_t *named_config(const struct waste_named_shape *n)
{
    json_t *config = n->base ? named_config(named(n->base)) : json_object();
    json_t *over = json_loads(n->config, 0, NULL);
    if (!config || !over || json_object_update_recursive(config, over))
        abort();
    json_decref(over);
    return config;
}

static json_t *file_config(const char *path)
{
    json_error_t e;
    json_t *outer = json_load_file(path, JSON_REJECT_DUPLICATES, &e), *config;
    if (!outer) {
        waste_fetch_fail("cannot read the config %s: %s (line %d)", path, e.text, e.line);
        return NULL;
    }
    config = json_object_get(outer, "text_config");
    if (json_is_object(config))
        config = json_incref(config);
    else
        config = json_is_object(outer) ? json_incref(outer) : NULL;
    if (!config)
        waste_fetch_fail("the config %s is not an object", path);
    json_decref(outer);
    return config;
}

/* A whole number of the config in [low, high]; absent or null counts as `missing` unless that is
 * UINT32_MAX. */
static int number(const struct waste_shape *s, uint32_t *out, const json_t *object, const char *key,
                  uint32_t missing, uint32_t low, uint32_t high)
{
    const json_t *v = json_object_get(object, key);
    if ((!v || json_is_null(v)) && missing != UINT32_MAX) {
        *out = missing;
        return 0;
    }
    if (!json_is_integer(v))
        return waste_fetch_fail("%s: %s is %s", s->where, key, v ? "no whole number" : "missing");
    json_int_t n = json_integer_value(v);
    if (n < low || n > high)
        return waste_fetch_fail("%s: %s is %lld, allowed are %u to %u", s->where, key, (long long)n,
                                low, high);
    *out = (uint32_t)n;
    return 0;
}

static int width(const struct waste_shape *s, uint32_t *out, const json_t *object, const char *key,
                 uint32_t missing)
{
    if (number(s, out, object, key, missing, missing ? 1 : 0, WASTE_MAX_HIDDEN))
        return -1;
    return 0;
}

/* The rule of both releases, for configs that do not list their layers. */
static bool kda_by_rule(uint32_t layer, uint32_t layers)
{
    return layer % 4 != 3 && layer + 1 != layers;
}

/* Fills is_kda and makes the config's two layer lists agree with the layers that are left. */
static int layer_kinds(struct waste_shape *s, json_t *lin)
{
    const json_t *list = json_object_get(lin, "kda_layers");
    s->is_kda = calloc(s->layers, 1);
    json_t *kda = json_array(), *mla = json_array();
    if (!s->is_kda || !kda || !mla)
        return waste_fetch_fail("out of memory");
    for (uint32_t i = 0; i < s->layers; i++)
        s->is_kda[i] = !list && kda_by_rule(i, s->layers);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t n = json_integer_value(json_array_get(list, i));
        if (n >= 1 && n <= s->layers)
            s->is_kda[n - 1] = 1;
    }
    for (uint32_t i = 0; i < s->layers; i++)
        json_array_append_new(s->is_kda[i] ? kda : mla, json_integer(i + 1));
    json_object_set_new(lin, "kda_layers", kda);
    json_object_set_new(lin, "full_attn_layers", mla);
    return 0;
}

static int moe(struct waste_shape *s, const json_t *c)
{
    uint32_t latent = 0;
    if (width(s, &s->dense_inner, c, "intermediate_size", UINT32_MAX) ||
        width(s, &s->expert_inner, c, "moe_intermediate_size", UINT32_MAX) ||
        number(s, &s->experts, c, "num_experts", UINT32_MAX, 1, WASTE_MAX_EXPERTS) ||
        number(s, &s->top_k, c, "num_experts_per_token", UINT32_MAX, 1, WASTE_MAX_TOP_K) ||
        number(s, &s->shared_experts, c, "num_shared_experts", 0, 0, 64) ||
        width(s, &latent, c, "routed_expert_hidden_size", 0))
        return -1;
    s->latent = latent != 0;
    s->latent_norm = latent && json_is_true(json_object_get(c, "latent_moe_use_norm"));
    s->expert_width = latent ? latent : s->hidden;
    if (s->top_k > s->experts)
        return waste_fetch_fail("%s: num_experts_per_token is %u of %u experts", s->where, s->top_k,
                                s->experts);
    if (s->expert_width % 8 || s->expert_inner % 8)
        return waste_fetch_fail("%s: an expert's sides are %u and %u, both must be multiples of 8",
                                s->where, s->expert_width, s->expert_inner);
    return 0;
}

static int attention(struct waste_shape *s, const json_t *c)
{
    json_t *lin = json_object_get(c, "linear_attn_config");
    if (!json_is_object(lin))
        return waste_fetch_fail("%s: linear_attn_config is no object", s->where);
    if (width(s, &s->kda_heads, lin, "num_heads", UINT32_MAX) ||
        width(s, &s->kda_dim, lin, "head_dim", UINT32_MAX) ||
        number(s, &s->conv_width, lin, "short_conv_kernel_size", 4, 2, 16) ||
        width(s, &s->mla_heads, c, "num_attention_heads", UINT32_MAX) ||
        width(s, &s->q_lora, c, "q_lora_rank", 0) ||
        width(s, &s->kv_lora, c, "kv_lora_rank", UINT32_MAX) ||
        width(s, &s->nope_dim, c, "qk_nope_head_dim", UINT32_MAX) ||
        width(s, &s->rope_dim, c, "qk_rope_head_dim", UINT32_MAX) ||
        width(s, &s->v_dim, c, "v_head_dim", UINT32_MAX) ||
        number(s, &s->res_block, c, "attn_res_block_size", 0, 0, WASTE_MAX_LAYERS))
        return -1;
    s->full_gate = json_is_true(json_object_get(lin, "use_full_rank_gate"));
    s->out_gate = json_is_true(json_object_get(c, "mla_use_output_gate"));
    return layer_kinds(s, lin);
}

static int read_config(struct waste_shape *s, uint32_t layers)
{
    json_t *c = s->config;
    if (number(s, &s->layers, c, "num_hidden_layers", UINT32_MAX, 1, WASTE_MAX_LAYERS))
        return -1;
    if (layers > s->layers)
        return waste_fetch_fail("--layers %u: the shape has %u", layers, s->layers);
    if (layers) {
        s->layers = layers;
        json_object_set_new(c, "num_hidden_layers", json_integer(layers));
    }
    if (number(s, &s->dense_layers, c, "first_k_dense_replace", 0, 0, WASTE_MAX_LAYERS) ||
        width(s, &s->hidden, c, "hidden_size", UINT32_MAX) ||
        number(s, &s->vocab, c, "vocab_size", UINT32_MAX, 320, WASTE_MAX_VOCAB) || moe(s, c) ||
        attention(s, c))
        return -1;
    if (s->dense_layers >= s->layers)
        return waste_fetch_fail("%s: first_k_dense_replace %u leaves no MoE layer of %u", s->where,
                                s->dense_layers, s->layers);
    s->k3 = s->latent || s->res_block;
    s->arch = s->k3 ? "kimi-k3" : "kimi-linear";
    s->prefix = s->k3 ? "language_model." : "";
    return 0;
}

int waste_shape_load(struct waste_shape *shape, const char *name, uint32_t layers)
{
    const struct waste_named_shape *n = named(name);
    memset(shape, 0, sizeof(*shape));
    if (!n && !strchr(name, '/') && !strstr(name, ".json"))
        return waste_fetch_fail("no shape %s: waste-fetch synth --list shows them, a path to a "
                                "config.json will do, too",
                                name);
    shape->config = n ? named_config(n) : file_config(name);
    if (!shape->config)
        return -1;
    shape->expert_fmt = n && n->expert_fmt ? n->expert_fmt : WASTE_FMT_VQ3R;
    shape->trunk_bits = n && n->trunk_bits ? n->trunk_bits : 4;
    shape->subnormal = n && n->subnormal;
    shape->where = name;
    return read_config(shape, layers);
}

/* The text part with the rest of `outer` under _outer, a new reference. */
static json_t *manifest_config(json_t *outer)
{
    json_t *text = json_object_get(outer, "text_config");
    if (!json_is_object(text))
        return json_deep_copy(outer);
    json_t *config = json_deep_copy(text), *rest = json_deep_copy(outer);
    json_object_del(rest, "text_config");
    json_object_set_new(config, "_outer", rest);
    return config;
}

int waste_shape_load_release(struct waste_shape *shape, const char *path, const char *text)
{
    json_error_t e;
    json_t *outer = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    char where[4096];
    memset(shape, 0, sizeof(*shape));
    snprintf(where, sizeof(where), "%s/config.json", path);
    if (!json_is_object(outer)) {
        json_decref(outer);
        return waste_fetch_fail("%s: %s", where, outer ? "is no object" : e.text);
    }
    json_t *config = manifest_config(outer);
    json_decref(outer);
    shape->config = json_deep_copy(config); /* read_config evens it out */
    shape->where = where;
    int rc = read_config(shape, 0);
    shape->where = NULL;
    json_decref(shape->config);
    shape->config = config;
    return rc;
}

void waste_shape_finish(struct waste_shape *shape)
{
    json_decref(shape->config);
    free(shape->is_kda);
    memset(shape, 0, sizeof(*shape));
}
