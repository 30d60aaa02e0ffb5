/*
 * The real waste-router between hand-made segments. What it must predict was computed by the
 * PyTorch reference on the demo model (data/router_demo.bin: see `struct sample`).
 */
#include "cm.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "reader/container.h"
#include "shm/control.h"
#include "shm/segment.h"

enum { HIDDEN = 256, TOP_K = 4, AHEAD = 16, TOKENS = 3, FIRST = 1, LAST = 7, SLOTS = 8 };

/* At one token and MoE layer: the state before the layer's norm, the experts this layer chose, and
 * the first choices of the next layer's norm and router for the same state (none for the last). */
struct sample {
    float x[HIDDEN];
    uint32_t own[TOP_K];
    uint32_t next[AHEAD];
};
static struct sample sample[TOKENS][LAST + 1];

struct rig {
    struct waste_model *model;
    struct waste_mapping control;
    struct waste_shm shm;
    struct waste_stage *stage;
    int fd[WASTE_SEG_COUNT], event;
    pid_t pid;
};

static void pause_ms(long ms)
{
    const struct timespec t = {0, ms * 1000000};

    nanosleep(&t, NULL);
}

static int segment(enum waste_segment_id id, uint64_t bytes)
{
    int fd = -1, high;

    assert_int_equal(waste_segment_create(id, bytes, &fd), 0);
    high = fcntl(fd, F_DUPFD_CLOEXEC, 100); /* clear of the numbers the child uses */
    close(fd);
    assert_true(high >= 100);
    return high;
}

static void load(struct rig *r)
{
    struct waste_mapping trunk;
    int file = open(WASTE_DEMO_MODEL "/trunk.bin", O_RDONLY | O_CLOEXEC);

    assert_true(file >= 0);
    assert_int_equal(waste_segment_map(r->fd[WASTE_SEG_TRUNK], WASTE_SEG_TRUNK, true, &trunk), 0);
    for (uint32_t i = 1; i < r->model->tensor_count; i++) {
        const struct waste_tensor *t = waste_model_tensor(r->model, i);
        size_t scales = (size_t)t->rows * t->groups * 2;

        if (t->data == 0)
            continue;
        assert_int_equal(
            pread(file, (char *)trunk.base + t->data, t->payload_bytes, (off_t)t->file_off),
            t->payload_bytes);
        assert_int_equal(
            pread(file, (char *)trunk.base + t->scales, scales, (off_t)t->file_scale_off), scales);
    }
    waste_segment_unmap(&trunk);
    close(file);
    atomic_store(&r->shm.control->trunk_ready, 1);
    waste_bell_ring(&r->shm.control->router_bell);
}

static void create(struct rig *r, uint32_t lookahead)
{
    const struct waste_options options = {
        .threads = 1, .verify = 1, .lookahead = lookahead, .ctx = 64};
    struct waste_error err;
    uint64_t bytes;

    memset(r, 0, sizeof(*r));
    if (waste_container_open(WASTE_DEMO_MODEL, &r->model, &err) < 0)
        fail_msg("%s", err.text);
    bytes = waste_control_bytes(r->model, SLOTS);
    r->fd[WASTE_SEG_CONTROL] = segment(WASTE_SEG_CONTROL, bytes);
    r->fd[WASTE_SEG_TRUNK] = segment(WASTE_SEG_TRUNK, r->model->trunk_bytes);
    r->fd[WASTE_SEG_CACHE] = segment(WASTE_SEG_CACHE, 4096);
    r->fd[WASTE_SEG_SESSION] = segment(WASTE_SEG_SESSION, 4096);
    assert_int_equal(
        waste_segment_map(r->fd[WASTE_SEG_CONTROL], WASTE_SEG_CONTROL, true, &r->control), 0);
    waste_control_init(r->control.base, bytes, r->model, SLOTS, &options, getpid(), &r->shm);
    r->stage = &r->shm.control->stage[WASTE_STAGE_ROUTER];
    r->event = fcntl(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), F_DUPFD_CLOEXEC, 100);
    assert_true(r->event >= 100);
}

static void start(struct rig *r)
{
    atomic_store(&r->stage->state, WASTE_STAGE_OFF);
    atomic_store(&r->stage->stop, 0);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid > 0)
        return;
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        dup2(r->fd[i], WASTE_FD_SEGMENT_BASE + i);
    dup2(r->event, WASTE_FD_READER_EVENT);
    execl(WASTE_ROUTER_PROGRAM, "waste-router", WASTE_DEMO_MODEL, (char *)NULL);
    _exit(99);
}

