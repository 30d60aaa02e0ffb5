/* Which level runs: CPU detection, the limit of WASTE_CPU, and what is the same at every level. */
#include "compute/kernels.h"

#include <math.h>
#include <string.h>

#include "compute/kernels_int.h"

static bool always(void)
{
    return true;
}

/* Upward: each level needs all before it. */
static const struct level {
    const char *name;
    bool (*supported)(void);
    void (*fill)(struct waste_kernels *k);
} levels[] = {
    {"c", always, waste_kernels_fill_c},
};

bool waste_kernels_init(struct waste_kernels *k, const char *limit)
{
    struct waste_kernels table = {0};
    bool reached = limit == NULL || limit[0] == '\0';
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (!levels[i].supported())
            break;
        levels[i].fill(&table);
        table.level = levels[i].name;
        if (limit != NULL && strcmp(limit, levels[i].name) == 0) {
            reached = true;
            break;
        }
    }
    if (!reached)
        return false;
    *k = table;
    return true;
}

/* NaN counts as lowest, so that the insertion below never compares with one. */
static float choice_score(float logit, float bias)
{
    float score = 1.0f / (1.0f + expf(-logit)) + bias;
    return isnan(score) ? -INFINITY : score;
}

/* A choice never depends on the level, so router and compute agree whatever each runs on. */
void waste_top_k(uint32_t *ids, float *weights, const float *logits, const float *bias,
                 uint32_t experts, uint32_t top_k, float *scratch)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < experts; e++) {
        scratch[e] = choice_score(logits[e], bias[e]);
        uint32_t at = count;
        while (at > 0 && scratch[e] > scratch[ids[at - 1]])
            at--;
        if (at >= top_k)
            continue;
        if (count < top_k)
            count++;
        memmove(ids + at + 1, ids + at, (count - 1 - at) * sizeof *ids);
        ids[at] = e;
    }
    for (uint32_t i = 0; i < count; i++)
        weights[i] = 1.0f / (1.0f + expf(-logits[ids[i]]));
}

float waste_half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    uint32_t bits;
    float f;
    if (exponent == 0) {
        f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    if (exponent == 31)
        bits = sign | 0x7f800000 | mantissa << 13;
    else
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}
