/* The reader's own parser says, before hours go by, whether it will take the container: it is shown
 * the manifest to come, and holes in place of the weights. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/convert_int.h"
#include "fetcher/io.h"
#include "fetcher/record.h"

static const char place[] = ".check";

static int make_hole(int dir, const char *name, uint64_t bytes)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    int e = fd < 0 || ftruncate(fd, (off_t)bytes) ? errno : 0;
    if (fd >= 0)
        close(fd);
    return e ? waste_fetch_fail("cannot make %s/%s: %s", place, name, strerror(e)) : 0;
}

int waste_convert_hollow(const struct waste_convert *c, int dir)
{
    const struct waste_plan *p = &c->plan;
    uint8_t header[16];
    if (make_hole(dir, "trunk.bin", p->trunk_bytes) ||
        make_hole(dir, "codebooks.bin", p->codebook_bytes))
        return -1;
    int fd = openat(dir, "codebooks.bin", O_WRONLY | O_CLOEXEC), e = fd < 0 ? -errno : 0;
    for (uint32_t i = 0; i < p->books && !e; i++) {
        waste_book_header(header, p, &c->shape, i);
        e = waste_io_pwrite(fd, header, sizeof(header), i * (uint64_t)waste_book_bytes(p));
    }
    if (fd >= 0)
        close(fd);
    return e ? waste_fetch_fail("cannot write codebooks.bin: %s", strerror(-e)) : 0;
}

static int fill_place(const struct waste_convert *c, int dir)
{
    int rc = waste_convert_hollow(c, dir);
    for (uint32_t l = c->shape.dense_layers; l < c->shape.layers && rc == 0; l++) {
        char bank[32];
        waste_bank_name(bank, l);
        rc = make_hole(dir, bank, c->plan.bank_bytes);
    }
    char *text = rc ? NULL : waste_plan_manifest(&c->plan, &c->shape, NULL);
    if (rc == 0)
        rc = text ? waste_io_write_file(dir, "manifest.json", text, strlen(text))
                  : waste_fetch_fail("out of memory");
    free(text);
    return rc;
}

/* A run that was killed may have left it, too. */
static void remove_place(const struct waste_convert *c)
{
    static const char *const files[] = {"trunk.bin", "codebooks.bin", "manifest.json",
                                        "manifest.json.tmp"};
    int dir = openat(c->dir, place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        unlinkat(dir, files[i], 0);
    for (uint32_t l = c->shape.dense_layers; l < c->shape.layers; l++) {
        char bank[32];
        waste_bank_name(bank, l);
        unlinkat(dir, bank, 0);
    }
    close(dir);
    unlinkat(c->dir, place, AT_REMOVEDIR);
}

int waste_convert_check(const struct waste_convert *c)
{
    char path[4096];
    struct waste_model *model = NULL;
    struct waste_error err;
    remove_place(c);
    snprintf(path, sizeof(path), "%s/%s", c->path, place);
    if (mkdirat(c->dir, place, 0755))
        return waste_fetch_fail("cannot make %s: %s", path, strerror(errno));
    int dir = openat(c->dir, place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = dir < 0 ? waste_fetch_fail("cannot open %s: %s", path, strerror(errno))
                     : fill_place(c, dir);
    if (dir >= 0)
        close(dir);
    if (rc == 0 && waste_container_open(path, &model, &err))
        rc = waste_fetch_fail("%s would make a container that cannot be read: %s", c->release->path,
                              err.text);
    free(model);
    remove_place(c);
    return rc;
}
