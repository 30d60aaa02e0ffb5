#include "fetcher/http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "fetcher/http_int.h"

#define SECOND UINT64_C(1000000000)

enum { GAIN_BYTES = 1 << 20 }; /* an attempt that brought so much begins the count anew */

struct waste_http {
    struct waste_http_options o;
    CURLM *multi;
    struct waste_transfer *waiting; /* in the order they were added */
    struct waste_transfer *active;  /* those that run */
    uint32_t running, queued;
    uint64_t not_before_ns; /* a server asked everybody to wait */
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

struct waste_http *waste_http_create(const struct waste_http_options *o, struct waste_error *err)
{
    struct waste_http *h = calloc(1, sizeof(*h));
    bool ready = h != NULL && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;

    if (ready) {
        h->o = *o;
        h->multi = curl_multi_init();
    }
    if (ready && h->multi != NULL)
        return h;
    free(h);
    waste_error_set(err, -ENOMEM, "libcurl cannot be started");
    return NULL;
}

/* Takes t out of a list it is in. */
static void unlink_transfer(struct waste_transfer **list, struct waste_transfer *t)
{
    while (*list != t)
        list = &(*list)->next;
    *list = t->next;
    t->next = NULL;
}

static void drop_attempt(struct waste_http *h, struct waste_transfer *t)
{
    curl_multi_remove_handle(h->multi, t->attempt->easy);
    waste_attempt_destroy(t->attempt);
    t->attempt = NULL;
    unlink_transfer(&h->active, t);
    h->running--;
}

void waste_http_cancel(struct waste_http *h, struct waste_transfer *t)
{
    if (t->state == WASTE_TRANSFER_RUNNING) {
        drop_attempt(h, t);
    } else if (t->state == WASTE_TRANSFER_WAITING) {
        unlink_transfer(&h->waiting, t);
        h->queued--;
    }
    t->state = WASTE_TRANSFER_IDLE;
}

void waste_http_destroy(struct waste_http *h)
{
    if (h == NULL)
        return;
    while (h->active != NULL)
        waste_http_cancel(h, h->active);
    curl_multi_cleanup(h->multi);
    curl_global_cleanup();
    free(h);
}

static void enqueue(struct waste_http *h, struct waste_transfer *t)
{
    struct waste_transfer **end = &h->waiting;

    while (*end != NULL)
        end = &(*end)->next;
    t->next = NULL;
    t->state = WASTE_TRANSFER_WAITING;
    *end = t;
    h->queued++;
}

void waste_http_add(struct waste_http *h, struct waste_transfer *t)
{
    t->attempt = NULL;
    t->not_before_ns = t->gained = 0;
    t->failures = 0;
    t->never = false;
    t->status = 0;
    enqueue(h, t);
}

static void end_transfer(struct waste_transfer *t, enum waste_transfer_state state)
{
    t->state = state;
    if (t->ops->ended != NULL)
        t->ops->ended(t);
}

/* After a failure: another attempt later, or none. `after`: seconds the server asks for. */
static void fail(struct waste_http *h, struct waste_transfer *t, uint32_t after)
{
    uint32_t random = 0;

    if (t->gained >= GAIN_BYTES)
        t->failures = 0;
    t->gained = 0;
    t->failures++;
    if (after > WASTE_RETRY_AFTER_LONGEST)
        waste_transfer_never(t, "%s: the server asks to come back in %u s", t->name, after);
    if (t->never || t->failures > h->o.retry.retries) {
        end_transfer(t, WASTE_TRANSFER_FAILED);
        return;
    }
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
        random = UINT32_MAX;
    double seconds = waste_retry_delay(&h->o.retry, t->failures, random);
    uint64_t now = now_ns();
    if (after > seconds)
        seconds = after;
    t->not_before_ns = now + (uint64_t)(seconds * 1e9);
    if (after > 0 && h->not_before_ns < now + after * SECOND)
        h->not_before_ns = now + after * SECOND;
    enqueue(h, t);
}

static void start(struct waste_http *h, struct waste_transfer *t)
{
    t->offset = 0;
    t->validator = NULL;
    int rc = t->ops->prepare != NULL ? t->ops->prepare(t) : 0;
    if (rc > 0) {
        end_transfer(t, WASTE_TRANSFER_DONE);
        return;
    }
    if (rc < 0) {
        fail(h, t, 0);
        return;
    }
    t->attempt = waste_attempt_create(&h->o, t);
    if (t->attempt == NULL) {
        fail(h, t, 0);
        return;
    }
    t->state = WASTE_TRANSFER_RUNNING;
    curl_multi_add_handle(h->multi, t->attempt->easy);
    t->next = h->active;
    h->active = t;
    h->running++;
}

/* Starts what may start now. The soonest time at which another may; UINT64_MAX: none waits. */
static uint64_t start_ready(struct waste_http *h)
{
    uint64_t now = now_ns(), soonest = UINT64_MAX;
    struct waste_transfer **at = &h->waiting;

    while (*at != NULL && h->running < h->o.jobs) {
        struct waste_transfer *t = *at;
        uint64_t when = t->not_before_ns > h->not_before_ns ? t->not_before_ns : h->not_before_ns;
        if (when > now) {
            soonest = when < soonest ? when : soonest;
            at = &t->next;
            continue;
        }
        *at = t->next;
        h->queued--;
        start(h, t);
    }
    return soonest;
}

static void finish_attempt(struct waste_http *h, struct waste_attempt *a, CURLcode code)
{
    struct waste_transfer *t = a->t;
    uint32_t after;

    curl_multi_remove_handle(h->multi, a->easy);
    enum waste_attempt_end end = waste_attempt_end(a, &h->o, code, &after);
    if (end == WASTE_ATTEMPT_HOP) {
        curl_multi_add_handle(h->multi, a->easy);
        return;
    }
    if (end == WASTE_ATTEMPT_DONE && t->ops->complete != NULL && t->ops->complete(t) != 0)
        end = WASTE_ATTEMPT_FAILED;
    drop_attempt(h, t);
    if (end == WASTE_ATTEMPT_DONE)
        end_transfer(t, WASTE_TRANSFER_DONE);
    else
        fail(h, t, after);
}

uint32_t waste_http_step(struct waste_http *h, int timeout_ms)
{
    uint64_t soonest = start_ready(h), now = now_ns();
    int active = 0, left;
    CURLMsg *m;

    curl_multi_perform(h->multi, &active);
    while ((m = curl_multi_info_read(h->multi, &left)) != NULL) {
        struct waste_attempt *a = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode code = m->data.result; /* m is gone once the handle is removed */
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &a);
        finish_attempt(h, a, code);
        timeout_ms = 0;
    }
    if (soonest != UINT64_MAX && soonest < now + (uint64_t)timeout_ms * 1000000)
        timeout_ms = soonest > now ? (int)((soonest - now) / 1000000) + 1 : 0;
    curl_multi_poll(h->multi, NULL, 0, timeout_ms, NULL);
    return h->queued + h->running;
}

