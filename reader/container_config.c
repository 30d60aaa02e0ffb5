/*
 * The config of a release (K3's text part, or Kimi-Linear's whole file) -> struct waste_config.
 * Everything this engine does not implement is refused here by name, so that a container can never
 * run with an ingredient left out.
 */
#include "reader/container_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum place { TEXT, LINEAR };

/* X(place, key, field, min, max, required) */
#define UINT_FIELDS(X)                                                                             \
    X(TEXT, "num_hidden_layers", layers, 1, WASTE_MAX_LAYERS, true)                                \
    X(TEXT, "first_k_dense_replace", dense_layers, 0, WASTE_MAX_LAYERS, true)                      \
    X(TEXT, "hidden_size", hidden, 1, WASTE_MAX_HIDDEN, true)                                      \
    X(TEXT, "vocab_size", vocab, 1, WASTE_MAX_VOCAB, true)                                         \
    X(TEXT, "intermediate_size", dense_inner, 1, WASTE_MAX_HIDDEN, false)                          \
    X(TEXT, "num_experts", experts, 1, WASTE_MAX_EXPERTS, true)                                    \
    X(TEXT, "num_experts_per_token", top_k, 1, WASTE_MAX_TOP_K, true)                              \
    X(TEXT, "moe_intermediate_size", expert_inner, 1, WASTE_MAX_HIDDEN, true)                      \
    X(TEXT, "routed_expert_hidden_size", expert_width, 0, WASTE_MAX_HIDDEN, false)                 \
    X(TEXT, "num_shared_experts", shared_experts, 0, WASTE_MAX_EXPERTS, true)                      \
    X(TEXT, "attn_res_block_size", res_block, 0, WASTE_MAX_LAYERS, false)                          \
    X(TEXT, "num_attention_heads", mla_heads, 1, WASTE_MAX_HIDDEN, true)                           \
    X(TEXT, "q_lora_rank", q_lora, 0, WASTE_MAX_HIDDEN, false)                                     \
    X(TEXT, "kv_lora_rank", kv_lora, 1, WASTE_MAX_HIDDEN, true)                                    \
    X(TEXT, "qk_nope_head_dim", nope_dim, 1, WASTE_MAX_HIDDEN, true)                               \
    X(TEXT, "qk_rope_head_dim", rope_dim, 0, WASTE_MAX_HIDDEN, true)                               \
    X(TEXT, "v_head_dim", v_dim, 1, WASTE_MAX_HIDDEN, true)                                        \
    X(LINEAR, "num_heads", kda_heads, 1, WASTE_MAX_HIDDEN, true)                                   \
    X(LINEAR, "head_dim", kda_dim, 1, 4096, true)                                                  \
    X(LINEAR, "short_conv_kernel_size", conv_width, 2, 16, true)

struct uint_field {
    enum place place;
    const char *key;
    size_t offset;
    uint32_t min, max;
    bool required;
};
#define WASTE_X(place, key, field, min, max, required)                                             \
    {place, key, offsetof(struct waste_config, field), min, max, required},
static const struct uint_field uint_fields[] = {UINT_FIELDS(WASTE_X)};
#undef WASTE_X

/* Absent = false, but for renormalize. */
static const struct flag_field {
    enum place place;
    const char *key;
    size_t offset;
    bool absent;
} flag_fields[] = {
    {TEXT, "moe_renormalize", offsetof(struct waste_config, renormalize), true},
    {TEXT, "latent_moe_use_norm", offsetof(struct waste_config, latent_norm), false},
    {TEXT, "mla_use_output_gate", offsetof(struct waste_config, mla_out_gate), false},
    {LINEAR, "use_full_rank_gate", offsetof(struct waste_config, kda_full_gate), false},
};

/* Settings with one value this engine implements; absent means that value. */
static const struct fixed_flag {
    const char *key;
    bool value;
} fixed_flags[] = {
    {"mla_use_nope", true},
    {"attention_bias", false},
    {"mlp_bias", false},
};
static const struct fixed_uint {
    const char *key;
    uint32_t min, max;
} fixed_uints[] = {
    {"num_expert_group", 0, 1},
    {"n_group", 0, 1},
    {"topk_group", 0, 1},
    {"moe_layer_freq", 1, 1},
};
static const struct fixed_string {
    const char *key, *value;
} fixed_strings[] = {
    {"moe_router_activation_func", "sigmoid"},
    {"scoring_func", "sigmoid"},
};

