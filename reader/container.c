#include "reader/container_int.h"
#include "reader/read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Length of the whole UTF-8 character at s that is safe to print, or 0. */
static size_t printable(const unsigned char *s)
{
    static const uint32_t lowest[5] = {0, 0, 0xa0, 0x800, 0x10000}; /* C1 controls are below a0 */
    size_t n = s[0] < 0x80 ? 1 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    uint32_t code = n == 1 ? s[0] : s[0] & (0x7fu >> n);
    if (n == 1)
        return code >= 0x20 && code != 0x7f;
    if (s[0] < 0xc2 || s[0] >= 0xf5)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    /* surrogates, and what reorders or breaks a terminal's line */
    if (code < lowest[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ||
        (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069))
        return 0;
    return n;
}

int waste_error_set(struct waste_error *err, int code, const char *format, ...)
{
    char raw[sizeof(err->text)];
    va_list args;
    if (!err)
        return code;
    va_start(args, format);
    vsnprintf(raw, sizeof(raw), format, args);
    va_end(args);
    size_t out = 0;
    for (const unsigned char *s = (const unsigned char *)raw; *s;) {
        size_t n = printable(s);
        if (out + (n ? n : 4) >= sizeof(err->text))
            break;
        if (n)
            memcpy(err->text + out, s, n);
        else
            snprintf(err->text + out, 5, "\\x%02x", *s);
        out += n ? n : 4;
        s += n ? n : 1;
    }
    err->text[out] = 0;
    return code;
}

static int file_error(struct waste_error *err, const char *dir, const char *name, int error)
{
    bool none = error == ENOENT && strcmp(name, "manifest.json") == 0;

    return waste_error_set(err, -error, "%s/%s: %s%s", dir, name, strerror(error),
                           none ? " (the directory is no container)" : "");
}

int waste_parse_file_bytes(const struct waste_parse *p, const char *name, uint64_t *out)
{
    struct stat st;
    if (fstatat(p->dir_fd, name, &st, 0) < 0)
        return file_error(p->err, p->dir, name, errno);
    if (!S_ISREG(st.st_mode))
        return waste_error_set(p->err, -EINVAL, "%s/%s: is no regular file", p->dir, name);
    *out = (uint64_t)st.st_size;
    return 0;
}

int waste_container_read_file(const char *dir, const char *name, size_t limit, char **out,
                              size_t *out_bytes, struct waste_error *err)
{
    char *data = NULL;
    struct stat st;
    int rc = 0, fd = -1;
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return waste_error_set(err, -errno, "%s: %s", dir, strerror(errno));
    fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (fd < 0 || fstat(fd, &st) < 0) {
        rc = file_error(err, dir, name, errno);
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = waste_error_set(err, -EINVAL, "%s/%s: is no regular file", dir, name);
        goto out;
    }
    if ((uint64_t)st.st_size > limit) {
        rc = waste_error_set(err, -EFBIG, "%s/%s: size is %llu, limit %zu", dir, name,
                             (unsigned long long)st.st_size, limit);
        goto out;
    }
    data = malloc((size_t)st.st_size + 1);
    if (!data) {
        rc = file_error(err, dir, name, ENOMEM);
        goto out;
    }
    ssize_t n = waste_read_at(fd, data, (size_t)st.st_size, 0);
    if (n < 0) {
        rc = file_error(err, dir, name, (int)-n);
        goto out;
    }
    data[n] = 0;
    *out = data;
    *out_bytes = (size_t)n;
    data = NULL;
out:
    free(data);
    if (fd >= 0)
        close(fd);
    close(dir_fd);
    return rc;
}

/* FNV-1a: tells containers apart, protects against nobody. */
static uint64_t fingerprint(const char *data, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)data[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* A conversion that was broken off, or one part of several. */
static int refuse_partial(const struct waste_parse *p)
{
    const json_t *partial = json_object_get(p->root, "partial");
    const json_t *of = json_object_get(partial, "of");
    if (!partial)
        return 0;
    return waste_error_set(p->err, -EINVAL,
                           "%s: is partial, %zu of %lld layers: the waste-fetch convert that began "
                           "it goes on where it ended, waste-fetch merge joins parts",
                           p->dir, json_array_size(json_object_get(partial, "layers")),
                           (long long)json_integer_value(of));
}

static int parse_json(struct waste_parse *p, const char *data, size_t bytes)
{
    json_error_t error;
    uint64_t version;
    p->root = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!p->root)
        return waste_error_set(p->err, -EINVAL, WASTE_MANIFEST ": line %d column %d: %s",
                               error.line, error.column, error.text);
    struct waste_json_at top = {p->root, "", p->err};
    if (!json_is_object(p->root))
        return waste_error_set(p->err, -EINVAL, WASTE_MANIFEST ": is no object");
    int rc = waste_json_uint(&top, "format_version", 0, 0, &version);
    if (rc == 0)
        rc = refuse_partial(p);
    if (rc < 0)
        return rc;
    p->prefix = "";
    return waste_json_string_opt(&top, "tensor_prefix", 64, &p->prefix);
}

static int open_container(const char *dir, bool index_only, struct waste_model **out,
                          struct waste_error *err)
{
    struct waste_parse p = {.dir = dir, .dir_fd = -1, .err = err, .index_only = index_only};
    struct waste_model *model = NULL;
    char *data = NULL;
    size_t bytes = 0;
    int rc =
        waste_container_read_file(dir, WASTE_MANIFEST, WASTE_MANIFEST_LIMIT, &data, &bytes, err);
    if (rc < 0)
        return rc;
    p.dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p.dir_fd < 0) {
        rc = waste_error_set(err, -errno, "%s: %s", dir, strerror(errno));
        goto out;
    }
    if ((rc = parse_json(&p, data, bytes)) < 0 || (rc = waste_parse_config(&p)) < 0)
        goto out;
    p.bank = calloc(p.config.layers, sizeof(struct waste_bank));
    if (!p.bank) {
        rc = file_error(err, dir, WASTE_MANIFEST, ENOMEM);
        goto out;
    }
    if ((rc = waste_parse_experts(&p)) < 0 || (rc = waste_parse_trunk(&p, &model)) < 0)
        goto out;
    model->fingerprint = fingerprint(data, bytes);
    *out = model;
out:
    free(p.bank);
    json_decref(p.root);
    if (p.dir_fd >= 0)
        close(p.dir_fd);
    free(data);
    return rc;
}

