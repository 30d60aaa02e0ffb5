/*
 * The model as every stage sees it: one flat record in the control segment.
 *
 * Written once by waste-run from a validated container (reader/container.h) before any stage
 * starts; read-only afterwards. Offsets, ids and sizes only, so it means the same in every process.
 * Names of tensors and layers are the release's; see MODEL in the design.
 */
#ifndef WASTE_SHM_MODEL_H
#define WASTE_SHM_MODEL_H

#include <assert.h>
#include <stdint.h>

/* On-disk tensor and expert formats (the container's `fmt`). */
enum waste_fmt {
    WASTE_FMT_F32 = 0,  /* plain little-endian float32 */
    WASTE_FMT_F16 = 1,  /* only inside codebooks */
    WASTE_FMT_Q8G = 2,  /* int8, f16 scale per (row, group) */
    WASTE_FMT_Q4G = 3,  /* two values a byte, low nibble = even column, stored +8 */
    WASTE_FMT_VQ3R = 4, /* experts: 3 stages x 256 entries */
    WASTE_FMT_VQ2R = 5, /* experts: 2 x 256 */
    WASTE_FMT_Q3G = 7,  /* 3-bit stream, LSB first, stored +4, one guard byte a row */
    WASTE_FMT_VQ4P = 8, /* experts: 4 x 64, six-bit indices, 3 bytes a row and position */
    WASTE_FMT_COUNT = 9,
};

/* Hard limits on what a manifest may ask for; reader/container.c refuses anything beyond them. */
enum {
    WASTE_MAX_LAYERS = 1024,
    WASTE_MAX_EXPERTS = 65535,
    WASTE_MAX_TOP_K = 4096,
    WASTE_MAX_HIDDEN = 1 << 20,
    WASTE_MAX_VOCAB = 1 << 24,
    WASTE_MAX_EOS = 16,
    WASTE_MAX_FILE_NAME = 128,
    WASTE_GROUP = 128, /* columns a quantisation group; the only group the format knows */
};

/*
 * One trunk tensor. rows x cols with all axes but the last flattened into rows. Values of row r,
 * column c: F32: f32 at data + 4 * (r * cols + c). Quantised: scale[r][c / 128] * integer, payload
 * rows padded to whole groups, row_bytes apart; scales f16 [rows][groups] at `scales`. `data` and
 * `scales` are byte offsets into the trunk segment, multiples of 64; at least 64 readable bytes
 * follow each payload. A tensor that is not kept in memory (embed_tokens) has data = 0.
 */
struct waste_tensor {
    uint64_t data;
    uint64_t scales;
    uint64_t file_off;       /* payload in trunk.bin, any alignment */
    uint64_t file_scale_off; /* scales in trunk.bin, any alignment */
    uint64_t payload_bytes;  /* rows * row_bytes, the same on disk and in memory */
    uint32_t rows;
    uint32_t cols;
    uint32_t groups; /* a row: ceil(cols / 128); 0 for F32 */
    uint32_t fmt;    /* enum waste_fmt */
    uint64_t row_bytes;
};
static_assert(sizeof(struct waste_tensor) == 64, "waste_tensor is shared between processes");

/*
 * Per-layer tensors, by role: X(ROLE, name in the release after "model.layers.N."). A layer has
 * those its kind needs (container.c's table says which, with their shapes); absent ones have tensor
 * id 0. The MoE block is called block_sparse_moe in a MoE layer, mlp in a dense one.
 */
