#include "cli/state.h"

#include <string.h>

void waste_state_shape(const struct waste_model *model, struct waste_snapshot_shape *out)
{
    const struct waste_config *c = &model->config;

    *out = (struct waste_snapshot_shape){
        .fingerprint = model->fingerprint,
        .bank_bytes = waste_session_bank_bytes(model),
        .mla_layers = c->mla_layers,
        .row_bytes = c->mla_layers > 0 ? 4 * (c->kv_lora + c->rope_dim) : 0,
        .vocab = c->vocab,
    };
}

void waste_state_place(const struct waste_pipeline *p, uint32_t bank,
                       struct waste_snapshot_place *out)
{
    char *base = p->session_map.base;

    *out = (struct waste_snapshot_place){
        .bank = base + p->bank_off[bank],
        .rows = base + p->latent_off,
        .layer_stride = p->mla_layer_bytes,
    };
}

bool waste_state_take(const struct waste_pipeline *p, char *bank, uint64_t *commit)
{
    const _Atomic uint64_t *word = &p->session->commit;
    struct waste_snapshot_place from;

    /* acquire: the bank as it was committed; pairs with compute's release */
    *commit = atomic_load_explicit(word, memory_order_acquire);
    waste_state_place(p, waste_commit_bank(*commit), &from);
    memcpy(bank, from.bank, waste_session_bank_bytes(p->model));
    /* the copy comes before the second look */
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(word, memory_order_relaxed) == *commit;
}
