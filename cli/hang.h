/* What the kernel knows of a stage that gives no sign of life. */
#ifndef WASTE_CLI_HANG_H
#define WASTE_CLI_HANG_H

#include <stddef.h>
#include <sys/types.h>

#include "shm/control.h"

/*
 * One line: the stage's place in the work (its record, which may be nonsense) and, of its main
 * thread, state, kernel function, system call and kernel stack, as far as this user may read them.
 * Never blocks on the stage.
 */
void waste_hang_describe(const struct waste_stage *record, pid_t pid, char *out, size_t room);

#endif
