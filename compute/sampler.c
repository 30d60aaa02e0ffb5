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

/* Logits of a block: their loops have no early end, so that a compiler can do several at once. */
enum { BLOCK = 256 };

static uint32_t block_end(uint32_t start, uint32_t vocab)
{
    return vocab - start < BLOCK ? vocab : start + BLOCK;
}

static int32_t bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

uint32_t waste_sampler_first_bad(const float *logits, uint32_t vocab)
{
    for (uint32_t start = 0; start < vocab; start += BLOCK) {
        uint32_t end = block_end(start, vocab), bad = 0;
        for (uint32_t i = start; i < end; i++) /* all ones: infinity or no number */
            bad |= (bits_of(logits[i]) & 0x7f800000) == 0x7f800000;
        for (uint32_t i = start; bad && i < end; i++)
            if (!isfinite(logits[i]))
                return i;
    }
    return vocab;
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

/* The largest of some finite numbers: as integers that order like them, but -0 below 0. */
static float largest(const float *x, uint32_t n)
{
    int32_t most = INT32_MIN;
    float value;

    for (uint32_t i = 0; i < n; i++) {
        int32_t bits = bits_of(x[i]), key = bits ^ (bits >> 31 & INT32_MAX);
        most = key > most ? key : most;
    }
    most ^= most >> 31 & INT32_MAX;
    memcpy(&value, &most, sizeof value);
    return value;
}

static uint32_t greedy(const float *logits, uint32_t vocab)
{
    float best = -INFINITY;
    uint32_t at = 0;

    for (uint32_t start = 0; start < vocab; start += BLOCK) {
        float most = largest(logits + start, block_end(start, vocab) - start);
        if (most > best) {
            best = most;
            at = start;
        }
    }
    while (logits[at] != best)
        at++;
    return at;
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

/* A heap of the tokens with at least this share; returns their count. */
static uint32_t gather(struct waste_sampler *s, float least)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->vocab; i++) {
        s->order[n] = i;
        n += s->share[i] >= least;
    }
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(s, i, n);
    return n;
}

/* Puts the tokens to choose from at *first and behind, the likeliest last. Returns their count.
 * Nearly always they are few of the vocabulary: those far below the likeliest, whose share is 1,
 * are looked at only if the others are not enough. */
static uint32_t cut(struct waste_sampler *s, const struct waste_sampling *how, double sum,
                    const uint32_t **first)
{
    uint32_t limit = how->top_k && how->top_k < s->vocab ? how->top_k : s->vocab, n, count;
    double wanted = limit < s->vocab ? INFINITY : how->top_p * sum, reached;

    for (float least = 0x1p-10f;; least = least > 0x1p-20f ? 0x1p-20f : 0) {
        n = gather(s, least);
        for (count = 0, reached = 0; count < n && count < limit && reached < wanted; count++)
            reached += s->share[pop(s, n - count)];
        if (n == s->vocab || count == limit || reached >= wanted)
            break;
    }
    if (limit < s->vocab && how->top_p < 1) { /* counts from what top_k leaves */
        wanted = how->top_p * reached;
        for (count = 0, reached = 0; reached < wanted; count++)
            reached += s->share[s->order[n - 1 - count]];
    }
    *first = s->order + n - count;
    return count;
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
    const uint32_t *first;
    double random = waste_sampler_random(how->seed, index);
    float max, sum;

    if (how->temperature == 0)
        return best;
    for (uint32_t i = 0; i < s->vocab; i++) { /* a tiny temperature must not make infinities */
        float x = (logits[i] - logits[best]) / how->temperature;
        s->share[i] = x > -200.0f ? x : -200.0f;
    }
    sum = k->softmax_part(s->share, s->vocab, &max);
    if (!how->top_k && how->top_p >= 1)
        return choose(s, NULL, s->vocab, random);
    count = cut(s, how, sum, &first);
    return choose(s, first, count, random);
}