#define WASTE_LAYER_TENSORS(X)                                                                     \
    X(INPUT_NORM, "input_layernorm.weight")                                                        \
    X(POST_NORM, "post_attention_layernorm.weight")                                                \
    X(ATT_RES_NORM, "self_attention_res_norm.weight")                                              \
    X(ATT_RES_PROJ, "self_attention_res_proj.weight")                                              \
    X(MLP_RES_NORM, "mlp_res_norm.weight")                                                         \
    X(MLP_RES_PROJ, "mlp_res_proj.weight")                                                         \
    X(KDA_Q, "self_attn.q_proj.weight")                                                            \
    X(KDA_K, "self_attn.k_proj.weight")                                                            \
    X(KDA_V, "self_attn.v_proj.weight")                                                            \
    X(KDA_Q_CONV, "self_attn.q_conv1d.weight")                                                     \
    X(KDA_K_CONV, "self_attn.k_conv1d.weight")                                                     \
    X(KDA_V_CONV, "self_attn.v_conv1d.weight")                                                     \
    X(KDA_F_A, "self_attn.f_a_proj.weight")                                                        \
    X(KDA_F_B, "self_attn.f_b_proj.weight")                                                        \
    X(KDA_B, "self_attn.b_proj.weight")                                                            \
    X(KDA_G, "self_attn.g_proj.weight")                                                            \
    X(KDA_G_A, "self_attn.g_a_proj.weight")                                                        \
    X(KDA_G_B, "self_attn.g_b_proj.weight")                                                        \
    X(KDA_A_LOG, "self_attn.A_log")                                                                \
    X(KDA_DT_BIAS, "self_attn.dt_bias")                                                            \
    X(KDA_O_NORM, "self_attn.o_norm.weight")                                                       \
    X(KDA_O, "self_attn.o_proj.weight")                                                            \
    X(MLA_Q, "self_attn.q_proj.weight")                                                            \
    X(MLA_Q_A, "self_attn.q_a_proj.weight")                                                        \
    X(MLA_Q_A_NORM, "self_attn.q_a_layernorm.weight")                                              \
    X(MLA_Q_B, "self_attn.q_b_proj.weight")                                                        \
    X(MLA_KV_A, "self_attn.kv_a_proj_with_mqa.weight")                                             \
    X(MLA_KV_A_NORM, "self_attn.kv_a_layernorm.weight")                                            \
    X(MLA_KV_B, "self_attn.kv_b_proj.weight")                                                      \
    X(MLA_G, "self_attn.g_proj.weight")                                                            \
    X(MLA_O, "self_attn.o_proj.weight")                                                            \
    X(FFN_GATE, "mlp.gate_proj.weight")                                                            \
    X(FFN_UP, "mlp.up_proj.weight")                                                                \
    X(FFN_DOWN, "mlp.down_proj.weight")                                                            \
    X(ROUTER, "block_sparse_moe.gate.weight")                                                      \
    X(ROUTER_BIAS, "block_sparse_moe.gate.e_score_correction_bias")                                \
    X(LATENT_DOWN, "block_sparse_moe.routed_expert_down_proj.weight")                              \
    X(LATENT_NORM, "block_sparse_moe.routed_expert_norm.weight")                                   \
    X(LATENT_UP, "block_sparse_moe.routed_expert_up_proj.weight")                                  \
    X(SHARED_GATE, "block_sparse_moe.shared_experts.gate_proj.weight")                             \
    X(SHARED_UP, "block_sparse_moe.shared_experts.up_proj.weight")                                 \
    X(SHARED_DOWN, "block_sparse_moe.shared_experts.down_proj.weight")

#define WASTE_X(role, name) WASTE_T_##role,
enum waste_layer_tensor { WASTE_LAYER_TENSORS(WASTE_X) WASTE_LAYER_TENSOR_COUNT };
#undef WASTE_X

/* Tensors outside the layers: X(ROLE, name). */
#define WASTE_MODEL_TENSORS(X)                                                                     \
    X(EMBED, "model.embed_tokens.weight")                                                          \
    X(FINAL_NORM, "model.norm.weight")                                                             \
    X(LM_HEAD, "lm_head.weight")                                                                   \
    X(OUT_RES_NORM, "model.output_attn_res_norm.weight")                                           \
    X(OUT_RES_PROJ, "model.output_attn_res_proj.weight")

#define WASTE_X(role, name) WASTE_M_##role,
enum waste_model_tensor { WASTE_MODEL_TENSORS(WASTE_X) WASTE_MODEL_TENSOR_COUNT };
#undef WASTE_X

/* Where one layer's routed experts lie on disk. All records of a model have the same stride. */
struct waste_bank {
    char file[WASTE_MAX_FILE_NAME]; /* inside the model directory, no slash, NUL-terminated */
    uint32_t experts;
    uint32_t codebook_base;
    uint64_t bytes; /* experts * record_bytes */
};

