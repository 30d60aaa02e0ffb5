/*
 * Mutates the header of a safetensors file at random: never a crash, one line for what is refused,
 * and what is accepted has every byte of the data in exactly one tensor of the size its type and
 * shape give. The cases of a seed are always the same.
 *
 *     fuzz_safetensors [SEED [CASES]]
 *
 * With -Dlibfuzzer=true the same checks run on headers that libFuzzer makes.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/safetensors.h"

enum { DATA_BYTES = 4096, HEADER_LIMIT = 1 << 16 };

static struct {
    uint64_t accepted, refused;
} tally;

static void die(const char *what, const uint8_t *json, size_t n)
{
    fprintf(stderr, "%s: %.*s\n", what, (int)n, (const char *)json);
    abort();
}

struct seen {
    uint64_t end, tensors;
    int ok;
};

/* In the order of the data: each begins where the last has ended. */
static int see(void *ctx, const struct waste_safetensors_entry *e)
{
    struct seen *s = ctx;
    uint64_t values = 1;
    s->ok = s->ok && e->off == s->end && *e->name && strlen(e->name) < WASTE_SAFETENSORS_NAME &&
            e->axes <= WASTE_SAFETENSORS_AXES;
    for (uint32_t a = 0; a < e->axes; a++)
        values *= e->shape[a];
    if (!strcmp(e->dtype, "F32"))
        s->ok = s->ok && e->bytes == 4 * values;
    if (!strcmp(e->dtype, "U8"))
        s->ok = s->ok && e->bytes == values;
    s->end += e->bytes;
    s->tensors++;
    return 0;
}

static void try_header(const uint8_t *json, size_t n)
{
    struct waste_error err = {""};
    struct seen seen = {.end = 8 + n, .ok = 1};
    uint8_t first[8];
    size_t length = 0;
    for (int i = 0; i < 8; i++)
        first[i] = (uint8_t)((uint64_t)n >> 8 * i);
    int rc = waste_safetensors_length("x", 8 + n + DATA_BYTES, first, &length, &err);
    if (rc == 0 && length != n)
        die("another length", json, n);
    if (rc == 0)
        rc = waste_safetensors_parse("x", 8 + n + DATA_BYTES, (const char *)json, n, see, &seen,
                                     &err);
    if (rc == 0 && (!seen.ok || seen.end != 8 + n + DATA_BYTES))
        die("accepted", json, n);
    if (rc != 0 && (!*err.text || strchr(err.text, '\n')))
        die("refused without one line", json, n);
    tally.accepted += rc == 0;
    tally.refused += rc != 0;
}

#ifdef WASTE_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    try_header(data, n);
    return 0;
}
#else
static uint64_t state;

static uint32_t next(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

/* Tensors of random sizes that fill the data. */
static size_t make_header(char *out)
{
    size_t n = (size_t)sprintf(out, "{\"__metadata__\":{\"format\":\"pt\"}"), at = 0;
    for (uint32_t i = 0; at < DATA_BYTES; i++) {
        size_t room = (DATA_BYTES - at) / 4, values = 1 + next(300);
        values = values > room ? room : values;
        bool wide = next(2);
        size_t bytes = wide ? 4 * values : 4 * values / 4 * 4;
        n +=
            (size_t)sprintf(out + n,
                            ",\"model.layers.%u.w\":{\"dtype\":\"%s\",\"shape\":[%zu,%u],"
                            "\"data_offsets\":[%zu,%zu]}",
                            i, wide ? "F32" : "U8", wide ? values : 4 * values, 1u, at, at + bytes);
        at += bytes;
    }
    out[n++] = '}';
    return n;
}

static size_t mutate(uint8_t *json, size_t n)
{
    static const char alphabet[] = "0123456789-.e\"{}[],:\\u\xff\xc3\n truefalsn";
    for (uint32_t i = next(4); i-- > 0 && n > 2;) {
        uint32_t at = next((uint32_t)n), how = next(5);
        if (how == 0) {
            json[at] = (uint8_t)next(256);
        } else if (how == 1) {
            json[at] = (uint8_t)alphabet[next(sizeof(alphabet) - 1)];
        } else if (how == 2 && n + 1 < HEADER_LIMIT) { /* one more digit, or anything */
            memmove(json + at + 1, json + at, n++ - at);
            json[at] = (uint8_t)alphabet[next(10)];
        } else if (how == 3) {
            memmove(json + at, json + at + 1, --n - at);
        } else {
            uint32_t from = next((uint32_t)n), bytes = next(64);
            bytes = bytes > n - from ? (uint32_t)(n - from) : bytes;
            bytes = bytes > n - at ? (uint32_t)(n - at) : bytes;
            memmove(json + at, json + from, bytes);
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    static uint8_t json[HEADER_LIMIT];
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint32_t cases = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 30000;
    for (uint32_t i = 0; i < cases; i++) {
        size_t n = make_header((char *)json);
        try_header(json, mutate(json, n));
    }
    printf("%llu accepted, %llu refused\n", (unsigned long long)tally.accepted,
           (unsigned long long)tally.refused);
    return tally.accepted && tally.refused ? 0 : 1;
}
#endif
