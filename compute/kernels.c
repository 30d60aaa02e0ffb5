/* Which level runs: CPU detection, the limit of WASTE_CPU, and what is the same at every level. */
#include "compute/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compute/kernels_int.h"

#if defined(__x86_64__)
#include <cpuid.h>

struct x86_features {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx;
    uint64_t xcr0; /* register state the system saves */
};

enum {
    LEAF1_ECX_AVX2_LEVEL = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29, /* FMA, OSXSAVE, AVX, F16C */
    LEAF7_EBX_AVX2 = 1u << 5,
    XCR0_YMM = 6,
    XCR0_ZMM = 0xe6,
};
#define LEAF7_EBX_AVX512 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define LEAF7_ECX_VNNI (1u << 1 | 1u << 11)                          /* VBMI, VNNI */

static struct x86_features x86_features(void)
{
    struct x86_features f = {0};
    uint32_t a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d))
        f.leaf1_ecx = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        f.leaf7_ebx = b;
        f.leaf7_ecx = c;
    }
    if (f.leaf1_ecx & 1u << 27) {
        uint32_t low, high;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        f.xcr0 = (uint64_t)high << 32 | low;
    }
    return f;
}

static bool has_bits(uint64_t value, uint64_t bits)
{
    return (value & bits) == bits;
}

static bool has_avx2(void)
{
    struct x86_features f = x86_features();
    return has_bits(f.leaf1_ecx, LEAF1_ECX_AVX2_LEVEL) && has_bits(f.leaf7_ebx, LEAF7_EBX_AVX2) &&
           has_bits(f.xcr0, XCR0_YMM);
}

static bool has_avx512(void)
{
    struct x86_features f = x86_features();
    return has_avx2() && has_bits(f.leaf7_ebx, LEAF7_EBX_AVX512) && has_bits(f.xcr0, XCR0_ZMM);
}

static bool has_vnni(void)
{
    return has_avx512() && has_bits(x86_features().leaf7_ecx, LEAF7_ECX_VNNI);
}

/* Adders beside the multipliers: every AMD CPU that has AVX-512. */
static bool has_zen4(void)
{
    uint32_t a, b, c, d;
    return has_vnni() && __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx &&
           c == signature_AMD_ecx && d == signature_AMD_edx;
}
#endif

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
#if defined(__x86_64__)
    {"avx2", has_avx2, waste_kernels_fill_avx2}, {"avx512", has_avx512, waste_kernels_fill_avx512},
    {"vnni", has_vnni, waste_kernels_fill_vnni}, {"zen4", has_zen4, waste_kernels_fill_zen4},
#elif defined(__aarch64__)
    {"neon", always, waste_kernels_fill_neon},
#endif
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

const char *waste_kernels_levels(char *text, size_t size)
{
    size_t at = 0;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof levels / sizeof levels[0] && levels[i].supported(); i++) {
        int n = snprintf(text + at, size - at, "%s%s", i > 0 ? ", " : "", levels[i].name);
        at += n > 0 && (size_t)n < size - at ? (size_t)n : 0;
    }
    return text;
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
