#include "cli/reuse.h"

#include <string.h>

#include "cli/engine.h"
#include "cli/prefix.h"
#include "cli/state.h"

void waste_marks_add(struct waste_marks *m, size_t at, size_t tokens)
{
    uint32_t before = m->count > 0 ? m->at[m->count - 1] : 0;

    if (m->count < WASTE_MARKS && tokens >= WASTE_MARK_LEAST && at > before && at < UINT32_MAX)
        m->at[m->count++] = (uint32_t)at;
}

void waste_reuse_keep(struct waste_engine *e, bool lasting)
{
    /* relaxed: no request runs, so nothing moves it */
    uint64_t commit = atomic_load_explicit(&e->pipeline.session->commit, memory_order_relaxed);
    struct waste_prefix_state state = {
        .ids = waste_pipeline_log(&e->pipeline),
        .position = waste_commit_position(commit),
        .lived = e->lived,
        .lasting = lasting,
    };

    if (e->prefix == NULL || e->foreign || state.position < WASTE_MARK_LEAST)
        return;
    waste_state_place(&e->pipeline, waste_commit_bank(commit), &state.place);
    waste_prefix_keep(e->prefix, &state);
}

/* What the prompt begins with. Returns how many tokens are in the log and the state. */
static uint32_t put_back(struct waste_engine *e, const struct waste_prefix_prompt *prompt)
{
    struct waste_prefix_hit hit;
    struct waste_snapshot_place to;

    waste_prefix_find(e->prefix, prompt, &hit);
    if (hit.position == 0)
        return 0;
    waste_client_replace(&e->client);
    waste_state_place(&e->pipeline, 0, &to);
    if (!waste_prefix_load(e->prefix, &hit, &to))
        return 0;
    memcpy(waste_pipeline_log(&e->pipeline), prompt->ids, hit.position * sizeof(*prompt->ids));
    waste_client_restore(&e->client, hit.position, hit.position, 0);
    waste_count(e->pipeline.shm.control, WASTE_C_REUSED_TOKENS, hit.position);
    e->lived = hit.lived;
    return hit.position;
}

static void add(struct waste_outcome *sum, const struct waste_outcome *part)
{
    sum->prefill_seconds += part->prefill_seconds;
    sum->reused += part->reused;
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        sum->counter[i] += part->counter[i];
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        sum->restarts[i] += part->restarts[i];
}

int waste_reuse_request(struct waste_engine *e, const struct waste_request_spec *spec,
                        const struct waste_marks *marks, struct waste_outcome *out,
                        struct waste_error *err)
{
    struct waste_client *c = &e->client;
    struct waste_outcome sum = {.prompt_tokens = spec->count};
    uint32_t done = 0;
    bool first = c->known == 0;
    const struct waste_prefix_prompt prompt = {
        .ids = spec->ids, .count = spec->count, .cut = marks->at, .cuts = marks->count};

    e->lived = !first;
    if (first)
        e->foreign = false;
    if (e->prefix != NULL && first && spec->count < e->pipeline.options.ctx)
        done = put_back(e, &prompt);
    for (unsigned i = 0; i < marks->count; i++) {
        uint32_t at = marks->at[i];
        struct waste_request_spec part = {
            .ids = spec->ids + done, .count = at - done, .ahead = spec->count - at};

        if (at <= done || at >= spec->count)
            continue;
        int rc = waste_client_request(c, &part, out, err);
        add(&sum, out);
        if (rc != 0 || out->status == WASTE_REPLY_CANCELLED) {
            c->known += part.ahead; /* in the log all the same */
            e->lived = true;
            sum.status = out->status;
            *out = sum;
            return rc;
        }
        waste_reuse_keep(e, first && i == 0 && marks->lasting);
        done = at;
    }
    struct waste_request_spec rest = *spec;
    rest.ids = spec->count > done ? spec->ids + done : NULL;
    rest.count = spec->count - done;
    int rc = waste_client_request(c, &rest, out, err);
    /* one token is known and not consumed */
    e->lived = e->lived || out->tokens > 1 || out->status == WASTE_REPLY_CANCELLED;
    add(&sum, out);
    out->prompt_tokens = sum.prompt_tokens;
    out->prefill_seconds = sum.prefill_seconds;
    out->reused = sum.reused;
    memcpy(out->counter, sum.counter, sizeof(out->counter));
    memcpy(out->restarts, sum.restarts, sizeof(out->restarts));
    return rc;
}
