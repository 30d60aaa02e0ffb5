/*
 * Which drive a file lies on. Two files share a drive if they share a device; partitions count as
 * the disk they are on, where /sys says so.
 */
#ifndef WASTE_READER_DRIVES_H
#define WASTE_READER_DRIVES_H

#include <stdint.h>

enum { WASTE_DRIVES_MAX = 16, WASTE_DRIVE_NAME = 32 };

struct waste_drive {
    uint64_t dev; /* st_dev, of the whole disk where that can be known */
    char name[WASTE_DRIVE_NAME];
    uint32_t files;
    uint64_t bytes;
};

/*
 * Fills drive[WASTE_DRIVES_MAX] and of_file[count] (which drive, in the order of first appearance)
 * and returns how many drives there are. The last one takes what is too many. A file that cannot be
 * asked counts as the first drive's.
 */
uint32_t waste_drives_find(const int *files, uint32_t count, struct waste_drive *drive,
                           uint32_t *of_file);

#endif
