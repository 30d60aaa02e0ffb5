/* The directory a command makes: new, or left by a broken run of the same command. */
#ifndef WASTE_FETCHER_OUTDIR_H
#define WASTE_FETCHER_OUTDIR_H

#include <stdbool.h>
#include <stdint.h>

/* What is made from what stands in the file `name`, which is written first; `last` is written
 * last. */
struct waste_outdir {
    const char *path, *name, *recipe, *last;
};

/* Opens the directory, making it if need be. *whole: it was made by this very recipe to the end.
 * Any other content is refused. A descriptor, or -1 with the reason printed. */
int waste_outdir_open(const struct waste_outdir *out, bool *whole);

/* Checks that `bytes` fit in, counting what a broken run left there, and writes the recipe. 0, or
 * -1 with the reason printed. */
int waste_outdir_begin(const struct waste_outdir *out, int dir, uint64_t bytes);

#endif
