/*
 * Mutates a container at random and opens it: never a crash, never a number out of bounds in a
 * model that was accepted, and what was accepted also loads or is refused. The cases of a seed are
 * always the same; run under the address and undefined sanitizers to see what merely does not
 * crash.
 *
 *     fuzz_container [SEED [CASES]]
 *
 * With -Dlibfuzzer=true the same checks run on manifests that libFuzzer makes.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "reader/container.h"
#include "reader/trunk.h"
#include "shm/segment.h"
#include "shm/session.h"
#include "tests/support/model_check.h"
#include "tests/support/tiny.h"

enum { SEGMENT_LIMIT = 64 << 20 };

static struct {
    uint64_t opened, refused, loaded, load_refused;
} tally;

static void die(const struct tiny *t, const char *what)
{
    fprintf(stderr, "%s; the container is left in %s\n", what, t->dir);
    abort();
}

static bool go_on(void *ctx)
{
    (void)ctx;
    return true;
}

static void check_line(const struct tiny *t, const struct waste_error *err)
{
    size_t n = strnlen(err->text, sizeof(err->text));
    if (n == 0 || n == sizeof(err->text) || strchr(err->text, '\n'))
        die(t, "refused without one line of text");
}

static void load_trunk(const struct tiny *t, const struct waste_model *m)
{
    const struct waste_options options = {.threads = 1, .ctx = 16};
    struct waste_error err = {""};
    struct waste_shm shm;
    uint64_t bytes = waste_control_bytes(m, 2);
    int fd;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        die(t, "no memory for the control segment");
    waste_control_init(base, bytes, m, 2, &options, 1, &shm);
    if (waste_segment_create(WASTE_SEG_TRUNK, m->trunk_bytes, &fd) < 0)
        die(t, "no trunk segment");
    if (waste_trunk_load(&shm, t->dir, fd, go_on, NULL, &err) == 0) {
        tally.loaded++;
    } else {
        check_line(t, &err);
        tally.load_refused++;
    }
    close(fd);
    munmap(base, bytes);
}

/* Every record of an accepted container is checked; good or bad, nothing beyond it is read. */
static void check_records(const struct tiny *t, const struct waste_model *m)
{
    char path[256];
    uint8_t *record = malloc(m->expert.record_bytes); /* exactly: sanitizers see one byte more */
    for (uint32_t l = m->config.dense_layers; record && l < m->config.layers; l++) {
        const struct waste_bank *bank = &waste_model_layer(m, l)->bank;
        snprintf(path, sizeof(path), "%s/%s", t->dir, bank->file);
        int fd = open(path, O_RDONLY);
        for (uint32_t e = 0; fd >= 0 && e < bank->experts; e++) {
            ssize_t n = pread(fd, record, m->expert.record_bytes,
                              (off_t)((uint64_t)e * m->expert.record_bytes));
            if (n != (ssize_t)m->expert.record_bytes)
                die(t, "a record of an accepted bank is not there");
            if (waste_record_check_header(m, l, e, record) == 0 &&
                waste_record_codebook(record) + 3 * m->expert.stages > m->expert.codebooks)
                die(t, "a record names codebooks that are not there");
            waste_record_check_crc(m, record);
        }
        if (fd >= 0)
            close(fd);
    }
    free(record);
}

static void open_and_use(const struct tiny *t)
{
    struct waste_error err = {""};
    struct waste_model *m = NULL;
    if (waste_container_open(t->dir, &m, &err) < 0) {
        check_line(t, &err);
        tally.refused++;
        return;
    }
    tally.opened++;
    const char *wrong = model_check(m, t->dir);
    if (wrong)
        die(t, wrong);
    if (waste_session_bytes(m, 16, 1) == 0)
        die(t, "a session of no bytes");
    check_records(t, m);
    if (m->trunk_bytes <= SEGMENT_LIMIT)
        load_trunk(t, m);
    free(m);
}

static void write_file(const struct tiny *t, const char *name, const void *data, size_t bytes)
{
    char path[128];
    int fd = open(tiny_path(t, name, path), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        die(t, "cannot write");
    close(fd);
}

#ifdef WASTE_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct tiny t;
    if (!t.manifest)
        tiny_build(&t, &tiny_k3);
    write_file(&t, "manifest.json", data, bytes);
    open_and_use(&t);
    return 0;
}

