#include "cli/vocab.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "shm/model.h"

/* Any good 64-bit mix will do; tokens are short, so eight bytes at a time from both ends. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t load64(const char *p)
{
    uint64_t word;

    memcpy(&word, p, 8);
    return word;
}

static uint64_t hash_bytes(uint64_t seed, const char *p, size_t n)
{
    const uint64_t k = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t h = seed ^ n;
    uint32_t low, high;

    for (; n > 8; n -= 8, p += 8)
        h = mix(h ^ load64(p), k);
    if (n == 8) {
        h ^= load64(p);
    } else if (n >= 4) {
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        h ^= (uint64_t)high << 32 | low;
    } else if (n > 0) {
        h ^= (uint64_t)(uint8_t)p[0] << 16 | (uint64_t)(uint8_t)p[n / 2] << 8 | (uint8_t)p[n - 1];
    }
    return mix(h, k ^ seed);
}

uint32_t waste_vocab_find(const struct waste_vocab *v, const char *data, size_t bytes)
{
    uint64_t hash;
    uint32_t tag, id;

    if (bytes > v->longest)
        return WASTE_NO_TOKEN;
    hash = hash_bytes(v->seed, data, bytes);
    tag = (uint32_t)(hash >> 32);
    for (uint32_t i = (uint32_t)hash & v->mask; (id = v->slot_id[i]) != WASTE_NO_TOKEN;
         i = (i + 1) & v->mask)
        if (v->slot_tag[i] == tag && v->off[id + 1] - v->off[id] == bytes &&
            memcmp(v->data + v->off[id], data, bytes) == 0)
            return id;
    return WASTE_NO_TOKEN;
}

/* The table has room: it is sized for all ranks before the first is entered. */
static void enter(struct waste_vocab *v, uint32_t id)
{
    uint64_t hash = hash_bytes(v->seed, v->data + v->off[id], v->off[id + 1] - v->off[id]);
    uint32_t i = (uint32_t)hash & v->mask;

    while (v->slot_id[i] != WASTE_NO_TOKEN)
        i = (i + 1) & v->mask;
    v->slot_id[i] = id;
    v->slot_tag[i] = (uint32_t)(hash >> 32);
}

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Strict: whole groups of four, padding only at the end and its spare bits zero. Bytes written, or
 * -1. */
static ptrdiff_t base64_decode(char *out, const char *in, size_t n)
{
    char *start = out;

    if (n == 0 || n % 4 != 0)
        return -1;
    for (; n > 0; n -= 4, in += 4) {
        int pad = n == 4 ? (in[3] == '=') + (in[3] == '=' && in[2] == '=') : 0;
        uint32_t word = 0;

        for (int i = 0; i < 4; i++) {
            int value = i >= 4 - pad ? 0 : base64_value(in[i]);

            if (value < 0)
                return -1;
            word = word << 6 | (uint32_t)value;
        }
        if (pad > 0 && (word & (pad == 1 ? 0xffu : 0xffffu)) != 0)
            return -1;
        *out++ = (char)(word >> 16);
        if (pad < 2)
            *out++ = (char)(word >> 8);
        if (pad < 1)
            *out++ = (char)word;
    }
    return out - start;
}

/* One line of the ranks file, without its end; checked but for what needs the other lines. */
struct line {
    const char *base64;
    size_t base64_bytes;
    uint64_t rank;
};

static int parse_line(const char *p, const char *end, struct line *line)
{
    const char *space = memchr(p, ' ', (size_t)(end - p));

    if (space == NULL || space + 1 == end || end - space > 11)
        return -1;
    line->base64 = p;
    line->base64_bytes = (size_t)(space - p);
    line->rank = 0;
    for (p = space + 1; p < end; p++) {
        if (*p < '0' || *p > '9')
            return -1;
        line->rank = line->rank * 10 + (uint64_t)(*p - '0');
    }
    return 0;
}

