/* The commands of waste-fetch. Each gets its own name as argv[0] and returns the exit code: 0 done,
 * 1 failed, 2 usage. */
#ifndef WASTE_FETCHER_FETCH_H
#define WASTE_FETCHER_FETCH_H

int waste_fetch_synth(int argc, char **argv);
int waste_fetch_diskbench(int argc, char **argv);

#endif
