/* What a good container means, and what a record must hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reader/container.h"
#include "shm/slot.h"
#include "tests/support/model_check.h"
#include "tests/support/tiny.h"

static struct waste_model *open_good(const char *dir)
{
    struct waste_error err = {""};
    struct waste_model *m = NULL;
    if (waste_container_open(dir, &m, &err) < 0)
        fail_msg("%s", err.text);
    const char *wrong = model_check(m, dir);
    if (wrong)
        fail_msg("%s", wrong);
    return m;
}

static struct waste_model *open_tiny(struct tiny *t, const struct tiny_shape *shape)
{
    tiny_build(t, shape);
    return open_good(t->dir);
}

static void close_tiny(struct tiny *t, struct waste_model *m)
{
    free(m);
    tiny_free(t);
}

static void config_of_k3_is_read(void **state)
{
    struct tiny t;
    struct waste_model *m = open_tiny(&t, &tiny_k3);
    const struct waste_config *c = &m->config;
    assert_int_equal(c->layers, 4);
    assert_int_equal(c->dense_layers, 1);
    assert_int_equal(c->hidden, 136);
    assert_int_equal(c->vocab, 50);
    assert_int_equal(c->dense_inner, 56);
    assert_int_equal(c->experts, 5);
    assert_int_equal(c->top_k, 2);
    assert_int_equal(c->expert_inner, 40);
    assert_int_equal(c->expert_width, 72);
    assert_int_equal(c->latent, 1);
    assert_int_equal(c->latent_norm, 1);
    assert_int_equal(c->shared_experts, 2);
    assert_int_equal(c->kda_layers, 2);
    assert_int_equal(c->mla_layers, 2);
    assert_int_equal(c->kda_heads, 3);
    assert_int_equal(c->kda_dim, 16);
    assert_int_equal(c->conv_width, 4);
    assert_int_equal(c->kda_full_gate, 1);
    assert_int_equal(c->has_gate_lower_bound, 1);
    assert_float_equal(c->gate_lower_bound, -5, 0);
    assert_int_equal(c->mla_heads, 3);
    assert_int_equal(c->q_lora, 28);
    assert_int_equal(c->kv_lora, 24);
    assert_int_equal(c->nope_dim, 12);
    assert_int_equal(c->rope_dim, 4);
    assert_int_equal(c->v_dim, 20);
    assert_int_equal(c->mla_out_gate, 1);
    assert_int_equal(c->res_block, 2);
    assert_int_equal(c->situ, 1);
    assert_float_equal(c->situ_beta, 4, 0);
    assert_float_equal(c->situ_linear_beta, 25, 0);
    assert_int_equal(c->renormalize, 0);
    assert_float_equal(c->routed_scale, 2.5, 0);
    assert_float_equal(c->rms_eps, 1e-5f, 0);
    assert_int_equal(c->max_context, 4096);
    assert_int_equal(c->eos_count, 2);
    assert_int_equal(c->eos[0], 7);
    assert_int_equal(c->eos[1], 9);
    close_tiny(&t, m);
}

static void config_of_kimi_linear_is_read(void **state)
{
    struct tiny t;
    struct waste_model *m = open_tiny(&t, &tiny_linear);
    const struct waste_config *c = &m->config;
    assert_int_equal(c->layers, 5);
    assert_int_equal(c->dense_layers, 2);
    assert_int_equal(c->expert_width, 72); /* the hidden state itself */
    assert_int_equal(c->latent, 0);
    assert_int_equal(c->latent_norm, 0);
    assert_int_equal(c->kda_layers, 4);
    assert_int_equal(c->mla_layers, 1);
    assert_int_equal(c->kda_full_gate, 0);
    assert_int_equal(c->has_gate_lower_bound, 0);
    assert_int_equal(c->q_lora, 0); /* null */
    assert_int_equal(c->mla_out_gate, 0);
    assert_int_equal(c->res_block, 0);
    assert_int_equal(c->situ, 0);
    assert_int_equal(c->renormalize, 1); /* absent means true */
    assert_int_equal(c->max_context, 1048576);
    assert_int_equal(c->eos_count, 1);
    assert_int_equal(c->eos[0], 3);
    close_tiny(&t, m);
}

