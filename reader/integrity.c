#include "reader/integrity.h"

#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reader/container_int.h"

/* 64 TiB of trunk.bin are 60 MB of checksums; a real trunk has 4000 pieces. */
enum { INTEGRITY_LIMIT = 8 << 20, TEXT_LIMIT = 256 << 20, FILES_LIMIT = WASTE_MAX_LAYERS + 64 };

static const char *const with_pieces[] = {WASTE_MANIFEST, WASTE_TRUNK_FILE, WASTE_CODEBOOK_FILE,
                                          "tokenizer.model", "specials.json"};
enum { WITH_PIECES = sizeof(with_pieces) / sizeof(with_pieces[0]), NEEDED = 3 };

/* Where the text begins that is behind the checksummed part: `,\n "crc32": "xxxxxxxx"\n}\n` */
#define TAIL_FORMAT ",\n \"crc32\": \"%08x\"\n}\n"
enum { TAIL_BYTES = 25 };

bool waste_integrity_has_pieces(const char *name)
{
    for (size_t i = 0; i < WITH_PIECES; i++)
        if (strcmp(name, with_pieces[i]) == 0)
            return true;
    return false;
}

uint32_t waste_integrity_pieces(uint64_t bytes)
{
    return (uint32_t)((bytes + WASTE_INTEGRITY_PIECE - 1) / WASTE_INTEGRITY_PIECE);
}

size_t waste_integrity_piece_bytes(uint64_t bytes, uint32_t i)
{
    uint64_t left = bytes - (uint64_t)i * WASTE_INTEGRITY_PIECE;
    return left < WASTE_INTEGRITY_PIECE ? (size_t)left : WASTE_INTEGRITY_PIECE;
}

uint32_t waste_integrity_crc(uint32_t crc, const void *data, size_t bytes)
{
    return libdeflate_crc32(crc, data, bytes);
}

static int bad(struct waste_error *err, const char *text)
{
    return waste_error_set(
        err, -EINVAL, WASTE_INTEGRITY_FILE ": %s; waste-fetch seal --force writes it anew", text);
}

/* Eight lower-case hexadecimal digits. */
static bool parse_hex(const char *text, size_t length, uint32_t *out)
{
    static const char digits[] = "0123456789abcdef";
    uint32_t value = 0;
    if (length != 8)
        return false;
    for (int i = 0; i < 8; i++) {
        const char *d = text[i] ? strchr(digits, text[i]) : NULL;
        if (!d)
            return false;
        value = value << 4 | (uint32_t)(d - digits);
    }
    *out = value;
    return true;
}

static int check_tail(const char *data, size_t bytes, struct waste_error *err)
{
    char tail[TAIL_BYTES + 1];
    if (bytes < TAIL_BYTES)
        return bad(err, "is cut short");
    snprintf(tail, sizeof(tail), TAIL_FORMAT, waste_integrity_crc(0, data, bytes - TAIL_BYTES));
    return memcmp(tail, data + bytes - TAIL_BYTES, TAIL_BYTES) == 0
               ? 0
               : bad(err, "does not have the checksum its last line says");
}

static int parse_pieces(const json_t *list, struct waste_integrity_file *f, struct waste_error *err)
{
    char text[256];
    if (!json_is_array(list) || json_array_size(list) != waste_integrity_pieces(f->bytes)) {
        snprintf(text, sizeof(text), "%s has %llu bytes, but no list of %u checksums", f->name,
                 (unsigned long long)f->bytes, waste_integrity_pieces(f->bytes));
        return bad(err, text);
    }
    f->pieces = (uint32_t)json_array_size(list);
    f->crc = calloc(f->pieces + 1, sizeof(f->crc[0]));
    if (!f->crc)
        return waste_error_set(err, -ENOMEM, WASTE_INTEGRITY_FILE ": out of memory");
    for (uint32_t i = 0; i < f->pieces; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_string(v) ||
            !parse_hex(json_string_value(v), json_string_length(v), &f->crc[i])) {
            snprintf(text, sizeof(text), "checksum %u of %s is not eight hexadecimal digits", i,
                     f->name);
            return bad(err, text);
        }
    }
    return 0;
}

