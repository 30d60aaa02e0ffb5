/* What the files of the command `convert` share. */
#ifndef WASTE_FETCHER_CONVERT_INT_H
#define WASTE_FETCHER_CONVERT_INT_H

#include "fetcher/convert.h"
#include "fetcher/ledger.h"
#include "fetcher/options.h"

/* A unit is what is lost at most when a run is broken off: 0 all tensors of no layer, 1 + l layer
 * l. */
#define WASTE_UNIT_NONE UINT32_MAX

struct waste_conversion {
    const struct waste_fetch_args *args;
    struct waste_release release;
    struct waste_convert c;
    struct waste_ledger ledger;
    uint32_t *unit;       /* [release.tensors] */
    uint8_t *needs;       /* [layers + 1][release.shards]: a unit reads from a shard */
    uint32_t first, last; /* layers to convert */
    uint32_t skipped;     /* tensors of layers behind the last */
    uint64_t read_bytes;  /* of the units to convert */
    double seconds;
    bool was_whole; /* before this run */
    uint32_t at;    /* the unit at work */
    char what[64];  /* the same, for the progress line */
};

/* Reads what there is to convert and checks it. `cached`: headers of shards that may be gone, or
 * NULL. 0, or -1 with the reason printed. */
int waste_conversion_open(struct waste_conversion *v, const char *cached);

/* Whether a unit is done, and whether this run is to do it. */
bool waste_conversion_is_done(const struct waste_conversion *v, uint32_t unit);
bool waste_conversion_is_wanted(const struct waste_conversion *v, uint32_t unit);

/* Bytes a unit reads and writes. */
uint64_t waste_conversion_reads(const struct waste_conversion *v, uint32_t unit);
uint64_t waste_conversion_writes(const struct waste_conversion *v, uint32_t unit);

/* Fills `needs` from `unit`. 0, or -1 with the reason printed. */
int waste_conversion_index(struct waste_conversion *v);

/* The unit to convert next: the one with the fewest bytes in shards that are not here, of equals
 * the first. WASTE_UNIT_NONE: none is left. */
uint32_t waste_conversion_next(const struct waste_conversion *v);

/* Opens the shards a unit needs, and has those fetched that the one after it will need. */
int waste_conversion_want(struct waste_conversion *v, uint32_t unit);

/* Lets go of the shards that nothing more is to be read from. */
int waste_conversion_release(struct waste_conversion *v);

/* Most bytes that OUT needs at a time beyond what is there: with shards that are staged, and
 * counting what --reclaim frees on the same file system. */
uint64_t waste_conversion_space(const struct waste_conversion *v);

/* --dry-run. 0, or -1 with the reason printed. */
int waste_conversion_show_plan(const struct waste_conversion *v);

/* That there was nothing to do. */
void waste_conversion_already_there(const struct waste_conversion *v);

/* On stdout, as --json and --quiet say. */
void waste_conversion_summary(const struct waste_conversion *v);

#endif
