/*
 * A stage that keeps the protocol and does no work, for the supervisor's tests. FAKE_STAGE says
 * which. What goes wrong with it is in the environment, "FAKE_READER=reading" and so on:
 *
 *     exit2     reports an error and exits 2 at once
 *     die=N     kills itself at token position N, the first process only
 *     die-all=N every process does
 *     hang=N    stops at position N and shows no more sign of life, the first process only
 *     reading   the first reader leaves slot 0 READY, slot 1 READING, slot 2 insane, and dies
 *     pins      the first compute pins slot 0 twice and dies
 *     deaf      does not stop when asked
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/control.h"
#include "shm/segment.h"
#include "shm/session.h"

enum { TICK_NS = 1000000 };

static struct waste_shm shm;
static struct waste_stage *stage;
static struct waste_session_header *header;
static struct waste_session *session;
static const char *fault = "";
static bool first;

static void die(void)
{
    kill(getpid(), SIGKILL);
}

/* The faults that come with a token position. */
static void maybe_fail(uint32_t position)
{
    unsigned at;

    if (sscanf(fault, "die=%u", &at) == 1 && first && position == at)
        die();
    if (sscanf(fault, "die-all=%u", &at) == 1 && position == at)
        die();
    if (sscanf(fault, "hang=%u", &at) == 1 && first && position == at)
        for (;;)
            pause();
}

static bool stopping(void)
{
    return atomic_load(&stage->stop) != 0 && strcmp(fault, "deaf") != 0;
}

static uint32_t position_now(void)
{
    return waste_commit_position(atomic_load(&session->commit));
}

/* One step: token i of the log is 7 i modulo 1000. */
static void step(uint32_t position)
{
    uint32_t next = position + 1;

    if (next >= session->request.prompt_end)
        waste_session_log(header, session)[next] = next * 7 % 1000;
    maybe_fail(position);
    atomic_store(&session->commit, waste_commit_word(0, next, next & 1));
    waste_bell_ring(&shm.control->client_bell);
}

static void serve(void)
{
    uint64_t seq = atomic_load(&session->request.seq);
    const struct waste_request *r = &session->request;

    if (seq == atomic_load(&session->reply.seq))
        return;
    uint32_t position = position_now();
    uint32_t end = r->prompt_end + (r->max_tokens > 0 ? r->max_tokens - 1 : 0);
    if (position < end && atomic_load(&r->cancel) == 0) {
        step(position);
        return;
    }
    session->reply.status = position < end ? WASTE_REPLY_CANCELLED : WASTE_REPLY_LENGTH;
    atomic_store(&session->reply.seq, seq);
    waste_bell_ring(&shm.control->client_bell);
}

static void reader_fault(void)
{
    if (strcmp(fault, "reading") != 0 || !first)
        return;
    struct waste_mapping cache;
    if (waste_segment_map(WASTE_FD_SEGMENT_BASE + WASTE_SEG_CACHE, WASTE_SEG_CACHE, true, &cache))
        _exit(1);
    memset(cache.base, 0xab, cache.bytes);
    waste_slot_claim(&shm.slot[0], atomic_load(&shm.slot[0].word), waste_slot_key(1, 5));
    waste_slot_publish(&shm.slot[0]);
    waste_slot_claim(&shm.slot[1], atomic_load(&shm.slot[1].word), waste_slot_key(1, 6));
    atomic_store(&shm.slot[2].word, UINT64_C(0x700000007)); /* no such state */
    atomic_store(&shm.demand->tail, 1u << 20);              /* a tail beyond the head */
    die();
}

/* As the real ones do: who has no weights answers nobody. */
static void wait_for_trunk(void)
{
    while (!stopping() && atomic_load(&shm.control->trunk_ready) == 0) {
        waste_stage_mark(stage, WASTE_ACT_WAIT_TRUNK, -1);
        usleep(TICK_NS / 1000);
    }
}

static void compute_fault(void)
{
    if (strcmp(fault, "pins") != 0 || !first)
        return;
    uint64_t key = waste_slot_key(1, 5);
    while (!waste_slot_pin(&shm.slot[0], key))
        usleep(1000);
    waste_slot_pin(&shm.slot[0], key);
    die();
}

static int attach(void)
{
    struct waste_mapping control, map;

    if (waste_segment_map(WASTE_FD_SEGMENT_BASE, WASTE_SEG_CONTROL, true, &control) != 0 ||
        waste_control_attach(control.base, control.bytes, &shm) != 0 ||
        waste_segment_map(WASTE_FD_SEGMENT_BASE + WASTE_SEG_SESSION, WASTE_SEG_SESSION, true,
                          &map) != 0 ||
        waste_session_attach(map.base, map.bytes, shm.model, &header, &session) != 0)
        return 1;
    stage = &shm.control->stage[FAKE_STAGE];
    first = atomic_load(&stage->incarnation) == 1;
    return 0;
}

int main(void)
{
    static const char *const names[] = {"FAKE_READER", "FAKE_COMPUTE", "FAKE_ROUTER"};

    if (getenv(names[FAKE_STAGE]) != NULL)
        fault = getenv(names[FAKE_STAGE]);
    if (attach() != 0)
        return 1;
    if (strcmp(fault, "exit2") == 0) {
        waste_log_write(&shm.control->log[FAKE_STAGE], WASTE_LOG_ERROR,
                        "manifest.json: it is sour");
        return 2;
    }
    if (FAKE_STAGE == WASTE_STAGE_READER) {
        reader_fault();
        atomic_store(&shm.control->trunk_ready, 1);
    } else {
        wait_for_trunk();
    }
    if (FAKE_STAGE == WASTE_STAGE_COMPUTE)
        compute_fault();
    atomic_store(&stage->state, WASTE_STAGE_RUNNING);
    waste_bell_ring(&shm.control->client_bell);
    while (!stopping()) {
        waste_stage_mark(stage, WASTE_ACT_IDLE, -1);
        if (FAKE_STAGE == WASTE_STAGE_COMPUTE)
            serve();
        else
            maybe_fail(position_now());
        usleep(TICK_NS / 1000);
    }
    return 0;
}
