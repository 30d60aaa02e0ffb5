/* One attempt at a transfer. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fetcher/address.h"
#include "fetcher/http_int.h"

enum {
    HOPS = 10,
    HEADER_BYTES = 256 << 10,
    DISCARD_BYTES = 64 << 10, /* of the body of an error or a redirection */
    CONNECT_SECONDS = 30,
    SLOW_BYTES = 1024, /* a second */
    BUFFER_BYTES = 512 << 10,
};

static int refuse(struct waste_transfer *t, bool never, const char *format, va_list args)
{
    char text[sizeof(t->error.text)];

    vsnprintf(text, sizeof(text), format, args);
    waste_error_set(&t->error, 0, "%s", text);
    t->never |= never;
    if (t->attempt != NULL)
        t->attempt->refused = true;
    return -1;
}

int waste_transfer_again(struct waste_transfer *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    refuse(t, false, format, args);
    va_end(args);
    return -1;
}

int waste_transfer_never(struct waste_transfer *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    refuse(t, true, format, args);
    va_end(args);
    return -1;
}

/* ---- headers ---- */

static size_t on_header(char *data, size_t size, size_t n, void *user)
{
    struct waste_attempt *a = user;
    char line[2048];

    n *= size;
    a->header_bytes += n;
    if (a->header_bytes > HEADER_BYTES) {
        waste_transfer_again(a->t, "%s: the server sends headers without end", a->t->name);
        return 0;
    }
    if (n >= sizeof(line)) /* none that is known is so long */
        return n;
    memcpy(line, data, n);
    line[n] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    if (strncmp(line, "HTTP/", 5) == 0)
        waste_response_reset(&a->r);
    else
        waste_response_take(&a->r, line);
    return n;
}

/* ---- body ---- */

/* What captive portals and tired servers send in place of anything. */
static bool is_page(const struct waste_response *r, const char *name)
{
    size_t n = strlen(name);

    return strncasecmp(r->type, "text/html", 9) == 0 &&
           !(n > 4 &&
             (strcasecmp(name + n - 4, ".htm") == 0 || strcasecmp(name + n - 4, "html") == 0));
}

static int accept_response(struct waste_attempt *a)
{
    struct waste_transfer *t = a->t;

    if (a->accepted)
        return 0;
    a->accepted = true;
    if (a->r.encoding[0] != '\0' && strcasecmp(a->r.encoding, "identity") != 0)
        return waste_transfer_never(
            t, "%s: the server sends it encoded (%s), though it was asked for as it is", t->name,
            a->r.encoding);
    if (is_page(&a->r, t->name))
        return waste_transfer_again(t, "%s: the server sends a page of HTML in its place", t->name);
    if (a->r.status == 206 && t->offset == 0 && t->most == 0)
        return waste_transfer_again(t, "%s: the server sends a part, the whole was asked for",
                                    t->name);
    if (a->r.status == 206 && a->r.range_first == WASTE_SIZE_UNKNOWN)
        return waste_transfer_again(t, "%s: the server does not say which part it sends", t->name);
    if (!t->head && !a->r.framed && !t->size_known)
        return waste_transfer_never(t,
                                    "%s: the server does not say how long it is, so that a cut "
                                    "would not be noticed",
                                    t->name);
    return t->ops->response != NULL ? t->ops->response(t, &a->r) : 0;
}

static void take_status(struct waste_attempt *a)
{
    curl_easy_getinfo(a->easy, CURLINFO_RESPONSE_CODE, &a->r.status);
    a->t->status = a->r.status;
}

static size_t on_body(char *data, size_t size, size_t n, void *user)
{
    struct waste_attempt *a = user;
    struct waste_transfer *t = a->t;

    n *= size;
    take_status(a);
    if (a->r.status != 200 && a->r.status != 206) {
        a->discarded += n;
        return a->discarded > DISCARD_BYTES ? 0 : n;
    }
    if (accept_response(a) != 0 || t->ops->body(t, data, n) != 0)
        return 0;
    t->gained += n;
    return n;
}

/* ---- the request ---- */

static int add_header(struct waste_attempt *a, const char *name, const char *value)
{
    char line[4096];

    if (snprintf(line, sizeof(line), "%s: %s", name, value) >= (int)sizeof(line))
        return -1;
    struct curl_slist *more = curl_slist_append(a->headers, line);
    if (more == NULL)
        return -1;
    a->headers = more;
    return 0;
}

/* The headers of this hop: the token only where it belongs. */
static int make_headers(struct waste_attempt *a, const struct waste_http_options *o)
{
    char bearer[2048];
    int rc;

    curl_slist_free_all(a->headers);
    a->headers = NULL;
    rc = add_header(a, "Accept-Encoding", "identity");
    if (a->t->offset > 0 && a->t->validator != NULL)
        rc |= add_header(a, "If-Range", a->t->validator);
    if (o->token != NULL && waste_address_same_origin(a->url, o->token_url)) {
        snprintf(bearer, sizeof(bearer), "Bearer %s", o->token);
        rc |= add_header(a, "Authorization", bearer);
    }
    return rc;
}

static void set_authorities(CURL *e)
{
    const char *file = getenv("SSL_CERT_FILE"), *dir = getenv("SSL_CERT_DIR");

    if (file != NULL && *file != '\0')
        curl_easy_setopt(e, CURLOPT_CAINFO, file);
    if (dir != NULL && *dir != '\0')
        curl_easy_setopt(e, CURLOPT_CAPATH, dir);
}

