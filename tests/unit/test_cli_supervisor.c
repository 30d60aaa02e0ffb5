/* The supervisor and the client, with stages that keep the protocol and fail as told. */
#include "cm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/attach.h"
#include "cli/client.h"
#include "cli/supervisor_int.h"

enum { SLOTS = 16, CTX = 256 };

struct rig {
    struct waste_model *model;
    struct waste_programs programs;
    struct waste_pipeline p;
    struct waste_supervisor *s;
    struct waste_client client;
    uint32_t id[CTX];
    uint32_t count;
    struct waste_error err;
};

static int set_up(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));

    unsetenv("FAKE_READER");
    unsetenv("FAKE_COMPUTE");
    unsetenv("FAKE_ROUTER");
    assert_int_equal(waste_container_open(WASTE_DEMO_MODEL, &r->model, &r->err), 0);
    snprintf(r->programs.path[WASTE_STAGE_READER], PATH_MAX, "%s", FAKE_READER_PROGRAM);
    snprintf(r->programs.path[WASTE_STAGE_COMPUTE], PATH_MAX, "%s", FAKE_COMPUTE_PROGRAM);
    snprintf(r->programs.path[WASTE_STAGE_ROUTER], PATH_MAX, "%s", FAKE_ROUTER_PROGRAM);
    *state = r;
    return 0;
}

static void start(struct rig *r, uint32_t hang_seconds, bool no_router)
{
    struct waste_options options = {.threads = 1, .ctx = CTX, .logit_rows = 1};
    struct waste_plan plan = {
        .control_bytes = waste_control_bytes(r->model, SLOTS),
        .trunk_bytes = r->model->trunk_bytes,
        .session_bytes = waste_session_bytes(r->model, CTX, 1),
        .cache_bytes = (uint64_t)SLOTS * r->model->expert.record_bytes,
        .slots = SLOTS,
    };
    struct waste_supervisor_options how = {
        .hang_seconds = hang_seconds,
        .hang_loading_seconds = hang_seconds,
        .no_router = no_router,
    };

    assert_int_equal(
        waste_pipeline_create(&r->p, WASTE_DEMO_MODEL, r->model, &plan, &options, &r->err), 0);
    assert_int_equal(waste_supervisor_start(&r->p, &r->programs, &how, &r->s, &r->err), 0);
    waste_client_init(&r->client, &r->p, r->s);
}

static int tear_down(void **state)
{
    struct rig *r = *state;

    waste_supervisor_stop(r->s);
    waste_pipeline_finish(&r->p);
    free(r->model);
    free(r);
    return 0;
}

static int keep(void *arg, uint32_t id)
{
    struct rig *r = arg;

    assert_true(r->count < CTX);
    r->id[r->count++] = id;
    return 0;
}

/* Three tokens of prompt and `n` of reply. */
static int ask(struct rig *r, uint32_t n, struct waste_outcome *out)
{
    static const uint32_t prompt[] = {1, 2, 3};
    static const struct waste_sampling sampling = {.top_p = 1};
    struct waste_request_spec spec = {
        .ids = prompt,
        .count = 3,
        .max_tokens = n,
        .sampling = &sampling,
        .on_token = keep,
        .arg = r,
    };

    r->count = 0;
    return waste_client_request(&r->client, &spec, out, &r->err);
}

