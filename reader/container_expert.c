/*
 * The routed experts: format and record geometry from the manifest, one bank a layer, the headers
 * of codebooks.bin, and the check of every record that is read later.
 */
#include "reader/container_int.h"

#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "reader/read.h"
#include "shm/slot.h"

enum {
    PAGE = 4096,
    RECORD_HEADER = 48,
    INDEX_BLOCK = 64,
    MATRICES = 3,
    RECORD_LIMIT = 1 << 30,
    CODEBOOK_LIMIT = 65536, /* a record names its codebook in 16 bits */
};

static const struct expert_kind {
    const char *name;
    uint32_t fmt, stages, entries, index_bits, index_bytes;
} expert_kinds[] = {
    {"VQ3R", WASTE_FMT_VQ3R, 3, 256, 8, 3},
    {"VQ2R", WASTE_FMT_VQ2R, 2, 256, 8, 2},
    {"VQ4P", WASTE_FMT_VQ4P, 4, 64, 6, 3},
};

static uint32_t get16(const uint8_t *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8;
}

static uint32_t get32(const uint8_t *b)
{
    return get16(b) | get16(b + 2) << 16;
}

/* Where everything lies in a record, from the shapes alone: gate and up [I, N], down [N, I]. */
static int plan_record(struct waste_parse *p)
{
    struct waste_expert_format *x = &p->expert;
    uint64_t inner = p->config.expert_inner, width = p->config.expert_width;
    uint64_t per = (uint64_t)INDEX_BLOCK * x->index_bytes;
    uint64_t up_rows = waste_align_up(inner, INDEX_BLOCK) / INDEX_BLOCK * (width / WASTE_VEC_DIM);
    uint64_t down_rows = waste_align_up(width, INDEX_BLOCK) / INDEX_BLOCK * (inner / WASTE_VEC_DIM);
    uint64_t up = RECORD_HEADER + up_rows * per;
    uint64_t down = up + up_rows * per;
    uint64_t scales = down + down_rows * per;
    uint64_t end = scales + 2 * (2 * inner + width);
    if (end > RECORD_LIMIT)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": config: an expert of %llu x %llu takes %llu "
                                              "bytes, limit %d",
                               (unsigned long long)inner, (unsigned long long)width,
                               (unsigned long long)end, RECORD_LIMIT);
    x->gate_off = RECORD_HEADER;
    x->up_off = (uint32_t)up;
    x->down_off = (uint32_t)down;
    x->scale_off = (uint32_t)scales;
    x->crc_end = (uint32_t)end;
    x->record_bytes = (uint32_t)waste_align_up(end, PAGE);
    return 0;
}

static int parse_expert_quant(struct waste_parse *p)
{
    struct waste_json_at top = {p->root, "", p->err}, at = {NULL, "expert_quant", p->err};
    const struct expert_kind *kind = NULL;
    uint64_t stages, entries, bits = 8, ignored;
    double rate;
    int rc = waste_json_object(&top, at.path, &at.object);
    if (rc < 0 ||
        (rc = waste_json_uint(&at, "vec_dim", WASTE_VEC_DIM, WASTE_VEC_DIM, &ignored)) < 0 ||
        (rc = waste_json_uint(&at, "index_block", INDEX_BLOCK, INDEX_BLOCK, &ignored)) < 0 ||
        (rc = waste_json_uint(&at, "stages", 2, 4, &stages)) < 0 ||
        (rc = waste_json_uint(&at, "entries", 64, 256, &entries)) < 0 ||
        (rc = waste_json_uint_opt(&at, "index_bits", 6, 8, &bits)) < 0 ||
        (rc = waste_json_real_opt(&at, "bits_per_weight", 0, 32, &rate)) < 0)
        return rc;
    for (size_t i = 0; i < sizeof(expert_kinds) / sizeof(expert_kinds[0]); i++)
        if (expert_kinds[i].stages == stages && expert_kinds[i].entries == entries &&
            expert_kinds[i].index_bits == bits)
            kind = &expert_kinds[i];
    if (!kind)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": expert_quant: %u stages of %u entries with "
                                              "index_bits %u, must be 3 x 256 x 8, 2 x 256 x 8 "
                                              "or 4 x 64 x 6",
                               (unsigned)stages, (unsigned)entries, (unsigned)bits);
    /* the name is no source of geometry, but one that says something else is a damaged manifest */
    const char *name = json_string_value(json_object_get(at.object, "fmt"));
    for (size_t i = 0; name && i < sizeof(expert_kinds) / sizeof(expert_kinds[0]); i++)
        if (strcmp(name, expert_kinds[i].name) == 0 && &expert_kinds[i] != kind)
            return waste_error_set(p->err, -EINVAL,
                                   WASTE_MANIFEST ": expert_quant.fmt is \"%s\", but %u stages of "
                                                  "%u entries are %s",
                                   name, kind->stages, kind->entries, kind->name);
    p->expert.fmt = kind->fmt;
    p->expert.stages = kind->stages;
    p->expert.entries = kind->entries;
    p->expert.index_bits = kind->index_bits;
    p->expert.index_bytes = kind->index_bytes;
    return plan_record(p);
}