static int refuse_unimplemented(const struct waste_json_at *text)
{
    int rc;
    for (size_t i = 0; i < sizeof(fixed_flags) / sizeof(fixed_flags[0]); i++) {
        bool value = fixed_flags[i].value;
        rc = waste_json_flag_opt(text, fixed_flags[i].key, &value);
        if (rc < 0)
            return rc;
        if (value != fixed_flags[i].value)
            return waste_json_wrong(text, fixed_flags[i].key,
                                    fixed_flags[i].value ? "true (nothing else is implemented)"
                                                         : "false (nothing else is implemented)");
    }
    for (size_t i = 0; i < sizeof(fixed_uints) / sizeof(fixed_uints[0]); i++) {
        uint64_t value;
        rc = waste_json_uint_opt(text, fixed_uints[i].key, fixed_uints[i].min, fixed_uints[i].max,
                                 &value);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof(fixed_strings) / sizeof(fixed_strings[0]); i++) {
        const char *value = fixed_strings[i].value;
        rc = waste_json_string_opt(text, fixed_strings[i].key, 64, &value);
        if (rc < 0)
            return rc;
        if (strcmp(value, fixed_strings[i].value) != 0)
            return waste_json_wrong(text, fixed_strings[i].key, "\"sigmoid\"");
    }
    return 0;
}

static int parse_uints(struct waste_config *c, const struct waste_json_at at[2])
{
    for (size_t i = 0; i < sizeof(uint_fields) / sizeof(uint_fields[0]); i++) {
        const struct uint_field *f = &uint_fields[i];
        uint64_t value = 0;
        int rc = f->required ? waste_json_uint(&at[f->place], f->key, f->min, f->max, &value)
                             : waste_json_uint_opt(&at[f->place], f->key, f->min, f->max, &value);
        if (rc < 0)
            return rc;
        *(uint32_t *)((char *)c + f->offset) = (uint32_t)value;
    }
    for (size_t i = 0; i < sizeof(flag_fields) / sizeof(flag_fields[0]); i++) {
        const struct flag_field *f = &flag_fields[i];
        bool value = f->absent;
        int rc = waste_json_flag_opt(&at[f->place], f->key, &value);
        if (rc < 0)
            return rc;
        *(uint32_t *)((char *)c + f->offset) = value;
    }
    return 0;
}

static int parse_activation(struct waste_config *c, const struct waste_json_at *text)
{
    const char *act = "silu";
    double beta = 0, linear_beta = 0;
    int rc = waste_json_string_opt(text, "hidden_act", 64, &act);
    if (rc < 0)
        return rc;
    c->situ = strcmp(act, "situ") == 0;
    if (!c->situ) {
        if (strcmp(act, "silu") != 0)
            return waste_json_wrong(text, "hidden_act", "\"silu\" or \"situ\"");
        return 0;
    }
    if (!waste_json_get(text, "activation_situ_beta"))
        return waste_json_missing(text, "activation_situ_beta");
    rc = waste_json_real_opt(text, "activation_situ_beta", 1e-6, 1e6, &beta);
    if (rc < 0)
        return rc;
    rc = waste_json_real_opt(text, "activation_situ_linear_beta", 0, 1e6, &linear_beta);
    if (rc < 0)
        return rc;
    if (linear_beta > 0 && linear_beta < 1e-6)
        return waste_json_wrong(text, "activation_situ_linear_beta", "0 or from 1e-06 to 1e+06");
    c->situ_beta = (float)beta;
    c->situ_linear_beta = (float)linear_beta;
    return 0;
}