static void layers_have_the_tensors_of_their_kind(void **state)
{
    struct tiny t;
    struct waste_model *m = open_tiny(&t, &tiny_k3); /* 0 KDA dense, 1 MLA, 2 KDA, 3 MLA */
    const struct waste_layer *l0 = waste_model_layer(m, 0), *l3 = waste_model_layer(m, 3);
    assert_true(l0->is_kda && !l0->is_moe && !l3->is_kda && l3->is_moe);
    assert_int_equal(waste_model_layer(m, 2)->state_index, 1);
    assert_int_equal(l3->state_index, 1);
    assert_true(l0->tensor[WASTE_T_FFN_DOWN] && l0->tensor[WASTE_T_KDA_G] &&
                l0->tensor[WASTE_T_ATT_RES_PROJ]);
    assert_false(l0->tensor[WASTE_T_ROUTER] || l0->tensor[WASTE_T_MLA_O] ||
                 l0->tensor[WASTE_T_KDA_G_A] || l0->tensor[WASTE_T_KDA_G_B]);
    assert_true(l3->tensor[WASTE_T_ROUTER] && l3->tensor[WASTE_T_MLA_Q_B] &&
                l3->tensor[WASTE_T_LATENT_NORM] && l3->tensor[WASTE_T_MLA_G]);
    assert_false(l3->tensor[WASTE_T_FFN_DOWN] || l3->tensor[WASTE_T_KDA_O] ||
                 l3->tensor[WASTE_T_MLA_Q]);
    assert_string_equal(l3->bank.file, "experts-L3.bin");
    assert_int_equal(l3->bank.codebook_base, 18);
    assert_int_equal(l3->bank.experts, 5);
    close_tiny(&t, m);
}

static const struct waste_tensor *layer_tensor(const struct waste_model *m, uint32_t layer,
                                               enum waste_layer_tensor role)
{
    return waste_model_tensor(m, waste_model_layer(m, layer)->tensor[role]);
}

static void tensors_have_the_rows_of_their_role(void **state)
{
    struct tiny t;
    struct waste_model *m = open_tiny(&t, &tiny_k3);
    const struct waste_tensor *a_log = layer_tensor(m, 0, WASTE_T_KDA_A_LOG);
    assert_int_equal(a_log->cols, 3); /* the file pads it to head_dim */
    assert_int_equal(a_log->payload_bytes, 12);
    const struct waste_tensor *conv = layer_tensor(m, 0, WASTE_T_KDA_Q_CONV);
    assert_int_equal(conv->rows, 48); /* [48, 1, 4] on disk */
    assert_int_equal(conv->cols, 4);
    conv = layer_tensor(m, 0, WASTE_T_KDA_V_CONV); /* [48, 4] */
    assert_int_equal(conv->rows, 48);
    const struct waste_tensor *proj = layer_tensor(m, 0, WASTE_T_MLP_RES_PROJ); /* [1, 136] */
    assert_int_equal(proj->rows, 1);
    assert_int_equal(proj->cols, 136);
    const struct waste_tensor *q = layer_tensor(m, 0, WASTE_T_KDA_Q);
    assert_int_equal(q->fmt, WASTE_FMT_Q4G);
    assert_int_equal(q->groups, 2); /* 136 columns */
    assert_int_equal(q->row_bytes, 128);
    const struct waste_tensor *embed = waste_model_tensor(m, m->tensor[WASTE_M_EMBED]);
    assert_int_equal(embed->data, 0);
    assert_int_equal(embed->payload_bytes, 50 * 256);
    close_tiny(&t, m);

    m = open_tiny(&t, &tiny_linear);
    q = layer_tensor(m, 0, WASTE_T_KDA_Q);
    assert_int_equal(q->fmt, WASTE_FMT_Q3G);
    assert_int_equal(q->row_bytes, 49);            /* 128 x 3 bits and the guard byte */
    a_log = layer_tensor(m, 0, WASTE_T_KDA_A_LOG); /* [1, 1, 2, 1] */
    assert_int_equal(a_log->cols, 2);
    close_tiny(&t, m);
}

/* The sizes FORMAT states for the released models. */
static void record_sizes_of_the_releases(void **state)
{
    struct tiny_shape k3 = tiny_k3, linear = tiny_linear;
    struct tiny t;
    k3.sparse = linear.sparse = true;
    k3.layers = linear.layers = 2;
    k3.dense = linear.dense = 1;
    k3.inner = 3072;
    k3.latent = 3584;
    struct waste_model *m = open_tiny(&t, &k3);
    assert_int_equal(m->expert.record_bytes, 12406784);
    assert_int_equal(m->expert.scale_off, 48 + 12386304);
    close_tiny(&t, m);
    linear.hidden = 2304;
    linear.inner = 1024;
    linear.expert_fmt = TINY_VQ3R;
    m = open_tiny(&t, &linear);
    assert_int_equal(m->expert.record_bytes, 2666496);
    close_tiny(&t, m);
}

