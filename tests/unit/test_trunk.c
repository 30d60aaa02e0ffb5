/* Every weight of the trunk arrives where the model says, once, whatever happens on the way. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "reader/trunk.h"
#include "shm/segment.h"
#include "tests/support/tiny.h"

/* A container, its model, a control segment that a forked reader shares, and the trunk segment. */
struct bench {
    struct tiny tiny;
    struct waste_model *model;
    struct waste_shm shm;
    uint64_t control_bytes;
    int fd;
    struct waste_error err;
};

static void setup(struct bench *b, const struct tiny_shape *shape)
{
    const struct waste_options options = {.threads = 1, .ctx = 16};
    memset(b, 0, sizeof(*b));
    tiny_build(&b->tiny, shape);
    if (waste_container_open(b->tiny.dir, &b->model, &b->err) < 0)
        fail_msg("%s", b->err.text);
    b->control_bytes = waste_control_bytes(b->model, 2);
    void *base =
        mmap(NULL, b->control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    waste_control_init(base, b->control_bytes, b->model, 2, &options, 1, &b->shm);
    assert_int_equal(waste_segment_create(WASTE_SEG_TRUNK, b->model->trunk_bytes, &b->fd), 0);
}

static void teardown(struct bench *b)
{
    close(b->fd);
    munmap(b->shm.control, b->control_bytes);
    free(b->model);
    tiny_free(&b->tiny);
}

static bool go_on(void *ctx)
{
    ++*(int *)ctx;
    return true;
}

static int load(struct bench *b)
{
    int ticks = 0;
    int rc = waste_trunk_load(&b->shm, b->tiny.dir, b->fd, go_on, &ticks, &b->err);
    if (rc == 0 && !atomic_load(&b->shm.control->trunk_ready))
        fail_msg("loaded, but not ready");
    return rc;
}

static uint64_t counter(const struct bench *b, enum waste_counter id)
{
    return atomic_load(&b->shm.control->counter[id]);
}

/* The integer at (row, column) of a quantised payload, by FORMAT. */
static int stored(const struct waste_tensor *t, const uint8_t *row, uint32_t column)
{
    if (t->fmt == WASTE_FMT_Q8G)
        return (int8_t)row[column];
    if (t->fmt == WASTE_FMT_Q4G)
        return (row[column / 2] >> column % 2 * 4 & 15) - 8;
    uint32_t bit = 3 * column, two = row[bit / 8] | (uint32_t)row[bit / 8 + 1] << 8;
    return (int)(two >> bit % 8 & 7) - 4;
}

static void check_tensor(const struct bench *b, const uint8_t *seg, uint32_t id, uint32_t step)
{
    const struct waste_tensor *t = waste_model_tensor(b->model, id);
    char name[128];
    waste_container_tensor_name(b->model, id, name, sizeof(name));
    uint32_t number = tiny_number(&b->tiny, name);
    /* Kimi-Linear's A_log is [1, 1, heads, 1]: the file's rows are our columns */
    bool turned = strstr(name, "A_log") && !b->tiny.shape.k3;
    for (uint32_t r = 0; r < t->rows; r += step)
        for (uint32_t c = 0; c < t->cols; c++) {
            const uint8_t *row = seg + t->data + (uint64_t)r * t->row_bytes;
            if (t->fmt == WASTE_FMT_F32) {
                float got;
                memcpy(&got, row + 4 * (size_t)c, 4);
                if (got != (turned ? tiny_f32(number, c, 0) : tiny_f32(number, r, c)))
                    fail_msg("%s [%u, %u] is %g", name, r, c, (double)got);
                continue;
            }
            uint16_t bits, scale;
            tiny_scale(number, r, c / 128, &bits);
            memcpy(&scale, seg + t->scales + 2 * ((uint64_t)r * t->groups + c / 128), 2);
            if (stored(t, row, c) != tiny_int(number, r, c, t->fmt) || scale != bits)
                fail_msg("%s [%u, %u] is %d x %04x", name, r, c, stored(t, row, c), scale);
        }
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(seg[t->data + t->payload_bytes + i], 0);
}

static void check_codebooks(const struct bench *b, const uint8_t *seg)
{
    const struct waste_expert_format *x = &b->model->expert;
    const float *books = (const float *)(seg + x->codebook_data);
    for (uint32_t i = 0; i < x->codebooks; i++)
        for (uint32_t v = 0; v < x->entries * 8; v++) {
            uint16_t bits;
            float want = tiny_codebook(i, v, &bits), got = books[(size_t)i * x->entries * 8 + v];
            if (got != want)
                fail_msg("codebook %u, value %u (%04x) is %g, must be %g", i, v, bits, (double)got,
                         (double)want);
        }
}

static void check_all(const struct bench *b, uint32_t from, uint32_t step)
{
    struct waste_mapping map;
    assert_int_equal(waste_segment_map(b->fd, WASTE_SEG_TRUNK, false, &map), 0);
    for (uint32_t id = from; id < b->model->tensor_count; id++)
        if (waste_model_tensor(b->model, id)->data)
            check_tensor(b, map.base, id, step);
    check_codebooks(b, map.base);
    waste_segment_unmap(&map);
}

static void every_weight_of_every_format_arrives(void **state)
{
    static const uint32_t trunk[] = {TINY_Q8G, TINY_Q4G, TINY_Q3G, TINY_F32};
    static const uint32_t experts[] = {TINY_VQ3R, TINY_VQ2R, TINY_VQ4P, TINY_VQ3R};
    for (size_t i = 0; i < 8; i++) {
        struct tiny_shape shape = i < 4 ? tiny_k3 : tiny_linear;
        struct bench b;
        shape.trunk_fmt = trunk[i % 4];
        shape.expert_fmt = experts[i % 4];
        setup(&b, &shape);
        if (load(&b) < 0)
            fail_msg("%s", b.err.text);
        check_all(&b, 1, 1);
        assert_int_equal(counter(&b, WASTE_C_TRUNK_LOADED), waste_trunk_file_bytes(b.model));
        assert_int_equal(counter(&b, WASTE_C_TRUNK_BYTES_READ), waste_trunk_file_bytes(b.model));
        teardown(&b);
    }
}

static void a_loaded_trunk_is_sealed_and_not_read_again(void **state)
{
    struct bench b;
    setup(&b, &tiny_k3);
    assert_int_equal(load(&b), 0);
    assert_true(fcntl(b.fd, F_GET_SEALS) & F_SEAL_WRITE);
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, b.fd, 0) == MAP_FAILED);
    uint64_t read = counter(&b, WASTE_C_TRUNK_BYTES_READ);
    assert_int_equal(load(&b), 0);
    /* a reader that died between the seal and the ready word */
    atomic_store(&b.shm.control->trunk_ready, 0);
    assert_int_equal(load(&b), 0);
    assert_int_equal(counter(&b, WASTE_C_TRUNK_BYTES_READ), read);
    check_all(&b, 1, 1);
    teardown(&b);
}