#else

static uint64_t random_state;

static uint32_t pick(uint32_t below)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z >> 32) * below >> 32);
}

/* A file of the container in memory, with room to grow. */
struct text {
    char *data;
    size_t bytes;
};

static struct text read_text(const struct tiny *t, const char *name)
{
    struct waste_error err;
    struct text file;
    if (waste_container_read_file(t->dir, name, SEGMENT_LIMIT, &file.data, &file.bytes, &err) < 0)
        die(t, err.text);
    return file;
}

/* A few edits of bytes: flip, overwrite with a character JSON knows, cut out, double. */
static void mutate_bytes(struct text *f)
{
    static const char known[] = "{}[]\",:0123456789.-eE+ntf\\u\n\xff";
    for (uint32_t edits = 1 + pick(4); edits > 0 && f->bytes > 16; edits--) {
        size_t at = pick((uint32_t)f->bytes), run = 1 + pick(12);
        run = run < f->bytes - at ? run : f->bytes - at;
        switch (pick(4)) {
        case 0:
            f->data[at] = (char)(f->data[at] ^ 1 << pick(8));
            break;
        case 1:
            f->data[at] = known[pick(sizeof(known) - 1)];
            break;
        case 2:
            memmove(f->data + at, f->data + at + run, f->bytes - at - run);
            f->bytes -= run;
            break;
        default:
            f->data = realloc(f->data, f->bytes + run);
            memmove(f->data + at + run, f->data + at, f->bytes - at);
            f->bytes += run;
        }
    }
}

static json_t *strange_value(const json_t *was)
{
    static const int64_t numbers[] = {
        0,         1,          -1,        2,         3,         7,         8,     127,   128, 4096,
        INT32_MAX, UINT32_MAX, 1ll << 32, INT64_MAX, INT64_MIN, 1ll << 62, 65535, 65536, 64};
    static const char *const strings[] = {"",
                                          "x",
                                          "..",
                                          "a/b",
                                          "language_model.",
                                          "model.norm.weight",
                                          "\n",
                                          "experts-L1.bin",
                                          "trunk.bin",
                                          "VQ4P",
                                          "silu"};
    json_int_t n = json_integer_value(was);
    switch (pick(9)) {
    case 0:
        return json_integer(n < INT64_MAX ? n + 1 : n);
    case 1:
        return json_integer(n > INT64_MIN ? n - 1 : n);
    case 2:
        return json_integer((json_int_t)((uint64_t)n * 2));
    case 3:
        return json_real(pick(2) ? 1e300 : 0.5 * (double)n);
    case 4:
        return json_string(strings[pick(sizeof(strings) / sizeof(strings[0]))]);
    case 5:
        return pick(2) ? json_true() : json_null();
    case 6:
        return pick(2) ? json_array() : json_object();
    default:
        return json_integer(numbers[pick(sizeof(numbers) / sizeof(numbers[0]))]);
    }
}

/* A random child of a container: its key in key, or its index. */
static json_t *random_child(json_t *node, const char **key, size_t *index)
{
    *key = NULL;
    if (json_is_array(node) && json_array_size(node) > 0) {
        *index = pick((uint32_t)json_array_size(node));
        return json_array_get(node, *index);
    }
    if (!json_is_object(node) || json_object_size(node) == 0)
        return NULL;
    void *it = json_object_iter(node);
    for (uint32_t skip = pick((uint32_t)json_object_size(node)); skip > 0; skip--)
        it = json_object_iter_next(node, it);
    *key = json_object_iter_key(it);
    return json_object_iter_value(it);
}

/* Walks down at random and puts something else there: a strange value, nothing, or another part. */
static void mutate_tree(json_t *root)
{
    json_t *node = root, *child, *parent = root;
    const char *key = NULL, *other_key;
    size_t index = 0, other;
    while ((child = random_child(node, &key, &index)) != NULL) {
        parent = node;
        if ((!json_is_object(child) && !json_is_array(child)) || pick(8) == 0)
            break;
        node = child;
    }
    if (!child) /* an empty list or object */
        return;
    uint32_t how = pick(8);
    if (how == 0 && key) {
        json_object_del(parent, key);
    } else if (how == 0) {
        json_array_remove(parent, index);
    } else {
        json_t *from = how == 1 ? random_child(root, &other_key, &other) : NULL;
        json_t *value = from ? json_deep_copy(from) : strange_value(child);
        if (key)
            json_object_set_new(parent, key, value);
        else
            json_array_set_new(parent, index, value);
    }
}