int waste_codebook_check_header(const struct waste_expert_format *x, const uint8_t *h,
                                uint64_t number, struct waste_error *err)
{
    const struct {
        const char *field;
        uint32_t value, want;
    } check[] = {
        {"magic", get32(h), WASTE_CODEBOOK_MAGIC},
        {"id", get16(h + 4), (uint16_t)number},
        {"vec_dim", h[7], WASTE_VEC_DIM},
        {"entries", get32(h + 8), x->entries},
        {"reserved", get32(h + 12), 0},
    };
    for (size_t i = 0; i < sizeof(check) / sizeof(check[0]); i++)
        if (check[i].value != check[i].want)
            return waste_error_set(
                err, -EINVAL, WASTE_CODEBOOK_FILE ": codebook %llu: %s is %u, must be %u",
                (unsigned long long)number, check[i].field, check[i].value, check[i].want);
    /* writers put the experts' format here; the entries themselves are F16 */
    if (h[6] != x->fmt && h[6] != WASTE_FMT_F16)
        return waste_error_set(err, -EINVAL,
                               WASTE_CODEBOOK_FILE ": codebook %llu: fmt is %u, must be %u",
                               (unsigned long long)number, h[6], x->fmt);
    return 0;
}

static int check_codebooks(struct waste_parse *p)
{
    uint64_t bytes, stride = waste_codebook_bytes(&p->expert);
    if (p->index_only) {
        p->expert.codebooks = CODEBOOK_LIMIT;
        return 0;
    }
    int rc = waste_parse_file_bytes(p, WASTE_CODEBOOK_FILE, &bytes);
    if (rc < 0)
        return rc;
    if (bytes == 0 || bytes % stride || bytes / stride > CODEBOOK_LIMIT)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_CODEBOOK_FILE ": size is %llu, must be 1 to %d codebooks of "
                                                   "%llu bytes",
                               (unsigned long long)bytes, CODEBOOK_LIMIT,
                               (unsigned long long)stride);
    p->expert.codebooks = (uint32_t)(bytes / stride);
    int fd = openat(p->dir_fd, WASTE_CODEBOOK_FILE, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return waste_error_set(p->err, -errno, "%s/" WASTE_CODEBOOK_FILE ": %s", p->dir,
                               strerror(errno));
    for (uint64_t i = 0; i < p->expert.codebooks && rc == 0; i++) {
        uint8_t header[WASTE_CODEBOOK_HEADER];
        ssize_t n = waste_read_at(fd, header, sizeof(header), i * stride);
        if (n == sizeof(header))
            rc = waste_codebook_check_header(&p->expert, header, i, p->err);
        else
            rc = waste_error_set(p->err, n < 0 ? (int)n : -EINVAL,
                                 WASTE_CODEBOOK_FILE ": codebook %llu: %s", (unsigned long long)i,
                                 n < 0 ? strerror((int)-n) : "file ends inside its header");
    }
    close(fd);
    return rc;
}

bool waste_plain_file_name(const char *name)
{
    if (name[0] == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    for (; *name; name++)
        if (*name == '/' || (unsigned char)*name < 0x20 || *name == 0x7f)
            return false;
    return true;
}

static int parse_bank(struct waste_parse *p, const struct waste_json_at *at,
                      struct waste_bank *bank)
{
    const struct waste_expert_format *x = &p->expert;
    const char *file = "";
    uint64_t experts, bytes, base, on_disk = 0;
    uint64_t want = (uint64_t)p->config.experts * x->record_bytes;
    if (!waste_json_get(at, "file"))
        return waste_json_missing(at, "file");
    int rc = waste_json_string_opt(at, "file", WASTE_MAX_FILE_NAME - 1, &file);
    if (rc < 0)
        return rc;
    if (!waste_plain_file_name(file))
        return waste_json_wrong(at, "file", "a plain file name");
    if ((rc = waste_json_uint(at, "experts", p->config.experts, p->config.experts, &experts)) < 0 ||
        (rc = waste_json_uint(at, "bytes", 1, INT64_MAX, &bytes)) < 0 ||
        (rc = waste_json_uint(at, "codebook_base", 0, CODEBOOK_LIMIT - 1, &base)) < 0)
        return rc;
    if (bytes != want)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": %s.bytes is %llu, must be %llu (%u experts of "
                                              "%u bytes)",
                               at->path, (unsigned long long)bytes, (unsigned long long)want,
                               p->config.experts, x->record_bytes);
    if (base + MATRICES * x->stages > x->codebooks)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": %s.codebook_base is %llu, but its %u codebooks "
                                              "must end within the %u of " WASTE_CODEBOOK_FILE,
                               at->path, (unsigned long long)base, MATRICES * x->stages,
                               x->codebooks);
    rc = p->index_only ? 0 : waste_parse_file_bytes(p, file, &on_disk);
    if (rc < 0)
        return rc;
    if (!p->index_only && on_disk != bytes)
        return waste_error_set(p->err, -EINVAL,
                               "%s: size is %llu, must be %llu (" WASTE_MANIFEST " %s.bytes)", file,
                               (unsigned long long)on_disk, (unsigned long long)bytes, at->path);
    snprintf(bank->file, sizeof(bank->file), "%s", file);
    bank->experts = (uint32_t)experts;
    bank->codebook_base = (uint32_t)base;
    bank->bytes = bytes;
    return 0;
}

