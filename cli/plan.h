/*
 * The memory budget: control + trunk + session + every process's own memory + cache.
 *
 * floor = all but the cache, plus 2 x top_k slots. The default is the largest of floor + 3, 2, 1, 0
 * token working sets (top_k slots in every MoE layer) that fits 7/8 of what may be had. The cache
 * is never larger than all experts. States kept in memory come on top of the default; of a budget
 * that was given they get what is over, or 1/8 of the cache above the floor. A budget under the
 * floor is refused with the number that would do.
 */
#ifndef WASTE_CLI_PLAN_H
#define WASTE_CLI_PLAN_H

#include <stdint.h>

#include "cli/machine.h"
#include "reader/container.h"
#include "shm/control.h"

#define WASTE_BUDGET_MAX UINT64_MAX /* "max": 7/8 of what may be had */

/* A SIZE or "max". 0, -EINVAL, or -ERANGE. */
int waste_plan_parse_budget(const char *text, uint64_t *bytes);

struct waste_plan_input {
    const struct waste_model *model;
    const struct waste_options *options; /* threads, ctx, lookahead */
    uint64_t budget_bytes;               /* 0: the default; or WASTE_BUDGET_MAX */
    uint64_t own_bytes;                  /* waste-run's own memory, tokenizer included */
    uint64_t prefix_bytes;               /* wished for kept states (cli/prefix.h) */
    const struct waste_machine_memory *memory;
};

struct waste_plan {
    uint64_t control_bytes, trunk_bytes, session_bytes, cache_bytes;
    uint64_t stage_bytes[WASTE_STAGE_COUNT]; /* private memory; 0: not started */
    uint32_t chunk;       /* tokens of a prompt computed together; 1: one by one */
    uint64_t chunk_bytes; /* of compute's memory, for that */
    uint64_t own_bytes;
    uint64_t prefix_bytes;  /* for kept states */
    uint64_t prefix_wish;   /* what they could use */
    uint64_t floor_bytes;   /* the least budget that works */
    uint64_t budget_bytes;  /* asked for, or the default */
    uint64_t total_bytes;   /* what will be used: <= budget */
    uint64_t allowed_bytes; /* 7/8 of what may be had */
    uint32_t slots, floor_slots, working_set_slots, expert_slots;
    uint32_t room_slots; /* that the segments have room for, so that the budget can grow later;
                            costs address space, and a descriptor each */
    bool budget_given, budget_max;
};

/* Does the sums. 0, or -EINVAL with one line in err when the budget is under the floor, no budget
 * fits or the memory limit is lower than what would be used. */
int waste_plan_make(const struct waste_plan_input *in, struct waste_plan *out,
                    struct waste_error *err);

/*
 * Of a plan that was made and runs: the same sums for another budget. At most room_slots; kept
 * states give way, so the floor is the plan's. 0, or -EINVAL with one line in err when the budget
 * is under it.
 */
int waste_plan_change(struct waste_plan *p, const struct waste_model *model, uint64_t budget_bytes,
                      struct waste_error *err);

/* What waste-run itself takes, with a tokenizer of that size. The same for the same model, so that
 * a floor that was shown once is a budget that works. */
uint64_t waste_plan_own_bytes(const struct waste_model *model, uint64_t tokenizer_file_bytes);

#endif
