/* The file's header, shared by snapshot_write.c and snapshot_read.c. */
#ifndef WASTE_CLI_SNAPSHOT_INT_H
#define WASTE_CLI_SNAPSHOT_INT_H

#include <stddef.h>

#include "cli/snapshot.h"

#define WASTE_SNAPSHOT_MAGIC "wstsnap\n"
enum { WASTE_SNAPSHOT_VERSION = 1, WASTE_SNAPSHOT_BLOCK = 1 << 18 };

enum waste_snapshot_section {
    WASTE_SNAPSHOT_TOKENS,
    WASTE_SNAPSHOT_TEXT,
    WASTE_SNAPSHOT_BANK,
    WASTE_SNAPSHOT_ROWS,
    WASTE_SNAPSHOT_SECTIONS,
};

struct waste_snapshot_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t fingerprint;
    uint64_t bank_bytes;
    uint32_t mla_layers, row_bytes;
    uint32_t tokens, position;
    uint64_t text_bytes;
    struct {
        uint64_t packed_bytes; /* in the file, one frame behind the other */
        uint32_t crc;          /* crc32 of them */
        uint32_t pad;
    } section[WASTE_SNAPSHOT_SECTIONS];
    uint32_t pad;
    uint32_t crc; /* crc32 of all before it */
};
_Static_assert(sizeof(struct waste_snapshot_header) == 128, "the header is 128 bytes on disk");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are written as memory is");

#endif
