/* Completion and the man page, written from a program's tables at build time. */
#ifndef WASTE_OPTIONS_DOCS_H
#define WASTE_OPTIONS_DOCS_H

#include "options/options.h"

/* main() of a program that writes them: argv[1] is bash, zsh or man, which goes to stdout.
 * Returns the exit code. */
int waste_docs_main(const struct waste_program *p, int argc, char **argv);

#endif
