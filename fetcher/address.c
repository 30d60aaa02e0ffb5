#include "fetcher/address.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define PUBLIC_HUB "https://huggingface.co"
#define NAME_CHARACTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

static const char index_name[] = "/model.safetensors.index.json";

/* OWNER/NAME as the hub allows them. */
static bool is_repo(const char *text)
{
    size_t owner = strspn(text, NAME_CHARACTERS), name;

    if (owner == 0 || owner > 96 || text[owner] != '/' || text[0] == '.' || text[0] == '-')
        return false;
    name = strspn(text + owner + 1, NAME_CHARACTERS);
    return name > 0 && name <= 96 && text[owner + 1 + name] == '\0' && text[owner + 1] != '.';
}

bool waste_address_is_remote(const char *text)
{
    return strstr(text, "://") != NULL || (is_repo(text) && access(text, F_OK) != 0);
}

/* One part of a parsed URL, "" if it has none; to be freed with curl_free. */
static char *part(CURLU *u, CURLUPart which, unsigned flags)
{
    char *text = NULL;

    return curl_url_get(u, which, &text, flags) == CURLUE_OK ? text : NULL;
}

static CURLU *parse(const char *url)
{
    CURLU *u = curl_url();

    if (u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK) {
        curl_url_cleanup(u);
        return NULL;
    }
    return u;
}

static char *copy_of(char *text)
{
    char *copy = text != NULL ? strdup(text) : NULL;

    curl_free(text);
    return copy;
}

char *waste_address_shown(const char *url)
{
    CURLU *u = parse(url);

    if (u == NULL)
        return strdup("(no URL)");
    curl_url_set(u, CURLUPART_USER, NULL, 0);
    curl_url_set(u, CURLUPART_PASSWORD, NULL, 0);
    curl_url_set(u, CURLUPART_OPTIONS, NULL, 0);
    curl_url_set(u, CURLUPART_QUERY, NULL, 0);
    curl_url_set(u, CURLUPART_FRAGMENT, NULL, 0);
    char *shown = copy_of(part(u, CURLUPART_URL, 0));
    curl_url_cleanup(u);
    return shown;
}

bool waste_address_same_origin(const char *url, const char *other)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *a = parse(url), *b = parse(other);
    bool same = a != NULL && b != NULL;

    for (int i = 0; i < 3 && same; i++) {
        char *x = part(a, parts[i], CURLU_DEFAULT_PORT), *y = part(b, parts[i], CURLU_DEFAULT_PORT);
        same = x != NULL && y != NULL && strcasecmp(x, y) == 0;
        curl_free(x);
        curl_free(y);
    }
    curl_url_cleanup(a);
    curl_url_cleanup(b);
    return same;
}

const char *waste_address_hub(void)
{
    const char *endpoint = getenv("HF_ENDPOINT");

    return endpoint != NULL && *endpoint != '\0' ? endpoint : PUBLIC_HUB;
}

bool waste_address_is_private(const char *url)
{
    CURLU *u = parse(url);
    char *scheme = u != NULL ? part(u, CURLUPART_SCHEME, 0) : NULL;
    char *host = u != NULL ? part(u, CURLUPART_HOST, 0) : NULL;
    struct in_addr v4;
    bool is = scheme != NULL && host != NULL &&
              (strcmp(scheme, "https") == 0 || strcmp(host, "localhost") == 0 ||
               strcmp(host, "[::1]") == 0 ||
               (inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127));

    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(u);
    return is;
}

static void cut_slashes(char *text)
{
    for (size_t n = strlen(text); n > 0 && text[n - 1] == '/'; n--)
        text[n - 1] = '\0';
}

