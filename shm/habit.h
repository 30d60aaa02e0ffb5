/*
 * What the reader has learned about which experts are chosen (reader/habit.h says how it is used).
 * It lies in the control segment, so that a reader's successor goes on where it ended. Reader only.
 *
 *     struct waste_habit_notes | struct waste_habit_expert [layers * experts]
 *     | struct waste_habit_sample [layers][waste_habit_sample_size] | float chance [layers *
 * experts] | uint32_t last [layers * experts] | uint32_t turns [layers] | uint16_t history
 * [layers][WASTE_HABIT_WINDOW][top_k]
 */
#ifndef WASTE_SHM_HABIT_H
#define WASTE_SHM_HABIT_H

#include <stdint.h>

enum {
    WASTE_HABIT_WINDOW = 256,
    WASTE_HABIT_COUNTS = 4,
    WASTE_HABIT_FOLLOWS = 4,
    WASTE_HABIT_FEATURES = WASTE_HABIT_COUNTS + WASTE_HABIT_FOLLOWS,
    WASTE_HABIT_PARTS = 8, /* a turn learns from one part of its layer's experts */
};

struct waste_habit_notes {
    uint32_t begun; /* 1: the rest means something; 0: a new segment */
    uint32_t pad;
    float bias, pad2;
    float weight[WASTE_HABIT_FEATURES];
    float alike[WASTE_HABIT_WINDOW]; /* [lag] likeness.h */
};

struct waste_habit_expert {
    float count[WASTE_HABIT_COUNTS]; /* decayed share of turns that chose it */
};

/* What the newest chance of an expert was made from, if the next turn learns from it. */
struct waste_habit_sample {
    float x[WASTE_HABIT_FEATURES];
};

/* Experts a turn learns from, at most. */
static inline uint32_t waste_habit_sample_size(uint32_t experts)
{
    return (experts + WASTE_HABIT_PARTS - 1) / WASTE_HABIT_PARTS;
}

static inline uint64_t waste_habit_notes_bytes(uint32_t layers, uint32_t experts, uint32_t top_k)
{
    return sizeof(struct waste_habit_notes) +
           (uint64_t)layers *
               (experts * (sizeof(struct waste_habit_expert) + sizeof(float) + sizeof(uint32_t)) +
                waste_habit_sample_size(experts) * sizeof(struct waste_habit_sample) +
                sizeof(uint32_t) + (uint64_t)WASTE_HABIT_WINDOW * top_k * sizeof(uint16_t));
}

#endif
