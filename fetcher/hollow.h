/* A container without weights: every file in its full size, as holes. */
#ifndef WASTE_FETCHER_HOLLOW_H
#define WASTE_FETCHER_HOLLOW_H

#include "fetcher/plan.h"
#include "fetcher/shape.h"

struct waste_model;

/* Where it is made for the reader to look at, in the directory of the container to come. */
#define WASTE_HOLLOW_PLACE ".check"

/* trunk.bin and codebooks.bin in directory `path`, open as `dir`; holes where nothing was written
 * yet. 0, or -1 with the reason printed; the same for the next. */
int waste_hollow_make(const struct waste_plan *plan, const struct waste_shape *shape, int dir,
                      const char *path);

/* Asks the reader's own parser, before hours go by, whether it will take the container that `plan`
 * makes of `source` in directory `path`. Leaves nothing there. *model is how the
 * reader sees it, to be freed. */
int waste_hollow_check(const struct waste_plan *plan, const struct waste_shape *shape, int dir,
                       const char *path, const char *source, struct waste_model **model);

#endif