static void assert_reply(const struct rig *r, uint32_t from, uint32_t n)
{
    assert_int_equal(r->count, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(r->id[i], (from + i) * 7 % 1000);
}

static const struct waste_stage *stage(const struct rig *r, enum waste_stage_id id)
{
    return &r->p.shm.control->stage[id];
}

/* Waits until the stage runs as process number `incarnation`. */
static void wait_for(const struct rig *r, enum waste_stage_id id, uint32_t incarnation)
{
    for (int i = 0; i < 60000; i++) {
        if (atomic_load(&stage(r, id)->incarnation) == incarnation &&
            atomic_load(&stage(r, id)->state) == WASTE_STAGE_RUNNING)
            return;
        usleep(1000);
    }
    fail_msg("%s never ran as process %u", waste_stage_name[id], incarnation);
}

static bool alive(pid_t pid)
{
    char path[64], state = 'X';

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return false;
    if (fscanf(f, "%*d %*s %c", &state) != 1)
        state = 'X';
    fclose(f);
    return state != 'Z' && state != 'X';
}

static void a_request_is_served_and_nothing_is_left_running(void **state)
{
    struct rig *r = *state;
    struct waste_outcome out;
    pid_t pid[WASTE_STAGE_COUNT];

    start(r, 10, false);
    assert_int_equal(waste_client_wait_ready(&r->client, NULL, NULL, &r->err), 0);
    assert_int_equal(ask(r, 20, &out), 0);
    assert_reply(r, 3, 20);
    assert_int_equal(out.status, WASTE_REPLY_LENGTH);
    assert_int_equal(out.tokens, 20);
    /* the next one goes on where this one ended */
    assert_int_equal(ask(r, 5, &out), 0);
    assert_reply(r, 26, 5);
    /* and one without tokens of its own just goes on */
    static const struct waste_sampling sampling = {.top_p = 1};
    struct waste_request_spec more = {
        .max_tokens = 4, .sampling = &sampling, .on_token = keep, .arg = r};
    r->count = 0;
    assert_int_equal(waste_client_request(&r->client, &more, &out, &r->err), 0);
    assert_reply(r, 31, 4);
    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        pid[i] = atomic_load(&stage(r, i)->pid);
        assert_true(alive(pid[i]));
        assert_int_equal(atomic_load(&stage(r, i)->restarts), 0);
    }
    waste_supervisor_stop(r->s);
    r->s = NULL;
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        assert_false(alive(pid[i]));
}

static void a_compute_that_dies_is_replaced_and_nobody_notices(void **state)
{
    struct rig *r = *state;
    struct waste_outcome out;

    setenv("FAKE_COMPUTE", "die=10", 1);
    start(r, 10, false);
    assert_int_equal(ask(r, 20, &out), 0);
    assert_reply(r, 3, 20);
    assert_int_equal(out.restarts[WASTE_STAGE_COMPUTE], 1);
    assert_int_equal(out.restarts[WASTE_STAGE_READER], 0);
}

static void five_deaths_at_one_step_end_the_request_and_not_the_pipeline(void **state)
{
    struct rig *r = *state;
    struct waste_outcome out;

    setenv("FAKE_COMPUTE", "die-all=10", 1);
    start(r, 10, false);
    assert_int_equal(ask(r, 20, &out), 1);
    assert_reply(r, 3, 8); /* what was committed before position 10 */
    assert_int_equal(out.status, WASTE_REPLY_ERROR);
    assert_non_null(strstr(r->err.text, "compute died 5 times"));
    assert_non_null(strstr(r->err.text, "token position 10"));
    assert_non_null(strstr(r->err.text, "signal 9"));
    assert_int_equal(atomic_load(&stage(r, WASTE_STAGE_COMPUTE)->incarnation), 5);
    /* the next request starts it again */
    unsetenv("FAKE_COMPUTE");
    assert_int_equal(ask(r, 5, &out), 0);
    assert_int_equal(r->count, 5);
    assert_int_equal(atomic_load(&stage(r, WASTE_STAGE_COMPUTE)->incarnation), 6);
}

static void a_reader_that_keeps_dying_ends_the_request_too(void **state)
{
    struct rig *r = *state;
    struct waste_outcome out;

    /* compute waits for ever at position 5 (as for experts), the reader dies there */
    setenv("FAKE_READER", "die-all=5", 1);
    setenv("FAKE_COMPUTE", "hang=5", 1);
    start(r, 10, false);
    assert_int_equal(waste_client_wait_ready(&r->client, NULL, NULL, &r->err), 0);
    pid_t compute = atomic_load(&stage(r, WASTE_STAGE_COMPUTE)->pid);
    assert_int_equal(ask(r, 200, &out), 1);
    assert_non_null(strstr(r->err.text, "reader died 5 times"));
    assert_false(alive(compute)); /* its request was over; the reply could not be written past it */
}

