/* One attempt at a transfer: a request, its redirections, its headers. Internal to http.c. */
#ifndef WASTE_FETCHER_HTTP_INT_H
#define WASTE_FETCHER_HTTP_INT_H

#include <curl/curl.h>

#include "fetcher/http.h"

struct waste_attempt {
    struct waste_transfer *t;
    CURL *easy;
    struct curl_slist *headers;
    char *url; /* of this hop */
    struct waste_response r;
    uint64_t header_bytes, discarded;
    int hops;
    bool accepted; /* ops->response was called */
    bool refused;  /* an op refused; the text is in t->error */
    char text[CURL_ERROR_SIZE];
};

enum waste_attempt_end {
    WASTE_ATTEMPT_DONE,
    WASTE_ATTEMPT_HOP, /* go on at another URL */
    WASTE_ATTEMPT_FAILED,
};

/* A new attempt, its handle ready for curl_multi_add_handle. NULL: t->error. */
struct waste_attempt *waste_attempt_create(const struct waste_http_options *o,
                                           struct waste_transfer *t);
void waste_attempt_destroy(struct waste_attempt *a);

/* What became of it, after curl is done with `code`. A hop has its handle made ready again. A
 * failure has t->error, and t->never if no other attempt will help. *after: seconds the server asks
 * to wait for, or 0. */
enum waste_attempt_end waste_attempt_end(struct waste_attempt *a,
                                         const struct waste_http_options *o, CURLcode code,
                                         uint32_t *after);

#endif
