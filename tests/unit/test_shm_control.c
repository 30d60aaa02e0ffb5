#include "tests/unit/cm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/control.h"
#include "shm/segment.h"
#include "tests/unit/fake_model.h"

enum { SLOTS = 5 };

static struct fake_model fake;
static const struct waste_options options = {.threads = 2, .ctx = 10, .verify = 1};
static struct waste_shm made; /* what init handed out */
static uint64_t bytes;

/* Exactly as many bytes as needed, so that a sanitizer sees a step beyond them. */
static struct waste_control *make(void)
{
    void *base;

    fake_model_init(&fake);
    bytes = waste_control_bytes(&fake.model, SLOTS);
    base = aligned_alloc(64, bytes);
    assert_non_null(base);
    memset(base, 0, bytes);
    waste_control_init(base, bytes, &fake.model, SLOTS, &options, 1234, &made);
    return base;
}

static int attach(void *base, uint64_t size)
{
    struct waste_shm shm = {0}, zero = {0};
    int ret = waste_control_attach(base, size, &shm);

    /* whatever else the header says, a stage gets init's pointers or none */
    assert_memory_equal(&shm, ret == 0 ? &made : &zero, sizeof(shm));
    return ret;
}

static struct fake_model *model_in(struct waste_control *c)
{
    return (struct fake_model *)((char *)c + c->model_off);
}

static void the_layout_follows_from_the_model(void **state)
{
    struct waste_control *c = make();

    assert_int_equal(bytes % 64, 0);
    assert_int_equal(c->bytes, bytes);
    assert_int_equal(c->slot_bytes, 8192);
    assert_int_equal(c->embed_row_bytes, 256); /* 128 values, one f16, 64 spare, whole lines */
    assert_int_equal(c->want_stride, 320);     /* 24 + 64 ids */
    assert_int_equal(c->hidden_stride, 448);   /* 16 + 96 floats */
    assert_true(waste_want_capacity(c) >= 64);
    assert_int_equal(made.demand->capacity, WASTE_DEMAND_RING);
    assert_int_equal(made.demand->stride, 320);
    assert_int_equal(made.prefetch->stride, 320);
    assert_int_equal(made.hidden->stride, 448);
    assert_int_equal(made.hidden->capacity, WASTE_HIDDEN_RING);
    assert_memory_equal(made.model, &fake, sizeof(fake));
    for (int i = 0; i < 2 * 6; i++)
        assert_int_equal(atomic_load(&made.directory[i]), WASTE_SLOT_NONE);
    for (int i = 0; i < SLOTS; i++)
        assert_int_equal(atomic_load(&made.slot[i].word), 0);
    assert_int_equal(c->supervisor_pid, 1234);
    assert_int_equal(c->options.threads, 2);
    free(c);
}

static void many_chosen_experts_make_a_wider_record(void **state)
{
    fake_model_init(&fake);
    fake.model.config.experts = fake.model.config.top_k = 1000;
    bytes = waste_control_bytes(&fake.model, SLOTS);
    fake.model.config.top_k = 6;
    assert_true(bytes > waste_control_bytes(&fake.model, SLOTS) + 2 * 64 * 900 * 4);
}

/* Every section in bounds, 64-aligned, and apart from every other. */
static void sections_do_not_overlap(void **state)
{
    struct waste_control *c = make();
    const struct {
        const void *at;
        uint64_t size;
    } part[] = {
        {c, sizeof(*c)},
        {made.model, sizeof(fake)},
        {made.demand, waste_ring_bytes(WASTE_DEMAND_RING, 320)},
        {made.prefetch, waste_ring_bytes(WASTE_PREFETCH_RING, 320)},
        {made.hidden, waste_ring_bytes(WASTE_HIDDEN_RING, 448)},
        {made.embed, 64 * WASTE_EMBED_SLOTS},
        {made.embed_data, 256 * WASTE_EMBED_SLOTS},
        {made.slot, 64 * SLOTS},
        {made.directory, 4 * 2 * 6},
    };
    enum { PARTS = sizeof(part) / sizeof(part[0]) };

    for (size_t i = 0; i < PARTS; i++) {
        uint64_t off = (uint64_t)((const char *)part[i].at - (const char *)c);

        assert_int_equal(off % 64, 0);
        assert_true(off + part[i].size <= bytes);
        for (size_t k = 0; k < PARTS; k++) {
            uint64_t other = (uint64_t)((const char *)part[k].at - (const char *)c);

            assert_true(k == i || off + part[i].size <= other || other + part[k].size <= off);
        }
    }
    free(c);
}

