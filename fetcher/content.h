/* Whether a file may be what its name says, where no digest tells. */
#ifndef WASTE_FETCHER_CONTENT_H
#define WASTE_FETCHER_CONTENT_H

#include <stdint.h>

/* Why not, or NULL: of .safetensors the frame of the header, of .json the syntax. Any thread. */
const char *waste_content_fault(int fd, const char *name, uint64_t bytes);

#endif
