/*
 * Mutates what servers send (a hub's listing, an index, sums, header lines) and a catalog, and
 * parses it: never a crash, one line for what is refused, and of what is accepted no name that
 * leaves the directory, none twice. The cases of a seed are always the same; worth most under the
 * address and undefined sanitizers.
 *
 *     fuzz_listing [SEED [CASES]]
 *
 * With -Dlibfuzzer=true the same checks run on bytes that libFuzzer makes; the first one says which
 * parser they are for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/listing.h"
#include "fetcher/response.h"

enum { HUB, INDEX, SUMS, CATALOG, RESPONSE, PARSERS };

static struct {
    uint64_t taken[PARSERS], refused[PARSERS];
} tally;

static void die(const char *what, const char *data, size_t bytes)
{
    fprintf(stderr, "%s:\n", what);
    fwrite(data, 1, bytes, stderr);
    abort();
}

/* Said here in other words than in the code under test. */
static bool leaves(const char *name)
{
    char padded[4096];

    if (*name == '\0' || *name == '/' || strlen(name) > 2000 || strchr(name, '\\') != NULL)
        return true;
    snprintf(padded, sizeof(padded), "/%s/", name);
    return strstr(padded, "/../") != NULL || strstr(padded, "/./") != NULL ||
           strstr(padded, "//") != NULL || strchr(padded, '\n') != NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct waste_file *)a)->name, ((const struct waste_file *)b)->name);
}

static void check_catalog(struct waste_catalog *c, const char *data, size_t bytes)
{
    qsort(c->file, c->count, sizeof(*c->file), by_name);
    for (uint32_t i = 0; i < c->count; i++) {
        const struct waste_file *f = &c->file[i];
        if (leaves(f->name))
            die("a name that leaves the directory was accepted", data, bytes);
        if (i > 0 && strcmp(c->file[i - 1].name, f->name) == 0)
            die("a name was accepted twice", data, bytes);
        if ((f->sha256[0] != '\0' && strlen(f->sha256) != 64) ||
            (f->git_id[0] != '\0' && strlen(f->git_id) != 40))
            die("a digest of another length was accepted", data, bytes);
    }
}

static void parse_response(const char *data, size_t bytes)
{
    struct waste_response r = {.linked_etag = ""};
    char line[300];

    waste_response_reset(&r);
    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        size_t n = end != NULL ? (size_t)(end - data) : bytes;
        snprintf(line, sizeof(line), "%.*s", (int)n, data);
        waste_response_take(&r, line);
        n += end != NULL;
        data += n;
        bytes -= n;
    }
    if (r.range_first != WASTE_SIZE_UNKNOWN &&
        (r.range_first > r.range_last || r.range_last >= r.total))
        die("a range of no bytes was accepted", "", 0);
    if (r.length == WASTE_SIZE_UNKNOWN && r.range_first == WASTE_SIZE_UNKNOWN)
        tally.refused[RESPONSE]++;
    else
        tally.taken[RESPONSE]++;
}

static void parse(int which, const char *data, size_t bytes)
{
    struct waste_catalog c = {.count = 0};
    struct waste_error err = {""};
    int rc;

    if (which == RESPONSE) {
        parse_response(data, bytes);
        return;
    }
    switch (which) {
    case HUB:
        rc = waste_listing_parse_hub(data, bytes, &c, &err);
        break;
    case INDEX:
        rc = waste_listing_parse_index(data, bytes, true, &c, &err);
        break;
    case SUMS:
        rc = waste_listing_parse_sums(data, bytes, &c, &err);
        break;
    default:
        rc = waste_catalog_parse(data, bytes, &c, &err);
    }
    if (rc == 0) {
        tally.taken[which]++;
        check_catalog(&c, data, bytes);
    } else {
        tally.refused[which]++;
        size_t n = strnlen(err.text, sizeof(err.text));
        if (n == 0 || n == sizeof(err.text) || strchr(err.text, '\n') != NULL)
            die("refused without one line of text", data, bytes);
    }
    waste_catalog_finish(&c);
}

#ifdef WASTE_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes > 0)
        parse(data[0] % PARSERS, (const char *)data + 1, bytes - 1);
    return 0;
}

#else

#define SHA256 "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"
#define SHA1 "0123456789abcdef0123456789abcdef01234567"