void waste_http_wake(struct waste_http *h)
{
    curl_multi_wakeup(h->multi);
}

/* ---- into memory ---- */

struct memory {
    struct waste_http_text text;
    size_t room, most;
    uint64_t total; /* what it should have, or WASTE_SIZE_UNKNOWN */
    bool full;      /* of what was wanted, though more comes */
};

static int memory_response(struct waste_transfer *t, const struct waste_response *r)
{
    struct memory *m = t->ctx;

    m->text.bytes = 0;
    m->text.total = r->status == 206 ? r->total : r->length;
    if (r->status == 206 && r->range_first != 0)
        return waste_transfer_again(t, "%s: the server sends another part than it was asked for",
                                    t->name);
    if (m->total != WASTE_SIZE_UNKNOWN && m->text.total != WASTE_SIZE_UNKNOWN &&
        m->text.total != m->total)
        return waste_transfer_again(t, "%s: the server has %llu bytes, the listing %llu", t->name,
                                    (unsigned long long)m->text.total,
                                    (unsigned long long)m->total);
    if (t->most == 0 && r->length != WASTE_SIZE_UNKNOWN && r->length > m->most)
        return waste_transfer_never(t, "%s: %llu bytes are too many", t->name,
                                    (unsigned long long)r->length);
    return 0;
}

