/*
 * SIGINT, SIGTERM and SIGHUP: the first asks for a clean end, the second ends at once with exit
 * code 128 + its number (the stages are set to die with us). The handler only sets flags. SIGQUIT
 * and what else ends a program by default still do, but leave no file behind.
 */
#ifndef WASTE_CLI_SIGNALS_H
#define WASTE_CLI_SIGNALS_H

#include <stdbool.h>

void waste_signals_install(void);

/* A file that goes when a signal ends the program at once (the path is copied, at most
 * WASTE_SIGNALS_PATH bytes); NULL: none any more. Main thread. */
enum { WASTE_SIGNALS_PATH = 128 };
void waste_signals_unlink(const char *path);

/* An end was asked for: by a signal, or by waste_signals_raise (any thread). */
bool waste_signals_ended(void);
void waste_signals_raise(void);

/* Of those, by anything but SIGINT: the program is to end, not a reply. */
bool waste_signals_terminated(void);

/* Chat: Ctrl-C ends a reply, not the program. Forgets SIGINT alone; true if the end is still
 * wanted.
 */
bool waste_signals_forget_interrupt(void);

#endif