static void wait_state(struct rig *r, uint32_t state)
{
    for (int i = 0; i < 20000 && atomic_load(&r->stage->state) != state; i++)
        pause_ms(1);
    assert_int_equal(atomic_load(&r->stage->state), state);
}

/* Exit code, or -signal; within 20 s. */
static int reap(struct rig *r)
{
    int status = 0;
    pid_t got = 0;

    for (int i = 0; i < 20000 && (got = waitpid(r->pid, &status, WNOHANG)) == 0; i++)
        pause_ms(1);
    assert_int_equal(got, r->pid);
    r->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int stop(struct rig *r)
{
    atomic_store(&r->stage->stop, 1);
    waste_bell_ring(&r->shm.control->router_bell);
    return reap(r);
}

static void destroy(struct rig *r)
{
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        close(r->fd[i]);
    close(r->event);
    waste_segment_unmap(&r->control);
    free(r->model);
}

static void begin(struct rig *r, uint32_t lookahead)
{
    create(r, lookahead);
    load(r);
    start(r);
    wait_state(r, WASTE_STAGE_RUNNING);
}

static void end(struct rig *r)
{
    assert_int_equal(stop(r), 0);
    destroy(r);
}

static void post_input(struct rig *r, uint64_t step, uint32_t layer, uint32_t attention,
                       const float *x)
{
    struct waste_hidden *h = waste_ring_claim(r->shm.hidden);

    assert_non_null(h);
    h->step = step;
    h->layer = layer;
    h->attention = attention;
    memcpy(h->x, x, HIDDEN * sizeof(float));
    waste_ring_publish(r->shm.hidden);
    waste_bell_ring(&r->shm.control->router_bell);
}

/* The state before a layer's FFN. */
static void post(struct rig *r, uint64_t step, uint32_t layer, const float *x)
{
    post_input(r, step, layer, 0, x);
}

/* The next prediction, to be released by the caller; NULL if none comes in time. */
static const struct waste_want *predicted(struct rig *r, int patience_ms)
{
    const struct waste_want *want = NULL;

    for (int i = 0; i < patience_ms && (want = waste_ring_peek(r->shm.prefetch)) == NULL; i++)
        pause_ms(1);
    return want;
}

static void expect(struct rig *r, uint64_t step, uint32_t layer, const uint32_t *ids, uint32_t most,
                   uint32_t count)
{
    const struct waste_want *want = predicted(r, 20000);

    assert_non_null(want);
    assert_int_equal(want->step, step);
    assert_int_equal(want->layer, layer);
    assert_int_equal(want->count, count);
    assert_memory_equal(want->expert, ids, most * sizeof(*ids));
    waste_ring_release(r->shm.prefetch);
}

static void expect_nothing(struct rig *r)
{
    for (int i = 0; i < 20000 && waste_ring_used(r->shm.hidden) > 0; i++)
        pause_ms(1);
    assert_int_equal(waste_ring_used(r->shm.hidden), 0);
    assert_null(predicted(r, 50));
}

static void predicts_what_the_next_router_makes_of_this_state(void **state)
{
    struct rig r;

    begin(&r, AHEAD);
    for (int token = 0; token < TOKENS; token++)
        for (uint32_t layer = FIRST; layer < LAST; layer++) {
            post(&r, (uint64_t)token, layer, sample[token][layer].x);
            expect(&r, (uint64_t)token, layer + 1, sample[token][layer].next, AHEAD, AHEAD);
        }
    assert_int_equal(atomic_load(&r.shm.control->counter[WASTE_C_PREDICTIONS]),
                     TOKENS * (LAST - FIRST));
    end(&r);
}

/* After the MoE of the layer before: the state is the layer's own, and so is what is predicted. */
static void what_a_layers_attention_reads_tells_of_this_layer(void **state)
{
    struct rig r;

    begin(&r, AHEAD);
    for (uint32_t layer = FIRST; layer < LAST; layer++) {
        post_input(&r, 2, layer + 1, 1, sample[0][layer].x);
        assert_non_null(predicted(&r, 20000));
        assert_int_equal(predicted(&r, 1)->outlook, WASTE_OUTLOOK_AFTER);
        expect(&r, 2, layer + 1, sample[0][layer].next, AHEAD, AHEAD);
        post(&r, 2, layer, sample[0][layer].x);
        assert_non_null(predicted(&r, 20000));
        assert_int_equal(predicted(&r, 1)->outlook, WASTE_OUTLOOK_BEFORE);
        expect(&r, 2, layer + 1, sample[0][layer].next, AHEAD, AHEAD);
    }
    post_input(&r, 2, 0, 1, sample[0][1].x); /* layer 0 has no experts */
    expect_nothing(&r);
    end(&r);
}

/* Control: given the state a layer really sees, its router's choice is the model's own. */
static void given_the_true_state_the_choice_is_the_models(void **state)
{
    struct rig r;

    begin(&r, TOP_K);
    for (int token = 0; token < TOKENS; token++)
        for (uint32_t layer = FIRST; layer <= LAST; layer++) {
            post(&r, 7, layer - 1, sample[token][layer].x); /* layer 0 is dense: the same */
            expect(&r, 7, layer, sample[token][layer].own, TOP_K, TOP_K);
        }
    end(&r);
}

static void predicts_nothing_after_the_last_layer(void **state)
{
    struct rig r;

    begin(&r, AHEAD);
    post(&r, 0, LAST, sample[0][LAST].x);
    expect_nothing(&r);
    end(&r);
}

static void skips_layers_compute_has_passed(void **state)
{
    struct rig r;

    begin(&r, AHEAD);
    kill(r.pid, SIGSTOP);
    for (uint32_t layer = 1; layer <= 3; layer++)
        post(&r, 3, layer, sample[0][layer].x);
    post_input(&r, 3, 4, 1, sample[0][1].x); /* overtaken by the same layer's FFN */
    post(&r, 3, 4, sample[0][4].x);
    post(&r, 4, 4, sample[1][4].x); /* a prompt's next token at the same layer counts too */
    kill(r.pid, SIGCONT);
    expect(&r, 3, 5, sample[0][4].next, AHEAD, AHEAD);
    expect(&r, 4, 5, sample[1][4].next, AHEAD, AHEAD);
    expect_nothing(&r);
    end(&r);
}

static void wakes_a_reader_that_sleeps_on_its_event(void **state)
{
    struct rig r;
    struct pollfd p;

    begin(&r, AHEAD);
    p = (struct pollfd){.fd = r.event, .events = POLLIN};
    waste_bell_arm(&r.shm.control->reader_bell);
    assert_int_equal(poll(&p, 1, 0), 0);
    post(&r, 0, 1, sample[0][1].x);
    assert_int_equal(poll(&p, 1, 20000), 1);
    expect(&r, 0, 2, sample[0][1].next, AHEAD, AHEAD);
    end(&r);
}

static void survives_nonsense_from_compute(void **state)
{
    static const uint32_t layers[] = {8, 1000, UINT32_MAX - 1, UINT32_MAX};
    float x[HIDDEN];
    struct rig r;

    begin(&r, AHEAD);
    for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++) {
        post(&r, 0, layers[i], sample[0][1].x);
        expect_nothing(&r);
        post_input(&r, 0, layers[i], 1, sample[0][1].x);
        expect_nothing(&r);
    }
    memcpy(x, sample[0][1].x, sizeof(x));
    x[100] = NAN;
    post(&r, 0, 1, x);
    expect_nothing(&r);
    x[100] = INFINITY;
    post(&r, 0, 1, x);
    expect_nothing(&r);
    post(&r, 0, 1, sample[0][1].x);
    expect(&r, 0, 2, sample[0][1].next, AHEAD, AHEAD);
    end(&r);
}

