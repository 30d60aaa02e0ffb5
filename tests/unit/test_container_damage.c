/*
 * A container damaged in one place is refused with one line that names the file and the field, or,
 * where the field does not matter or the new value is as good, read safely.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "reader/container.h"
#include "tests/support/model_check.h"
#include "tests/support/tiny.h"

/*
 * Mutations: d delete, n null, s another string, m -1, z 0, h 2^62, f 0.5, t true, a [], o {}.
 * A value that a mutation leaves as it was is not a mutation.
 */
static const char mutations[] = "dnsmzhftao";

static json_t *mutated(char how)
{
    switch (how) {
    case 'n':
        return json_null();
    case 's':
        return json_string("x");
    case 'm':
        return json_integer(-1);
    case 'z':
        return json_integer(0);
    case 'h':
        return json_integer(INT64_C(1) << 62);
    case 'f':
        return json_real(0.5);
    case 't':
        return json_true();
    case 'a':
        return json_array();
    default:
        return json_object();
    }
}

/*
 * Which mutations of a field must be accepted (of an element of a list: may be), and what a refusal
 * names when it is not the field itself (the first thing that no longer fits). Fields that are not
 * listed must be there and right.
 */
static const struct tolerance {
    const char *key, *accepted, *named;
} tolerances[] = {
    /* of no meaning to the engine */
    {"arch", mutations, NULL},
    {"model_type", mutations, NULL},
    {"dtype", mutations, NULL},
    {"_outer", mutations, NULL},
    {"rope_scaling", mutations, NULL},
    {"bits_per_weight", "dnzf", NULL},
    /* absent has a meaning */
    {"text_config", "", "config."},
    {"tensor_prefix", "", "trunk"},
    {"index_bits", "", NULL},
    {"hidden_act", "dn", NULL},
    {"routed_expert_hidden_size", "", "bytes"},
    {"latent_moe_use_norm", "dn", NULL},
    {"moe_renormalize", "dnt", NULL},
    {"mla_use_output_gate", "dn", NULL},
    {"mla_use_nope", "dn", NULL},
    {"q_lora_rank", "", "q_proj"},
    {"attn_res_block_size", "dnz", NULL},
    {"eos_token_id", "dnza", NULL},
    {"max_position_embeddings", "dnh", NULL},
    {"activation_situ_beta", "f", NULL},
    {"activation_situ_linear_beta", "dnzf", NULL},
    {"routed_scaling_factor", "f", NULL},
    {"rms_norm_eps", "f", NULL},
    {"gate_lower_bound", "dnmz", NULL},
    {"use_full_rank_gate", "", "g_a_proj"},
    {"full_attn_layers", "dna", NULL},
    {"kda_layers", "", "q_a_proj"},
    {"num_expert_group", "dnz", NULL},
    {"topk_group", "dnz", NULL},
    {"moe_router_activation_func", "dn", NULL},
    {"tie_word_embeddings", "dnt", NULL},
    /* seen first where something has to fit it */
    {"first_k_dense_replace", "", "layers"},
    {"qk_rope_head_dim", "", "shape"},
    {"stages", "", "expert_quant"},
    {"entries", "", "expert_quant"},
    {"file", "", "/x: No such file"},
    {"codebook_base", "z", NULL},
    {"name", "", "trunk has no"},
    {"fmt", "", "bytes"},
    {"off", "", "overlaps"},
    {"scale_off", "", "overlaps"},
    {"shape", "", "bytes"},
};

static const struct tolerance *tolerance_of(const char *key)
{
    static const struct tolerance strict = {NULL, "", NULL};
    for (size_t i = 0; i < sizeof(tolerances) / sizeof(tolerances[0]); i++)
        if (strcmp(tolerances[i].key, key) == 0)
            return &tolerances[i];
    return &strict;
}

static bool is_one_line(const char *text)
{
    size_t n = strlen(text);
    if (n == 0 || n >= sizeof(((struct waste_error *)0)->text) - 1)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20)
            return false;
    return true;
}

/* Opens it: NULL when refused with a good line in *err, else what is wrong with that, or "accepted"
 * when it opened and is safe. */
static const char *try_open(const struct tiny *t, struct waste_error *err)
{
    struct waste_model *m = NULL;
    memset(err, 0, sizeof(*err));
    if (waste_container_open(t->dir, &m, err) < 0)
        return is_one_line(err->text) ? NULL : "no single line";
    const char *wrong = model_check(m, t->dir);
    free(m);
    return wrong ? wrong : "accepted";
}