static int parse_reals(struct waste_config *c, const struct waste_json_at at[2])
{
    double eps = 0, scale = 0, bound = 0;
    if (!waste_json_get(&at[TEXT], "rms_norm_eps"))
        return waste_json_missing(&at[TEXT], "rms_norm_eps");
    if (!waste_json_get(&at[TEXT], "routed_scaling_factor"))
        return waste_json_missing(&at[TEXT], "routed_scaling_factor");
    int rc = waste_json_real_opt(&at[TEXT], "rms_norm_eps", 1e-20, 1, &eps);
    if (rc < 0)
        return rc;
    rc = waste_json_real_opt(&at[TEXT], "routed_scaling_factor", 1e-6, 1e6, &scale);
    if (rc < 0)
        return rc;
    /* a log decay above 0 would make the state grow without bound */
    rc = waste_json_real_opt(&at[LINEAR], "gate_lower_bound", -1e4, 0, &bound);
    if (rc < 0)
        return rc;
    c->rms_eps = (float)eps;
    c->routed_scale = (float)scale;
    c->has_gate_lower_bound = waste_json_get(&at[LINEAR], "gate_lower_bound") != NULL;
    c->gate_lower_bound = (float)bound;
    return parse_activation(c, &at[TEXT]);
}

/* Marks the layers (1-based on disk) of one list; a layer may be in one list only. */
static int parse_layer_list(struct waste_parse *p, const struct waste_json_at *linear,
                            const char *key, uint8_t mark, uint8_t seen[WASTE_MAX_LAYERS])
{
    const json_t *list;
    char what[64];
    int rc = waste_json_array(linear, key, p->config.layers, &list);
    if (rc < 0)
        return rc;
    snprintf(what, sizeof(what), "%s.%s", linear->path, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint64_t layer;
        rc = waste_json_element(json_array_get(list, i), p->err, what, i, 1, p->config.layers,
                                &layer);
        if (rc < 0)
            return rc;
        if (seen[layer - 1])
            return waste_error_set(p->err, -EINVAL,
                                   WASTE_MANIFEST ": %s[%zu] is %llu, a layer listed before", what,
                                   i, (unsigned long long)layer);
        seen[layer - 1] = mark;
    }
    return 0;
}

static int parse_layer_kinds(struct waste_parse *p, const struct waste_json_at *linear)
{
    struct waste_config *c = &p->config;
    enum { KDA = 1, MLA = 2 };
    uint8_t seen[WASTE_MAX_LAYERS] = {0};
    int rc = parse_layer_list(p, linear, "kda_layers", KDA, seen);
    if (rc < 0)
        return rc;
    if (waste_json_get(linear, "full_attn_layers")) {
        rc = parse_layer_list(p, linear, "full_attn_layers", MLA, seen);
        if (rc < 0)
            return rc;
    }
    for (uint32_t l = 0; l < c->layers; l++) {
        p->is_kda[l] = seen[l] == KDA;
        c->kda_layers += p->is_kda[l];
    }
    c->mla_layers = c->layers - c->kda_layers;
    return 0;
}

/* eos_token_id: an integer or a list, in the text config or around it; absent = no end token. */
static int parse_eos(struct waste_parse *p, const struct waste_json_at *text)
{
    struct waste_config *c = &p->config;
    const json_t *config = json_object_get(p->root, "config");
    const json_t *where[3] = {text->object, config, json_object_get(config, "_outer")};
    const json_t *eos = NULL;
    uint64_t id;
    for (size_t i = 0; i < 3 && (!eos || json_is_null(eos)); i++)
        eos = json_object_get(where[i], "eos_token_id");
    if (!eos || json_is_null(eos))
        return 0;
    if (!json_is_array(eos)) {
        int rc = waste_json_element(eos, p->err, "config.eos_token_id", 0, 0, c->vocab - 1, &id);
        if (rc < 0)
            return rc;
        c->eos[c->eos_count++] = (uint32_t)id;
        return 0;
    }
    if (json_array_size(eos) > WASTE_MAX_EOS)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": config.eos_token_id has %zu entries, limit %d",
                               json_array_size(eos), WASTE_MAX_EOS);
    for (size_t i = 0; i < json_array_size(eos); i++) {
        int rc = waste_json_element(json_array_get(eos, i), p->err, "config.eos_token_id", i, 0,
                                    c->vocab - 1, &id);
        if (rc < 0)
            return rc;
        c->eos[c->eos_count++] = (uint32_t)id;
    }
    return 0;
}