static int parse_file(const char *name, const json_t *value, struct waste_integrity_file *f,
                      struct waste_error *err)
{
    char text[256];
    const json_t *bytes = json_object_get(value, "bytes");
    const json_t *pieces = json_object_get(value, "crc32");
    if (!waste_plain_file_name(name) || strlen(name) >= sizeof(f->name))
        return bad(err, "files has a name that is no plain file name");
    snprintf(f->name, sizeof(f->name), "%s", name);
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 0) {
        snprintf(text, sizeof(text), "bytes of %s is no size", f->name);
        return bad(err, text);
    }
    f->bytes = (uint64_t)json_integer_value(bytes);
    if (f->bytes / WASTE_INTEGRITY_PIECE >= UINT32_MAX - 1) {
        snprintf(text, sizeof(text), "bytes of %s is too large", f->name);
        return bad(err, text);
    }
    return pieces || waste_integrity_has_pieces(name) ? parse_pieces(pieces, f, err) : 0;
}

static int parse(const json_t *root, struct waste_integrity *out, struct waste_error *err)
{
    const json_t *files = json_object_get(root, "files"), *value;
    const char *checksum = json_string_value(json_object_get(root, "checksum")), *name;
    const json_t *version = json_object_get(root, "format_version");
    const json_t *piece = json_object_get(root, "piece_bytes");
    if (!json_is_integer(version) || json_integer_value(version) != 0)
        return bad(err, "format_version is not 0");
    if (!checksum || strcmp(checksum, "crc32") != 0)
        return bad(err, "checksum is not \"crc32\"");
    if (!json_is_integer(piece) || json_integer_value(piece) != WASTE_INTEGRITY_PIECE)
        return bad(err, "piece_bytes is not 16777216");
    if (!json_is_object(files) || json_object_size(files) > FILES_LIMIT)
        return bad(err, "files is no object of at most 1088 files");
    out->file = calloc(json_object_size(files) + 1, sizeof(out->file[0]));
    if (!out->file)
        return waste_error_set(err, -ENOMEM, WASTE_INTEGRITY_FILE ": out of memory");
    json_object_foreach((json_t *)files, name, value)
    {
        int rc = parse_file(name, value, &out->file[out->files++], err);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < NEEDED; i++)
        if (!waste_integrity_find(out, with_pieces[i])) {
            char text[64];
            snprintf(text, sizeof(text), "%s is not listed", with_pieces[i]);
            return bad(err, text);
        }
    return 0;
}

int waste_integrity_read(const char *dir, struct waste_integrity **out, struct waste_error *err)
{
    struct waste_integrity *made = NULL;
    json_t *root = NULL;
    char *data = NULL;
    size_t bytes = 0;
    int rc =
        waste_container_read_file(dir, WASTE_INTEGRITY_FILE, INTEGRITY_LIMIT, &data, &bytes, err);
    *out = NULL;
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc;
    rc = check_tail(data, bytes, err);
    if (rc < 0)
        goto out;
    root = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, NULL);
    made = calloc(1, sizeof(*made));
    if (!made)
        rc = waste_error_set(err, -ENOMEM, WASTE_INTEGRITY_FILE ": out of memory");
    else
        rc = root ? parse(root, made, err) : bad(err, "is no JSON");
    if (rc == 0) {
        *out = made;
        made = NULL;
    }
out:
    waste_integrity_free(made);
    json_decref(root);
    free(data);
    return rc;
}

void waste_integrity_free(struct waste_integrity *integrity)
{
    if (!integrity)
        return;
    for (uint32_t i = 0; i < integrity->files; i++)
        free(integrity->file[i].crc);
    free(integrity->file);
    free(integrity);
}