struct waste_layer {
    uint32_t tensor[WASTE_LAYER_TENSOR_COUNT]; /* ids into waste_model's tensor table; 0 = absent */
    uint8_t is_kda;                            /* else MLA */
    uint8_t is_moe;                            /* else dense FFN */
    uint16_t state_index;                      /* n-th KDA layer, or n-th MLA layer */
    uint32_t pad;
    struct waste_bank bank; /* zero in dense layers */
};

/* Geometry, straight from the manifest's config after validation. Dimensions in elements. */
struct waste_config {
    uint32_t layers, dense_layers, hidden, vocab;
    uint32_t dense_inner; /* intermediate_size */
    uint32_t experts, top_k, expert_inner, expert_width, shared_experts;
    uint32_t
        latent; /* expert_width is a projection of the hidden state (0: it is the hidden state) */
    uint32_t latent_norm;
    uint32_t kda_layers, kda_heads, kda_dim, conv_width, kda_full_gate, has_gate_lower_bound;
    uint32_t mla_layers, mla_heads, q_lora, kv_lora, nope_dim, rope_dim, v_dim, mla_out_gate;
    uint32_t res_block; /* attention residual block size, 0 = plain residual */
    uint32_t situ;      /* activation: SiTU, else SiLU */
    uint32_t renormalize;
    float gate_lower_bound, situ_beta,
        situ_linear_beta; /* situ_linear_beta 0: the up half is not squashed */
    float routed_scale, rms_eps;
    uint32_t
        max_context; /* the config's max_position_embeddings / model_max_length, 0 = not said */
    uint32_t eos[WASTE_MAX_EOS], eos_count;
};

/* Expert records: what FORMAT calls index blocks. Offsets are the same for every record of the
 * model. */
struct waste_expert_format {
    uint32_t fmt; /* WASTE_FMT_VQ3R, VQ2R or VQ4P */
    uint32_t stages, entries, index_bits;
    uint32_t index_bytes;  /* a row and position: 3 (VQ3R), 2 (VQ2R), 3 (VQ4P) */
    uint32_t record_bytes; /* stride, a multiple of 4096 */
    uint32_t gate_off, up_off, down_off, scale_off; /* from the record's start */
    uint32_t crc_end;                               /* crc32 covers [48, crc_end) */
    uint32_t codebooks;                             /* in codebooks.bin */
    uint64_t codebook_data; /* trunk segment offset of f32 [codebooks][entries][8], subnormal f16
                               entries already 0 */
};

/* waste_model_* accessors below; the layer table and the tensor table follow the struct. */
struct waste_model {
    uint64_t bytes; /* of this whole record, tables included */
    uint64_t
        fingerprint; /* of manifest.json's bytes; identifies the weights to sessions and caches */
    uint64_t trunk_bytes; /* size of the trunk segment, a multiple of 4096 */
    uint64_t layer_off;   /* struct waste_layer [config.layers], from this record's start */
    uint64_t tensor_off;  /* struct waste_tensor [tensor_count]; id 0 is never used */
    uint32_t tensor_count;
    uint32_t tensor[WASTE_MODEL_TENSOR_COUNT];
    struct waste_config config;
    struct waste_expert_format expert;
};

/*
 * The record is whole and refers to nothing outside itself or the trunk segment: `bytes` is what
 * the caller has mapped from *model on. True for every model a container gives; a stage that
 * attaches asks again. 0 or -EINVAL. The meaning of the dimensions is the container's business.
 */
int waste_model_check(const struct waste_model *model, uint64_t bytes);

uint32_t waste_model_moe_layers(const struct waste_model *model);

/* The fewest slots a cache may have: a layer's experts and the next one's, 2 x top_k, or all
 * experts of a model that has fewer. */
uint32_t waste_model_floor_slots(const struct waste_model *model);

static inline const struct waste_layer *waste_model_layer(const struct waste_model *m,
                                                          uint32_t layer)
{
    return (const struct waste_layer *)((const char *)m + m->layer_off) + layer;
}

static inline const struct waste_tensor *waste_model_tensor(const struct waste_model *m,
                                                            uint32_t id)
{
    return (const struct waste_tensor *)((const char *)m + m->tensor_off) + id;
}

#endif
