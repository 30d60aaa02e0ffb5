/* A small model by hand: one dense KDA layer, one MoE MLA layer. Only what shm/ looks at. */
#ifndef WASTE_TESTS_FAKE_MODEL_H
#define WASTE_TESTS_FAKE_MODEL_H

#include <string.h>

#include "shm/model.h"

struct fake_model {
    struct waste_model model;
    struct waste_layer layer[2];
    struct waste_tensor tensor[3];
};

static inline void fake_model_init(struct fake_model *f)
{
    struct waste_config *c = &f->model.config;

    memset(f, 0, sizeof(*f));
    f->model.bytes = sizeof(*f);
    f->model.fingerprint = 42;
    f->model.trunk_bytes = 65536;
    f->model.layer_off = offsetof(struct fake_model, layer);
    f->model.tensor_off = offsetof(struct fake_model, tensor);
    f->model.tensor_count = 3;
    f->model.tensor[WASTE_M_EMBED] = 1;
    f->model.tensor[WASTE_M_FINAL_NORM] = 2;
    c->layers = 2;
    c->dense_layers = 1;
    c->hidden = 96;
    c->vocab = 32;
    c->experts = 6;
    c->top_k = 3;
    c->kda_layers = 1;
    c->kda_heads = 2;
    c->kda_dim = 8;
    c->conv_width = 4;
    c->mla_layers = 1;
    c->mla_heads = 2;
    c->kv_lora = 16;
    c->rope_dim = 4;
    f->model.expert = (struct waste_expert_format){
        .fmt = WASTE_FMT_VQ3R,
        .stages = 3,
        .entries = 256,
        .index_bits = 8,
        .index_bytes = 3,
        .record_bytes = 8192,
        .gate_off = 64,
        .up_off = 128,
        .down_off = 192,
        .scale_off = 256,
        .crc_end = 8000,
        .codebooks = 3,
        .codebook_data = 8192,
    };
    f->layer[0].is_kda = 1;
    f->layer[0].tensor[WASTE_T_INPUT_NORM] = 2;
    f->layer[1].is_moe = 1;
    f->layer[1].bank.experts = 6;
    f->layer[1].bank.bytes = 6 * 8192;
    strcpy(f->layer[1].bank.file, "experts-L1.bin");
    f->tensor[1] = (struct waste_tensor){
        .payload_bytes = 32 * 128,
        .rows = 32,
        .cols = 96,
        .groups = 1,
        .fmt = WASTE_FMT_Q8G,
        .row_bytes = 128,
    };
    f->tensor[2] = (struct waste_tensor){
        .data = 4096,
        .payload_bytes = 384,
        .rows = 1,
        .cols = 96,
        .fmt = WASTE_FMT_F32,
        .row_bytes = 384,
    };
}

#endif
