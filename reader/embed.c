#include "reader/embed.h"
#include "reader/read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm/inject.h"

enum { PATH_BYTES = 4096 };

static const struct waste_tensor *tensor(const struct waste_shm *shm)
{
    return waste_model_tensor(shm->model, shm->model->tensor[WASTE_M_EMBED]);
}

int waste_embed_open(struct waste_embed *e, const struct waste_shm *shm, const char *dir,
                     struct waste_error *err)
{
    char path[PATH_BYTES];
    const struct waste_tensor *t = tensor(shm);
    uint64_t row = t->row_bytes + 2 * (uint64_t)t->groups;
    e->fd = -1;
    e->shm = shm;
    if (row > shm->control->embed_row_bytes)
        return waste_error_set(err, -EINVAL, "embedding row: %llu bytes do not fit into %llu",
                               (unsigned long long)row,
                               (unsigned long long)shm->control->embed_row_bytes);
    if (snprintf(path, sizeof(path), "%s/trunk.bin", dir) >= (int)sizeof(path))
        return waste_error_set(err, -ENAMETOOLONG, "trunk.bin: the path is too long");
    e->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (e->fd < 0)
        return waste_error_set(err, -errno, "trunk.bin: cannot open: %s", strerror(errno));
    posix_fadvise(e->fd, 0, 0, POSIX_FADV_RANDOM);
    return 0;
}

void waste_embed_close(struct waste_embed *e)
{
    if (e->fd >= 0)
        close(e->fd);
    e->fd = -1;
}

static int read_all(int fd, uint8_t *data, uint64_t bytes, uint64_t off)
{
    ssize_t n = waste_read_at(fd, data, bytes, off);
    return n < 0 ? (int)n : (uint64_t)n == bytes ? 0 : -ENODATA;
}

static int read_row(struct waste_embed *e, uint32_t token, uint8_t *data)
{
    const struct waste_tensor *t = tensor(e->shm);
    uint64_t scales = 2 * (uint64_t)t->groups;
    if (token >= t->rows)
        return -ERANGE;
    int rc = read_all(e->fd, data, t->row_bytes, t->file_off + token * t->row_bytes);
    if (rc == 0)
        rc = read_all(e->fd, data + t->row_bytes, scales, t->file_scale_off + token * scales);
    return rc;
}

static bool differs(const struct waste_embed_slot *s, uint64_t *want)
{
    /* acquire: pairs with compute's release of `want`; compute has stopped reading the old row */
    *want = atomic_load_explicit(&s->want, memory_order_acquire);
    /* relaxed: only this process writes it */
    uint64_t have = atomic_load_explicit(&s->have, memory_order_relaxed);
    if (*want == 0)
        return have & WASTE_EMBED_FAILED; /* compute has seen it */
    return !(*want & WASTE_EMBED_FAILED) && *want != (have & ~WASTE_EMBED_FAILED);
}

bool waste_embed_wanted(const struct waste_embed *e)
{
    uint64_t want;
    for (uint32_t i = 0; i < WASTE_EMBED_SLOTS; i++)
        if (differs(&e->shm->embed[i], &want))
            return true;
    return false;
}

uint32_t waste_embed_serve(struct waste_embed *e)
{
    struct waste_control *control = e->shm->control;
    uint32_t served = 0;
    for (uint32_t i = 0; i < WASTE_EMBED_SLOTS; i++) {
        uint64_t want;
        if (!differs(&e->shm->embed[i], &want))
            continue;
        waste_embed_begin(&e->shm->embed[i]);
        WASTE_POINT(EMBED_BEGUN);
        if (want == 0)
            continue;
        uint32_t token = (uint32_t)want - 1;
        int rc = read_row(e, token, e->shm->embed_data + i * control->embed_row_bytes);
        if (rc < 0) {
            waste_log_write(&control->log[WASTE_STAGE_READER], WASTE_LOG_ERROR,
                            "trunk.bin: embedding row of token %u: %s", token, strerror(-rc));
            want |= WASTE_EMBED_FAILED;
        }
        waste_count(control, WASTE_C_EMBED_ROWS, rc == 0); /* before compute can go on with it */
        WASTE_POINT(EMBED_READ);
        /* release: pairs with compute's acquire; the row is there */
        atomic_store_explicit(&e->shm->embed[i].have, want, memory_order_release);
        WASTE_POINT(EMBED_SERVED);
        waste_bell_ring(&control->compute_bell);
        served++;
    }
    return served;
}