static void fuzz_manifest_text(struct tiny *t)
{
    struct text f = read_text(t, "manifest.json");
    size_t bytes = f.bytes;
    char *saved = memcpy(malloc(bytes), f.data, bytes);
    mutate_bytes(&f);
    write_file(t, "manifest.json", f.data, f.bytes);
    open_and_use(t);
    write_file(t, "manifest.json", saved, bytes);
    free(saved);
    free(f.data);
}

static void fuzz_manifest_tree(struct tiny *t)
{
    json_t *saved = t->manifest;
    t->manifest = json_deep_copy(saved);
    for (uint32_t edits = 1 + pick(3); edits > 0; edits--)
        mutate_tree(t->manifest);
    tiny_save_manifest(t);
    open_and_use(t);
    json_decref(t->manifest);
    t->manifest = saved;
    tiny_save_manifest(t);
}

/* Bytes of a binary file flipped (the first ones more often: headers), or another length. */
static void fuzz_file(struct tiny *t)
{
    static const char *const names[] = {"codebooks.bin", "trunk.bin", "experts-L"};
    char name[32];
    uint32_t which = pick(3);
    uint32_t layer = t->shape.dense + pick(t->shape.layers - t->shape.dense);
    snprintf(name, sizeof(name), "%s", names[which]);
    if (which == 2)
        snprintf(name, sizeof(name), "experts-L%u.bin", layer);
    struct text f = read_text(t, name);
    char *changed = memcpy(malloc(f.bytes), f.data, f.bytes);
    size_t bytes = f.bytes;
    if (pick(4) == 0)
        bytes = pick((uint32_t)f.bytes);
    for (uint32_t edits = 1 + pick(4); edits > 0 && bytes > 0; edits--) {
        size_t at = pick((uint32_t)bytes);
        if (pick(2) && bytes > 8192)
            at = at / 4096 * 4096 + pick(48);
        if (at < bytes)
            changed[at] = (char)(changed[at] ^ 1 << pick(8));
    }
    write_file(t, name, changed, bytes);
    open_and_use(t);
    write_file(t, name, f.data, f.bytes);
    free(changed);
    free(f.data);
}

int main(int argc, char **argv)
{
    static const uint32_t experts[] = {TINY_VQ3R, TINY_VQ2R, TINY_VQ4P};
    static const uint32_t trunk[] = {TINY_Q4G, TINY_Q8G, TINY_Q3G};
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20240607;
    uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 0) : 1500;
    printf("seed %llu, %llu cases\n", (unsigned long long)seed, (unsigned long long)cases);
    random_state = seed;
    for (uint32_t i = 0; i < 3; i++) {
        struct tiny_shape shape = i == 1 ? tiny_linear : tiny_k3;
        struct tiny t;
        shape.expert_fmt = experts[i];
        shape.trunk_fmt = trunk[i];
        tiny_build(&t, &shape);
        for (uint64_t c = 0; c < cases / 3; c++)
            switch (pick(5)) {
            case 0:
            case 1:
                fuzz_manifest_text(&t);
                break;
            case 2:
            case 3:
                fuzz_manifest_tree(&t);
                break;
            default:
                fuzz_file(&t);
            }
        uint64_t opened = tally.opened;
        open_and_use(&t);
        if (tally.opened != opened + 1)
            die(&t, "the container is no longer what it was");
        tiny_free(&t);
    }
    printf("opened %llu, refused %llu; of the opened, trunk loaded %llu, refused %llu\n",
           (unsigned long long)tally.opened, (unsigned long long)tally.refused,
           (unsigned long long)tally.loaded, (unsigned long long)tally.load_refused);
    /* a fuzzer whose mutations all end in the same branch tests nothing */
    return tally.opened < cases / 50 || tally.refused < cases / 10 || tally.load_refused == 0;
}

#endif