static void exit_code_2_is_final(void **state)
{
    struct rig *r = *state;
    struct waste_outcome out;

    setenv("FAKE_READER", "exit2", 1);
    start(r, 10, false);
    assert_int_equal(waste_client_wait_ready(&r->client, NULL, NULL, &r->err), 2);
    assert_string_equal(r->err.text, "manifest.json: it is sour");
    assert_int_equal(ask(r, 5, &out), 2);
    assert_string_equal(r->err.text, "manifest.json: it is sour");
    unsetenv("FAKE_READER");
    assert_int_equal(ask(r, 5, &out), 2);
    assert_int_equal(atomic_load(&stage(r, WASTE_STAGE_READER)->incarnation), 1);
}

static void a_silent_stage_is_killed_and_replaced(void **state)
{
    struct rig *r = *state;
    struct waste_outcome out;

    setenv("FAKE_COMPUTE", "hang=10", 1);
    start(r, 3, false); /* its successor may have to wait for a CPU, too */
    assert_int_equal(ask(r, 20, &out), 0);
    assert_reply(r, 3, 20);
    assert_int_equal(out.restarts[WASTE_STAGE_COMPUTE], 1);
}

static void a_router_that_keeps_dying_is_left_out(void **state)
{
    struct rig *r = *state;
    struct waste_outcome out;

    setenv("FAKE_ROUTER", "die-all=0", 1);
    start(r, 10, false);
    for (int i = 0; i < 60000 && atomic_load(&stage(r, WASTE_STAGE_ROUTER)->incarnation) < 5; i++)
        usleep(1000);
    usleep(50000);
    assert_int_equal(atomic_load(&stage(r, WASTE_STAGE_ROUTER)->incarnation), 5);
    assert_int_equal(waste_supervisor_failure(r->s, &r->err), 0);
    assert_int_equal(ask(r, 20, &out), 0);
    assert_reply(r, 3, 20);
}

static void without_lookahead_there_is_no_router(void **state)
{
    struct rig *r = *state;
    struct waste_outcome out;

    start(r, 10, true);
    assert_int_equal(ask(r, 5, &out), 0);
    assert_int_equal(atomic_load(&stage(r, WASTE_STAGE_ROUTER)->incarnation), 0);
    assert_int_equal(atomic_load(&stage(r, WASTE_STAGE_ROUTER)->pid), 0);
}

static void slots_of_a_dead_reader_are_emptied_with_their_pages(void **state)
{
    struct rig *r = *state;
    uint32_t bytes = r->model->expert.record_bytes;
    uint8_t *record = malloc(bytes);

    setenv("FAKE_READER", "reading", 1);
    start(r, 10, false);
    wait_for(r, WASTE_STAGE_READER, 2);
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t word = atomic_load(&r->p.shm.slot[i].word);
        bool emptied = i == 1 || i == 2;
        assert_int_equal(pread(r->p.fd[WASTE_SEG_CACHE], record, bytes, (off_t)i * bytes), bytes);
        for (uint32_t b = 0; b < bytes; b++)
            assert_int_equal(record[b], emptied ? 0 : 0xab);
        assert_true(waste_slot_valid(word));
        assert_int_equal(waste_slot_state(word), i == 0 ? WASTE_SLOT_READY : WASTE_SLOT_EMPTY);
        /* the generation stays, so that nobody takes it for what it was before */
        assert_int_equal(word >> 32, i == 2 ? 7 : i < 2);
    }
    assert_true(
        waste_ring_valid(r->p.shm.demand, WASTE_DEMAND_RING, r->p.shm.control->want_stride));
    free(record);
}

static void pins_of_a_dead_compute_are_dropped(void **state)
{
    struct rig *r = *state;

    setenv("FAKE_READER", "reading", 1);
    setenv("FAKE_COMPUTE", "pins", 1);
    start(r, 10, false);
    wait_for(r, WASTE_STAGE_COMPUTE, 2);
    uint64_t word = atomic_load(&r->p.shm.slot[0].word);
    assert_int_equal(waste_slot_state(word), WASTE_SLOT_READY);
    assert_int_equal(waste_slot_pins(word), 0);
}