static void attach_waits_for_ready(void **state)
{
    struct waste_control *c = make();

    assert_int_equal(attach(c, bytes), 0);
    atomic_store(&c->ready, 0);
    assert_int_equal(attach(c, bytes), -EAGAIN);
    atomic_store(&c->ready, 2);
    assert_int_equal(attach(c, bytes), -EPROTO);
    free(c);
}

static void attach_works_on_a_readonly_mapping(void **state)
{
    struct waste_mapping rw, ro;
    struct waste_shm shm;
    int fd;

    fake_model_init(&fake);
    bytes = waste_control_bytes(&fake.model, SLOTS);
    assert_int_equal(waste_segment_create(WASTE_SEG_CONTROL, bytes, &fd), 0);
    assert_int_equal(waste_segment_map(fd, WASTE_SEG_CONTROL, true, &rw), 0);
    assert_int_equal(waste_segment_map(fd, WASTE_SEG_CONTROL, false, &ro), 0);
    assert_int_equal(waste_control_attach(ro.base, ro.bytes, &shm), -EAGAIN);
    waste_control_init(rw.base, rw.bytes, &fake.model, SLOTS, &options, 1234, &made);
    assert_int_equal(waste_control_attach(ro.base, ro.bytes, &shm), 0);
    assert_ptr_equal(shm.control, ro.base);
    assert_int_equal(waste_ring_used(shm.demand), 0);
    waste_segment_unmap(&rw);
    waste_segment_unmap(&ro);
    close(fd);
}

static void foreign_bytes_and_other_versions_are_refused(void **state)
{
    struct waste_control *c = make();

    c->magic ^= 1;
    assert_int_equal(attach(c, bytes), -EPROTO);
    c->magic ^= 1;
    c->version++;
    assert_int_equal(attach(c, bytes), -EPROTO);
    c->version -= 2;
    assert_int_equal(attach(c, bytes), -EPROTO);
    free(c);
}

#define FIELD(name)                                                                                \
    {                                                                                              \
#name, offsetof(struct waste_control, name), sizeof(((struct waste_control *)0)->name)     \
    }

static void each_corrupted_header_field_is_refused(void **state)
{
    static const struct {
        const char *name;
        size_t off, size;
    } field[] = {
        FIELD(bytes),           FIELD(slot_count),     FIELD(slot_bytes),
        FIELD(embed_row_bytes), FIELD(embed_slot_off), FIELD(embed_data_off),
        FIELD(slot_off),        FIELD(directory_off),  FIELD(demand_off),
        FIELD(prefetch_off),    FIELD(hidden_off),     FIELD(model_off),
        FIELD(want_stride),     FIELD(hidden_stride),  FIELD(layer_meter_off),
    };
    struct waste_control *c = make();

    for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++) {
        unsigned char *at = (unsigned char *)c + field[i].off, saved[8];

        memcpy(saved, at, field[i].size);
        for (size_t bit = 0; bit < 8 * field[i].size; bit++) {
            at[bit / 8] ^= (unsigned char)(1 << bit % 8);
            if (attach(c, bytes) != -EINVAL)
                fail_msg("%s with bit %zu flipped was accepted", field[i].name, bit);
            memcpy(at, saved, field[i].size);
        }
        memset(at, 0, field[i].size);
        assert_int_equal(attach(c, bytes), -EINVAL);
        memset(at, 0xff, field[i].size);
        assert_int_equal(attach(c, bytes), -EINVAL);
        memcpy(at, saved, field[i].size);
    }
    assert_int_equal(attach(c, bytes), 0);
    free(c);
}

static void nonsense_options_and_ring_geometry_are_refused(void **state)
{
    struct waste_control *c = make();
    struct waste_ring *ring[] = {made.demand, made.prefetch, made.hidden};

    c->options.threads = 0;
    assert_int_equal(attach(c, bytes), -EINVAL);
    c->options = options;
    c->options.io = WASTE_IO_PREAD + 1;
    assert_int_equal(attach(c, bytes), -EINVAL);
    c->options = options;
    c->options.verify = 2;
    assert_int_equal(attach(c, bytes), -EINVAL);
    c->options = options;
    c->options.ctx = 0;
    assert_int_equal(attach(c, bytes), -EINVAL);
    c->options = options;
    c->supervisor_pid = 0;
    assert_int_equal(attach(c, bytes), -EINVAL);
    c->supervisor_pid = 1;
    for (int i = 0; i < 3; i++) {
        ring[i]->capacity *= 2;
        assert_int_equal(attach(c, bytes), -EINVAL);
        ring[i]->capacity /= 2;
        ring[i]->stride += 8;
        assert_int_equal(attach(c, bytes), -EINVAL);
        ring[i]->stride -= 8;
    }
    atomic_store(&made.demand->head, 1000); /* the owner's to repair, not a reason to stay out */
    assert_int_equal(attach(c, bytes), 0);
    free(c);
}

