#include "reader/banks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* K3 has 92 banks; a shell gives 1024 descriptors, a service may give 64. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int open_bank(struct waste_banks *b, int dir_fd, const struct waste_bank *bank,
                     struct waste_error *err)
{
    int fd = openat(dir_fd, bank->file, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0 && errno == EINVAL)
        fd = openat(dir_fd, bank->file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return waste_error_set(err, -errno, "%s: cannot open: %s", bank->file, strerror(errno));
    /* buffered reads only: a record is read whole, its neighbours are other experts */
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    b->fd[b->count++] = fd;
    return 0;
}

int waste_banks_open(struct waste_banks *b, const char *dir, const struct waste_model *model,
                     struct waste_error *err)
{
    uint32_t layers = model->config.layers;
    int rc = 0;
    memset(b, 0, sizeof(*b));
    b->fd = malloc(layers * sizeof(*b->fd));
    b->of_layer = malloc(layers * sizeof(*b->of_layer));
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!b->fd || !b->of_layer)
        rc = waste_error_set(err, -ENOMEM, "out of memory");
    else if (dir_fd < 0)
        rc = waste_error_set(err, -errno, "%s: cannot open: %s", dir, strerror(errno));
    else
        raise_descriptor_limit();
    for (uint32_t l = 0; l < layers && rc == 0; l++) {
        const struct waste_layer *layer = waste_model_layer(model, l);
        b->of_layer[l] = layer->is_moe ? b->count : UINT32_MAX;
        if (layer->is_moe)
            rc = open_bank(b, dir_fd, &layer->bank, err);
    }
    if (dir_fd >= 0)
        close(dir_fd);
    if (rc < 0)
        waste_banks_close(b);
    return rc;
}

void waste_banks_close(struct waste_banks *b)
{
    for (uint32_t i = 0; i < b->count; i++)
        close(b->fd[i]);
    free(b->fd);
    free(b->of_layer);
    memset(b, 0, sizeof(*b));
}

bool waste_banks_is_direct(const struct waste_banks *b, uint32_t file)
{
    int flags = fcntl(b->fd[file], F_GETFL);
    return flags >= 0 && flags & O_DIRECT;
}

uint32_t waste_banks_direct(const struct waste_banks *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->count; i++)
        n += waste_banks_is_direct(b, i);
    return n;
}

void waste_banks_drop_direct(struct waste_banks *b, uint32_t file)
{
    int flags = fcntl(b->fd[file], F_GETFL);
    if (flags >= 0)
        fcntl(b->fd[file], F_SETFL, flags & ~O_DIRECT);
}
