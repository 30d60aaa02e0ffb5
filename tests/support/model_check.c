#include "tests/support/model_check.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static uint64_t file_bytes(const char *dir, const char *name)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static const char *check_tensor(const struct waste_model *m, const struct waste_tensor *t,
                                uint64_t trunk_file)
{
    uint64_t scales = (uint64_t)t->rows * t->groups * 2;
    if (t->rows == 0 || t->cols == 0)
        return "an empty tensor";
    if (t->payload_bytes != t->rows * t->row_bytes)
        return "payload_bytes is not rows x row_bytes";
    if (t->groups ? (uint64_t)t->groups * 128 < t->cols : t->row_bytes != 4 * (uint64_t)t->cols)
        return "rows too short for their columns";
    if (t->file_off > trunk_file || t->payload_bytes > trunk_file - t->file_off ||
        (t->groups && (t->file_scale_off > trunk_file || scales > trunk_file - t->file_scale_off)))
        return "a tensor beyond the end of trunk.bin";
    if (t->data == 0)
        return NULL;
    if (t->data % 64 || t->scales % 64 || t->data < 64 ||
        t->data + t->payload_bytes + 64 > m->trunk_bytes)
        return "a payload outside the segment";
    if (t->groups &&
        (t->scales < t->data + t->payload_bytes || t->scales + scales > m->trunk_bytes))
        return "scales outside the segment";
    return NULL;
}

static const char *check_experts(const struct waste_model *m, const char *dir)
{
    const struct waste_expert_format *x = &m->expert;
    if (x->record_bytes % 4096 || x->crc_end > x->record_bytes || x->gate_off != 48 ||
        x->up_off <= x->gate_off || x->down_off <= x->up_off || x->scale_off <= x->down_off ||
        x->crc_end != x->scale_off + 2 * (2 * m->config.expert_inner + m->config.expert_width))
        return "record offsets";
    if (x->codebook_data % 64 ||
        x->codebook_data + (uint64_t)x->codebooks * x->entries * 32 > m->trunk_bytes)
        return "codebooks outside the segment";
    for (uint32_t l = m->config.dense_layers; l < m->config.layers; l++) {
        const struct waste_bank *b = &waste_model_layer(m, l)->bank;
        if (!memchr(b->file, 0, sizeof(b->file)) || strchr(b->file, '/') || b->file[0] == 0)
            return "a bank's file name";
        if (b->experts != m->config.experts || b->bytes != (uint64_t)b->experts * x->record_bytes ||
            b->bytes != file_bytes(dir, b->file))
            return "a bank's size";
        if (b->codebook_base + 3 * x->stages > x->codebooks)
            return "a bank's codebooks";
    }
    return NULL;
}

const char *model_check(const struct waste_model *m, const char *dir)
{
    uint64_t trunk_file = file_bytes(dir, "trunk.bin"), end = 0;
    const struct waste_config *c = &m->config;
    if (m->layer_off < sizeof(*m) || m->layer_off % 8 || m->tensor_off % 8 ||
        m->layer_off + c->layers * sizeof(struct waste_layer) > m->tensor_off ||
        m->tensor_off + m->tensor_count * sizeof(struct waste_tensor) != m->bytes)
        return "the tables of the model";
    if (c->top_k == 0 || c->top_k > c->experts || c->dense_layers >= c->layers)
        return "the config";
    for (uint32_t i = 1; i < m->tensor_count; i++) {
        const struct waste_tensor *t = waste_model_tensor(m, i);
        const char *wrong = check_tensor(m, t, trunk_file);
        if (wrong)
            return wrong;
        if (t->data && t->data < end)
            return "tensors overlap in the segment";
        end = t->data ? t->data + t->payload_bytes : end;
    }
    for (uint32_t l = 0; l < c->layers; l++)
        for (uint32_t i = 0; i < WASTE_LAYER_TENSOR_COUNT; i++)
            if (waste_model_layer(m, l)->tensor[i] >= m->tensor_count)
                return "a tensor id";
    return check_experts(m, dir);
}
