#include "reader_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_NS = 60 * 1000000000ll };

int64_t rig_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

static struct waste_stage *stage(struct reader_rig *r)
{
    return &r->shm.control->stage[WASTE_STAGE_READER];
}

static int make_segment(enum waste_segment_id id, uint64_t bytes)
{
    int fd = -1;
    assert_int_equal(waste_segment_create(id, bytes, &fd), 0);
    /* out of the way of the numbers the child will use */
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    close(fd);
    assert_true(high >= 100);
    return high;
}

void rig_create(struct reader_rig *r, const char *dir, uint32_t slots, enum waste_io_mode io,
                bool verify)
{
    struct waste_error err;
    memset(r, 0, sizeof(*r));
    r->dir = dir;
    r->program = WASTE_READER_PROGRAM;
    if (waste_container_open(dir, &r->model, &err) < 0)
        fail_msg("%s", err.text);
    const struct waste_options options = {
        .threads = 1, .io = io, .verify = verify, .lookahead = 4, .ctx = 64};
    uint64_t bytes = waste_control_bytes(r->model, slots);
    r->fd[WASTE_SEG_CONTROL] = make_segment(WASTE_SEG_CONTROL, bytes);
    r->fd[WASTE_SEG_TRUNK] = make_segment(WASTE_SEG_TRUNK, r->model->trunk_bytes);
    r->fd[WASTE_SEG_CACHE] =
        make_segment(WASTE_SEG_CACHE, (uint64_t)slots * r->model->expert.record_bytes);
    r->fd[WASTE_SEG_SESSION] = make_segment(WASTE_SEG_SESSION, 4096);
    assert_int_equal(
        waste_segment_map(r->fd[WASTE_SEG_CONTROL], WASTE_SEG_CONTROL, true, &r->control), 0);
    assert_int_equal(waste_segment_map(r->fd[WASTE_SEG_CACHE], WASTE_SEG_CACHE, false, &r->cache),
                     0);
    waste_control_init(r->control.base, bytes, r->model, slots, &options, getpid(), &r->shm);
    for (uint32_t i = 0; i < r->model->config.layers * r->model->config.experts; i++)
        assert_int_equal(r->shm.directory[i], WASTE_SLOT_NONE);
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->event = fcntl(event, F_DUPFD_CLOEXEC, 100);
    close(event);
}

void rig_destroy(struct reader_rig *r)
{
    if (r->pid > 0) {
        kill(r->pid, SIGKILL);
        rig_reap(r);
    }
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        close(r->fd[i]);
    close(r->event);
    waste_segment_unmap(&r->control);
    waste_segment_unmap(&r->cache);
    free(r->model);
}

static void become_reader(struct reader_rig *r)
{
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        if (dup2(r->fd[i], WASTE_FD_SEGMENT_BASE + i) < 0)
            _exit(100);
    if (dup2(r->event, WASTE_FD_READER_EVENT) < 0)
        _exit(100);
    if (r->fault)
        setenv("WASTE_FAULT", r->fault, 1);
    execl(r->program, "waste-reader", r->dir, (char *)NULL);
    _exit(101);
}

void rig_start(struct reader_rig *r, bool wait)
{
    struct waste_stage *s = stage(r);
    atomic_fetch_add(&s->incarnation, 1);
    atomic_store(&s->state, WASTE_STAGE_OFF);
    atomic_store(&s->stop, 0);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid == 0)
        become_reader(r);
    atomic_store(&s->pid, r->pid);
    if (wait)
        rig_wait_word(&s->state, WASTE_STAGE_RUNNING);
}

int rig_reap(struct reader_rig *r)
{
    int status = 0;
    int64_t end = rig_now_ns() + PATIENCE_NS;
    pid_t got;
    while ((got = waitpid(r->pid, &status, WNOHANG)) == 0 && rig_now_ns() < end)
        usleep(500);
    assert_int_equal(got, r->pid);
    r->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int rig_stop(struct reader_rig *r)
{
    atomic_store(&stage(r)->stop, 1);
    waste_bell_ring_fd(&r->shm.control->reader_bell, r->event);
    return rig_reap(r);
}

uint32_t rig_repair(struct reader_rig *r)
{
    uint64_t bytes = r->model->expert.record_bytes;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->shm.control->slot_count; i++) {
        struct waste_slot *slot = &r->shm.slot[i];
        uint64_t word = atomic_load(&slot->word);
        if (waste_slot_state(word) != WASTE_SLOT_READING)
            continue;
        assert_int_equal(waste_segment_punch(r->fd[WASTE_SEG_CACHE], i * bytes, bytes), 0);
        atomic_store(&slot->word, word & ~UINT64_C(0xffffffff));
        n++;
    }
    return n;
}

