/* The trunk: the table of what each kind of layer needs, and the plan of the trunk segment. */
#include "reader/container_index.h"
#include "reader/container_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 64, /* of every offset in the segment, and readable bytes after every payload */
    PAGE = 4096,
};
#define SEGMENT_LIMIT (UINT64_C(1) << 46)

/* What a layer has; a role is wanted when all it needs is there. */
enum {
    KDA = 1,
    MLA = 2,
    MOE = 4,
    DENSE = 8,
    RES = 16,
    LATENT = 32,
    LATENT_NORM = 64,
    FULL_GATE = 128,
    LOW_GATE = 256,
    Q_LORA = 512,
    Q_PLAIN = 1024,
    OUT_GATE = 2048,
    SHARED = 4096,
};

enum dim {
    ONE,
    HIDDEN,
    VOCAB,
    DENSE_INNER,
    EXPERTS,
    WIDTH,
    SHARED_INNER,
    KDA_ALL,
    KDA_HEADS,
    KDA_DIM,
    CONV,
    Q_RANK,
    MLA_Q,
    KV_A,
    KV_RANK,
    KV_B,
    MLA_V,
    DIM_COUNT,
};

/*
 * MATRIX: exactly [rows, cols], any trunk format. VECTOR: `cols` elements in any shape, F32.
 * PADDED: as VECTOR, but the file may hold more than `cols` (A_log of K3). TAPS: [rows, cols] or
 * [rows, 1, cols], F32.
 */
enum kind { MATRIX, VECTOR, PADDED, TAPS };

struct role {
    uint16_t id;
    uint16_t needs;
    enum kind kind;
    enum dim rows, cols;
};

/* In the order in which a step uses them, so that the segment streams linearly. */
static const struct role layer_roles[] = {
    {WASTE_T_ATT_RES_NORM, RES, VECTOR, ONE, HIDDEN},
    {WASTE_T_ATT_RES_PROJ, RES, VECTOR, ONE, HIDDEN},
    {WASTE_T_INPUT_NORM, 0, VECTOR, ONE, HIDDEN},
    {WASTE_T_KDA_Q, KDA, MATRIX, KDA_ALL, HIDDEN},
    {WASTE_T_KDA_K, KDA, MATRIX, KDA_ALL, HIDDEN},
    {WASTE_T_KDA_V, KDA, MATRIX, KDA_ALL, HIDDEN},
    {WASTE_T_KDA_F_A, KDA, MATRIX, KDA_DIM, HIDDEN},
    {WASTE_T_KDA_B, KDA, MATRIX, KDA_HEADS, HIDDEN},
    {WASTE_T_KDA_G, KDA | FULL_GATE, MATRIX, KDA_ALL, HIDDEN},
    {WASTE_T_KDA_G_A, KDA | LOW_GATE, MATRIX, KDA_DIM, HIDDEN},
    {WASTE_T_KDA_F_B, KDA, MATRIX, KDA_ALL, KDA_DIM},
    {WASTE_T_KDA_G_B, KDA | LOW_GATE, MATRIX, KDA_ALL, KDA_DIM},
    {WASTE_T_KDA_Q_CONV, KDA, TAPS, KDA_ALL, CONV},
    {WASTE_T_KDA_K_CONV, KDA, TAPS, KDA_ALL, CONV},
    {WASTE_T_KDA_V_CONV, KDA, TAPS, KDA_ALL, CONV},
    {WASTE_T_KDA_A_LOG, KDA, PADDED, ONE, KDA_HEADS},
    {WASTE_T_KDA_DT_BIAS, KDA, VECTOR, ONE, KDA_ALL},
    {WASTE_T_KDA_O_NORM, KDA, VECTOR, ONE, KDA_DIM},
    {WASTE_T_KDA_O, KDA, MATRIX, HIDDEN, KDA_ALL},
    {WASTE_T_MLA_Q, MLA | Q_PLAIN, MATRIX, MLA_Q, HIDDEN},
    {WASTE_T_MLA_Q_A, MLA | Q_LORA, MATRIX, Q_RANK, HIDDEN},
    {WASTE_T_MLA_Q_A_NORM, MLA | Q_LORA, VECTOR, ONE, Q_RANK},
    {WASTE_T_MLA_Q_B, MLA | Q_LORA, MATRIX, MLA_Q, Q_RANK},
    {WASTE_T_MLA_KV_A, MLA, MATRIX, KV_A, HIDDEN},
    {WASTE_T_MLA_KV_A_NORM, MLA, VECTOR, ONE, KV_RANK},
    {WASTE_T_MLA_KV_B, MLA, MATRIX, KV_B, KV_RANK},
    {WASTE_T_MLA_G, MLA | OUT_GATE, MATRIX, MLA_V, HIDDEN},
    {WASTE_T_MLA_O, MLA, MATRIX, HIDDEN, MLA_V},
    {WASTE_T_MLP_RES_NORM, RES, VECTOR, ONE, HIDDEN},
    {WASTE_T_MLP_RES_PROJ, RES, VECTOR, ONE, HIDDEN},
    {WASTE_T_POST_NORM, 0, VECTOR, ONE, HIDDEN},
    {WASTE_T_FFN_GATE, DENSE, MATRIX, DENSE_INNER, HIDDEN},
    {WASTE_T_FFN_UP, DENSE, MATRIX, DENSE_INNER, HIDDEN},
    {WASTE_T_FFN_DOWN, DENSE, MATRIX, HIDDEN, DENSE_INNER},
    {WASTE_T_ROUTER, MOE, MATRIX, EXPERTS, HIDDEN},
    {WASTE_T_ROUTER_BIAS, MOE, VECTOR, ONE, EXPERTS},
    {WASTE_T_LATENT_DOWN, MOE | LATENT, MATRIX, WIDTH, HIDDEN},
    {WASTE_T_SHARED_GATE, MOE | SHARED, MATRIX, SHARED_INNER, HIDDEN},
    {WASTE_T_SHARED_UP, MOE | SHARED, MATRIX, SHARED_INNER, HIDDEN},
    {WASTE_T_SHARED_DOWN, MOE | SHARED, MATRIX, HIDDEN, SHARED_INNER},
    {WASTE_T_LATENT_NORM, MOE | LATENT | LATENT_NORM, VECTOR, ONE, WIDTH},
    {WASTE_T_LATENT_UP, MOE | LATENT, MATRIX, HIDDEN, WIDTH},
};
_Static_assert(sizeof(layer_roles) / sizeof(layer_roles[0]) == WASTE_LAYER_TENSOR_COUNT,
               "every role of a layer has its line");