/* Tensors of several reads, and rows that two reads share. */
static const struct tiny_shape wide = {
    .expert_fmt = TINY_VQ3R,
    .trunk_fmt = TINY_Q3G,
    .layers = 2,
    .dense = 1,
    .hidden = 136,
    .vocab = 40000,
    .experts = 1,
    .top_k = 1,
    .inner = 8,
    .shared = 1,
    .mla_every = 2,
    .heads = 1,
    .head_dim = 8,
};

static void large_tensors_arrive_in_pieces(void **state)
{
    struct bench b;
    setup(&b, &wide);
    assert_true(waste_model_tensor(b.model, b.model->tensor[WASTE_M_LM_HEAD])->payload_bytes >
                (8 << 20));
    assert_int_equal(load(&b), 0);
    check_all(&b, 1, 7);
    teardown(&b);
}

static bool die_in_the_middle(void *ctx)
{
    const struct bench *b = ctx;
    while (atomic_load(&b->shm.control->trunk_tensors) < 20)
        usleep(100);
    kill(getpid(), SIGKILL);
    return true;
}

static void the_successor_of_a_killed_reader_goes_on(void **state)
{
    struct bench b;
    setup(&b, &wide);
    pid_t child = fork();
    if (child == 0) {
        waste_trunk_load(&b.shm, b.tiny.dir, b.fd, die_in_the_middle, &b, &b.err);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_true(atomic_load(&b.shm.control->trunk_tensors) >= 20);
    assert_int_equal(load(&b), 0);
    check_all(&b, 1, 7);
    teardown(&b);
}

/* Tensors that the words say are complete are neither read nor written again. */
static void complete_tensors_are_left_alone(void **state)
{
    struct bench b;
    struct waste_mapping map;
    setup(&b, &tiny_k3);
    uint32_t done = 30;
    atomic_store(&b.shm.control->trunk_tensors, done);
    assert_int_equal(load(&b), 0);
    check_all(&b, done + 1, 1);
    uint64_t skipped = 0;
    assert_int_equal(waste_segment_map(b.fd, WASTE_SEG_TRUNK, false, &map), 0);
    for (uint32_t id = 1; id <= done; id++) {
        const struct waste_tensor *t = waste_model_tensor(b.model, id);
        const uint8_t *data = (const uint8_t *)map.base + t->data;
        for (uint64_t i = 0; t->data && i < t->payload_bytes; i++)
            assert_int_equal(data[i], 0);
        skipped += t->data ? t->payload_bytes + 2 * (uint64_t)t->rows * t->groups : 0;
    }
    waste_segment_unmap(&map);
    assert_true(skipped > 0);
    assert_int_equal(counter(&b, WASTE_C_TRUNK_BYTES_READ),
                     waste_trunk_file_bytes(b.model) - skipped);
    assert_int_equal(counter(&b, WASTE_C_TRUNK_LOADED), waste_trunk_file_bytes(b.model));
    teardown(&b);
}

static bool never_go_on(void *ctx)
{
    return false;
}

static void a_stop_ends_the_load_and_a_new_one_finishes(void **state)
{
    struct bench b;
    setup(&b, &wide);
    assert_int_equal(waste_trunk_load(&b.shm, b.tiny.dir, b.fd, never_go_on, NULL, &b.err),
                     -ECANCELED);
    assert_false(atomic_load(&b.shm.control->trunk_ready));
    assert_false(fcntl(b.fd, F_GET_SEALS) & F_SEAL_WRITE);
    assert_int_equal(load(&b), 0);
    check_all(&b, 1, 7);
    teardown(&b);
}

static void patch(const struct bench *b, const char *file, uint64_t at, const void *data,
                  size_t bytes)
{
    char path[128];
    int fd = open(tiny_path(&b->tiny, file, path), O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, bytes, (off_t)at), (ssize_t)bytes);
    close(fd);
}