static const char *const seeds[PARSERS] = {
    [HUB] = "{\"id\":\"a/b\",\"sha\":\"" SHA1 "\",\"siblings\":["
            "{\"rfilename\":\"config.json\",\"size\":12,\"blobId\":\"" SHA1 "\"},"
            "{\"rfilename\":\"d/e.safetensors\",\"size\":99,\"lfs\":{\"sha256\":\"" SHA256
            "\",\"size\":99}},"
            "{\"rfilename\":\"d/f.safetensors\",\"lfs\":{\"oid\":\"" SHA256 "\"}}]}",
    [INDEX] = "{\"metadata\":{\"total_size\":5},\"weight_map\":{\"a\":\"x-1.safetensors\","
              "\"b\":\"x-2.safetensors\",\"c\":\"d/x-1.safetensors\"}}",
    [SUMS] = SHA256 "  config.json\n" SHA256 " *./d/e.safetensors\r\n# more\n\n" SHA256 "  z",
    [CATALOG] = "{\"source\":\"a/b\",\"revision\":\"" SHA1 "\",\"boot\":\"x\",\"files\":{"
                "\"config.json\":{\"size\":12,\"git_id\":\"" SHA1 "\",\"done\":true},"
                "\"d/e.safetensors\":{\"size\":99,\"sha256\":\"" SHA256
                "\",\"etag\":\"\\\"x\\\"\",\"shard\":true}}}",
    [RESPONSE] = "Content-Length: 100\nContent-Range: bytes 10-19/20\nETag: \"x\"\n"
                 "X-Linked-Etag: \"" SHA256 "\"\nContent-Type: text/html\n"
                 "Transfer-Encoding: chunked\nLast-Modified: Mon, 30 Nov 2026 00:00:00 GMT",
};

/* Put in whole, since chance would take long to find them. */
static const char *const pieces[] = {
    "../",
    "/",
    "\\\\",
    "\\u0000",
    "..",
    ".",
    "\"",
    "}",
    "{",
    "[",
    "]",
    "null",
    "-1",
    "1e400",
    "true",
    "{}",
    "[]",
    "\n",
    "\xff",
    ".part",
    "/../",
    "//",
    "9223372036854775808",
    "18446744073709551615",
    ".waste-fetch.json",
    "config.json",
    ",",
    ":",
};

static uint64_t random_state;

static uint32_t pick(uint32_t below)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z >> 32) * below >> 32);
}

/* Puts n bytes of `with` in place of `run` bytes at `at`. */
static size_t splice(char *data, size_t bytes, size_t at, size_t run, const char *with, size_t n)
{
    memmove(data + at + n, data + at + run, bytes - at - run);
    memcpy(data + at, with, n);
    return bytes - run + n;
}

static size_t mutate(char *data, size_t bytes)
{
    for (uint32_t edits = pick(5); edits > 0 && bytes > 8; edits--) {
        size_t at = pick((uint32_t)bytes), run = pick(12);
        const char *piece = pieces[pick(sizeof(pieces) / sizeof(pieces[0]))];
        char copy[64];
        run = run < bytes - at ? run : bytes - at;
        switch (pick(4)) {
        case 0:
            data[at] = (char)(data[at] ^ 1 << pick(8));
            break;
        case 1:
            bytes = splice(data, bytes, at, run, "", 0);
            break;
        case 2:
            memcpy(copy, data + at, run);
            bytes = splice(data, bytes, pick((uint32_t)bytes), 0, copy, run);
            break;
        default:
            bytes = splice(data, bytes, at, pick(2) * run, piece, strlen(piece));
        }
    }
    return bytes;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20261130;
    uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 0) : 60000;
    int poor = 0;

    printf("seed %llu, %llu cases\n", (unsigned long long)seed, (unsigned long long)cases);
    random_state = seed;
    for (uint64_t c = 0; c < cases; c++) {
        int which = (int)(c % PARSERS);
        size_t bytes = strlen(seeds[which]);
        char *data = malloc(bytes + 1024);
        memcpy(data, seeds[which], bytes);
        bytes = mutate(data, bytes);
        data = realloc(data, bytes + 1); /* exactly: sanitizers see what lies behind */
        parse(which, data, bytes);
        free(data);
    }
    for (int i = 0; i < PARSERS; i++) {
        printf("parser %d: took %llu, refused %llu\n", i, (unsigned long long)tally.taken[i],
               (unsigned long long)tally.refused[i]);
        /* a fuzzer whose mutations all end in the same branch tests nothing */
        poor |= tally.taken[i] < cases / PARSERS / 50 || tally.refused[i] < cases / PARSERS / 50;
    }
    return poor;
}

#endif