static void record_of_vq4p_packs_four_indices_in_three_bytes(void **state)
{
    struct tiny_shape shape = tiny_k3;
    struct tiny t;
    shape.expert_fmt = TINY_VQ4P;
    struct waste_model *m = open_tiny(&t, &shape);
    assert_int_equal(m->expert.fmt, WASTE_FMT_VQ4P);
    assert_int_equal(m->expert.index_bytes, 3);
    assert_int_equal(m->expert.stages, 4);
    assert_int_equal(m->expert.index_bits, 6);
    assert_int_equal(m->expert.entries, 64);
    /* gate [40, 72]: one row block, 9 positions */
    assert_int_equal(m->expert.up_off, 48 + 64 * 9 * 3);
    /* down [72, 40]: two row blocks, 5 positions */
    assert_int_equal(m->expert.scale_off, m->expert.down_off + 2 * 64 * 5 * 3);
    assert_int_equal(m->expert.crc_end, m->expert.scale_off + 2 * (40 + 40 + 72));
    close_tiny(&t, m);
}

static void tied_embeddings_stand_in_for_a_missing_head(void **state)
{
    struct tiny t;
    tiny_build(&t, &tiny_linear);
    json_object_set_new(tiny_entry(&t, "lm_head.weight"), "name", json_string("other"));
    json_object_set_new(json_object_get(t.manifest, "config"), "tie_word_embeddings", json_true());
    tiny_save_manifest(&t);
    struct waste_model *m = open_good(t.dir);
    const struct waste_tensor *head = waste_model_tensor(m, m->tensor[WASTE_M_LM_HEAD]);
    const struct waste_tensor *embed = waste_model_tensor(m, m->tensor[WASTE_M_EMBED]);
    assert_int_equal(head->file_off, embed->file_off);
    assert_true(head->data != 0 && embed->data == 0);
    close_tiny(&t, m);
}

