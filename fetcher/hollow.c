#include "fetcher/hollow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/io.h"
#include "fetcher/record.h"
#include "reader/container.h"

static int make_hole(int dir, const char *path, const char *name, uint64_t bytes)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    int e = fd < 0 || ftruncate(fd, (off_t)bytes) ? errno : 0;
    if (fd >= 0)
        close(fd);
    return e ? waste_fetch_fail("cannot make %s/%s of %llu bytes: %s", path, name,
                                (unsigned long long)bytes, strerror(e))
             : 0;
}

int waste_hollow_make(const struct waste_plan *p, const struct waste_shape *s, int dir,
                      const char *path)
{
    uint8_t header[16];
    if (make_hole(dir, path, "trunk.bin", p->trunk_bytes) ||
        make_hole(dir, path, "codebooks.bin", p->codebook_bytes))
        return -1;
    int fd = openat(dir, "codebooks.bin", O_WRONLY | O_CLOEXEC), e = fd < 0 ? -errno : 0;
    for (uint32_t i = 0; i < p->books && !e; i++) {
        waste_book_header(header, p, s, i);
        e = waste_io_pwrite(fd, header, sizeof(header), i * (uint64_t)waste_book_bytes(p));
    }
    if (fd >= 0)
        close(fd);
    return e ? waste_fetch_fail("cannot write %s/codebooks.bin: %s", path, strerror(-e)) : 0;
}

static int fill_place(const struct waste_plan *p, const struct waste_shape *s, int dir,
                      const char *path)
{
    int rc = waste_hollow_make(p, s, dir, path);
    for (uint32_t l = s->dense_layers; l < s->layers && rc == 0; l++) {
        char bank[32];
        waste_bank_name(bank, l);
        rc = make_hole(dir, path, bank, p->bank_bytes);
    }
    char *text = rc ? NULL : waste_plan_manifest(p, s, NULL);
    if (rc == 0)
        rc = text ? waste_io_write_file(dir, "manifest.json", text, strlen(text))
                  : waste_fetch_fail("out of memory");
    free(text);
    return rc;
}

/* A run that was killed may have left it, too. */
static void remove_place(const struct waste_shape *s, int parent)
{
    static const char *const files[] = {"trunk.bin", "codebooks.bin", "manifest.json",
                                        "manifest.json.tmp"};
    int dir = openat(parent, WASTE_HOLLOW_PLACE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        unlinkat(dir, files[i], 0);
    for (uint32_t l = s->dense_layers; l < s->layers; l++) {
        char bank[32];
        waste_bank_name(bank, l);
        unlinkat(dir, bank, 0);
    }
    close(dir);
    unlinkat(parent, WASTE_HOLLOW_PLACE, AT_REMOVEDIR);
}

int waste_hollow_check(const struct waste_plan *p, const struct waste_shape *s, int dir,
                       const char *path, const char *source, struct waste_model **model)
{
    char place[4096];
    struct waste_error err;
    remove_place(s, dir);
    snprintf(place, sizeof(place), "%s/" WASTE_HOLLOW_PLACE, path);
    if (mkdirat(dir, WASTE_HOLLOW_PLACE, 0755))
        return waste_fetch_fail("cannot make %s: %s", place, strerror(errno));
    int inside = openat(dir, WASTE_HOLLOW_PLACE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = inside < 0 ? waste_fetch_fail("cannot open %s: %s", place, strerror(errno))
                        : fill_place(p, s, inside, place);
    if (inside >= 0)
        close(inside);
    if (rc == 0 && waste_container_open(place, model, &err))
        rc =
            waste_fetch_fail("%s would make a container that cannot be read: %s", source, err.text);
    remove_place(s, dir);
    return rc;
}
