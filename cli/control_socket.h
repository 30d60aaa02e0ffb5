/*
 * The door to a running pipeline: a SOCK_SEQPACKET socket, mode 0600, in a directory of mode 0700.
 * Only the same user (and root) is answered. One message is one command, one message the answer
 * ("ok ...", "error ..." or, for what no pipeline would do, "wrong ..."):
 *
 *     hello              ok MODEL-DIR, with a read-only descriptor of the control segment
 *     restart STAGE|all  ok, once the new process runs
 *     stop               ok
 *     budget BYTES       ok SLOTS TOTAL-BYTES; the cache follows
 */
#ifndef WASTE_CLI_CONTROL_SOCKET_H
#define WASTE_CLI_CONTROL_SOCKET_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reader/container.h"

struct waste_supervisor;
struct waste_control_socket;

enum {
    WASTE_SOCKET_CLIENTS = 8,
    WASTE_SOCKET_FDS = WASTE_SOCKET_CLIENTS + 1,
    WASTE_SOCKET_MESSAGE = 4096,
    WASTE_SOCKET_DIRS = 2
};

/*
 * Candidates for the directory, best first: $XDG_RUNTIME_DIR/waste, /tmp/waste-<uid>. Returns false
 * when there is no number `index` (or it would be too long).
 */
bool waste_socket_dir(unsigned index, char *out, size_t room);

/* The directory is ours alone: owner, mode 0700, no link. Creates it if asked. 0 or -errno. */
int waste_socket_check_dir(const char *dir, bool create);

/* 0 or -errno with err. */
int waste_control_socket_open(struct waste_supervisor *s, struct waste_control_socket **out,
                              struct waste_error *err);
void waste_control_socket_close(struct waste_control_socket *cs); /* NULL is fine */

/* The supervisor's poll loop: entries to poll (at most WASTE_SOCKET_FDS; returns how many), and
 * what to do after. */
unsigned waste_control_socket_poll(struct waste_control_socket *cs, struct pollfd *fds);
void waste_control_socket_work(struct waste_control_socket *cs, const struct pollfd *fds,
                               unsigned count);

#endif
