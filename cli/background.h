/* Threads of waste-run besides the main one, which alone gets signals. */
#ifndef WASTE_CLI_BACKGROUND_H
#define WASTE_CLI_BACKGROUND_H

#include <pthread.h>

/* 0 or -errno. */
int waste_background_start(pthread_t *out, void *(*run)(void *arg), void *arg);

/* The calling thread can wait: whatever else wants to run goes first. */
void waste_background_nice(void);

#endif
