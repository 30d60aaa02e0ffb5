/*
 * The state of the pipeline's conversation, as snapshots take it out and put it back. One thread
 * for what writes; waste_state_take may run beside compute.
 */
#ifndef WASTE_CLI_STATE_H
#define WASTE_CLI_STATE_H

#include "cli/pipeline.h"
#include "cli/snapshot.h"

void waste_state_shape(const struct waste_model *model, struct waste_snapshot_shape *out);

/* Where the segment has it: the rows, and one bank. */
void waste_state_place(const struct waste_pipeline *p, uint32_t bank,
                       struct waste_snapshot_place *out);

/*
 * Copies the bank of the last commit [bank_bytes of the shape] while compute runs. Compute writes
 * to that bank from the commit after it on, so the copy is whole if the commit word is still the
 * same afterwards: then true, and *commit is that word. The rows below its position need no copy:
 * they stay as they are until a restore or a reset.
 */
bool waste_state_take(const struct waste_pipeline *p, char *bank, uint64_t *commit);

#endif