static void check_mutation(const struct tiny *t, const char *key, char how, const char *path,
                           bool lenient)
{
    const struct tolerance *ok = tolerance_of(key);
    struct waste_error err;
    tiny_save_manifest(t);
    const char *got = try_open(t, &err);
    if (got && strcmp(got, "accepted") != 0)
        fail_msg("%s, mutation %c: %s", path, how, got);
    if (lenient)
        return;
    if (got && !strchr(ok->accepted, how))
        fail_msg("%s, mutation %c: was accepted", path, how);
    if (!got && strchr(ok->accepted, how) && !strchr(path, '['))
        fail_msg("%s, mutation %c: was refused: %s", path, how, err.text);
    if (!got && !strstr(err.text, key) && !(ok->named && strstr(err.text, ok->named)))
        fail_msg("%s, mutation %c: the field is not named: %s", path, how, err.text);
    if (!got && !strstr(err.text, "manifest.json") && !strstr(err.text, ".bin") &&
        !strstr(err.text, "/x: "))
        fail_msg("%s, mutation %c: no file is named: %s", path, how, err.text);
}

static void mutate_children(const struct tiny *t, json_t *node, const char *key, const char *path,
                            bool lenient);

/* Every mutation of the child `key` (or number `index` of an array), then its own children. */
static void mutate_child(const struct tiny *t, json_t *node, const char *key, size_t index,
                         const char *path, bool lenient)
{
    bool in_array = json_is_array(node);
    json_t *original = in_array ? json_array_get(node, index) : json_object_get(node, key);
    json_incref(original);
    for (const char *how = mutations; *how; how++) {
        json_t *value = *how == 'd' ? NULL : mutated(*how);
        if (value && json_equal(value, original)) {
            json_decref(value);
            continue;
        }
        if (in_array && value)
            json_array_set_new(node, index, value);
        else if (in_array)
            continue; /* a shorter list is its own mutation */
        else if (value)
            json_object_set_new(node, key, value);
        else
            json_object_del(node, key);
        check_mutation(t, key, *how, path, lenient);
    }
    if (in_array)
        json_array_set(node, index, original);
    else
        json_object_set(node, key, original);
    mutate_children(t, original, key, path, lenient);
    json_decref(original);
}

static void mutate_children(const struct tiny *t, json_t *node, const char *key, const char *path,
                            bool lenient)
{
    char child[256];
    if (json_is_array(node) && strcmp(key, "trunk") != 0)
        for (size_t i = 0; i < json_array_size(node); i++) {
            snprintf(child, sizeof(child), "%s[%zu]", path, i);
            mutate_child(t, node, key, i, child, lenient);
        }
    if (!json_is_object(node))
        return;
    size_t keys = json_object_size(node), n = 0;
    char(*names)[64] = calloc(keys, sizeof(*names));
    const char *name;
    json_t *value;
    json_object_foreach(node, name, value) snprintf(names[n++], 64, "%s", name);
    for (size_t i = 0; i < keys; i++) {
        snprintf(child, sizeof(child), "%s.%s", path, names[i]);
        mutate_child(t, node, names[i], 0, child, lenient);
    }
    free(names);
}

static void each_field_of_the_manifest(void **state)
{
    struct tiny t;
    tiny_build(&t, &tiny_k3);
    mutate_children(&t, t.manifest, "", "", false);
    tiny_free(&t);
    tiny_build(&t, &tiny_linear);
    json_object_set_new(json_object_get(t.manifest, "config"), "moe_layer_freq", json_integer(1));
    json_object_set_new(json_object_get(t.manifest, "expert_quant"), "index_bits", json_integer(8));
    mutate_children(&t, json_object_get(t.manifest, "expert_quant"), "", "expert_quant", true);
    tiny_free(&t);
}

static void each_field_of_a_trunk_entry(void **state)
{
    static const char *const names[] = {
        "model.norm.weight",
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.A_log",
        "model.layers.0.self_attn.v_conv1d.weight",
    };
    struct tiny t;
    tiny_build(&t, &tiny_k3);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        mutate_children(&t, tiny_entry(&t, names[i]), "", names[i], false);
    /* never used, so other values are as good: but never a crash, never a size taken from it */
    json_t *trunk = json_object_get(t.manifest, "trunk");
    mutate_children(&t, json_array_get(trunk, json_array_size(trunk) - 1), "", "vision", true);
    mutate_children(&t, tiny_entry(&t, "model.not_of_this_engine.weight"), "", "unknown", true);
    tiny_free(&t);
}

