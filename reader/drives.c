#include "reader/drives.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The disk of a partition, and its name. Without a /sys, or on a file system with a device number
 * of its own, the number is the name. */
static uint64_t whole_disk(uint64_t dev, char *name)
{
    char path[PATH_MAX + 16], real[PATH_MAX];
    unsigned ma, mi;

    snprintf(name, WASTE_DRIVE_NAME, "%u:%u", major(dev), minor(dev));
    snprintf(path, sizeof(path), "/sys/dev/block/%u:%u", major(dev), minor(dev));
    if (!realpath(path, real))
        return dev;
    snprintf(path, sizeof(path), "%s/partition", real);
    char *slash = strrchr(real, '/');
    if (access(path, F_OK) == 0 && slash) {
        *slash = '\0';
        snprintf(path, sizeof(path), "%s/dev", real);
        FILE *f = fopen(path, "re");
        if (f && fscanf(f, "%u:%u", &ma, &mi) == 2)
            dev = makedev(ma, mi);
        if (f)
            fclose(f);
        slash = strrchr(real, '/');
    }
    snprintf(name, WASTE_DRIVE_NAME, "%.*s", WASTE_DRIVE_NAME - 1, slash ? slash + 1 : real);
    return dev;
}

static uint32_t find(struct waste_drive *drive, uint32_t *count, uint64_t dev)
{
    char name[WASTE_DRIVE_NAME];
    uint64_t disk = whole_disk(dev, name);
    uint32_t d = 0;

    while (d < *count && drive[d].dev != disk)
        d++;
    if (d == WASTE_DRIVES_MAX)
        return d - 1;
    if (d == *count) {
        drive[d] = (struct waste_drive){.dev = disk};
        memcpy(drive[d].name, name, sizeof(name));
        (*count)++;
    }
    return d;
}

uint32_t waste_drives_find(const int *files, uint32_t count, struct waste_drive *drive,
                           uint32_t *of_file)
{
    uint64_t last_dev = 0;
    uint32_t drives = 0, last = 0;

    for (uint32_t i = 0; i < count; i++) {
        struct stat st;
        bool known = fstat(files[i], &st) == 0;
        if (known && (drives == 0 || st.st_dev != last_dev)) {
            last = find(drive, &drives, st.st_dev);
            last_dev = st.st_dev;
        }
        of_file[i] = known ? last : 0;
        if (drives == 0)
            drive[drives++] = (struct waste_drive){.name = "?"};
        drive[of_file[i]].files++;
        if (known)
            drive[of_file[i]].bytes += (uint64_t)st.st_size;
    }
    return drives;
}
