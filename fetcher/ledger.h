/*
 * What of a conversion is done. The manifest is the ledger: while layers are missing it lists what
 * is there and has the key "partial"; it is replaced, atomically and durably, after the data it
 * speaks of.
 */
#ifndef WASTE_FETCHER_LEDGER_H
#define WASTE_FETCHER_LEDGER_H

#include "fetcher/plan.h"

struct waste_ledger {
    const struct waste_plan *plan;
    const struct waste_shape *shape;
    int dir;
    struct waste_plan_done done;
};

/* Reads what dir/manifest.json says; `path` is the directory's, for messages. A manifest that a
 * conversion with this plan does not publish is refused; a layer whose bank is not there in full is
 * not done. 0, or -1 with the reason printed. */
int waste_ledger_open(struct waste_ledger *ledger, int dir, const char *path,
                      const struct waste_plan *plan, const struct waste_shape *shape);
void waste_ledger_close(struct waste_ledger *ledger);

bool waste_ledger_complete(const struct waste_ledger *ledger);

/* Publishes `done`; not for a complete one, whose manifest is published after all else. */
int waste_ledger_publish(const struct waste_ledger *ledger);

#endif