static const struct role embed_role = {WASTE_M_EMBED, 0, MATRIX, VOCAB, HIDDEN};
static const struct role head_roles[] = {
    {WASTE_M_OUT_RES_NORM, RES, VECTOR, ONE, HIDDEN},
    {WASTE_M_OUT_RES_PROJ, RES, VECTOR, ONE, HIDDEN},
    {WASTE_M_FINAL_NORM, 0, VECTOR, ONE, HIDDEN},
    {WASTE_M_LM_HEAD, 0, MATRIX, VOCAB, HIDDEN},
};

#define WASTE_X(role, name) name,
static const char *const layer_name[] = {WASTE_LAYER_TENSORS(WASTE_X)};
static const char *const model_name[] = {WASTE_MODEL_TENSORS(WASTE_X)};
#undef WASTE_X

/* The trunk being planned. */
struct plan {
    struct waste_parse *p;
    struct waste_trunk_index index;
    uint64_t dim[DIM_COUNT];
    uint16_t has_always;
    struct waste_tensor *tensor;
    uint32_t tensors; /* used, the unused id 0 included */
    uint64_t end;     /* of the segment so far */
};

static void fill_dims(struct plan *plan)
{
    const struct waste_config *c = &plan->p->config;
    const uint64_t dim[DIM_COUNT] = {
        [ONE] = 1,
        [HIDDEN] = c->hidden,
        [VOCAB] = c->vocab,
        [DENSE_INNER] = c->dense_inner,
        [EXPERTS] = c->experts,
        [WIDTH] = c->expert_width,
        [SHARED_INNER] = (uint64_t)c->shared_experts * c->expert_inner,
        [KDA_ALL] = (uint64_t)c->kda_heads * c->kda_dim,
        [KDA_HEADS] = c->kda_heads,
        [KDA_DIM] = c->kda_dim,
        [CONV] = c->conv_width,
        [Q_RANK] = c->q_lora,
        [MLA_Q] = (uint64_t)c->mla_heads * (c->nope_dim + c->rope_dim),
        [KV_A] = (uint64_t)c->kv_lora + c->rope_dim,
        [KV_RANK] = c->kv_lora,
        [KV_B] = (uint64_t)c->mla_heads * (c->nope_dim + c->v_dim),
        [MLA_V] = (uint64_t)c->mla_heads * c->v_dim,
    };
    memcpy(plan->dim, dim, sizeof(dim));
    plan->has_always =
        (uint16_t)((c->res_block ? RES : 0) | (c->latent ? LATENT : 0) |
                   (c->latent_norm ? LATENT_NORM : 0) | (c->kda_full_gate ? FULL_GATE : LOW_GATE) |
                   (c->q_lora ? Q_LORA : Q_PLAIN) | (c->mla_out_gate ? OUT_GATE : 0) |
                   (c->shared_experts ? SHARED : 0));
}

