/* waste-reader, the real program, as a child; this process plays waste-run and compute. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "reader_rig.h"

static enum waste_io_mode modes[2];
static uint32_t mode_count;

static uint64_t random_state = 88172645463325252u;
static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state % n);
}

/* top_k distinct experts */
static void random_experts(struct reader_rig *r, uint32_t *expert)
{
    for (uint32_t i = 0; i < r->model->config.top_k; i++) {
    again:
        expert[i] = random_below(r->model->config.experts);
        for (uint32_t j = 0; j < i; j++)
            if (expert[j] == expert[i])
                goto again;
    }
}

static uint32_t floor_slots(void)
{
    struct waste_model *model;
    struct waste_error err;
    assert_int_equal(waste_container_open(WASTE_DEMO_MODEL, &model, &err), 0);
    uint32_t slots = 2 * model->config.top_k;
    free(model);
    return slots;
}

static void every_expert_arrives_with_the_smallest_cache(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < mode_count; m++) {
        struct reader_rig r;
        rig_create(&r, WASTE_DEMO_MODEL, floor_slots(), modes[m], true);
        rig_start(&r, true);
        uint32_t k = r.model->config.top_k, n = 0;
        for (uint32_t layer = 0; layer < r.model->config.layers; layer++) {
            if (!waste_model_layer(r.model, layer)->is_moe)
                continue;
            for (uint32_t e = 0; e + k <= r.model->config.experts; e += k, n += k) {
                uint32_t expert[64];
                for (uint32_t i = 0; i < k; i++)
                    expert[i] = e + k - 1 - i;
                rig_check_experts(&r, layer, expert, k);
            }
        }
        assert_int_equal(rig_counter(&r, WASTE_C_MISSES), n);
        assert_int_equal(rig_counter(&r, WASTE_C_READS), n);
        assert_int_equal(rig_counter(&r, WASTE_C_BYTES_READ),
                         (uint64_t)n * r.model->expert.record_bytes);
        assert_int_equal(r.shm.control->io_in_use, modes[m]);
        assert_int_equal(r.shm.control->trunk_ready, 1);
        assert_int_equal(rig_stop(&r), 0);
        rig_destroy(&r);
    }
}