static void read_record(const struct tiny *t, const struct waste_model *m, uint32_t layer,
                        uint32_t expert, uint8_t *out)
{
    char path[128];
    FILE *f = fopen(tiny_path(t, waste_model_layer(m, layer)->bank.file, path), "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)expert * m->expert.record_bytes, SEEK_SET), 0);
    assert_int_equal(fread(out, 1, m->expert.record_bytes, f), m->expert.record_bytes);
    fclose(f);
}

static void each_header_bit_of_a_record_counts(void **state)
{
    static const uint32_t formats[] = {TINY_VQ3R, TINY_VQ2R, TINY_VQ4P};
    for (size_t i = 0; i < 3; i++) {
        struct tiny_shape shape = tiny_k3;
        struct tiny t;
        shape.expert_fmt = formats[i];
        struct waste_model *m = open_tiny(&t, &shape);
        uint8_t *r = malloc(m->expert.record_bytes);
        read_record(&t, m, 2, 3, r);
        assert_int_equal(waste_record_check_header(m, 2, 3, r), WASTE_SLOT_OK);
        assert_int_equal(waste_record_check_crc(m, r), WASTE_SLOT_OK);
        assert_int_equal(waste_record_codebook(r), 3 * m->expert.stages);
        assert_int_equal(waste_record_check_header(m, 2, 4, r), WASTE_SLOT_BAD_HEADER);
        assert_int_equal(waste_record_check_header(m, 3, 3, r), WASTE_SLOT_BAD_HEADER);
        for (uint32_t bit = 0; bit < 48 * 8; bit++) {
            bool is_crc = bit / 8 >= 36 && bit / 8 < 40;
            r[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(waste_record_check_header(m, 2, 3, r),
                             is_crc ? WASTE_SLOT_OK : WASTE_SLOT_BAD_HEADER);
            if (is_crc)
                assert_int_equal(waste_record_check_crc(m, r), WASTE_SLOT_BAD_CRC);
            r[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        free(r);
        close_tiny(&t, m);
    }
}

static void each_payload_bit_of_a_record_counts(void **state)
{
    struct tiny t;
    struct waste_model *m = open_tiny(&t, &tiny_linear);
    uint8_t *r = malloc(m->expert.record_bytes);
    read_record(&t, m, 4, 2, r);
    for (uint32_t byte = 48; byte < m->expert.record_bytes; byte += byte < 4700 ? 37 : 1) {
        r[byte] ^= (uint8_t)(1 << byte % 8);
        /* the padding behind the scales is not covered and not used */
        assert_int_equal(waste_record_check_crc(m, r),
                         byte < m->expert.crc_end ? WASTE_SLOT_BAD_CRC : WASTE_SLOT_OK);
        r[byte] ^= (uint8_t)(1 << byte % 8);
    }
    free(r);
    close_tiny(&t, m);
}

static void each_scale_of_a_record_must_be_finite(void **state)
{
    struct tiny t;
    struct waste_model *m = open_tiny(&t, &tiny_linear);
    uint8_t *r = malloc(m->expert.record_bytes);
    read_record(&t, m, 4, 2, r);
    assert_int_equal(waste_record_check_scales(m, r), WASTE_SLOT_OK);
    for (uint32_t at = m->expert.scale_off; at < m->expert.crc_end; at += 2) {
        const uint8_t low = r[at], high = r[at + 1];
        const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e01}, good[] = {0x7bff, 0x0001, 0x8000};
        for (int i = 0; i < 3; i++) {
            r[at] = (uint8_t)bad[i], r[at + 1] = (uint8_t)(bad[i] >> 8);
            assert_int_equal(waste_record_check_scales(m, r), WASTE_SLOT_BAD_SCALE);
            r[at] = (uint8_t)good[i], r[at + 1] = (uint8_t)(good[i] >> 8);
            assert_int_equal(waste_record_check_scales(m, r), WASTE_SLOT_OK);
        }
        r[at] = low, r[at + 1] = high;
    }
    free(r);
    close_tiny(&t, m);
}

/* Made by a converter that is not ours. */
static void the_demo_container_opens_and_its_records_check(void **state)
{
    static const char dir[] = WASTE_SOURCE_ROOT "/models/demo.waste";
    char path[1024];
    struct waste_model *m = open_good(dir);
    assert_int_equal(m->expert.record_bytes, 12288);
    assert_int_equal(m->tensor_count, 213);
    uint8_t *r = malloc(m->expert.record_bytes);
    for (uint32_t l = 1; l < 8; l++) {
        snprintf(path, sizeof(path), "%s/experts-L%u.bin", dir, l);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        for (uint32_t e = 0; e < 64; e++) {
            assert_int_equal(fread(r, 1, m->expert.record_bytes, f), m->expert.record_bytes);
            assert_int_equal(waste_record_check_header(m, l, e, r), WASTE_SLOT_OK);
            assert_int_equal(waste_record_check_crc(m, r), WASTE_SLOT_OK);
        }
        fclose(f);
    }
    free(r);
    free(m);
}

static void tensor_names_are_the_release_s(void **state)
{
    struct tiny t;
    char name[128];
    struct waste_model *m = open_tiny(&t, &tiny_k3);
    waste_container_tensor_name(m, waste_model_layer(m, 3)->tensor[WASTE_T_LATENT_UP], name,
                                sizeof(name));
    assert_string_equal(name, "model.layers.3.block_sparse_moe.routed_expert_up_proj.weight");
    waste_container_tensor_name(m, m->tensor[WASTE_M_LM_HEAD], name, sizeof(name));
    assert_string_equal(name, "lm_head.weight");
    close_tiny(&t, m);
}

static void errors_are_one_printable_line(void **state)
{
    struct waste_error err;
    assert_int_equal(waste_error_set(&err, -5, "%s", "a\nb\x1b[31m\x7f \xc3\xa9 \xff\xc3 \xc2\x85"),
                     -5);
    assert_string_equal(err.text, "a\\x0ab\\x1b[31m\\x7f \xc3\xa9 \\xff\\xc3 \\xc2\\x85");
    char *longer = malloc(5001);
    memset(longer, '\n', 5000);
    longer[5000] = 0;
    waste_error_set(&err, -1, "%s", longer);
    assert_true(strlen(err.text) < sizeof(err.text));
    free(longer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_of_k3_is_read),
        cmocka_unit_test(config_of_kimi_linear_is_read),
        cmocka_unit_test(layers_have_the_tensors_of_their_kind),
        cmocka_unit_test(tensors_have_the_rows_of_their_role),
        cmocka_unit_test(record_sizes_of_the_releases),
        cmocka_unit_test(record_of_vq4p_packs_four_indices_in_three_bytes),
        cmocka_unit_test(tied_embeddings_stand_in_for_a_missing_head),
        cmocka_unit_test(each_header_bit_of_a_record_counts),
        cmocka_unit_test(each_payload_bit_of_a_record_counts),
        cmocka_unit_test(each_scale_of_a_record_must_be_finite),
        cmocka_unit_test(the_demo_container_opens_and_its_records_check),
        cmocka_unit_test(tensor_names_are_the_release_s),
        cmocka_unit_test(errors_are_one_printable_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