static void set_protocols(CURL *e)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(e, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

/* The handle for the hop at a->url. */
static int set_up(struct waste_attempt *a, const struct waste_http_options *o)
{
    CURL *e = a->easy;
    char range[48];

    if (make_headers(a, o) != 0)
        return -1;
    curl_easy_reset(e);
    set_protocols(e);
    set_authorities(e);
    curl_easy_setopt(e, CURLOPT_URL, a->url);
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* a connection each */
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_NOBODY, a->t->head ? 1L : 0L);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, a->headers);
    curl_easy_setopt(e, CURLOPT_USERAGENT, "waste-fetch/" WASTE_VERSION);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, (long)SLOW_BYTES);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)o->stall_seconds);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, a->text);
    curl_easy_setopt(e, CURLOPT_PRIVATE, a);
    if (a->t->most > 0)
        snprintf(range, sizeof(range), "0-%llu", (unsigned long long)a->t->most - 1);
    else
        snprintf(range, sizeof(range), "%llu-", (unsigned long long)a->t->offset);
    if (a->t->most > 0 || a->t->offset > 0)
        curl_easy_setopt(e, CURLOPT_RANGE, range);
    waste_response_reset(&a->r);
    a->header_bytes = a->discarded = 0;
    a->accepted = false;
    a->text[0] = '\0';
    return 0;
}

struct waste_attempt *waste_attempt_create(const struct waste_http_options *o,
                                           struct waste_transfer *t)
{
    struct waste_attempt *a = calloc(1, sizeof(*a));

    if (a != NULL) {
        a->t = t;
        a->easy = curl_easy_init();
        a->url = strdup(t->url);
    }
    if (a != NULL && a->easy != NULL && a->url != NULL && set_up(a, o) == 0)
        return a;
    waste_attempt_destroy(a);
    waste_transfer_never(t, "%s: out of memory", t->name);
    return NULL;
}

void waste_attempt_destroy(struct waste_attempt *a)
{
    if (a == NULL)
        return;
    curl_easy_cleanup(a->easy);
    curl_slist_free_all(a->headers);
    free(a->url);
    free(a);
}

/* ---- its end ---- */

static enum waste_attempt_end hop(struct waste_attempt *a, const struct waste_http_options *o)
{
    struct waste_transfer *t = a->t;
    char *to = NULL;

    curl_easy_getinfo(a->easy, CURLINFO_REDIRECT_URL, &to);
    if (to == NULL) {
        waste_transfer_never(t, "%s: the server answers %ld without saying where to go", t->name,
                             a->r.status);
    } else if (++a->hops > HOPS) {
        waste_transfer_never(t, "%s: more than %d redirections", t->name, HOPS);
    } else if (strncasecmp(to, "http:", 5) != 0 && strncasecmp(to, "https:", 6) != 0) {
        waste_transfer_never(t, "%s: redirected to what is not HTTP", t->name);
    } else if (strncasecmp(a->url, "https:", 6) == 0 && strncasecmp(to, "https:", 6) != 0) {
        waste_transfer_never(t, "%s: redirected from https to what is not", t->name);
    } else if ((to = strdup(to)) != NULL) {
        free(a->url);
        a->url = to;
        if (set_up(a, o) == 0)
            return WASTE_ATTEMPT_HOP;
        waste_transfer_never(t, "%s: out of memory", t->name);
    }
    return WASTE_ATTEMPT_FAILED;
}

static void fail_status(struct waste_attempt *a)
{
    struct waste_transfer *t = a->t;
    char *shown = waste_address_shown(a->url);
    const char *why =
        a->r.status == 401 || a->r.status == 403 ? " (is HF_TOKEN set, and may it read this?)" : "";

    waste_transfer_again(t, "%s: the server answers %ld%s at %s", t->name, a->r.status, why,
                         shown != NULL ? shown : "its address");
    t->never |= !waste_retry_status(a->r.status) && a->r.status != 416;
    free(shown);
}

/* curl's text begins like a sentence. */
static void fail_curl(struct waste_attempt *a, CURLcode code)
{
    struct waste_transfer *t = a->t;
    const char *text = a->text[0] != '\0' ? a->text : curl_easy_strerror(code);
    bool word = text[0] >= 'A' && text[0] <= 'Z' && !(text[1] >= 'A' && text[1] <= 'Z');

    waste_transfer_again(t, "%s: %c%.300s", t->name, word ? text[0] - 'A' + 'a' : text[0],
                         text + 1);
    t->never |= !waste_retry_curl((int)code);
}

enum waste_attempt_end waste_attempt_end(struct waste_attempt *a,
                                         const struct waste_http_options *o, CURLcode code,
                                         uint32_t *after)
{
    curl_off_t seconds = 0;

    *after = 0;
    take_status(a);
    if (a->refused)
        return WASTE_ATTEMPT_FAILED;
    /* the body of an error does not matter, nor whether all of it came */
    bool answered = a->r.status >= 300 && (code == CURLE_OK || code == CURLE_WRITE_ERROR);
    if (answered && a->r.status < 400 && a->r.status != 304)
        return hop(a, o);
    if (answered) {
        curl_easy_getinfo(a->easy, CURLINFO_RETRY_AFTER, &seconds);
        *after = seconds < 0 ? 0 : seconds > UINT32_MAX ? UINT32_MAX : (uint32_t)seconds;
        fail_status(a);
        return WASTE_ATTEMPT_FAILED;
    }
    if (code != CURLE_OK) {
        fail_curl(a, code);
        return WASTE_ATTEMPT_FAILED;
    }
    if (a->r.status != 200 && a->r.status != 206) {
        fail_status(a);
        return WASTE_ATTEMPT_FAILED;
    }
    if (accept_response(a) != 0) /* no body came */
        return WASTE_ATTEMPT_FAILED;
    return WASTE_ATTEMPT_DONE;
}