int waste_container_open(const char *dir, struct waste_model **out, struct waste_error *err)
{
    return open_container(dir, false, out, err);
}

int waste_container_open_index(const char *dir, struct waste_model **out, struct waste_error *err)
{
    return open_container(dir, true, out, err);
}

static int recheck_size(const struct waste_parse *p, const char *name, uint64_t min, uint64_t max)
{
    uint64_t bytes = 0;
    int rc = waste_parse_file_bytes(p, name, &bytes);
    if (rc < 0)
        return rc;
    if (bytes < min || bytes > max)
        return waste_error_set(p->err, -ESTALE,
                               "%s/%s: size is now %llu, the pipeline was started with %llu",
                               p->dir, name, (unsigned long long)bytes, (unsigned long long)min);
    return 0;
}

/* The last byte of trunk.bin that a tensor of the model needs. */
static uint64_t trunk_end(const struct waste_model *m)
{
    uint64_t end = 0;
    for (uint32_t id = 1; id < m->tensor_count; id++) {
        const struct waste_tensor *t = waste_model_tensor(m, id);
        uint64_t payload = t->file_off + t->payload_bytes;
        uint64_t scales = t->groups ? t->file_scale_off + (uint64_t)t->rows * t->groups * 2 : 0;
        end = payload > end ? payload : end;
        end = scales > end ? scales : end;
    }
    return end;
}

int waste_container_recheck(const char *dir, const struct waste_model *model,
                            struct waste_error *err)
{
    struct waste_parse p = {.dir = dir, .err = err};
    uint64_t books = waste_codebook_bytes(&model->expert) * model->expert.codebooks;
    char *data;
    size_t bytes;
    int rc =
        waste_container_read_file(dir, WASTE_MANIFEST, WASTE_MANIFEST_LIMIT, &data, &bytes, err);
    if (rc < 0)
        return rc;
    bool same = fingerprint(data, bytes) == model->fingerprint;
    free(data);
    if (!same)
        return waste_error_set(err, -ESTALE, "%s/%s: has changed since the pipeline was started",
                               dir, WASTE_MANIFEST);
    p.dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p.dir_fd < 0)
        return waste_error_set(err, -errno, "%s: %s", dir, strerror(errno));
    rc = recheck_size(&p, WASTE_TRUNK_FILE, trunk_end(model), INT64_MAX);
    if (rc == 0)
        rc = recheck_size(&p, WASTE_CODEBOOK_FILE, books, books);
    for (uint32_t l = model->config.dense_layers; l < model->config.layers && rc == 0; l++) {
        const struct waste_bank *bank = &waste_model_layer(model, l)->bank;
        rc = recheck_size(&p, bank->file, bank->bytes, bank->bytes);
    }
    close(p.dir_fd);
    return rc;
}
