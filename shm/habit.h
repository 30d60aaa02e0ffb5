/*
 * What the reader has learned about which experts are chosen (reader/habit.h says how it is used).
 * It lies in the control segment, so that a reader's successor goes on where it ended. Reader only.
 *
 *     struct waste_habit_notes | struct waste_habit_expert [layers * experts]
 *     | uint32_t turns [layers] | uint16_t history [layers][WASTE_HABIT_WINDOW][top_k]
 */
#ifndef WASTE_SHM_HABIT_H
#define WASTE_SHM_HABIT_H

#include <stdint.h>

enum { WASTE_HABIT_WINDOW = 256, WASTE_HABIT_COUNTS = 3, WASTE_HABIT_AGES = 6 };

enum waste_habit_feature {
    WASTE_HABIT_BASE,
    WASTE_HABIT_COUNT,
    WASTE_HABIT_FOLLOWS = WASTE_HABIT_COUNT + WASTE_HABIT_COUNTS, /* by shared experts */
    WASTE_HABIT_FOLLOWS_CLOSELY,                                  /* by their fourth power */
    WASTE_HABIT_AGE,
    WASTE_HABIT_FEATURES = WASTE_HABIT_AGE + WASTE_HABIT_AGES,
};

struct waste_habit_notes {
    uint32_t begun; /* 1: the rest means something; 0: a new segment */
    uint32_t pad;
    float weight[WASTE_HABIT_FEATURES];
};

struct waste_habit_expert {
    float count[WASTE_HABIT_COUNTS]; /* decayed share of turns that chose it */
    float x[WASTE_HABIT_AGE];        /* features of the newest chance, but the age */
    float chance;                    /* to be chosen at the layer's next turn */
    uint32_t age;                    /* turns since it was chosen, 1: at the newest; 0: never */
};

static inline uint64_t waste_habit_notes_bytes(uint32_t layers, uint32_t experts, uint32_t top_k)
{
    return sizeof(struct waste_habit_notes) +
           (uint64_t)layers * (experts * sizeof(struct waste_habit_expert) + sizeof(uint32_t) +
                               (uint64_t)WASTE_HABIT_WINDOW * top_k * sizeof(uint16_t));
}

#endif
