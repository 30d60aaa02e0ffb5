/* Writing integrity.json. */
#ifndef WASTE_FETCHER_SEAL_H
#define WASTE_FETCHER_SEAL_H

#include <stdbool.h>
#include <stdint.h>

/*
 * What integrity.json must say of the container in DIR whose manifest is (or will be) this text:
 * the sizes of its files, the checksums of pieces where the format wants them. Read with all cores
 * past the page cache. To be freed; NULL with the reason printed.
 */
char *waste_seal_text(const char *dir, const char *manifest, uint32_t threads, bool quiet);

/* The same, written to DIR/integrity.json whole: before that manifest is published, so that what
 * has a manifest is sealed. 0, or -1 with the reason printed. */
int waste_seal_write(const char *dir, const char *manifest, uint32_t threads, bool quiet);

#endif