static void refused(struct bench *b, const char *named)
{
    assert_int_equal(load(b), -EINVAL);
    if (!strstr(b->err.text, named))
        fail_msg("\"%s\" not in: %s", named, b->err.text);
    assert_false(atomic_load(&b->shm.control->trunk_ready));
    assert_false(fcntl(b->fd, F_GET_SEALS) & F_SEAL_WRITE);
    teardown(b);
}

static void numbers_that_are_not_finite_are_named(void **state)
{
    static const uint32_t nan_bits = 0x7fc00000, inf_bits = 0xff800000;
    static const uint16_t half_inf = 0x7c00, half_nan = 0xfe01;
    struct bench b;
    setup(&b, &tiny_k3);
    const struct waste_tensor *t =
        waste_model_tensor(b.model, waste_model_layer(b.model, 2)->tensor[WASTE_T_ROUTER]);
    patch(&b, "trunk.bin", t->file_off + 4 * (2 * 136 + 5), &nan_bits, 4);
    refused(&b, "trunk.bin: model.layers.2.block_sparse_moe.gate.weight: the weight of row 2, "
                "column 5 is not finite");
    setup(&b, &tiny_k3);
    t = waste_model_tensor(b.model, b.model->tensor[WASTE_M_FINAL_NORM]);
    patch(&b, "trunk.bin", t->file_off + 4 * 135, &inf_bits, 4);
    refused(&b, "model.norm.weight: the weight of row 0, column 135 is not finite");
    setup(&b, &tiny_k3);
    t = waste_model_tensor(b.model, waste_model_layer(b.model, 0)->tensor[WASTE_T_KDA_Q]);
    patch(&b, "trunk.bin", t->file_scale_off + 2 * (7 * 2 + 1), &half_inf, 2);
    refused(&b,
            "model.layers.0.self_attn.q_proj.weight: the scale of row 7, group 1 is not finite");
    setup(&b, &tiny_k3);
    patch(&b, "codebooks.bin", 4 * 4112 + 16 + 2 * (9 * 8 + 3), &half_nan, 2);
    refused(&b, "codebooks.bin: codebook 4: entry 9 is not finite");
}

static void a_directory_that_changed_is_refused(void **state)
{
    static const char *const files[] = {"trunk.bin", "codebooks.bin", "experts-L2.bin"};
    struct bench b;
    char path[128];
    for (size_t i = 0; i < 3; i++) {
        setup(&b, &tiny_linear);
        assert_int_equal(truncate(tiny_path(&b.tiny, files[i], path), 100), 0);
        refused(&b, files[i]);
    }
    setup(&b, &tiny_linear);
    json_object_set_new(b.tiny.manifest, "arch", json_string("other"));
    tiny_save_manifest(&b.tiny);
    refused(&b, "manifest.json: has changed");
    setup(&b, &tiny_linear);
    patch(&b, "codebooks.bin", 3 * 4112 + 8, "\x41", 1); /* entries */
    refused(&b, "codebooks.bin: codebook 3: entries is");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_of_every_format_arrives),
        cmocka_unit_test(a_loaded_trunk_is_sealed_and_not_read_again),
        cmocka_unit_test(large_tensors_arrive_in_pieces),
        cmocka_unit_test(the_successor_of_a_killed_reader_goes_on),
        cmocka_unit_test(complete_tensors_are_left_alone),
        cmocka_unit_test(a_stop_ends_the_load_and_a_new_one_finishes),
        cmocka_unit_test(numbers_that_are_not_finite_are_named),
        cmocka_unit_test(a_directory_that_changed_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