/* The line at *at, and *at moved past it. A last line without a newline counts, as do \r\n ends. */
static const char *next_line(const char **at, const char *end)
{
    const char *newline = memchr(*at, '\n', (size_t)(end - *at));
    const char *stop = newline != NULL ? newline : end;

    *at = newline != NULL ? newline + 1 : end;
    return stop;
}

static uint32_t count_lines(const char *text, size_t bytes)
{
    const char *at = text, *end = text + bytes;
    uint32_t lines = 0;

    for (; at < end; lines++)
        next_line(&at, end);
    return lines;
}

static int allocate(struct waste_vocab *v, size_t bytes)
{
    uint32_t slots = 1024;

    while (slots < v->ranks * 2)
        slots *= 2;
    v->mask = slots - 1;
    v->data = malloc(bytes);
    v->off = calloc((size_t)v->ranks + 1, sizeof(*v->off));
    v->slot_tag = malloc(slots * sizeof(*v->slot_tag));
    v->slot_id = malloc(slots * sizeof(*v->slot_id));
    v->pair = malloc(65536 * sizeof(*v->pair));
    if (!v->data || !v->off || !v->slot_tag || !v->slot_id || !v->pair)
        return -ENOMEM;
    memset(v->slot_id, 0xff, slots * sizeof(*v->slot_id));
    memset(v->pair, 0xff, 65536 * sizeof(*v->pair));
    memset(v->single, 0xff, sizeof(v->single));
    if (getrandom(&v->seed, sizeof(v->seed), GRND_NONBLOCK) != sizeof(v->seed))
        v->seed = (uint64_t)(uintptr_t)v->data; /* early boot: any number still works */
    return 0;
}

/*
 * Lines by rank, so that tokens can be stored in order of id: order[rank] = offset of the line + 1.
 * As many ranks as lines, none twice and none beyond: so none is missing either.
 */
static int order_lines(const char *name, const char *text, size_t bytes, uint32_t lines,
                       uint32_t *order, struct waste_error *err)
{
    const char *at = text, *end = text + bytes;

    for (uint32_t number = 1; at < end; number++) {
        const char *start = at, *stop = next_line(&at, end);
        struct line line;

        if (parse_line(start, stop, &line) < 0)
            return waste_error_set(err, -EINVAL, "%s: line %u: not \"base64 rank\"", name, number);
        if (line.rank >= lines)
            return waste_error_set(err, -EINVAL,
                                   "%s: line %u: rank %llu, but the file has %u lines", name,
                                   number, (unsigned long long)line.rank, lines);
        if (order[line.rank] != 0)
            return waste_error_set(err, -EINVAL, "%s: line %u: rank %llu a second time", name,
                                   number, (unsigned long long)line.rank);
        order[line.rank] = (uint32_t)(start - text) + 1;
    }
    return 0;
}

static int store_token(struct waste_vocab *v, const char *name, uint32_t id, const char *start,
                       const char *stop, struct waste_error *err)
{
    struct line line = {0};
    char *to = v->data + v->off[id];
    ptrdiff_t got = -1;
    size_t bytes;

    parse_line(start, stop, &line); /* has been checked */
    if (line.base64_bytes <= (WASTE_TOKEN_BYTES + 2) / 3 * 4)
        got = base64_decode(to, line.base64, line.base64_bytes);
    else
        return waste_error_set(err, -EINVAL,
                               "%s: rank %u: token of %zu base64 characters (at most "
                               "%d bytes)",
                               name, id, line.base64_bytes, WASTE_TOKEN_BYTES);
    if (got <= 0)
        return waste_error_set(err, -EINVAL, "%s: rank %u: %s", name, id,
                               line.base64_bytes == 0 ? "empty token" : "bad base64");
    bytes = (size_t)got;
    v->off[id + 1] = v->off[id] + (uint32_t)bytes;
    if (bytes > v->longest)
        v->longest = (uint32_t)bytes;
    if (waste_vocab_find(v, to, bytes) != WASTE_NO_TOKEN)
        return waste_error_set(err, -EINVAL, "%s: rank %u: the token of rank %u again", name, id,
                               waste_vocab_find(v, to, bytes));
    enter(v, id);
    if (bytes == 1)
        v->single[(uint8_t)to[0]] = id;
    if (bytes == 2)
        v->pair[(uint8_t)to[0] << 8 | (uint8_t)to[1]] = id;
    return 0;
}