/* `layers` holds exactly the MoE layers, under their canonical numbers. */
static int parse_banks(struct waste_parse *p)
{
    const struct waste_config *c = &p->config;
    struct waste_json_at top = {p->root, "", p->err};
    const json_t *layers;
    int rc = waste_json_object(&top, "layers", &layers);
    if (rc < 0)
        return rc;
    for (uint32_t l = c->dense_layers; l < c->layers; l++) {
        char key[16], path[32];
        snprintf(key, sizeof(key), "%u", l);
        snprintf(path, sizeof(path), "layers.%u", l);
        struct waste_json_at all = {layers, "layers", p->err}, at = {NULL, path, p->err};
        if ((rc = waste_json_object(&all, key, &at.object)) < 0 ||
            (rc = parse_bank(p, &at, &p->bank[l])) < 0)
            return rc;
    }
    if (json_object_size(layers) != c->layers - c->dense_layers)
        return waste_error_set(p->err, -EINVAL,
                               WASTE_MANIFEST ": layers has %zu entries, must be the %u MoE layers "
                                              "%u to %u",
                               json_object_size(layers), c->layers - c->dense_layers,
                               c->dense_layers, c->layers - 1);
    return 0;
}

int waste_parse_experts(struct waste_parse *p)
{
    int rc = parse_expert_quant(p);
    if (rc == 0)
        rc = check_codebooks(p);
    return rc < 0 ? rc : parse_banks(p);
}

struct header_field {
    const char *name;
    uint32_t value, want;
};
enum { HEADER_FIELDS = 15 };

static void header_fields(const struct waste_model *model, uint32_t layer, uint32_t expert,
                          const uint8_t *h, struct header_field out[HEADER_FIELDS])
{
    const struct waste_expert_format *x = &model->expert;
    /* flags, low rank and the reserved words mean an encoding we do not know when they are set */
    const struct header_field fields[HEADER_FIELDS] = {
        {"magic", get32(h), WASTE_RECORD_MAGIC},
        {"layer", get16(h + 4), layer},
        {"expert", get16(h + 6), expert},
        {"fmt", h[8], x->fmt},
        {"flags", h[9], 0},
        {"codebook", get16(h + 10), waste_model_layer(model, layer)->bank.codebook_base},
        {"lowrank", get16(h + 12), 0},
        {"reserved word at 14", get16(h + 14), 0},
        {"blocks", get32(h + 16), x->record_bytes / PAGE},
        {"gate_off", get32(h + 20), x->gate_off},
        {"up_off", get32(h + 24), x->up_off},
        {"down_off", get32(h + 28), x->down_off},
        {"scale_off", get32(h + 32), x->scale_off},
        {"reserved word at 40", get32(h + 40), 0},
        {"reserved word at 44", get32(h + 44), 0},
    };
    memcpy(out, fields, sizeof(fields));
}

/* The parser has seen to it that the bank's codebooks lie inside the file. */
uint32_t waste_record_check_header(const struct waste_model *model, uint32_t layer, uint32_t expert,
                                   const void *record)
{
    struct header_field field[HEADER_FIELDS];
    bool good = true;
    header_fields(model, layer, expert, record, field);
    for (size_t i = 0; i < HEADER_FIELDS; i++)
        good &= field[i].value == field[i].want;
    return good ? WASTE_SLOT_OK : WASTE_SLOT_BAD_HEADER;
}

const char *waste_record_wrong_field(const struct waste_model *model, uint32_t layer,
                                     uint32_t expert, const void *record, uint32_t *value,
                                     uint32_t *want)
{
    struct header_field field[HEADER_FIELDS];
    header_fields(model, layer, expert, record, field);
    for (size_t i = 0; i < HEADER_FIELDS; i++)
        if (field[i].value != field[i].want) {
            *value = field[i].value;
            *want = field[i].want;
            return field[i].name;
        }
    return NULL;
}

uint32_t waste_record_check_crc(const struct waste_model *model, const void *record)
{
    const uint8_t *h = record;
    uint32_t crc = libdeflate_crc32(0, h + RECORD_HEADER, model->expert.crc_end - RECORD_HEADER);
    return crc == get32(h + 36) ? WASTE_SLOT_OK : WASTE_SLOT_BAD_CRC;
}

uint32_t waste_record_check_scales(const struct waste_model *model, const void *record)
{
    const uint8_t *r = record;
    uint32_t bad = 0;
    for (uint32_t at = model->expert.scale_off; at < model->expert.crc_end; at += 2)
        bad |= (get16(r + at) & 0x7c00) == 0x7c00; /* no branch: this is on the way of every read */
    return bad ? WASTE_SLOT_BAD_SCALE : WASTE_SLOT_OK;
}

uint32_t waste_record_codebook(const void *record)
{
    return get16((const uint8_t *)record + 10);
}