static int memory_body(struct waste_transfer *t, const void *data, size_t n)
{
    struct memory *m = t->ctx;
    struct waste_http_text *text = &m->text;

    m->full = t->most > 0 && n > m->most - text->bytes;
    if (m->full)
        n = m->most - text->bytes;
    if (n > m->most - text->bytes)
        return waste_transfer_never(t, "%s: more than %zu bytes are too many", t->name, m->most);
    if (text->bytes + n + 1 > m->room) {
        size_t room = 2 * (text->bytes + n + 1);
        char *grown = realloc(text->data, room);
        if (grown == NULL)
            return waste_transfer_never(t, "%s: out of memory", t->name);
        text->data = grown;
        m->room = room;
    }
    memcpy(text->data + text->bytes, data, n);
    text->bytes += n;
    return m->full ? waste_transfer_never(t, "%s: enough", t->name) : 0;
}

static int memory_complete(struct waste_transfer *t)
{
    const struct memory *m = t->ctx;

    if (m->total == WASTE_SIZE_UNKNOWN || m->text.bytes >= m->most || m->text.bytes == m->total)
        return 0;
    return waste_transfer_again(t, "%s: the server ends after %zu bytes", t->name, m->text.bytes);
}

static int get_memory(struct waste_http *h, struct waste_transfer *t, struct memory *m,
                      const _Atomic bool *stop, struct waste_http_text *out,
                      struct waste_error *err)
{
    static const struct waste_transfer_ops ops = {
        .response = memory_response, .body = memory_body, .complete = memory_complete};
    int rc;

    t->ops = &ops;
    t->ctx = m;
    m->room = 1;
    m->text.data = calloc(1, m->room);
    rc = m->text.data != NULL ? 0 : waste_error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        waste_http_add(h, t);
    while (rc == 0 && t->state < WASTE_TRANSFER_DONE) {
        waste_http_step(h, 200);
        if (stop != NULL && atomic_load_explicit(stop, memory_order_relaxed))
            rc = waste_error_set(err, -ECANCELED, "stopped");
    }
    bool done = t->state == WASTE_TRANSFER_DONE || m->full;
    waste_http_cancel(h, t);
    if (rc == 0 && !done) {
        *err = t->error;
        rc = t->status == 404 || t->status == 410 ? -ENOENT : -EIO;
    }
    if (rc == 0) {
        m->text.data[m->text.bytes] = '\0';
        *out = m->text;
        return 0;
    }
    free(m->text.data);
    return rc;
}

int waste_http_get(struct waste_http *h, const char *url, const char *name, size_t most,
                   const _Atomic bool *stop, struct waste_http_text *out, struct waste_error *err)
{
    struct memory m = {.most = most, .total = WASTE_SIZE_UNKNOWN};
    struct waste_transfer t = {.url = url, .name = name};

    return get_memory(h, &t, &m, stop, out, err);
}

int waste_http_get_first(struct waste_http *h, const char *url, const char *name, size_t bytes,
                         uint64_t total, const _Atomic bool *stop, struct waste_http_text *out,
                         struct waste_error *err)
{
    struct memory m = {.most = bytes, .total = total};
    struct waste_transfer t = {.url = url, .name = name, .most = bytes};

    return get_memory(h, &t, &m, stop, out, err);
}
