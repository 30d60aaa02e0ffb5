/*
 * Where a checkpoint is: a repository of the hub (OWNER/NAME) or the URL of a directory.
 */
#ifndef WASTE_FETCHER_ADDRESS_H
#define WASTE_FETCHER_ADDRESS_H

#include <stdbool.h>

#include "reader/container.h"

struct waste_address {
    bool hub;
    char *endpoint; /* hub: HF_ENDPOINT or the public one, no slash at its end; else NULL */
    char *source;   /* OWNER/NAME, or the URL without user, password and query: may be shown */
    char *base;     /* a URL: all of it, no slash at its end, without query; hub: NULL */
    char *query;    /* a URL: its query, which every request repeats; or NULL */
};

/* True for what can only be a URL or a repository: "SCHEME://...", or OWNER/NAME that is no path
 * of this machine. */
bool waste_address_is_remote(const char *text);

/* 0, or -EINVAL with err (of a URL with a password, that is not said). HF_ENDPOINT is read here. */
int waste_address_parse(const char *text, struct waste_address *out, struct waste_error *err);
void waste_address_finish(struct waste_address *a);

/* URLs, malloc'd; NULL without memory. `revision` is ignored for a URL. The name's parts are
 * escaped. */
char *waste_address_file(const struct waste_address *a, const char *revision, const char *name);
char *waste_address_listing(const struct waste_address *a, const char *revision);

/* HF_ENDPOINT, or the public hub. */
const char *waste_address_hub(void);

/* What is sent to the URL is not read on the way: https, or a host that is this machine. */
bool waste_address_is_private(const char *url);

/* Scheme, host and port are the same: what may see a token of the one may see it of the other. */
bool waste_address_same_origin(const char *url, const char *other);

/* The URL without user, password, query and fragment, malloc'd: for messages. */
char *waste_address_shown(const char *url);

#endif
