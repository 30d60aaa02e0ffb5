/* What the supervisor repairs in shared memory after it has reaped a stage. See DESIGN, "When
 * something dies". */
#ifndef WASTE_CLI_REPAIR_H
#define WASTE_CLI_REPAIR_H

#include "cli/pipeline.h"

/* `stage` is dead and reaped; the others may be running. */
void waste_repair(struct waste_pipeline *p, enum waste_stage_id stage);

#endif
