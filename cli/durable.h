/*
 * A conversation that outlives waste-run: `--session FILE`.
 *
 * FILE is a snapshot (snapshot.h) whose text is JSON: what `render` takes, and how the newest reply
 * came about, so that one that was cut off goes on with the very tokens it would have had. FILE.old
 * is the save before it, and what is gone on from if FILE is damaged. FILE.lock is locked while a
 * waste-run has the conversation; the kernel lets go of it when that dies. One thread; functions
 * print their own one line and return an exit code.
 */
#ifndef WASTE_CLI_DURABLE_H
#define WASTE_CLI_DURABLE_H

#include <limits.h>

#include "cli/autosave.h"
#include "cli/talk.h"

/* The newest reply, as it was asked for. */
struct waste_asked {
    bool exists;
    bool open;                      /* it was cut off by an end of the program, and is to go on */
    uint32_t turn, from;            /* log: where its turn's tokens begin, where itself does */
    struct waste_marks marks;       /* of the turn\'s tokens */
    uint32_t n;                     /* tokens it may have */
    struct waste_sampling how;      /* without end tokens */
    enum waste_reply_status status; /* !open: why it ended */
};

struct waste_durable {
    char path[PATH_MAX], lock_path[PATH_MAX + 8];
    bool used; /* there is a --session, and it is locked */
    int lock_fd;
    bool raw; /* tokens alone, no messages */
    struct waste_asked asked;
    struct waste_arithmetic arithmetic, its; /* ours; what the file was computed with */
    char its_cpu[16];
    struct waste_snapshot_file *file; /* what is gone on from; NULL: a new conversation */
    bool damaged;                     /* FILE is: it is no older file worth keeping */
    struct waste_autosave *autosave;
};

/* --session: locks and reads it, fills the talk. Without the option: 0, and all else does nothing.
 * `e` is loaded. */
int waste_durable_open(struct waste_durable *d, struct waste_engine *e, struct waste_talk *t);

/* As waste_engine_fit, for an open reply that goes on. */
int waste_durable_fit(const struct waste_durable *d, const struct waste_engine *e,
                      uint32_t *out_ctx);

/* Of an open reply whose prompt was not consumed to its end: appends the tokens that are left, with
 * their marks. Before waste_durable_start. 0 or -ENOMEM. */
int waste_durable_prompt(const struct waste_durable *d, struct waste_ids *turn,
                         struct waste_marks *marks);

/* After the pipeline's start: puts the state back, with `known` tokens in the log (0: none is to be
 * put back), and saves from now on. */
int waste_durable_start(struct waste_durable *d, struct waste_engine *e, size_t known);

/* Before a request: how its reply is asked for. */
void waste_durable_ask(struct waste_durable *d, struct waste_engine *e, const struct waste_talk *t,
                       const struct waste_asked *asked);

/* The reply is over, or the past was changed. */
void waste_durable_rest(struct waste_durable *d, struct waste_engine *e, const struct waste_talk *t,
                        enum waste_reply_status status);

/* Saves the last of it; has no effect the second time. Before waste_engine_finish. Returns
 * WASTE_EXIT_UNSAVED if FILE is not what the conversation is, which has been said. */
int waste_durable_finish(struct waste_durable *d, struct waste_engine *e);

#endif