static void a_smaller_mapping_is_refused_whatever_its_size(void **state)
{
    struct waste_control *c = make();

    for (uint64_t size = 0; size < bytes; size += size % 4096 == 0 ? 8 : 1016) {
        struct waste_shm out;
        void *copy = aligned_alloc(64, (size + 64) / 64 * 64);

        memcpy(copy, c, size);
        assert_true(waste_control_attach(copy, size, &out) < 0);
        free(copy);
    }
    free(c);
}

static void a_model_that_refers_outside_itself_is_refused(void **state)
{
    struct waste_control *c = make();
    struct fake_model *m = model_in(c), saved = *m;

#define REFUSED(change)                                                                            \
    do {                                                                                           \
        change;                                                                                    \
        assert_int_equal(waste_model_check(&m->model, sizeof(*m)), -EINVAL);                       \
        assert_int_equal(attach(c, bytes), -EINVAL);                                               \
        *m = saved;                                                                                \
    } while (0)
    assert_int_equal(waste_model_check(&m->model, sizeof(*m)), 0);
    assert_int_equal(waste_model_check(&m->model, sizeof(*m) - 1), -EINVAL);
    REFUSED(m->model.bytes = UINT64_MAX - 7);
    REFUSED(m->model.bytes = 8);
    REFUSED(m->model.layer_off = 0);
    REFUSED(m->model.layer_off += 4);
    REFUSED(m->model.layer_off = UINT64_MAX - 7);
    REFUSED(m->model.layer_off += 3 * sizeof(struct waste_tensor) + 8);
    REFUSED(m->model.tensor_off += 8);
    REFUSED(m->model.tensor_off = UINT64_MAX - 7);
    REFUSED(m->model.tensor_count++);
    REFUSED(m->model.tensor_count = 0);
    REFUSED(m->model.tensor_count = UINT32_MAX);
    REFUSED(m->model.tensor[WASTE_M_LM_HEAD] = 3);
    REFUSED(m->model.config.layers = 0);
    REFUSED(m->model.config.layers = WASTE_MAX_LAYERS + 1);
    REFUSED(m->model.config.hidden = WASTE_MAX_HIDDEN + 1);
    REFUSED(m->model.config.vocab = WASTE_MAX_VOCAB + 1);
    REFUSED(m->model.config.experts = WASTE_MAX_EXPERTS + 1);
    REFUSED(m->model.config.top_k = 7);
    REFUSED(m->model.config.eos_count = WASTE_MAX_EOS + 1);
    REFUSED(m->model.config.kda_layers = 2);
    REFUSED(m->model.trunk_bytes = 4096);
    REFUSED(m->model.trunk_bytes += 1);
    REFUSED(m->model.expert.record_bytes = 0);
    REFUSED(m->model.expert.record_bytes += 64);
    REFUSED(m->model.expert.crc_end = 8193);
    REFUSED(m->model.expert.scale_off = 8192);
    REFUSED(m->model.expert.codebooks = UINT32_MAX);
    REFUSED(m->model.expert.codebook_data = 65536);
    REFUSED(m->model.expert.entries = UINT32_MAX);
    REFUSED(m->layer[0].tensor[WASTE_T_KDA_Q] = 3);
    REFUSED(m->layer[0].tensor[WASTE_T_KDA_Q] = UINT32_MAX);
    REFUSED(m->layer[0].state_index = 1);
    REFUSED(m->layer[1].is_kda = 2);
    REFUSED(m->layer[1].bank.experts = 7);
    REFUSED(m->layer[1].bank.bytes++);
    REFUSED(memset(m->layer[1].bank.file, 'x', sizeof(m->layer[1].bank.file)));
    REFUSED(m->tensor[2].data = 65536 - 380);
    REFUSED(m->tensor[2].data = UINT64_MAX - 100);
    REFUSED(m->tensor[2].row_bytes = UINT64_MAX);
    REFUSED(m->tensor[2].payload_bytes++);
    REFUSED(m->tensor[2].rows = 0);
    REFUSED(m->tensor[2].fmt = WASTE_FMT_COUNT);
    REFUSED((m->tensor[2].groups = 96, m->tensor[2].scales = 65536 - 190));
    REFUSED(m->tensor[1].groups = UINT32_MAX);
#undef REFUSED
    assert_int_equal(attach(c, bytes), 0);
    free(c);
}

