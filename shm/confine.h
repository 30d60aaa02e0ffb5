/*
 * What a running stage does not need is taken away from it, so that one that somebody has taken
 * over (through a container file, say) can do little: it opens no file, no socket, starts no
 * program, signals nobody.
 *
 * Called once by each stage, when its files are open, its segments mapped and its threads running.
 * A system call that is not on the stage's list fails with EPERM; of those that nobody makes by
 * accident the first one is remembered and said in the log by waste_confine_report(). A thread that
 * makes one of these with SIGSYS blocked dies of it, and the stage with it.
 *
 * Filters need libseccomp at build time. Under a sanitizer there are none: its runtime opens files
 * and maps memory as it pleases.
 */
#ifndef WASTE_SHM_CONFINE_H
#define WASTE_SHM_CONFINE_H

#include "shm/control.h"

/*
 * No new privileges, no inherited descriptors of segments but the reader's of the cache (the
 * mappings stay, and those that are read-only cannot be made writable), the stage's filter on all
 * threads. Says in `log` when the kernel refuses. `dir_fd`, if not negative: a directory in which
 * the stage may create files that are not there yet (O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC), and
 * rename within it.
 */
void waste_confine(enum waste_stage_id stage, int dir_fd, struct waste_log *log);

/* Owner of the log only, now and then: a line if a system call was refused since. Costs a load. */
void waste_confine_report(enum waste_stage_id stage, struct waste_log *log);

#endif