int waste_vocab_load_ranks(struct waste_vocab *v, const char *dir, const char *name, uint32_t limit,
                           struct waste_error *err)
{
    uint32_t *order = NULL;
    char *text = NULL;
    size_t bytes = 0;
    int ret = waste_container_read_file(dir, name, WASTE_RANKS_BYTES, &text, &bytes, err);

    if (ret < 0)
        return ret;
    v->ranks = count_lines(text, bytes);
    if (v->ranks == 0 || v->ranks > limit) {
        ret = waste_error_set(err, -EINVAL, "%s: %u tokens (1 to %u)", name, v->ranks, limit);
        v->ranks = 0;
        goto out;
    }
    order = calloc(v->ranks, sizeof(*order));
    ret = order == NULL ? -ENOMEM : allocate(v, bytes);
    if (ret < 0) {
        waste_error_set(err, ret, "%s: out of memory", name);
        goto out;
    }
    if ((ret = order_lines(name, text, bytes, v->ranks, order, err)) < 0)
        goto out;
    for (uint32_t id = 0; id < v->ranks; id++) {
        const char *start = text + order[id] - 1, *at = start;

        if ((ret = store_token(v, name, id, start, next_line(&at, text + bytes), err)) < 0)
            goto out;
    }
    for (int byte = 0; byte < 256; byte++)
        if (v->single[byte] == WASTE_NO_TOKEN) {
            ret = waste_error_set(err, -EINVAL, "%s: no token for byte 0x%02x", name, byte);
            goto out;
        }
out:
    free(order);
    free(text);
    return ret;
}