/* Sets root.a.b... (a NULL-ended path) and expects a refusal that contains `named`. */
static void refuse_value(const char *where, const char *key, json_t *value, const char *named)
{
    struct tiny t;
    struct waste_error err;
    tiny_build(&t, &tiny_k3);
    json_t *config = json_object_get(json_object_get(t.manifest, "config"), "text_config");
    json_t *node = strcmp(where, "config") == 0      ? config
                   : strcmp(where, "linear") == 0    ? json_object_get(config, "linear_attn_config")
                   : strcmp(where, "") == 0          ? t.manifest
                   : strncmp(where, "model", 5) == 0 ? tiny_entry(&t, where)
                                                     : json_object_get(t.manifest, where);
    assert_non_null(node);
    json_object_set_new(node, key, value);
    tiny_save_manifest(&t);
    const char *got = try_open(&t, &err);
    if (got)
        fail_msg("%s.%s: %s", where, key, got);
    if (!strstr(err.text, named))
        fail_msg("%s.%s: \"%s\" not in: %s", where, key, named, err.text);
    tiny_free(&t);
}

static void what_the_engine_does_not_do(void **state)
{
    refuse_value("config", "moe_router_activation_func", json_string("softmax"), "sigmoid");
    refuse_value("config", "scoring_func", json_string("softmax"), "sigmoid");
    refuse_value("config", "num_expert_group", json_integer(8), "num_expert_group is 8");
    refuse_value("config", "topk_group", json_integer(4), "topk_group is 4");
    refuse_value("config", "moe_layer_freq", json_integer(2), "moe_layer_freq is 2");
    refuse_value("config", "hidden_act", json_string("gelu"), "hidden_act is \"gelu\"");
    refuse_value("config", "mla_use_nope", json_false(), "mla_use_nope is false");
    refuse_value("config", "attention_bias", json_true(), "attention_bias is true");
    refuse_value("", "format_version", json_integer(1), "format_version is 1");
    refuse_value("expert_quant", "fmt", json_string("VQ2R"), "expert_quant.fmt");
    refuse_value("expert_quant", "index_bits", json_integer(6), "index_bits 6");
    refuse_value("expert_quant", "vec_dim", json_integer(4), "vec_dim is 4");
    refuse_value("expert_quant", "index_block", json_integer(32), "index_block is 32");
}

static void numbers_that_do_not_fit_each_other(void **state)
{
    refuse_value("config", "num_experts_per_token", json_integer(6), "num_experts_per_token is 6");
    refuse_value("config", "first_k_dense_replace", json_integer(4), "first_k_dense_replace is 4");
    refuse_value("config", "moe_intermediate_size", json_integer(44), "multiples of 8");
    refuse_value("config", "eos_token_id", json_integer(50), "must be an integer from 0 to 49");
    /* products that wrap 32 bits */
    refuse_value("config", "num_attention_heads", json_integer(1 << 20), "num_attention_heads");
    refuse_value("linear", "num_heads", json_integer(1 << 20), "num_heads x head_dim");
    refuse_value("config", "num_shared_experts", json_integer(65535), "num_shared_experts x");
    refuse_value("config", "moe_intermediate_size", json_integer(1 << 20), "limit");
    refuse_value("linear", "kda_layers", json_pack("[iii]", 1, 3, 3), "kda_layers[2] is 3");
    refuse_value("linear", "kda_layers", json_pack("[ii]", 0, 3), "kda_layers[0] is 0");
    refuse_value("linear", "kda_layers", json_pack("[ii]", 1, 5), "kda_layers[1] is 5");
    refuse_value("linear", "full_attn_layers", json_pack("[ii]", 1, 4), "full_attn_layers[0] is 1");
}