static void repairs_its_ends_of_the_rings(void **state)
{
    struct rig r;

    create(&r, AHEAD);
    load(&r);
    atomic_store(&r.shm.hidden->tail, 12345);
    atomic_store(&r.shm.prefetch->head, 999);
    start(&r);
    wait_state(&r, WASTE_STAGE_RUNNING);
    post(&r, 0, 1, sample[0][1].x);
    expect(&r, 0, 2, sample[0][1].next, AHEAD, AHEAD);
    end(&r);
}

static void a_successor_goes_on_after_kill(void **state)
{
    struct rig r;

    begin(&r, AHEAD);
    kill(r.pid, SIGKILL);
    assert_int_equal(reap(&r), -SIGKILL);
    post(&r, 5, 2, sample[0][2].x);
    start(&r);
    expect(&r, 5, 3, sample[0][2].next, AHEAD, AHEAD);
    end(&r);
}

static void a_full_prefetch_ring_is_no_obstacle(void **state)
{
    struct rig r;

    begin(&r, AHEAD);
    for (int i = 0; i < WASTE_PREFETCH_RING + 5; i++) {
        post(&r, (uint64_t)i, 1, sample[0][1].x);
        for (int wait = 0; wait < 20000 && waste_ring_used(r.shm.hidden) > 0; wait++)
            pause_ms(1);
    }
    assert_int_equal(waste_ring_used(r.shm.hidden), 0);
    /* the last state was taken, and what it gives has no room */
    for (int wait = 0; wait < 20000 && waste_ring_used(r.shm.prefetch) < WASTE_PREFETCH_RING; wait++)
        pause_ms(1);
    assert_int_equal(waste_ring_used(r.shm.prefetch), WASTE_PREFETCH_RING);
    end(&r);
}