static int by_id(const void *a, const void *b)
{
    const struct waste_special *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_bytes(const void *a, const void *b)
{
    const struct waste_special *x = *(struct waste_special *const *)a;
    const struct waste_special *y = *(struct waste_special *const *)b;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);

    return order != 0 ? order : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static bool begins_with(const char *text, size_t bytes, const struct waste_special *special)
{
    return special->bytes <= bytes && memcmp(text, special->text, special->bytes) == 0;
}

static int parse_special(struct waste_vocab *v, const char *name, size_t at, const json_t *item,
                         uint32_t limit, struct waste_error *err)
{
    const json_t *id = json_object_get(item, "id"), *text = json_object_get(item, "text");
    struct waste_special *special = &v->special[v->specials];
    size_t bytes = json_string_length(text);

    if (!json_is_integer(id) || !json_is_string(text))
        return waste_error_set(err, -EINVAL,
                               "%s: entry %zu: not {\"id\": number, \"text\": string}", name, at);
    if (json_integer_value(id) < v->ranks || json_integer_value(id) >= limit)
        return waste_error_set(err, -EINVAL, "%s: entry %zu: id %lld (%u to %u)", name, at,
                               (long long)json_integer_value(id), v->ranks, limit - 1);
    if (bytes == 0 || bytes > WASTE_TOKEN_BYTES)
        return waste_error_set(err, -EINVAL, "%s: entry %zu: text of %zu bytes (1 to %d)", name, at,
                               bytes, WASTE_TOKEN_BYTES);
    special->text = strndup(json_string_value(text), bytes);
    if (special->text == NULL)
        return waste_error_set(err, -ENOMEM, "%s: out of memory", name);
    special->id = (uint32_t)json_integer_value(id);
    special->bytes = (uint32_t)bytes;
    v->specials++;
    return 0;
}

static int index_specials(struct waste_vocab *v, const char *name, struct waste_error *err)
{
    if (v->specials == 0)
        return 0;
    qsort(v->special, v->specials, sizeof(*v->special), by_id);
    for (uint32_t i = 0; i < v->specials; i++)
        v->by_text[i] = &v->special[i];
    qsort(v->by_text, v->specials, sizeof(*v->by_text), by_bytes);
    for (uint32_t i = 1; i < v->specials; i++) {
        struct waste_special *special = v->by_text[i];
        const struct waste_special *shorter = v->by_text[i - 1];

        if (v->special[i].id == v->special[i - 1].id)
            return waste_error_set(err, -EINVAL, "%s: id %u twice", name, v->special[i].id);
        if (by_bytes(&v->by_text[i], &v->by_text[i - 1]) == 0)
            return waste_error_set(err, -EINVAL, "%s: text \"%s\" twice", name, special->text);
        while (shorter != NULL && !begins_with(special->text, special->bytes, shorter))
            shorter = shorter->shorter;
        special->shorter = shorter;
    }
    return 0;
}

int waste_vocab_load_specials(struct waste_vocab *v, const char *dir, const char *name,
                              uint32_t limit, struct waste_error *err)
{
    json_error_t why;
    json_t *root = NULL;
    char *text = NULL;
    size_t bytes = 0, count;
    int ret = waste_container_read_file(dir, name, WASTE_SPECIALS_BYTES, &text, &bytes, err);

    if (ret < 0)
        return ret;
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_array(root)) {
        ret = waste_error_set(err, -EINVAL, "%s: line %d: %s", name, root ? 1 : why.line,
                              root ? "not an array" : why.text);
        goto out;
    }
    count = json_array_size(root);
    if (count > limit - v->ranks) {
        ret = waste_error_set(err, -EINVAL, "%s: %zu entries (at most %u)", name, count,
                              limit - v->ranks);
        goto out;
    }
    v->special = calloc(count + 1, sizeof(*v->special));
    v->by_text = calloc(count + 1, sizeof(struct waste_special *));
    if (v->special == NULL || v->by_text == NULL) {
        ret = waste_error_set(err, -ENOMEM, "%s: out of memory", name);
        goto out;
    }
    for (size_t i = 0; i < count && ret == 0; i++)
        ret = parse_special(v, name, i, json_array_get(root, i), limit, err);
    if (ret == 0)
        ret = index_specials(v, name, err);
out:
    json_decref(root);
    free(text);
    return ret;
}

void waste_vocab_finish(struct waste_vocab *v)
{
    for (uint32_t i = 0; i < v->specials; i++)
        free(v->special[i].text);
    free(v->special);
    free(v->by_text);
    free(v->data);
    free(v->off);
    free(v->slot_tag);
    free(v->slot_id);
    free(v->pair);
}

const struct waste_special *waste_vocab_special(const struct waste_vocab *v, uint32_t id)
{
    struct waste_special key = {.id = id};

    if (id < v->ranks || v->specials == 0)
        return NULL;
    return bsearch(&key, v->special, v->specials, sizeof(key), by_id);
}

/*
 * Sorted by bytes, everything from the wanted one to the last that is not behind `text` begins with
 * it. So that last one leads to it by ->shorter.
 */
const struct waste_special *waste_vocab_special_at(const struct waste_vocab *v, const char *text,
                                                   size_t bytes)
{
    struct waste_special key = {.text = (char *)(uintptr_t)text, .bytes = WASTE_TOKEN_BYTES};
    const struct waste_special *pkey = &key, *found;
    uint32_t low = 0, high = v->specials; /* by_text[0 .. low) are not behind the text */

    if (bytes < key.bytes)
        key.bytes = (uint32_t)bytes;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (by_bytes(&v->by_text[middle], &pkey) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    found = low > 0 ? v->by_text[low - 1] : NULL;
    while (found != NULL && !begins_with(text, bytes, found))
        found = found->shorter;
    return found;
}