static void post(struct reader_rig *r, struct waste_ring *ring, uint64_t step, uint32_t layer,
                 const uint32_t *expert, uint32_t count)
{
    int64_t end = rig_now_ns() + PATIENCE_NS;
    struct waste_want *want;
    while (!(want = waste_ring_claim(ring)) && rig_now_ns() < end)
        usleep(50);
    assert_non_null(want);
    *want = (struct waste_want){.step = step, .layer = layer, .count = count};
    memcpy(want->expert, expert, count * sizeof(*expert));
    waste_ring_publish(ring);
    waste_bell_ring_fd(&r->shm.control->reader_bell, r->event);
}

void rig_demand(struct reader_rig *r, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    post(r, r->shm.demand, r->step++, layer, expert, count);
}

void rig_prefetch(struct reader_rig *r, uint64_t step, uint32_t layer, const uint32_t *expert,
                  uint32_t count)
{
    post(r, r->shm.prefetch, step, layer, expert, count);
}

bool rig_wait(struct reader_rig *r, uint32_t layer, uint32_t expert, uint32_t *slot)
{
    struct waste_bell *bell = &r->shm.control->compute_bell;
    uint64_t key = waste_slot_key(layer, expert);
    int64_t end = rig_now_ns() + PATIENCE_NS;
    for (;;) {
        uint32_t seq = waste_bell_seq(bell);
        uint32_t at = atomic_load_explicit(
            &r->shm.directory[layer * r->model->config.experts + expert], memory_order_acquire);
        if (at != WASTE_SLOT_NONE) {
            assert_true(at < r->shm.control->slot_count);
            *slot = at;
            if (waste_slot_pin(&r->shm.slot[at], key))
                return true;
            uint64_t word = atomic_load_explicit(&r->shm.slot[at].word, memory_order_acquire);
            /* an answer to our record only once the record is taken */
            if (waste_slot_state(word) == WASTE_SLOT_FAILED && waste_ring_used(r->shm.demand) == 0)
                return false;
        }
        if (rig_now_ns() > end)
            fail_msg("layer %u expert %u never came", layer, expert);
        waste_bell_wait(bell, seq, 100000000, 0);
    }
}

bool rig_same_as_file(struct reader_rig *r, uint32_t slot, uint32_t layer, uint32_t expert)
{
    uint32_t bytes = r->model->expert.record_bytes;
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", r->dir, waste_model_layer(r->model, layer)->bank.file);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    uint8_t *want = malloc(bytes);
    assert_int_equal(pread(fd, want, bytes, (off_t)expert * bytes), bytes);
    close(fd);
    bool same = memcmp(want, (uint8_t *)r->cache.base + (uint64_t)slot * bytes, bytes) == 0;
    free(want);
    return same;
}

void rig_check_experts(struct reader_rig *r, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    rig_demand(r, layer, expert, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot;
        assert_true(rig_wait(r, layer, expert[i], &slot));
        assert_true(rig_same_as_file(r, slot, layer, expert[i]));
        waste_slot_unpin(&r->shm.slot[slot]);
    }
    rig_settle(r);
}

void rig_settle(struct reader_rig *r)
{
    int64_t end = rig_now_ns() + PATIENCE_NS;
    while (waste_ring_used(r->shm.demand) + waste_ring_used(r->shm.prefetch) > 0) {
        assert_true(rig_now_ns() < end);
        usleep(50);
    }
}

/* A ring counts as locked memory of its user until the kernel has taken it apart, some time after
 * the death of its process, and so do those of the tests next to this one. */
static bool rings_have_room(void)
{
    const size_t bytes = 1 << 20;
    void *p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool room = p != MAP_FAILED && mlock(p, bytes) == 0;
    munmap(p, bytes);
    return room;
}

uint32_t rig_io_modes(enum waste_io_mode mode[2])
{
    static char params[256]; /* struct io_uring_params */
    uint32_t n = 0;
    memset(params, 0, sizeof(params));
    int fd = rings_have_room() ? (int)syscall(SYS_io_uring_setup, 4, params) : -1;
    if (fd >= 0) {
        close(fd);
        mode[n++] = WASTE_IO_URING;
    } else {
        print_message("io_uring is not available here: not tested\n");
    }
    mode[n++] = WASTE_IO_PREAD;
    return n;
}

void rig_wait_word(_Atomic uint32_t *word, uint32_t value)
{
    int64_t end = rig_now_ns() + PATIENCE_NS;
    while (atomic_load(word) != value) {
        if (rig_now_ns() > end)
            fail_msg("a word stayed %u, never became %u", atomic_load(word), value);
        usleep(200);
    }
}

uint64_t rig_counter(struct reader_rig *r, enum waste_counter id)
{
    return atomic_load(&r->shm.control->counter[id]);
}

bool rig_logged(struct reader_rig *r, enum waste_log_level level, const char *text)
{
    struct waste_log_line line;
    const struct waste_log *log = &r->shm.control->log[WASTE_STAGE_READER];
    for (uint64_t i = 0; i < atomic_load(&log->next); i++)
        if (waste_log_read(log, i, &line) == 1 && line.level >= level && strstr(line.text, text))
            return true;
    return false;
}