static int wrong_shape(const struct plan *plan, const struct waste_trunk_entry *e,
                       const struct role *role)
{
    char shape[WASTE_TRUNK_SHAPE_TEXT];
    unsigned long long rows = plan->dim[role->rows], cols = plan->dim[role->cols];
    waste_trunk_index_shape(e, shape, sizeof(shape));
    if (role->kind == MATRIX || role->kind == TAPS)
        return waste_error_set(plan->p->err, -EINVAL,
                               WASTE_MANIFEST ": trunk[%u] (%s): shape is [%s], must be [%llu, "
                                              "%llu]",
                               e->number, e->name, shape, rows, cols);
    return waste_error_set(plan->p->err, -EINVAL,
                           WASTE_MANIFEST ": trunk[%u] (%s): shape is [%s], must be %s%llu "
                                          "elements",
                           e->number, e->name, shape, role->kind == PADDED ? "at least " : "",
                           cols);
}

/* The entry as the role wants it: rows and cols set to the role's. */
static int match_role(const struct plan *plan, struct waste_trunk_entry *e, const struct role *role)
{
    uint64_t rows = plan->dim[role->rows], cols = plan->dim[role->cols];
    uint64_t elements = e->rows * e->cols;
    bool fits = false;
    if (role->kind != MATRIX && e->fmt != WASTE_FMT_F32)
        return waste_trunk_index_error(plan->p, e, "fmt must be 0 (F32) for this tensor");
    switch (role->kind) {
    case MATRIX:
        fits = e->axes == 2 && e->rows == rows && e->cols == cols;
        break;
    case TAPS:
        fits = (e->axes == 2 || e->axes == 3) && e->shape[0] == rows && e->rows == rows &&
               e->cols == cols;
        break;
    case VECTOR:
        fits = elements == cols;
        break;
    case PADDED:
        fits = elements >= cols;
        break;
    }
    if (!fits)
        return wrong_shape(plan, e, role);
    e->rows = rows;
    e->cols = cols;
    waste_trunk_index_rows(e);
    return 0;
}

/* Room for `bytes` in the segment, with readable bytes behind. */
static uint64_t reserve(struct plan *plan, uint64_t bytes)
{
    uint64_t off = plan->end;
    plan->end = waste_align_up(off + bytes + ALIGN, ALIGN);
    return off;
}

/* Finds the tensor, adds it to the table and stores its id. */
static int add_tensor(struct plan *plan, const char *name, const struct role *role, bool resident,
                      uint32_t *id)
{
    const struct waste_trunk_entry *found = waste_trunk_index_find(&plan->index, name);
    if (!found)
        return waste_error_set(plan->p->err, -EINVAL, WASTE_MANIFEST ": trunk has no %s%s",
                               plan->p->prefix, name);
    struct waste_trunk_entry e = *found;
    int rc = match_role(plan, &e, role);
    if (rc < 0)
        return rc;
    struct waste_tensor *t = &plan->tensor[plan->tensors];
    t->file_off = e.off;
    t->file_scale_off = e.groups ? e.scale_off : 0;
    t->payload_bytes = e.rows * e.row_bytes;
    t->rows = (uint32_t)e.rows;
    t->cols = (uint32_t)e.cols;
    t->groups = (uint32_t)e.groups;
    t->fmt = e.fmt;
    t->row_bytes = e.row_bytes;
    if (resident) {
        t->data = reserve(plan, t->payload_bytes);
        t->scales = e.groups ? reserve(plan, e.rows * e.groups * 2) : 0;
    }
    if (plan->end > SEGMENT_LIMIT)
        return waste_trunk_index_error(plan->p, found, "the trunk grows beyond 64 TiB");
    *id = plan->tensors++;
    return 0;
}

/* Shared experts that the config does not count must not be left out. */
static int check_unshared(const struct plan *plan, uint32_t l)
{
    char name[128];
    snprintf(name, sizeof(name), "model.layers.%u.%s", l, layer_name[WASTE_T_SHARED_GATE]);
    if (plan->has_always & SHARED || !waste_trunk_index_find(&plan->index, name))
        return 0;
    return waste_error_set(plan->p->err, -EINVAL,
                           WASTE_MANIFEST ": config.num_shared_experts is 0, but trunk has %s%s",
                           plan->p->prefix, name);
}