/* Advice only; some releases say "unlimited" with an enormous number. */
static int parse_max_context(struct waste_config *c, const struct waste_json_at *text)
{
    static const char *const keys[] = {"max_position_embeddings", "model_max_length"};
    for (size_t i = 0; i < 2 && c->max_context == 0; i++) {
        double positions = 0;
        int rc = waste_json_real_opt(text, keys[i], 1, 1e300, &positions);
        if (rc < 0)
            return rc;
        c->max_context = positions < INT32_MAX ? (uint32_t)positions : INT32_MAX;
    }
    return 0;
}

/* The widths that come out of a product, so that no later product of 32-bit fields can wrap. */
static int check_products(const struct waste_parse *p, const char *path)
{
    const struct waste_config *c = &p->config;
    const struct {
        const char *what;
        uint64_t a, b;
    } product[] = {
        {"linear_attn_config.num_heads x head_dim", c->kda_heads, c->kda_dim},
        {"num_attention_heads x (qk_nope_head_dim + qk_rope_head_dim)", c->mla_heads,
         (uint64_t)c->nope_dim + c->rope_dim},
        {"num_attention_heads x (qk_nope_head_dim + v_head_dim)", c->mla_heads,
         (uint64_t)c->nope_dim + c->v_dim},
        {"kv_lora_rank + qk_rope_head_dim", (uint64_t)c->kv_lora + c->rope_dim, 1},
        {"num_shared_experts x moe_intermediate_size", c->shared_experts, c->expert_inner},
    };
    for (size_t i = 0; i < sizeof(product) / sizeof(product[0]); i++)
        if (product[i].a * product[i].b > WASTE_MAX_HIDDEN)
            return waste_error_set(
                p->err, -EINVAL, WASTE_MANIFEST ": %s.%s is %llu, limit %d", path, product[i].what,
                (unsigned long long)(product[i].a * product[i].b), WASTE_MAX_HIDDEN);
    return 0;
}

static int check_relations(struct waste_parse *p, const struct waste_json_at *text)
{
    struct waste_config *c = &p->config;
    if (c->dense_layers >= c->layers)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": %s.first_k_dense_replace is %u, must be below "
                                              "num_hidden_layers %u",
                               text->path, c->dense_layers, c->layers);
    if (c->dense_layers > 0 && c->dense_inner == 0)
        return waste_json_missing(text, "intermediate_size");
    if (c->top_k > c->experts)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": %s.num_experts_per_token is %u, limit "
                                              "num_experts %u",
                               text->path, c->top_k, c->experts);
    c->latent = c->expert_width != 0;
    if (!c->latent) {
        c->expert_width = c->hidden;
        c->latent_norm = 0; /* there is no latent to norm */
    }
    if (c->expert_width % WASTE_VEC_DIM || c->expert_inner % WASTE_VEC_DIM)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": %s: experts are %u x %u, both must be multiples "
                                              "of %d",
                               text->path, c->expert_inner, c->expert_width, WASTE_VEC_DIM);
    return check_products(p, text->path);
}

int waste_parse_config(struct waste_parse *p)
{
    struct waste_json_at top = {p->root, "", p->err};
    struct waste_json_at at[2] = {{NULL, "config", p->err},
                                  {NULL, "config.linear_attn_config", p->err}};
    int rc = waste_json_object(&top, "config", &at[TEXT].object);
    if (rc < 0)
        return rc;
    if (waste_json_get(&at[TEXT], "text_config")) {
        struct waste_json_at outer = at[TEXT];
        rc = waste_json_object(&outer, "text_config", &at[TEXT].object);
        if (rc < 0)
            return rc;
        at[TEXT].path = "config.text_config";
        at[LINEAR].path = "config.text_config.linear_attn_config";
    }
    rc = waste_json_object(&at[TEXT], "linear_attn_config", &at[LINEAR].object);
    if (rc < 0)
        return rc;
    if ((rc = refuse_unimplemented(&at[TEXT])) < 0 || (rc = parse_uints(&p->config, at)) < 0 ||
        (rc = parse_reals(&p->config, at)) < 0 || (rc = parse_layer_kinds(p, &at[LINEAR])) < 0 ||
        (rc = parse_eos(p, &at[TEXT])) < 0 || (rc = parse_max_context(&p->config, &at[TEXT])) < 0 ||
        (rc = waste_json_flag_opt(&at[TEXT], "tie_word_embeddings", &p->tied)) < 0)
        return rc;
    return check_relations(p, &at[TEXT]);
}