const struct waste_integrity_file *waste_integrity_find(const struct waste_integrity *integrity,
                                                        const char *name)
{
    for (uint32_t i = 0; integrity && i < integrity->files; i++)
        if (strcmp(integrity->file[i].name, name) == 0)
            return &integrity->file[i];
    return NULL;
}

int waste_integrity_damaged(const char *dir, const char *name, uint64_t file_bytes, uint32_t piece,
                            const char *where, struct waste_error *err)
{
    uint64_t begin = (uint64_t)piece * WASTE_INTEGRITY_PIECE;
    return waste_error_set(
        err, -EINVAL,
        "%s/%s: piece %u (bytes %llu to %llu%s) does not have the checksum "
        "that " WASTE_INTEGRITY_FILE " says: the file is damaged",
        dir, name, piece, (unsigned long long)begin,
        (unsigned long long)begin + waste_integrity_piece_bytes(file_bytes, piece) - 1, where);
}

static int check_size(const char *dir, const struct waste_integrity_file *f,
                      struct waste_error *err)
{
    char path[4096];
    struct stat st;
    if (snprintf(path, sizeof(path), "%s/%s", dir, f->name) >= (int)sizeof(path))
        return waste_error_set(err, -ENAMETOOLONG, "the model directory's name is too long");
    if (stat(path, &st) < 0)
        return waste_error_set(err, -errno, "%s: %s", path, strerror(errno));
    if ((uint64_t)st.st_size != f->bytes)
        return waste_error_set(err, -EINVAL, "%s: size is %llu, " WASTE_INTEGRITY_FILE " says %llu",
                               path, (unsigned long long)st.st_size, (unsigned long long)f->bytes);
    return 0;
}

static int check_text(const char *dir, const struct waste_integrity_file *f,
                      struct waste_error *err)
{
    char *data = NULL;
    size_t bytes = 0;
    int rc = waste_container_read_file(dir, f->name, TEXT_LIMIT, &data, &bytes, err);
    for (uint32_t i = 0; i < f->pieces && rc == 0; i++) {
        size_t n = waste_integrity_piece_bytes(f->bytes, i);
        const char *piece = data + (size_t)i * WASTE_INTEGRITY_PIECE;
        if (bytes != f->bytes || waste_integrity_crc(0, piece, n) != f->crc[i])
            rc = waste_integrity_damaged(dir, f->name, f->bytes, i, "", err);
    }
    free(data);
    return rc;
}

int waste_integrity_check_texts(const char *dir, struct waste_error *err)
{
    struct waste_integrity *integrity = NULL;
    int rc = waste_integrity_read(dir, &integrity, err);
    for (uint32_t i = 0; integrity && i < integrity->files && rc == 0; i++)
        rc = check_size(dir, &integrity->file[i], err);
    for (uint32_t i = 0; integrity && i < integrity->files && rc == 0; i++) {
        const struct waste_integrity_file *f = &integrity->file[i];
        if (f->pieces && strcmp(f->name, WASTE_TRUNK_FILE) != 0 &&
            strcmp(f->name, WASTE_CODEBOOK_FILE) != 0)
            rc = check_text(dir, f, err);
    }
    waste_integrity_free(integrity);
    return rc;
}

char *waste_integrity_text(json_t *files)
{
    json_t *root = json_pack("{s:i, s:s, s:i, s:O}", "format_version", 0, "checksum", "crc32",
                             "piece_bytes", WASTE_INTEGRITY_PIECE, "files", files);
    char *body = root ? json_dumps(root, JSON_INDENT(1)) : NULL, *text = NULL;
    size_t n = body ? strlen(body) - 2 : 0; /* without the last newline and brace */
    if (body && (text = malloc(n + TAIL_BYTES + 1))) {
        memcpy(text, body, n);
        snprintf(text + n, TAIL_BYTES + 1, TAIL_FORMAT, waste_integrity_crc(0, body, n));
    }
    free(body);
    json_decref(root);
    return text;
}