/* However many come before the thread that writes them has a CPU. */
static void every_note_is_in_the_log(void **state)
{
    enum { NOTES = 5 };
    struct rig *r = *state;
    char text[32];
    int found = 0;

    start(r, 60, false);
    for (int i = 0; i < NOTES; i++) {
        snprintf(text, sizeof(text), "kept state %d is lost", i);
        waste_supervisor_note(r->s, i % 2 ? WASTE_LOG_LOSS : WASTE_LOG_WARNING, text);
    }
    const struct waste_log *log = waste_supervisor_log(r->s);
    for (uint64_t n = 0, tries = 0; found < NOTES && tries < 60000;) {
        struct waste_log_line line;
        if (waste_log_read(log, n, &line) != 1) {
            usleep(1000);
            tries++;
            continue;
        }
        n++;
        snprintf(text, sizeof(text), "kept state %d is lost", found);
        if (strncmp(line.text, "kept state", 10) != 0)
            continue;
        assert_string_equal(line.text, text);
        assert_int_equal(line.level, found % 2 ? WASTE_LOG_LOSS : WASTE_LOG_WARNING);
        found++;
    }
    assert_int_equal(found, NOTES);
}

static void stages_die_with_their_supervisor(void **state)
{
    struct rig *r = *state;
    int out[2];
    pid_t pid[WASTE_STAGE_COUNT] = {0};

    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        start(r, 10, false);
        for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
            wait_for(r, (enum waste_stage_id)i, 1);
            pid[i] = atomic_load(&stage(r, (enum waste_stage_id)i)->pid);
        }
        if (write(out[1], pid, sizeof(pid)) != sizeof(pid))
            _exit(1);
        for (;;)
            pause();
    }
    close(out[1]);
    assert_int_equal(read(out[0], pid, sizeof(pid)), sizeof(pid));
    close(out[0]);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        for (int t = 0; t < 60000 && alive(pid[i]); t++)
            usleep(1000);
        assert_false(alive(pid[i]));
    }
}

static void the_door_hands_out_a_read_only_view_and_restarts(void **state)
{
    struct rig *r = *state;
    struct waste_attached a;

    start(r, 10, false);
    wait_for(r, WASTE_STAGE_ROUTER, 1);
    assert_int_equal(waste_attach_open((uint32_t)getpid(), &a, &r->err), 0);
    assert_string_equal(a.model_dir, WASTE_DEMO_MODEL);
    assert_int_equal(a.shm.control->supervisor_pid, getpid());
    assert_int_equal(waste_attach_command(&a, "restart router", &r->err), 0);
    assert_int_equal(atomic_load(&a.shm.control->stage[WASTE_STAGE_ROUTER].incarnation), 2);
    assert_int_equal(waste_attach_command(&a, "restart all", &r->err), 0);
    assert_int_equal(atomic_load(&a.shm.control->stage[WASTE_STAGE_READER].incarnation), 2);
    assert_int_equal(atomic_load(&a.shm.control->stage[WASTE_STAGE_ROUTER].incarnation), 3);
    assert_int_equal(waste_attach_command(&a, "restart nobody", &r->err), 2);
    assert_non_null(strstr(r->err.text, "no stage 'nobody'"));
    waste_attach_close(&a);
}

static void the_door_is_in_a_directory_of_our_own(void **state)
{
    char root[] = "/tmp/waste-door-XXXXXX", dir[128], link[128], found[128];
    (void)state;

    assert_non_null(mkdtemp(root));
    setenv("XDG_RUNTIME_DIR", root, 1);
    assert_true(waste_socket_dir(0, dir, sizeof(dir)));
    assert_int_equal(strncmp(dir, root, strlen(root)), 0);
    assert_int_equal(waste_socket_check_dir(dir, false), -ENOENT);
    assert_int_equal(waste_socket_check_dir(dir, true), 0);
    assert_int_equal(chmod(dir, 0750), 0);
    assert_int_equal(waste_socket_check_dir(dir, true), -EPERM);
    assert_int_equal(chmod(dir, 0700), 0);
    snprintf(link, sizeof(link), "%s/link", root);
    assert_int_equal(symlink(dir, link), 0);
    assert_int_equal(waste_socket_check_dir(link, true), -ENOTDIR);
    setenv("XDG_RUNTIME_DIR", "relative", 1);
    assert_false(waste_socket_dir(0, found, sizeof(found)));
    unsetenv("XDG_RUNTIME_DIR");
    assert_false(waste_socket_dir(0, found, sizeof(found)));
    assert_true(waste_socket_dir(1, found, sizeof(found)));
    unlink(link);
    rmdir(dir);
    rmdir(root);
}