static int add_layer(struct plan *plan, struct waste_model *m, uint32_t l, uint16_t *kda,
                     uint16_t *mla)
{
    const struct waste_parse *p = plan->p;
    struct waste_layer *layer = (struct waste_layer *)((char *)m + m->layer_off) + l;
    layer->is_kda = p->is_kda[l];
    layer->is_moe = l >= p->config.dense_layers;
    layer->state_index = layer->is_kda ? (*kda)++ : (*mla)++;
    layer->bank = p->bank[l];
    uint16_t has =
        (uint16_t)(plan->has_always | (layer->is_kda ? KDA : MLA) | (layer->is_moe ? MOE : DENSE));
    for (size_t i = 0; i < WASTE_LAYER_TENSOR_COUNT; i++) {
        const struct role *role = &layer_roles[i];
        char name[128];
        if ((role->needs & has) != role->needs)
            continue;
        snprintf(name, sizeof(name), "model.layers.%u.%s", l, layer_name[role->id]);
        int rc = add_tensor(plan, name, role, true, &layer->tensor[role->id]);
        if (rc < 0)
            return rc;
    }
    return check_unshared(plan, l);
}

static int fill_model(struct plan *plan, struct waste_model *m)
{
    const struct waste_parse *p = plan->p;
    uint16_t kda = 0, mla = 0;
    int rc =
        add_tensor(plan, model_name[WASTE_M_EMBED], &embed_role, false, &m->tensor[WASTE_M_EMBED]);
    for (uint32_t l = 0; l < p->config.layers && rc == 0; l++)
        rc = add_layer(plan, m, l, &kda, &mla);
    for (size_t i = 0; i < sizeof(head_roles) / sizeof(head_roles[0]) && rc == 0; i++) {
        const struct role *role = &head_roles[i];
        const char *name = model_name[role->id];
        if ((role->needs & plan->has_always) != role->needs)
            continue;
        /* tied: the same bytes of the file once more, kept in memory this time */
        if (role->id == WASTE_M_LM_HEAD && p->tied && !waste_trunk_index_find(&plan->index, name))
            name = model_name[WASTE_M_EMBED];
        rc = add_tensor(plan, name, role, true, &m->tensor[role->id]);
    }
    if (rc < 0)
        return rc;
    m->config = p->config;
    m->expert = p->expert;
    m->expert.codebook_data =
        reserve(plan, (uint64_t)p->expert.codebooks * p->expert.entries * WASTE_VEC_DIM * 4);
    m->trunk_bytes = waste_align_up(plan->end, PAGE);
    m->tensor_count = plan->tensors;
    return 0;
}

int waste_parse_trunk(struct waste_parse *p, struct waste_model **out)
{
    struct plan plan = {.p = p, .tensors = 1, .end = ALIGN};
    struct waste_model *m = NULL;
    int rc = 0;
    p->trunk_file_bytes = SEGMENT_LIMIT; /* no product of shapes overflows */
    if (!p->index_only)
        rc = waste_parse_file_bytes(p, WASTE_TRUNK_FILE, &p->trunk_file_bytes);
    if (rc < 0 || (rc = waste_parse_trunk_index(p, &plan.index)) < 0)
        goto out;
    fill_dims(&plan);
    uint64_t layer_off = waste_align_up(sizeof(struct waste_model), ALIGN);
    uint64_t tensor_off =
        waste_align_up(layer_off + p->config.layers * sizeof(struct waste_layer), ALIGN);
    uint64_t tensors =
        1 + WASTE_MODEL_TENSOR_COUNT + (uint64_t)p->config.layers * WASTE_LAYER_TENSOR_COUNT;
    m = calloc(1, tensor_off + tensors * sizeof(struct waste_tensor));
    if (!m) {
        rc = waste_error_set(p->err, -ENOMEM, WASTE_MANIFEST ": out of memory");
        goto out;
    }
    m->layer_off = layer_off;
    m->tensor_off = tensor_off;
    plan.tensor = (struct waste_tensor *)((char *)m + tensor_off);
    rc = fill_model(&plan, m);
    if (rc < 0)
        goto out;
    m->bytes = tensor_off + plan.tensors * sizeof(struct waste_tensor);
    *out = m;
    m = NULL;
out:
    free(m);
    waste_trunk_index_free(&plan.index);
    return rc;
}

void waste_container_tensor_name(const struct waste_model *model, uint32_t id, char *out,
                                 size_t bytes)
{
    for (size_t i = 0; i < WASTE_MODEL_TENSOR_COUNT; i++)
        if (model->tensor[i] == id) {
            snprintf(out, bytes, "%s", model_name[i]);
            return;
        }
    for (uint32_t l = 0; l < model->config.layers; l++)
        for (size_t i = 0; i < WASTE_LAYER_TENSOR_COUNT; i++)
            if (waste_model_layer(model, l)->tensor[i] == id) {
                snprintf(out, bytes, "model.layers.%u.%s", l, layer_name[i]);
                return;
            }
    snprintf(out, bytes, "tensor %u", id);
}