/* Takes the URL apart; `base` may name the index of the shards. */
static int take_url(const char *text, struct waste_address *out, struct waste_error *err)
{
    CURLU *u = parse(text);
    int rc = -EINVAL;

    if (u == NULL)
        return waste_error_set(err, rc, "the URL cannot be read: http://HOST/DIR is wanted");
    char *scheme = part(u, CURLUPART_SCHEME, 0);
    if (scheme == NULL || (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0)) {
        waste_error_set(err, rc, "'%.40s' is neither http nor https", scheme != NULL ? scheme : "");
    } else {
        out->query = copy_of(part(u, CURLUPART_QUERY, 0));
        curl_url_set(u, CURLUPART_QUERY, NULL, 0);
        curl_url_set(u, CURLUPART_FRAGMENT, NULL, 0);
        out->base = copy_of(part(u, CURLUPART_URL, 0));
        rc = out->base != NULL ? 0 : -ENOMEM;
    }
    curl_free(scheme);
    curl_url_cleanup(u);
    if (rc != 0)
        return rc;
    size_t length = strlen(out->base), tail = sizeof(index_name) - 1;
    if (length > tail && strcmp(out->base + length - tail, index_name) == 0)
        out->base[length - tail] = '\0';
    cut_slashes(out->base);
    out->source = waste_address_shown(out->base);
    if (out->source != NULL)
        cut_slashes(out->source);
    return out->source != NULL ? 0 : waste_error_set(err, -ENOMEM, "out of memory");
}

static int take_repo(const char *text, struct waste_address *out, struct waste_error *err)
{
    out->hub = true;
    out->endpoint = strdup(waste_address_hub());
    out->source = strdup(text);
    if (out->endpoint == NULL || out->source == NULL)
        return waste_error_set(err, -ENOMEM, "out of memory");
    cut_slashes(out->endpoint);
    CURLU *u = strncmp(out->endpoint, "http://", 7) != 0 && strncmp(out->endpoint, "https://", 8)
                   ? NULL
                   : parse(out->endpoint);
    if (u == NULL)
        return waste_error_set(err, -EINVAL, "HF_ENDPOINT is no URL of http or https");
    curl_url_cleanup(u);
    return 0;
}

int waste_address_parse(const char *text, struct waste_address *out, struct waste_error *err)
{
    struct waste_address a = {.hub = false};
    int rc;

    if (strstr(text, "://") != NULL)
        rc = take_url(text, &a, err);
    else if (is_repo(text))
        rc = take_repo(text, &a, err);
    else
        rc = waste_error_set(err, -EINVAL, "'%.200s' is neither a URL nor OWNER/NAME of a hub",
                             text);
    if (rc == 0)
        *out = a;
    else
        waste_address_finish(&a);
    return rc;
}

void waste_address_finish(struct waste_address *a)
{
    free(a->endpoint);
    free(a->source);
    free(a->base);
    free(a->query);
    *a = (struct waste_address){.hub = false};
}

/* `name` with every byte escaped that a path may not have, the slashes left. */
static void put_escaped(FILE *out, const char *name)
{
    for (const char *c = name; *c != '\0'; c++)
        if (strchr(NAME_CHARACTERS "~/", *c) != NULL)
            fputc(*c, out);
        else
            fprintf(out, "%%%02X", (unsigned char)*c);
}

char *waste_address_file(const struct waste_address *a, const char *revision, const char *name)
{
    char *url = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&url, &bytes);

    if (out == NULL)
        return NULL;
    if (a->hub) {
        fprintf(out, "%s/%s/resolve/", a->endpoint, a->source);
        put_escaped(out, revision);
    } else {
        fputs(a->base, out);
    }
    fputc('/', out);
    put_escaped(out, name);
    if (a->query != NULL)
        fprintf(out, "?%s", a->query);
    return fclose(out) == 0 ? url : NULL;
}

char *waste_address_listing(const struct waste_address *a, const char *revision)
{
    char *url = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&url, &bytes);

    if (out == NULL)
        return NULL;
    fprintf(out, "%s/api/models/%s/revision/", a->endpoint, a->source);
    for (const char *c = revision; *c != '\0'; c++)
        if (*c == '/') /* a branch with a slash is one part of the path here */
            fputs("%2F", out);
        else
            put_escaped(out, (const char[]){*c, '\0'});
    fputs("?blobs=true", out);
    return fclose(out) == 0 ? url : NULL;
}