static void five_deaths_at_one_step_count(void **state)
{
    const int64_t s = WASTE_SECOND_NS;
    struct waste_deaths d = {0};
    (void)state;

    for (int i = 0; i < 4; i++)
        assert_false(waste_deaths_add(&d, i * s, 0, 1, 7));
    assert_true(waste_deaths_add(&d, 10 * s, 0, 1, 7));
    d.count = 0;
    for (int i = 0; i < 4; i++)
        assert_false(waste_deaths_add(&d, i * s, 0, 1, 7));
    assert_false(waste_deaths_add(&d, 10 * s + 1, 0, 1, 7)); /* too late by a nanosecond */
    assert_true(waste_deaths_add(&d, 10 * s + 2, 0, 1, 7));  /* the first one is forgotten */
    assert_false(waste_deaths_add(&d, 10 * s + 3, 0, 1, 8)); /* progress was made */
    for (int i = 0; i < 3; i++)
        assert_false(waste_deaths_add(&d, 10 * s + 4 + i, 0, 1, 8));
    assert_true(waste_deaths_add(&d, 10 * s + 9, 0, 1, 8));
    assert_false(waste_deaths_add(&d, 10 * s + 10, 0, 2, 8)); /* somebody asks again */
}

/* Whatever this machine has left: it gives way while it can, and only then do the deaths count. */
static void deaths_for_want_of_memory_count_when_the_cache_cannot_give_way(void **state)
{
    struct rig *r = *state;
    struct waste_supervisor s = {.p = &r->p};
    uint32_t gave = 0, counted = 0;

    start(r, 10, false);
    waste_supervisor_stop(r->s);
    r->s = NULL;
    waste_supervisor_budget_init(&s);
    assert_int_equal(s.pressure.slots, SLOTS);
    for (bool last = false; !last;) {
        uint32_t before = s.pressure.slots;
        int64_t begin = waste_now_ns();
        last = waste_supervisor_fails_again(&s, WASTE_STAGE_COMPUTE, 0, true);
        assert_true(s.child[WASTE_STAGE_COMPUTE].not_before_ns >= begin + WASTE_GIVE_WAY_NS);
        *(s.pressure.slots < before ? &gave : &counted) += 1;
        assert_int_equal(last, counted == WASTE_DEATHS_MAX);
    }
    assert_true(gave > 0);
    assert_int_equal(s.pressure.slots, r->p.plan.floor_slots);
    assert_int_equal(atomic_load(&r->p.shm.control->pressure_shrinks), gave);
}

static void deaths_count_however_long_a_step_takes(void **state)
{
    const int64_t s = WASTE_SECOND_NS;
    struct waste_deaths d = {0};
    (void)state;

    for (int i = 1; i < 5; i++) /* 100 s of work, 2 s until its successor is there */
        assert_false(waste_deaths_add(&d, i * 102 * s, 100 * s, 1, 7));
    assert_true(waste_deaths_add(&d, 5 * 102 * s, 100 * s, 1, 7));
    /* the same one by one, at rest: nobody waits for it */
    d = (struct waste_deaths){0};
    for (int i = 1; i < 20; i++)
        assert_false(waste_deaths_add(&d, i * 102 * s, 0, 1, 7));
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_request_is_served_and_nothing_is_left_running),
        T(a_compute_that_dies_is_replaced_and_nobody_notices),
        T(five_deaths_at_one_step_end_the_request_and_not_the_pipeline),
        T(a_reader_that_keeps_dying_ends_the_request_too),
        T(exit_code_2_is_final),
        T(a_silent_stage_is_killed_and_replaced),
        T(a_router_that_keeps_dying_is_left_out),
        T(without_lookahead_there_is_no_router),
        T(slots_of_a_dead_reader_are_emptied_with_their_pages),
        T(pins_of_a_dead_compute_are_dropped),
        T(every_note_is_in_the_log),
        T(stages_die_with_their_supervisor),
        T(the_door_hands_out_a_read_only_view_and_restarts),
        cmocka_unit_test(the_door_is_in_a_directory_of_our_own),
        cmocka_unit_test(five_deaths_at_one_step_count),
        cmocka_unit_test(deaths_count_however_long_a_step_takes),
        T(deaths_for_want_of_memory_count_when_the_cache_cannot_give_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
