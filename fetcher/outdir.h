/* The directory a command makes: new, or left by a broken run of the same command. */
#ifndef WASTE_FETCHER_OUTDIR_H
#define WASTE_FETCHER_OUTDIR_H

#include <stdbool.h>
#include <stdint.h>

/* What is made from what stands in the file `name`, which is written first; `last` is written
 * last. */
struct waste_outdir {
    const char *path, *name, *recipe, *last;
    bool fresh;     /* waste_outdir_open() made it */
    bool whole;     /* it was made by this very recipe to the end, before */
    uint64_t bytes; /* the command's: what was written, and how long that took */
    double seconds;
};

/* Opens the directory, making it if need be, and locks it while the descriptor is open. Any other
 * content is refused, and a directory that another process is at work in. A descriptor, or -1 with
 * the reason printed. */
int waste_outdir_open(struct waste_outdir *out);

/* Checks that `bytes` fit in, counting what a broken run left there, and writes the recipe. 0, or
 * -1 with the reason printed. */
int waste_outdir_begin(const struct waste_outdir *out, int dir, uint64_t bytes);

/* After a failure: a directory that was made and got nothing goes again. */
void waste_outdir_abandon(const struct waste_outdir *out);

/* Says on stdout what was made, or that it was there. With `json` an object: "container" (`kind`)
 * is the path. 0, or -1 with the reason printed. */
int waste_outdir_report(const struct waste_outdir *out, const char *kind, bool json, bool quiet);

#endif