static void trunk_entries_that_do_not_fit(void **state)
{
    const char *q = "model.layers.0.self_attn.q_proj.weight", *norm = "model.norm.weight";
    refuse_value(q, "fmt", json_integer(1), "fmt is 1");
    refuse_value(q, "fmt", json_integer(4), "fmt is 4");
    refuse_value(q, "group", json_integer(64), "group is 64");
    refuse_value(q, "off", json_integer(INT64_MAX), "off 9223372036854775807");
    refuse_value(q, "scale_off", json_integer(INT64_MAX), "scale_off 9223372036854775807");
    refuse_value(q, "bytes", json_integer(1), "bytes is 1");
    refuse_value(q, "shape", json_pack("[ii]", 136, 48), "shape");
    refuse_value(q, "shape", json_pack("[iii]", 1, 48, 136), "shape is [1, 48, 136]");
    refuse_value(
        q, "shape",
        json_pack("[III]", (json_int_t)4294967295, (json_int_t)4294967295, (json_int_t)4294967295),
        "shape");
    refuse_value(norm, "shape", json_pack("[i]", 137), "bytes");
    refuse_value(norm, "name", json_string("language_model.lm_head.weight"), "name is there twice");
    /* the order of the two is the sort's, so it says the name whichever it is */
    refuse_value("model.layers.0.self_attn.dt_bias", "name",
                 json_string("language_model.model.layers.0.self_attn.dt_bia"),
                 "trunk has no language_model.model.layers.0.self_attn.dt_bias");
}

/* An offset that is a little wrong reads a neighbour's bytes as weights. */
static void trunk_entries_that_overlap(void **state)
{
    static const char *const names[] = {"model.norm.weight", "model.embed_tokens.weight",
                                        "model.layers.0.self_attn.q_proj.weight"};
    static const char *const fields[] = {"off", "scale_off"};
    static const int by[] = {1, -1, 4, 128};
    struct tiny t;
    int tried = 0;
    tiny_build(&t, &tiny_k3);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (size_t f = 0; f < 2; f++)
            for (size_t d = 0; d < sizeof(by) / sizeof(by[0]); d++) {
                json_t *entry = tiny_entry(&t, names[i]);
                json_t *old = json_object_get(entry, fields[f]);
                /* the bytes before a payload may belong to nobody */
                if (!old || (f == 0 && by[d] < 0))
                    continue;
                refuse_value(names[i], fields[f], json_integer(json_integer_value(old) + by[d]),
                             "overlaps");
                tried++;
            }
    tiny_free(&t);
    assert_true(tried >= 12);
}