static void what_is_in_memory_is_not_read_again(void **state)
{
    (void)state;
    struct reader_rig r;
    const uint32_t expert[] = {3, 60, 7, 11};
    rig_create(&r, WASTE_DEMO_MODEL, 4 * floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&r, true);
    rig_check_experts(&r, 1, expert, 4);
    rig_check_experts(&r, 2, expert, 4);
    rig_check_experts(&r, 1, expert, 4);
    assert_int_equal(rig_counter(&r, WASTE_C_READS), 8);
    assert_int_equal(rig_counter(&r, WASTE_C_HITS), 4);
    assert_int_equal(rig_counter(&r, WASTE_C_MISSES), 8);
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

static void what_was_posted_before_a_stop_is_counted(void **state)
{
    (void)state;
    struct reader_rig r;
    const uint32_t expert[] = {3, 60, 7, 11};
    rig_create(&r, WASTE_DEMO_MODEL, floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&r, true);
    rig_check_experts(&r, 1, expert, 4);
    for (uint64_t n = 1; n <= 3; n++) { /* compute does not wake it for what is in memory */
        struct waste_want *want = waste_ring_claim(r.shm.demand);
        *want = (struct waste_want){.step = r.step++, .layer = 1, .count = 4};
        memcpy(want->expert, expert, sizeof(expert));
        waste_ring_publish(r.shm.demand);
        assert_int_equal(rig_stop(&r), 0);
        assert_int_equal(rig_counter(&r, WASTE_C_HITS), 4 * n);
        rig_start(&r, true);
    }
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

static void a_predicted_expert_is_there_when_it_is_demanded(void **state)
{
    (void)state;
    struct reader_rig r;
    const uint32_t now[] = {0, 1, 2, 3}, later[] = {40, 41, 42, 43}, past[] = {50};
    uint64_t before[WASTE_COUNTER_COUNT];
    rig_create(&r, WASTE_DEMO_MODEL, 4 * floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&r, true);
    /* predictions that come true, until one is worth a read */
    for (uint32_t n = 0; n < 60; n++) {
        uint32_t right[4];
        for (uint32_t i = 0; i < 4; i++)
            right[i] = (4 * n + i) % 36;
        r.step = n;
        rig_prefetch(&r, n, 4, right, 4);
        rig_settle(&r);
        usleep(1000); /* time enough for a read */
        rig_check_experts(&r, 4, right, 4);
        for (uint32_t i = 0; i < 4; i++)
            right[i] = (5 * n + 7 * i) % 64;
        rig_check_experts(&r, 5, right, 4); /* pays for them */
    }
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        before[i] = rig_counter(&r, i);
    r.step = 90;
    rig_check_experts(&r, 3, now, 4);
    rig_prefetch(&r, 90, 3, past, 1); /* compute is there already */
    rig_prefetch(&r, 90, 4, later, 1);
    uint32_t slot;
    assert_true(rig_wait(&r, 4, later[0], &slot));
    waste_slot_unpin(&r.shm.slot[slot]);
    rig_check_experts(&r, 4, later, 4);
    assert_int_equal(rig_counter(&r, WASTE_C_READS) - before[WASTE_C_READS], 8);
    assert_int_equal(rig_counter(&r, WASTE_C_HITS) - before[WASTE_C_HITS], 1);
    assert_int_equal(rig_counter(&r, WASTE_C_PREFETCHED) - before[WASTE_C_PREFETCHED], 1);
    assert_int_equal(rig_counter(&r, WASTE_C_PREFETCH_USED) - before[WASTE_C_PREFETCH_USED], 1);
    assert_int_equal(rig_counter(&r, WASTE_C_PREFETCH_DROPPED) - before[WASTE_C_PREFETCH_DROPPED],
                     1);
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

static void nonsense_in_the_rings_does_no_harm(void **state)
{
    (void)state;
    struct reader_rig r;
    const uint32_t twice[] = {5, 5, 6, 5}, good[] = {1, 2, 3, 4}, wild[] = {UINT32_MAX, 64};
    rig_create(&r, WASTE_DEMO_MODEL, floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&r, true);
    rig_demand(&r, 0, good, 4);          /* a dense layer */
    rig_demand(&r, UINT32_MAX, good, 4); /* no layer */
    rig_demand(&r, 1, wild, 2);          /* no experts */
    rig_demand(&r, 1, good, 0);
    rig_prefetch(&r, 100, 2, wild, 2);
    struct waste_want *want = waste_ring_claim(r.shm.demand);
    *want = (struct waste_want){.layer = 1, .count = UINT32_MAX};
    waste_ring_publish(r.shm.demand);
    rig_check_experts(&r, 1, twice, 4);
    assert_int_equal(rig_counter(&r, WASTE_C_READS), 2);
    assert_true(rig_logged(&r, WASTE_LOG_WARNING, "demand for an impossible"));
    assert_true(rig_logged(&r, WASTE_LOG_WARNING, "prefetch of an impossible"));
    /* a head that has gone mad */
    atomic_fetch_add(&r.shm.demand->head, UINT64_C(1) << 40);
    waste_bell_ring_fd(&r.shm.control->reader_bell, r.event);
    while (!rig_logged(&r, WASTE_LOG_WARNING, "impossible cursors"))
        usleep(1000);
    rig_check_experts(&r, 1, good, 4);
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

static void embedding_rows_are_the_files(void **state)
{
    (void)state;
    struct reader_rig r;
    rig_create(&r, WASTE_DEMO_MODEL, floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&r, true);
    const struct waste_tensor *t = waste_model_tensor(r.model, r.model->tensor[WASTE_M_EMBED]);
    int fd = open(WASTE_DEMO_MODEL "/trunk.bin", O_RDONLY);
    uint64_t row = t->row_bytes + 2 * t->groups;
    uint8_t *want = malloc(row);
    for (uint32_t pos = 0; pos < 200; pos++) {
        uint32_t token = pos * 7919 % t->rows, i = pos % WASTE_EMBED_SLOTS;
        uint64_t tag = waste_embed_tag(pos, token);
        atomic_store(&r.shm.embed[i].want, tag);
        waste_bell_ring_fd(&r.shm.control->reader_bell, r.event);
        while (atomic_load(&r.shm.embed[i].have) != tag)
            waste_bell_wait(&r.shm.control->compute_bell,
                            waste_bell_seq(&r.shm.control->compute_bell), 100000, 0);
        assert_int_equal(pread(fd, want, t->row_bytes, t->file_off + token * t->row_bytes),
                         t->row_bytes);
        assert_int_equal(pread(fd, want + t->row_bytes, 2 * t->groups,
                               t->file_scale_off + token * 2 * t->groups),
                         2 * t->groups);
        assert_memory_equal(want, r.shm.embed_data + i * r.shm.control->embed_row_bytes, row);
    }
    uint64_t bad = waste_embed_tag(200, t->rows);
    atomic_store(&r.shm.embed[8].want, bad);
    waste_bell_ring_fd(&r.shm.control->reader_bell, r.event);
    while (atomic_load(&r.shm.embed[8].have) != (bad | WASTE_EMBED_FAILED))
        usleep(1000);
    assert_true(rig_logged(&r, WASTE_LOG_ERROR, "embedding row of token 1344"));
    /* seen: the failure is forgotten, so that it is tried again if wanted again */
    atomic_store(&r.shm.embed[8].want, 0);
    waste_bell_ring_fd(&r.shm.control->reader_bell, r.event);
    while (atomic_load(&r.shm.embed[8].have) != 0)
        usleep(1000);
    free(want);
    close(fd);
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

/* Random demand and prefetch, checked; `kills` times the reader dies in the middle. */
static void run_with_kills(enum waste_io_mode mode, uint32_t slots, int kills)
{
    struct reader_rig r;
    uint32_t expert[64], guess[64];
    rig_create(&r, WASTE_DEMO_MODEL, slots, mode, true);
    rig_start(&r, true);
    uint32_t k = r.model->config.top_k;
    for (int n = 0; n < kills; n++) {
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t layer = 1 + i % 7;
            random_experts(&r, expert);
            random_experts(&r, guess);
            rig_prefetch(&r, r.step + 1, layer % 7 + 1, guess, k);
            rig_check_experts(&r, layer, expert, k);
        }
        random_experts(&r, expert);
        rig_demand(&r, 1, expert, k);
        usleep(random_below(300));
        kill(r.pid, SIGKILL);
        assert_int_equal(rig_reap(&r), -SIGKILL);
        rig_repair(&r);
        rig_start(&r, n % 2 == 0);           /* compute does not wait for it either */
        rig_check_experts(&r, 1, expert, k); /* posted again, as compute does */
    }
    assert_int_equal(rig_counter(&r, WASTE_C_READ_FAILURES), 0);
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

static void a_killed_reader_is_followed_by_one_that_goes_on(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < mode_count; m++) {
        run_with_kills(modes[m], floor_slots(), 12);
        run_with_kills(modes[m], 5 * floor_slots(), 12);
    }
}

static void a_restart_keeps_what_was_there(void **state)
{
    (void)state;
    struct reader_rig r;
    const uint32_t expert[] = {3, 60, 7, 11}, other[] = {4, 5, 6, 8};
    rig_create(&r, WASTE_DEMO_MODEL, 2 * floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&r, true);
    rig_check_experts(&r, 1, expert, 4);
    rig_check_experts(&r, 2, other, 4);
    uint64_t trunk = rig_counter(&r, WASTE_C_TRUNK_BYTES_READ);
    assert_int_equal(rig_stop(&r), 0);
    rig_start(&r, true);
    rig_check_experts(&r, 1, expert, 4);
    kill(r.pid, SIGKILL);
    rig_reap(&r);
    rig_repair(&r);
    rig_start(&r, true);
    rig_check_experts(&r, 2, other, 4);
    assert_int_equal(rig_counter(&r, WASTE_C_READS), 8);
    assert_int_equal(rig_counter(&r, WASTE_C_TRUNK_BYTES_READ), trunk);
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

static void slots_left_reading_are_thrown_away_even_if_nobody_did_it_before(void **state)
{
    (void)state;
    struct reader_rig r;
    const uint32_t expert[] = {3, 60, 7, 11};
    uint32_t slot;
    rig_create(&r, WASTE_DEMO_MODEL, floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&r, true);
    rig_check_experts(&r, 1, expert, 4);
    assert_true(rig_wait(&r, 1, 7, &slot));
    waste_slot_unpin(&r.shm.slot[slot]);
    assert_int_equal(rig_stop(&r), 0);
    atomic_fetch_sub(&r.shm.slot[slot].word, WASTE_SLOT_READY - WASTE_SLOT_READING);
    rig_start(&r, true);
    const uint8_t *data = (uint8_t *)r.cache.base + slot * r.model->expert.record_bytes;
    for (uint32_t i = 0; i < r.model->expert.record_bytes; i++)
        assert_int_equal(data[i], 0);
    assert_int_equal(r.shm.directory[r.model->config.experts + 7], WASTE_SLOT_NONE);
    rig_check_experts(&r, 1, expert, 4);
    assert_int_equal(rig_counter(&r, WASTE_C_READS), 5);
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

/* An unpin rings no bell; demand that waits for a slot looks again and again, and not only when it
 * beats its heart. */
static void an_unpin_lets_waiting_demand_go_on_soon(void **state)
{
    (void)state;
    struct reader_rig r;
    int64_t best = INT64_MAX;
    rig_create(&r, WASTE_DEMO_MODEL, floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&r, true);
    for (uint32_t n = 0; n < 8; n++) {
        uint32_t slot[8], k = 0, next = 50 + n % 4, got;
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t expert[4];
            for (uint32_t i = 0; i < 4; i++)
                expert[i] = 8 * (n % 2) + 4 * half + i;
            rig_demand(&r, 1 + n % 7, expert, 4);
            for (uint32_t i = 0; i < 4; i++)
                assert_true(rig_wait(&r, 1 + n % 7, expert[i], &slot[k++]));
        }
        rig_demand(&r, 1 + n % 7, &next, 1); /* everything is pinned */
        usleep(3000);
        int64_t begin = rig_now_ns();
        waste_slot_unpin(&r.shm.slot[slot[--k]]);
        assert_true(rig_wait(&r, 1 + n % 7, next, &got));
        if (rig_now_ns() - begin < best)
            best = rig_now_ns() - begin;
        waste_slot_unpin(&r.shm.slot[got]);
        while (k)
            waste_slot_unpin(&r.shm.slot[slot[--k]]);
    }
    assert_true(best < 80000000); /* the heartbeat is 100 ms; once of eight it had a CPU */
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

static void a_reader_killed_while_it_loads_leaves_a_trunk_its_successor_completes(void **state)
{
    (void)state;
    struct reader_rig whole, pieces;
    struct waste_mapping a, b;
    uint32_t interrupted = 0;
    rig_create(&whole, WASTE_DEMO_MODEL, floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&whole, true);
    rig_create(&pieces, WASTE_DEMO_MODEL, floor_slots(), WASTE_IO_AUTO, true);
    for (int i = 0; i < 20 && !atomic_load(&pieces.shm.control->trunk_ready); i++) {
        rig_start(&pieces, false);
        while (atomic_load(&pieces.shm.control->stage[WASTE_STAGE_READER].state) <
               WASTE_STAGE_LOADING)
            usleep(100);
        usleep(random_below(2500));
        kill(pieces.pid, SIGKILL);
        assert_int_equal(rig_reap(&pieces), -SIGKILL);
        interrupted += !atomic_load(&pieces.shm.control->trunk_ready);
    }
    if (interrupted == 0)
        print_message("the trunk was always loaded before the signal came\n");
    rig_start(&pieces, true);
    assert_int_equal(waste_segment_map(whole.fd[WASTE_SEG_TRUNK], WASTE_SEG_TRUNK, false, &a), 0);
    assert_int_equal(waste_segment_map(pieces.fd[WASTE_SEG_TRUNK], WASTE_SEG_TRUNK, false, &b), 0);
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.base, b.base, a.bytes);
    waste_segment_unmap(&a);
    waste_segment_unmap(&b);
    assert_int_equal(rig_stop(&pieces), 0);
    assert_int_equal(rig_stop(&whole), 0);
    rig_destroy(&pieces);
    rig_destroy(&whole);
}

/* ---- damaged copies of the model ---- */

static char copy[] = "/tmp/waste-test-reader-XXXXXX";

static void copy_model(void)
{
    char command[1024];
    memcpy(copy + strlen(copy) - 6, "XXXXXX", 6);
    assert_non_null(mkdtemp(copy));
    snprintf(command, sizeof(command), "cp %s/* %s/", WASTE_DEMO_MODEL, copy);
    assert_int_equal(system(command), 0);
}

static void remove_copy(void)
{
    char command[1024];
    snprintf(command, sizeof(command), "rm -r %s", copy);
    assert_int_equal(system(command), 0);
}

static void poke(const char *file, off_t off, uint8_t flip)
{
    char path[1024];
    uint8_t byte;
    snprintf(path, sizeof(path), "%s/%s", copy, file);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, off), 1);
    byte ^= flip;
    assert_int_equal(pwrite(fd, &byte, 1, off), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static void assert_fails(struct reader_rig *r, uint32_t layer, uint32_t expert, uint32_t error,
                         const char *line)
{
    uint32_t slot;
    rig_demand(r, layer, &expert, 1);
    assert_false(rig_wait(r, layer, expert, &slot));
    assert_int_equal(atomic_load(&r->shm.slot[slot].error), error);
    assert_true(rig_logged(r, WASTE_LOG_ERROR, line));
}

static void a_damaged_record_fails_and_names_itself(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < mode_count; m++) {
        struct reader_rig r;
        const uint32_t good[] = {16, 18, 19, 21};
        copy_model();
        rig_create(&r, copy, floor_slots(), modes[m], true);
        off_t record = r.model->expert.record_bytes;
        poke("experts-L3.bin", 17 * record + 1000, 0x10); /* payload */
        poke("experts-L3.bin", 20 * record + 6, 1);       /* expert id */
        rig_start(&r, true);
        assert_fails(&r, 3, 17, WASTE_SLOT_BAD_CRC,
                     "experts-L3.bin: layer 3 expert 17: checksum does not match, given up");
        assert_fails(&r, 3, 20, WASTE_SLOT_BAD_HEADER,
                     "experts-L3.bin: layer 3 expert 20: record header is not");
        assert_int_equal(rig_counter(&r, WASTE_C_READ_FAILURES), 2);
        assert_int_equal(rig_counter(&r, WASTE_C_READ_RETRIES), 6);
        rig_check_experts(&r, 3, good, 4); /* life goes on */
        /* demanded again it is read again */
        assert_fails(&r, 3, 17, WASTE_SLOT_BAD_CRC, "expert 17");
        assert_int_equal(rig_counter(&r, WASTE_C_READ_FAILURES), 3);
        poke("experts-L3.bin", 17 * record + 1000, 0x10);
        const uint32_t healed = 17;
        rig_check_experts(&r, 3, &healed, 1);
        assert_int_equal(rig_stop(&r), 0);
        rig_destroy(&r);
        remove_copy();
    }
}

static void without_verify_only_the_header_counts(void **state)
{
    (void)state;
    struct reader_rig r;
    const uint32_t expert = 17;
    copy_model();
    rig_create(&r, copy, floor_slots(), WASTE_IO_AUTO, false);
    poke("experts-L3.bin", 17 * (off_t)r.model->expert.record_bytes + 1000, 0x10);
    rig_start(&r, true);
    rig_check_experts(&r, 3, &expert, 1);
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
    remove_copy();
}

static void a_file_that_shrinks_while_running_fails_its_experts(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < mode_count; m++) {
        struct reader_rig r;
        char path[1024];
        const uint32_t good = 62;
        copy_model();
        rig_create(&r, copy, floor_slots(), modes[m], true);
        rig_start(&r, true);
        snprintf(path, sizeof(path), "%s/experts-L5.bin", copy);
        assert_int_equal(truncate(path, 63 * (off_t)r.model->expert.record_bytes + 5000), 0);
        assert_fails(&r, 5, 63, WASTE_SLOT_SHORT, "expert 63: file ends inside the record");
        rig_check_experts(&r, 5, &good, 1);
        assert_int_equal(rig_stop(&r), 0);
        rig_destroy(&r);
        remove_copy();
    }
}

static void a_bad_configuration_ends_with_2_and_a_line(void **state)
{
    (void)state;
    struct reader_rig r;
    char path[1024];
    rig_create(&r, WASTE_DEMO_MODEL, floor_slots() - 1, WASTE_IO_AUTO, true);
    rig_start(&r, false);
    assert_int_equal(rig_reap(&r), 2);
    assert_true(rig_logged(&r, WASTE_LOG_ERROR, "cache: 7 slots, at least 8 needed"));
    rig_destroy(&r);

    copy_model();
    rig_create(&r, copy, floor_slots(), WASTE_IO_AUTO, true);
    snprintf(path, sizeof(path), "%s/experts-L2.bin", copy);
    assert_int_equal(unlink(path), 0);
    rig_start(&r, false);
    assert_int_equal(rig_reap(&r), 2);
    assert_true(rig_logged(&r, WASTE_LOG_ERROR, "experts-L2.bin"));
    rig_destroy(&r);
    remove_copy();
}

static void an_orphan_does_not_start(void **state)
{
    (void)state;
    struct reader_rig r;
    rig_create(&r, WASTE_DEMO_MODEL, floor_slots(), WASTE_IO_AUTO, true);
    r.shm.control->supervisor_pid = 1;
    rig_start(&r, false);
    assert_int_equal(rig_reap(&r), 1);
    rig_destroy(&r);
}

static void it_beats_its_heart_while_idle(void **state)
{
    (void)state;
    struct reader_rig r;
    rig_create(&r, WASTE_DEMO_MODEL, floor_slots(), WASTE_IO_AUTO, true);
    rig_start(&r, true);
    const _Atomic uint64_t *heart = &r.shm.control->stage[WASTE_STAGE_READER].heartbeat_ns;
    for (int i = 0; i < 5; i++) {
        uint64_t beat = atomic_load(heart);
        int64_t end = rig_now_ns() + 20000000000;
        while (atomic_load(heart) == beat && rig_now_ns() < end)
            usleep(1000);
        assert_true(atomic_load(heart) > beat);
    }
    assert_int_equal(r.shm.control->stage[WASTE_STAGE_READER].activity, WASTE_ACT_IDLE);
    assert_int_equal(rig_stop(&r), 0);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_expert_arrives_with_the_smallest_cache),
        cmocka_unit_test(what_is_in_memory_is_not_read_again),
        cmocka_unit_test(what_was_posted_before_a_stop_is_counted),
        cmocka_unit_test(a_predicted_expert_is_there_when_it_is_demanded),
        cmocka_unit_test(nonsense_in_the_rings_does_no_harm),
        cmocka_unit_test(embedding_rows_are_the_files),
        cmocka_unit_test(a_killed_reader_is_followed_by_one_that_goes_on),
        cmocka_unit_test(a_restart_keeps_what_was_there),
        cmocka_unit_test(slots_left_reading_are_thrown_away_even_if_nobody_did_it_before),
        cmocka_unit_test(an_unpin_lets_waiting_demand_go_on_soon),
        cmocka_unit_test(a_reader_killed_while_it_loads_leaves_a_trunk_its_successor_completes),
        cmocka_unit_test(a_damaged_record_fails_and_names_itself),
        cmocka_unit_test(without_verify_only_the_header_counts),
        cmocka_unit_test(a_file_that_shrinks_while_running_fails_its_experts),
        cmocka_unit_test(a_bad_configuration_ends_with_2_and_a_line),
        cmocka_unit_test(an_orphan_does_not_start),
        cmocka_unit_test(it_beats_its_heart_while_idle),
    };
    mode_count = rig_io_modes(modes);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
