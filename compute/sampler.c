#include "compute/sampler.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int waste_sampler_init(struct waste_sampler *s, uint32_t vocab)
{
    s->vocab = vocab;
    s->share = malloc(vocab * sizeof *s->share);
    s->order = malloc(vocab * sizeof *s->order);
    if (s->share && s->order)
        return 0;
    waste_sampler_finish(s);
    return -ENOMEM;
}

void waste_sampler_finish(struct waste_sampler *s)
{
    free(s->share);
    free(s->order);
    memset(s, 0, sizeof *s);
}

uint32_t waste_sampler_first_bad(const float *logits, uint32_t vocab)
{
    uint32_t i = 0;

    while (i < vocab && isfinite(logits[i]))
        i++;
    return i;
}

/* splitmix64's finaliser: every input bit reaches every output bit. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

double waste_sampler_random(uint64_t seed, uint64_t index)
{
    uint64_t bits = mix(mix(seed + UINT64_C(0x9e3779b97f4a7c15)) + index);

    return (double)(bits >> 11) * 0x1p-53;
}

static uint32_t greedy(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static bool ranks_before(const struct waste_sampler *s, uint32_t a, uint32_t b)
{
    return s->share[a] > s->share[b] || (s->share[a] == s->share[b] && a < b);
}

static void swap(uint32_t *a, uint32_t *b)
{
    uint32_t t = *a;
    *a = *b;
    *b = t;
}

/* order[0 .. n) is a heap, the highest rank on top, but for its top. */
static void sift_down(struct waste_sampler *s, uint32_t at, uint32_t n)
{
    uint32_t *heap = s->order;

    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && ranks_before(s, heap[child + 1], heap[child]))
            child++;
        if (!ranks_before(s, heap[child], heap[at]))
            return;
        swap(&heap[at], &heap[child]);
    }
}

/* The highest rank left of n; it moves to order[n - 1]. */
static uint32_t pop(struct waste_sampler *s, uint32_t n)
{
    swap(&s->order[0], &s->order[n - 1]);
    sift_down(s, 0, n - 1);
    return s->order[n - 1];
}

/* Moves the tokens to choose from to order[vocab - count .. vocab), likeliest last. Returns their
 * count. */
static uint32_t cut(struct waste_sampler *s, const struct waste_sampling *how, double sum)
{
    uint32_t limit = how->top_k && how->top_k < s->vocab ? how->top_k : s->vocab, n = 0;
    double reached = 0;

    for (uint32_t i = 0; i < s->vocab; i++)
        s->order[i] = i;
    for (uint32_t i = s->vocab / 2; i-- > 0;)
        sift_down(s, i, s->vocab);
    if (limit < s->vocab) { /* top_p counts from what top_k leaves */
        sum = 0;
        for (; n < limit; n++)
            sum += s->share[pop(s, s->vocab - n)];
        n = how->top_p < 1 ? 0 : limit;
        while (n < limit && (!n || reached < how->top_p * sum))
            reached += s->share[s->order[s->vocab - 1 - n++]];
        return n;
    }
    while (n < limit && (!n || reached < how->top_p * sum))
        reached += s->share[pop(s, s->vocab - n++)];
    return n;
}

/* Walks the candidates until their shares pass the random part of their sum. */
static uint32_t choose(const struct waste_sampler *s, const uint32_t *order, uint32_t count,
                       double random)
{
    double sum = 0, passed = 0;
    uint32_t last = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += s->share[order ? order[i] : i];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = order ? order[i] : i;
        if (s->share[token] <= 0)
            continue;
        passed += s->share[token];
        last = token;
        if (passed > random * sum)
            break;
    }
    return last;
}

uint32_t waste_sampler_draw(struct waste_sampler *s, const struct waste_kernels *k,
                            const float *logits, const struct waste_sampling *how, uint64_t index)
{
    uint32_t best = greedy(logits, s->vocab), count;
    double random = waste_sampler_random(how->seed, index);
    float max, sum;

    if (how->temperature == 0)
        return best;
    for (uint32_t i = 0; i < s->vocab; i++) /* a tiny temperature must not make infinities */
        s->share[i] = fmaxf((logits[i] - logits[best]) / how->temperature, -200.0f);
    sum = k->softmax_part(s->share, s->vocab, &max);
    if (!how->top_k && how->top_p >= 1)
        return choose(s, NULL, s->vocab, random);
    count = cut(s, how, sum);
    return choose(s, s->order + s->vocab - count, count, random);
}