/* One to four bytes anywhere in header or model become something else: init's pointers or none. */
static void random_damage_never_yields_other_pointers(void **state)
{
    struct waste_control *c = make();
    size_t header = offsetof(struct waste_control, reader_bell), off = c->model_off, span;
    unsigned char *saved = malloc(bytes), *at = (unsigned char *)c;
    uint64_t rng = 88172645463325252u;
    int refused = 0;

    memcpy(saved, c, bytes);
    span = header + sizeof(fake);
    for (int round = 0; round < 20000; round++) {
        for (int k = 0; k <= round % 4; k++) {
            size_t i;

            rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
            i = rng % span;
            at[i < header ? i : off + i - header] = (unsigned char)(rng >> 40);
        }
        refused += attach(c, bytes) < 0;
        memcpy(at, saved, header);
        memcpy(at + off, saved + off, sizeof(fake));
    }
    assert_in_range(refused, 3000, 20000);
    free(saved);
    free(c);
}

static void tables_have_a_name_for_everything(void **state)
{
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        assert_non_null(waste_stage_name[i]);
    for (int i = 0; i < WASTE_STAGE_STATE_COUNT; i++)
        assert_non_null(waste_stage_state_name[i]);
    for (int i = 0; i < WASTE_ACT_COUNT; i++)
        assert_non_null(waste_activity_name[i]);
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        assert_non_null(waste_segment_name[i]);
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++) {
        assert_non_null(waste_counter_info[i].name);
        assert_non_null(waste_counter_info[i].help);
        assert_in_range(waste_counter_info[i].writer, 0, WASTE_STAGE_COUNT);
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(waste_counter_info[i].name, waste_counter_info[k].name);
            assert_string_not_equal(waste_counter_info[i].metric, waste_counter_info[k].metric);
        }
    }
    assert_string_equal(waste_stage_name[WASTE_STAGE_ROUTER], "router");
    assert_string_equal(waste_counter_info[WASTE_C_TOKENS].name, "tokens");
    assert_int_equal(waste_counter_info[WASTE_C_TOKENS].writer, WASTE_STAGE_COMPUTE);
}

static void marks_and_counts_land_in_their_words(void **state)
{
    struct waste_control *c = make();
    struct waste_stage *s = &c->stage[WASTE_STAGE_COMPUTE];
    uint64_t first;

    waste_stage_mark(s, WASTE_ACT_COMPUTING, 5);
    assert_int_equal(atomic_load(&s->activity), WASTE_ACT_COMPUTING);
    assert_int_equal(atomic_load(&s->layer), 5);
    first = atomic_load(&s->heartbeat_ns);
    assert_true(first > 0);
    usleep(1000);
    waste_stage_mark(s, WASTE_ACT_IDLE, -1);
    assert_int_equal(atomic_load(&s->layer), 5);
    assert_true(atomic_load(&s->heartbeat_ns) >= first + 1000000);
    waste_count(c, WASTE_C_HITS, 3);
    waste_count(c, WASTE_C_HITS, 4);
    assert_int_equal(atomic_load(&c->counter[WASTE_C_HITS]), 7);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_layout_follows_from_the_model),
        cmocka_unit_test(many_chosen_experts_make_a_wider_record),
        cmocka_unit_test(sections_do_not_overlap),
        cmocka_unit_test(attach_waits_for_ready),
        cmocka_unit_test(attach_works_on_a_readonly_mapping),
        cmocka_unit_test(foreign_bytes_and_other_versions_are_refused),
        cmocka_unit_test(each_corrupted_header_field_is_refused),
        cmocka_unit_test(nonsense_options_and_ring_geometry_are_refused),
        cmocka_unit_test(a_smaller_mapping_is_refused_whatever_its_size),
        cmocka_unit_test(a_model_that_refers_outside_itself_is_refused),
        cmocka_unit_test(random_damage_never_yields_other_pointers),
        cmocka_unit_test(tables_have_a_name_for_everything),
        cmocka_unit_test(marks_and_counts_land_in_their_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
