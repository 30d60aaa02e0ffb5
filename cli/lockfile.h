/*
 * A file that says, by being locked, that somebody is at something. The kernel lets go of it when
 * its owner dies. Any thread.
 */
#ifndef WASTE_CLI_LOCKFILE_H
#define WASTE_CLI_LOCKFILE_H

/*
 * Makes PATH (0600) if it is not there and locks it. Its owner may remove or rename it before
 * letting go: a lock counts only while the name leads to what is locked. Something else of that
 * name (a link, a FIFO, a second name of a file) is removed. A descriptor to write with, or -errno;
 * -EWOULDBLOCK: somebody else has it.
 */
int waste_lockfile_open(const char *path);

#endif
