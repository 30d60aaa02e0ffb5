/* A cache of experts fed with a recorded trace: what cachesim's files share. */
#ifndef WASTE_TESTS_CACHESIM_H
#define WASTE_TESTS_CACHESIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a model chose: tokens x layers turns, each of up to top_k experts. */
struct trace {
    uint32_t tokens, layers, experts, top_k;
    double working_set; /* experts a token touches, on average */
    uint32_t *count;    /* [tokens * layers] */
    uint32_t *expert;   /* [tokens * layers][top_k] */
};

/* JSON lines {"layers": [[ids], ...]}, one line a token. 0, or -1 with a line that says where. */
int trace_read(const char *path, struct trace *t, char *error, size_t room);
void trace_free(struct trace *t);

static inline const uint32_t *trace_turn(const struct trace *t, uint32_t token, uint32_t layer,
                                         uint32_t *count)
{
    size_t turn = (size_t)token * t->layers + layer;
    *count = t->count[turn];
    return &t->expert[turn * t->top_k];
}

enum policy { LRU, LFU, FORGETFUL, DECAYED, WASTE, OPTIMUM, POLICIES };
extern const char *const policy_name[POLICIES];

/* [0]: tokens of the first half; [1]: of the second. */
struct result {
    uint64_t hits[2], demands[2];
};

/* 0 or -1: out of memory. slots: at least top_k. */
int simulate(const struct trace *t, enum policy policy, uint32_t slots, struct result *result);

#endif
