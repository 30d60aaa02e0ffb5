/*
 * Transfers over HTTP: a queue of which a number run at once, each tried again after a pause as
 * long as that may help (fetcher/retry.h), by libcurl's multi interface. One thread owns an engine
 * and its transfers.
 *
 * Redirections are followed here, hop by hop, so that the token goes to its own origin only and
 * https never becomes http. TLS is verified; SSL_CERT_FILE and SSL_CERT_DIR name other authorities.
 * Proxies are those of the environment (http_proxy, https_proxy, no_proxy).
 */
#ifndef WASTE_FETCHER_HTTP_H
#define WASTE_FETCHER_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fetcher/catalog.h"
#include "fetcher/response.h"
#include "fetcher/retry.h"

struct waste_http;

struct waste_http_options {
    uint32_t jobs; /* transfers at once */
    struct waste_retry retry;
    uint32_t stall_seconds; /* slower than 1 KiB/s for so long is a failure */
    const char *token;      /* NULL: none */
    const char *token_url;  /* the only origin that may see it */
};

enum waste_transfer_state {
    WASTE_TRANSFER_IDLE,
    WASTE_TRANSFER_WAITING, /* in the queue, or before another attempt */
    WASTE_TRANSFER_RUNNING,
    WASTE_TRANSFER_DONE,
    WASTE_TRANSFER_FAILED,
};

struct waste_transfer;

/* Called by the thread that runs the engine. Those that return int: 0, or what
 * waste_transfer_again or waste_transfer_never returned. */
struct waste_transfer_ops {
    /* Before every attempt: sets offset and validator; 1: nothing is left to fetch, it is DONE.
     * NULL: from the beginning. */
    int (*prepare)(struct waste_transfer *t);
    /* Status 200 or 206 came, before any body. */
    int (*response)(struct waste_transfer *t, const struct waste_response *r);
    int (*body)(struct waste_transfer *t, const void *data, size_t n);
    /* The body is whole, as far as HTTP can tell. */
    int (*complete)(struct waste_transfer *t);
    /* DONE or FAILED, with error; it may be added again. */
    void (*ended)(struct waste_transfer *t);
};

struct waste_transfer {
    /* set before it is added */
    const char *url, *name; /* the name is for messages */
    bool head;              /* HEAD, not GET */
    bool size_known;        /* complete() can tell whether all came; else the server must */
    uint64_t most;          /* only so many bytes are wanted; 0: all */
    const struct waste_transfer_ops *ops;
    void *ctx;

    /* set by prepare */
    uint64_t offset;       /* first byte wanted */
    const char *validator; /* If-Range; NULL: none */

    enum waste_transfer_state state;
    long status;              /* of the last response; 0: there was none */
    struct waste_error error; /* of the last failure */

    /* the engine's own */
    struct waste_transfer *next;
    struct waste_attempt *attempt;
    uint64_t not_before_ns;
    uint64_t gained; /* bytes of body since the last failure that counted */
    uint32_t failures;
    bool never;
};

/* Makes the failure's text; the transfer is tried again, or is not. Return -1. */
int waste_transfer_again(struct waste_transfer *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int waste_transfer_never(struct waste_transfer *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* NULL with err. */
struct waste_http *waste_http_create(const struct waste_http_options *o, struct waste_error *err);
void waste_http_destroy(struct waste_http *h); /* cancels what runs */

void waste_http_add(struct waste_http *h, struct waste_transfer *t);

/* Takes it back, whatever it is at; ops->ended is not called. */
void waste_http_cancel(struct waste_http *h, struct waste_transfer *t);

/* Works for up to timeout_ms. Transfers that are waiting or running. */
uint32_t waste_http_step(struct waste_http *h, int timeout_ms);

/* Ends a step early; any thread. */
void waste_http_wake(struct waste_http *h);

/* A resource in memory. */
struct waste_http_text {
    char *data; /* malloc'd, a NUL behind it */
    size_t bytes;
    uint64_t total; /* bytes that the resource has; or WASTE_SIZE_UNKNOWN */
};

/* All of a small resource. 0, -ENOENT (404 or 410, with err too), -ECANCELED (*stop became true; it
 * may be NULL) or -EIO with err. */
int waste_http_get(struct waste_http *h, const char *url, const char *name, size_t most,
                   const _Atomic bool *stop, struct waste_http_text *out, struct waste_error *err);

/* Its first `bytes` bytes, or all if it has fewer; it has `total`, or WASTE_SIZE_UNKNOWN. A server
 * without ranges is cut short. */
int waste_http_get_first(struct waste_http *h, const char *url, const char *name, size_t bytes,
                         uint64_t total, const _Atomic bool *stop, struct waste_http_text *out,
                         struct waste_error *err);

#endif
