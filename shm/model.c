#include "shm/model.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

static bool inside(uint64_t off, uint64_t bytes, uint64_t limit)
{
    return off <= limit && bytes <= limit - off;
}

/* A table of `count` items of `size` bytes (size and count below 2^32 each). */
static bool table_inside(uint64_t off, uint64_t count, uint64_t size, uint64_t limit)
{
    return off % 8 == 0 && off >= sizeof(struct waste_model) && inside(off, count * size, limit);
}

static bool tensor_ok(const struct waste_tensor *t, uint64_t trunk_bytes)
{
    /* rows < 2^32 and row_bytes < 2^40 below, so neither product can overflow */
    if (t->fmt >= WASTE_FMT_COUNT || t->rows == 0 || t->cols == 0 ||
        t->row_bytes > UINT64_C(8) * UINT32_MAX || t->groups > t->cols)
        return false;
    if (t->row_bytes != 0 && t->rows > (UINT64_C(1) << 62) / t->row_bytes)
        return false;
    if (t->payload_bytes != t->rows * t->row_bytes)
        return false;
    if (t->data == 0) /* not kept in memory */
        return true;
    return inside(t->data, t->payload_bytes, trunk_bytes) &&
           (t->groups == 0 || inside(t->scales, UINT64_C(2) * t->rows * t->groups, trunk_bytes));
}

static bool layer_ok(const struct waste_model *m, const struct waste_layer *layer)
{
    for (int i = 0; i < WASTE_LAYER_TENSOR_COUNT; i++)
        if (layer->tensor[i] != 0 && layer->tensor[i] >= m->tensor_count)
            return false;
    if (layer->is_kda > 1 || layer->is_moe > 1 ||
        layer->state_index >= (layer->is_kda ? m->config.kda_layers : m->config.mla_layers))
        return false;
    if (!layer->is_moe)
        return true;
    return layer->bank.experts == m->config.experts &&
           layer->bank.bytes == (uint64_t)layer->bank.experts * m->expert.record_bytes &&
           memchr(layer->bank.file, 0, sizeof(layer->bank.file)) != NULL;
}

static bool config_ok(const struct waste_config *c)
{
    return c->layers >= 1 && c->layers <= WASTE_MAX_LAYERS && c->hidden >= 1 &&
           c->hidden <= WASTE_MAX_HIDDEN && c->vocab >= 1 && c->vocab <= WASTE_MAX_VOCAB &&
           c->experts <= WASTE_MAX_EXPERTS && c->top_k <= WASTE_MAX_TOP_K &&
           c->top_k <= c->experts && c->eos_count <= WASTE_MAX_EOS && c->kda_layers <= c->layers &&
           c->mla_layers == c->layers - c->kda_layers;
}

static bool expert_ok(const struct waste_model *m)
{
    const struct waste_expert_format *x = &m->expert;
    uint64_t codebook_bytes = UINT64_C(32) * x->entries;

    if (m->config.experts == 0)
        return true;
    if (x->record_bytes == 0 || x->record_bytes % 4096 != 0 || x->crc_end > x->record_bytes ||
        x->gate_off >= x->record_bytes || x->up_off >= x->record_bytes ||
        x->down_off >= x->record_bytes || x->scale_off >= x->record_bytes)
        return false;
    if (x->entries > 65536 || codebook_bytes * x->codebooks > m->trunk_bytes)
        return false;
    return inside(x->codebook_data, codebook_bytes * x->codebooks, m->trunk_bytes);
}

int waste_model_check(const struct waste_model *m, uint64_t bytes)
{
    if (bytes < sizeof(*m) || m->bytes < sizeof(*m) || m->bytes > bytes || m->bytes % 8 != 0 ||
        m->trunk_bytes % 4096 != 0 || m->tensor_count == 0 || !config_ok(&m->config))
        return -EINVAL;
    if (!table_inside(m->layer_off, m->config.layers, sizeof(struct waste_layer), m->bytes) ||
        !table_inside(m->tensor_off, m->tensor_count, sizeof(struct waste_tensor), m->bytes))
        return -EINVAL;
    for (int i = 0; i < WASTE_MODEL_TENSOR_COUNT; i++)
        if (m->tensor[i] != 0 && m->tensor[i] >= m->tensor_count)
            return -EINVAL;
    for (uint32_t i = 1; i < m->tensor_count; i++)
        if (!tensor_ok(waste_model_tensor(m, i), m->trunk_bytes))
            return -EINVAL;
    for (uint32_t i = 0; i < m->config.layers; i++)
        if (!layer_ok(m, waste_model_layer(m, i)))
            return -EINVAL;
    return expert_ok(m) ? 0 : -EINVAL;
}

uint32_t waste_model_moe_layers(const struct waste_model *m)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < m->config.layers; i++)
        count += waste_model_layer(m, i)->is_moe;
    return count;
}

uint32_t waste_model_floor_slots(const struct waste_model *m)
{
    uint64_t all = (uint64_t)waste_model_moe_layers(m) * m->config.experts;

    return all < 2 * m->config.top_k ? (uint32_t)all : 2 * m->config.top_k;
}