static void banks_that_do_not_fit(void **state)
{
    static const struct {
        const char *key;
        const char *text;
        json_int_t number;
        const char *named;
    } cases[] = {
        {"file", "../trunk.bin", 0, "layers.2.file"},
        {"file", "/etc/passwd", 0, "layers.2.file"},
        {"file", "..", 0, "layers.2.file"},
        {"file", ".", 0, "layers.2.file"},
        {"file", "", 0, "layers.2.file"},
        {"file", "a\nb", 0, "layers.2.file is \"a\\x0ab\""},
        {"file", "trunk.bin", 0, "trunk.bin: size is"},
        {"experts", NULL, 4, "layers.2.experts is 4"},
        {"bytes", NULL, 5 * 4096, "layers.2.bytes is 20480"},
        {"bytes", NULL, 8192 * 5 + 1, "layers.2.bytes is 40961"},
        {"codebook_base", NULL, 19, "layers.2.codebook_base is 19"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny t;
        struct waste_error err;
        tiny_build(&t, &tiny_k3);
        json_object_set_new(
            json_object_get(json_object_get(t.manifest, "layers"), "2"), cases[i].key,
            cases[i].text ? json_string(cases[i].text) : json_integer(cases[i].number));
        tiny_save_manifest(&t);
        const char *got = try_open(&t, &err);
        if (got || !strstr(err.text, cases[i].named))
            fail_msg("case %zu: %s: %s", i, got ? got : "refused", err.text);
        tiny_free(&t);
    }
    refuse_value("layers", "0", json_object(), "layers has 4 entries");
    refuse_value("layers", "03", json_object(), "layers has 4 entries");
}

static void write_text(const struct tiny *t, const char *text, size_t bytes)
{
    char path[128];
    FILE *f = fopen(tiny_path(t, "manifest.json", path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}

static void a_manifest_that_is_no_json(void **state)
{
    static const char *const texts[] = {
        "",
        "{",
        "nul",
        "[]",
        "1",
        "{\"format_version\": NaN}",
        "{\"format_version\": Infinity}",
        "{\"format_version\": 1e999}",
        "{\"format_version\": 99999999999999999999}",
        "{\"format_version\": 0, \"format_version\": 0}",
        "{\"format_version\": 0.0}",
        "\xef\xbb\xbf{}",
        "{\"a\": \"\xff\"}",
        "{\"a\\u0000b\": 1}",
        "{} {}",
    };
    struct tiny t;
    struct waste_error err;
    tiny_build(&t, &tiny_linear);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        write_text(&t, texts[i], strlen(texts[i]));
        const char *got = try_open(&t, &err);
        if (got || !strstr(err.text, "manifest.json"))
            fail_msg("%s: %s: %s", texts[i], got ? got : "refused", err.text);
    }
    write_text(&t, "{\"layers\": {\"1\": 0, \"1\": 0}}", 28);
    assert_null(try_open(&t, &err));
    assert_non_null(strstr(err.text, "duplicate object key"));
    size_t deep = 1 << 20;
    char *text = malloc(deep);
    memset(text, '[', deep);
    write_text(&t, text, deep);
    assert_null(try_open(&t, &err));
    memset(text, 0, deep);
    write_text(&t, text, deep);
    assert_null(try_open(&t, &err));
    free(text);
    char path[128];
    assert_int_equal(truncate(tiny_path(&t, "manifest.json", path), (off_t)1 << 40), 0);
    assert_null(try_open(&t, &err));
    assert_non_null(strstr(err.text, "limit"));
    tiny_free(&t);
}

/* Every file cut by a byte, by a page, to nothing, grown by a byte, gone, a directory, a FIFO. */
static void damaged_files(void **state)
{
    static const char *const files[] = {"manifest.json", "trunk.bin", "codebooks.bin",
                                        "experts-L1.bin", "experts-L3.bin"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        for (int how = 0; how < 7; how++) {
            struct tiny t;
            struct waste_error err;
            char path[128];
            struct stat st;
            tiny_build(&t, &tiny_k3);
            tiny_path(&t, files[i], path);
            assert_int_equal(stat(path, &st), 0);
            off_t size[4] = {st.st_size - 1, st.st_size > 4096 ? st.st_size - 4096 : 0, 0,
                             st.st_size + 1};
            if (how < 4)
                assert_int_equal(truncate(path, size[how]), 0);
            else
                assert_int_equal(unlink(path), 0);
            if (how == 5)
                assert_int_equal(mkdir(path, 0700), 0);
            if (how == 6)
                assert_int_equal(mkfifo(path, 0600), 0);
            const char *got = try_open(&t, &err);
            bool longer_trunk = how == 3 && strcmp(files[i], "trunk.bin") == 0;
            if (longer_trunk ? !got : got != NULL)
                fail_msg("%s, damage %d: %s: %s", files[i], how, got ? got : "refused", err.text);
            if (!got && !strstr(err.text, files[i]))
                fail_msg("%s, damage %d: not named: %s", files[i], how, err.text);
            tiny_free(&t);
        }
}

static void each_header_bit_of_a_codebook(void **state)
{
    struct tiny t;
    struct waste_error err;
    char path[128];
    tiny_build(&t, &tiny_k3);
    tiny_path(&t, "codebooks.bin", path);
    for (int bit = 0; bit < 16 * 8; bit++) {
        FILE *f = fopen(path, "r+b");
        long at = 4112 * 5 + bit / 8;
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        int byte = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(byte ^ 1 << bit % 8, f);
        fflush(f);
        const char *got = try_open(&t, &err);
        if (got || !strstr(err.text, "codebooks.bin: codebook 5: "))
            fail_msg("bit %d: %s: %s", bit, got ? got : "refused", err.text);
        fseek(f, at, SEEK_SET);
        fputc(byte, f);
        fclose(f);
    }
    assert_string_equal(try_open(&t, &err), "accepted");
    tiny_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_field_of_the_manifest),
        cmocka_unit_test(each_field_of_a_trunk_entry),
        cmocka_unit_test(what_the_engine_does_not_do),
        cmocka_unit_test(numbers_that_do_not_fit_each_other),
        cmocka_unit_test(trunk_entries_that_do_not_fit),
        cmocka_unit_test(trunk_entries_that_overlap),
        cmocka_unit_test(banks_that_do_not_fit),
        cmocka_unit_test(a_manifest_that_is_no_json),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(each_header_bit_of_a_codebook),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
