/* The commands of waste-fetch. Each returns the exit code, or -1: that of what was printed
 * (io.h). */
#ifndef WASTE_FETCHER_FETCH_H
#define WASTE_FETCHER_FETCH_H

#include "fetcher/options.h"

int waste_fetch_get(const struct waste_fetch_args *args);
int waste_fetch_convert(const struct waste_fetch_args *args);
int waste_fetch_merge(const struct waste_fetch_args *args);
int waste_fetch_synth(const struct waste_fetch_args *args);
int waste_fetch_verify(const struct waste_fetch_args *args);
int waste_fetch_seal(const struct waste_fetch_args *args);
int waste_fetch_diskbench(const struct waste_fetch_args *args);

#endif