static void no_lookahead_takes_states_and_posts_nothing(void **state)
{
    struct rig r;

    begin(&r, 0);
    post(&r, 0, 1, sample[0][1].x);
    expect_nothing(&r);
    end(&r);
}

static void more_lookahead_than_experts_is_all_of_them(void **state)
{
    struct rig r;

    begin(&r, 60000);
    post(&r, 0, 1, sample[0][1].x);
    expect(&r, 0, 2, sample[0][1].next, AHEAD, 64);
    end(&r);
}

/* The heartbeat moves on, several times. */
static void beats(const struct rig *r)
{
    for (int n = 0; n < 4; n++) {
        uint64_t beat = atomic_load(&r->stage->heartbeat_ns);
        for (int i = 0; i < 20000 && atomic_load(&r->stage->heartbeat_ns) == beat; i++)
            pause_ms(1);
        assert_true(atomic_load(&r->stage->heartbeat_ns) > beat);
    }
}

static void waits_for_the_trunk_with_a_heartbeat(void **state)
{
    struct rig r;

    create(&r, AHEAD);
    start(&r);
    wait_state(&r, WASTE_STAGE_STARTING);
    beats(&r);
    assert_int_equal(atomic_load(&r.stage->activity), WASTE_ACT_WAIT_TRUNK);
    assert_int_equal(atomic_load(&r.stage->state), WASTE_STAGE_STARTING);
    load(&r);
    wait_state(&r, WASTE_STAGE_RUNNING);
    beats(&r);
    end(&r);
}

static void can_be_stopped_before_the_trunk_is_there(void **state)
{
    struct rig r;

    create(&r, AHEAD);
    start(&r);
    wait_state(&r, WASTE_STAGE_STARTING);
    end(&r);
}

static void refuses_segments_that_are_not_ours(void **state)
{
    struct rig r;
    struct waste_layer *l;

    create(&r, AHEAD);
    r.shm.control->version++;
    start(&r);
    assert_int_equal(reap(&r), 2);
    destroy(&r);

    /* a tensor of the trunk, but no router of this model's shape */
    create(&r, AHEAD);
    load(&r);
    l = (struct waste_layer *)(uintptr_t)waste_model_layer(r.shm.model, 3);
    l->tensor[WASTE_T_ROUTER] = l->tensor[WASTE_T_POST_NORM];
    start(&r);
    assert_int_equal(reap(&r), 2);
    destroy(&r);

    create(&r, AHEAD);
    load(&r);
    r.shm.control->supervisor_pid = 1;
    start(&r);
    assert_int_equal(reap(&r), 1);
    destroy(&r);
}

static int read_samples(void **state)
{
    FILE *f = fopen(WASTE_TEST_DATA "/router_demo.bin", "rb");

    assert_non_null(f);
    for (int token = 0; token < TOKENS; token++)
        assert_int_equal(fread(&sample[token][FIRST], sizeof(struct sample), LAST, f), LAST);
    fclose(f);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predicts_what_the_next_router_makes_of_this_state),
        cmocka_unit_test(what_a_layers_attention_reads_tells_of_this_layer),
        cmocka_unit_test(given_the_true_state_the_choice_is_the_models),
        cmocka_unit_test(predicts_nothing_after_the_last_layer),
        cmocka_unit_test(skips_layers_compute_has_passed),
        cmocka_unit_test(wakes_a_reader_that_sleeps_on_its_event),
        cmocka_unit_test(survives_nonsense_from_compute),
        cmocka_unit_test(repairs_its_ends_of_the_rings),
        cmocka_unit_test(a_successor_goes_on_after_kill),
        cmocka_unit_test(a_full_prefetch_ring_is_no_obstacle),
        cmocka_unit_test(no_lookahead_takes_states_and_posts_nothing),
        cmocka_unit_test(more_lookahead_than_experts_is_all_of_them),
        cmocka_unit_test(waits_for_the_trunk_with_a_heartbeat),
        cmocka_unit_test(can_be_stopped_before_the_trunk_is_there),
        cmocka_unit_test(refuses_segments_that_are_not_ours),
    };

    return cmocka_run_group_tests(tests, read_samples, NULL);
}
