/*
 * What the logs hold that the user must hear of without looking there: something of his was lost or
 * is not used (WASTE_LOG_LOSS).
 */
#ifndef WASTE_CLI_LOSSES_H
#define WASTE_CLI_LOSSES_H

#include "shm/control.h"

/*
 * Calls `tell` with each such line of log[0] to log[count - 1] that is still there, from number
 * next[i] on, oldest of each log first; next[i] is behind the last one afterwards. What a log said
 * before, a stage that was started again for instance, is passed over. Any process; `text` is
 * valid during the call and may be no UTF-8.
 */
void waste_losses_each(const struct waste_log *log, int count, uint64_t *next,
                       void (*tell)(void *arg, const char *text), void *arg);

#endif
