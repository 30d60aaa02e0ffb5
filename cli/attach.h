/* Reaching the running pipelines of this user: the other end of cli/control_socket.h. */
#ifndef WASTE_CLI_ATTACH_H
#define WASTE_CLI_ATTACH_H

#include <limits.h>

#include "cli/control_socket.h"
#include "shm/control.h"
#include "shm/segment.h"

struct waste_attached {
    int fd; /* the socket */
    int32_t pid;
    char model_dir[PATH_MAX];
    struct waste_mapping map; /* of the control segment, read-only */
    struct waste_shm shm;
};

/* The pids of all pipelines that answer. Sockets nobody listens at are removed. malloc'd; 0 or
 * -ENOMEM. */
int waste_attach_list(int32_t **out, size_t *out_count);

/* Connects to the pipeline of `pid` (0: the only one there is) and maps what it hands out. 0 or an
 * exit code with err. */
int waste_attach_open(uint32_t pid, struct waste_attached *out, struct waste_error *err);
void waste_attach_close(struct waste_attached *a);

/* Sends a command and waits for its answer. 0 for "ok", else an exit code with err. */
int waste_attach_command(struct waste_attached *a, const char *command, struct waste_error *err);

#endif
