/*
 * Two ways to the same ids. Short pieces (nearly all): an array of parts, scanned for the best pair
 * after every merge. Long ones: a list of parts and a tree of minima over their positions, n log n
 * whatever the text. (A heap does too, but a megabyte of one letter walks all over it; in the tree,
 * what is close in the text is close in memory.)
 */
#include "cli/merge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_PIECE = 64, FAN = 16 };

static uint32_t pair_rank(const struct waste_vocab *v, const char *data, size_t bytes)
{
    if (bytes == 2)
        return v->pair[(uint8_t)data[0] << 8 | (uint8_t)data[1]];
    return waste_vocab_find(v, data, bytes);
}

static uint32_t part_id(const struct waste_vocab *v, const char *data, size_t bytes)
{
    return bytes == 1 ? v->single[(uint8_t)data[0]] : pair_rank(v, data, bytes);
}

static int merge_short(const struct waste_vocab *v, const char *piece, uint32_t bytes,
                       struct waste_ids *out)
{
    /* part i is [start[i], start[i + 1]); rank[i] is that of parts i and i + 1 joined */
    uint32_t start[SHORT_PIECE + 1], rank[SHORT_PIECE], parts = bytes;

    for (uint32_t i = 0; i <= bytes; i++)
        start[i] = i;
    for (uint32_t i = 0; i + 1 < bytes; i++)
        rank[i] = pair_rank(v, piece + i, 2);
    for (;;) {
        uint32_t best = 0, lowest = WASTE_NO_TOKEN;

        for (uint32_t i = 0; i + 1 < parts; i++)
            if (rank[i] < lowest) {
                lowest = rank[i];
                best = i;
            }
        if (lowest == WASTE_NO_TOKEN)
            break;
        memmove(start + best + 1, start + best + 2, (parts - best - 1) * sizeof(start[0]));
        memmove(rank + best, rank + best + 1, (parts - best - 2) * sizeof(rank[0]));
        parts--;
        if (best + 1 < parts)
            rank[best] = pair_rank(v, piece + start[best], start[best + 2] - start[best]);
        if (best > 0)
            rank[best - 1] =
                pair_rank(v, piece + start[best - 1], start[best + 1] - start[best - 1]);
    }
    for (uint32_t i = 0; i < parts; i++)
        if (waste_ids_add(out, part_id(v, piece + start[i], start[i + 1] - start[i])) < 0)
            return -ENOMEM;
    return 0;
}

static size_t padded(size_t n)
{
    return (n + FAN - 1) / FAN * FAN;
}

/* Memory for a piece of `bytes`, and the tree's shape. Returns its root's level, or -ENOMEM. */
static int reserve(struct waste_merge *m, size_t bytes)
{
    size_t room = m->room ? m->room : 4096, entries = 0, at = 0;
    int root = 0;

    if (bytes > m->room) {
        while (room < bytes)
            room *= 2;
        waste_merge_finish(m);
        m->next = malloc(room * sizeof(*m->next));
        m->previous = malloc(room * sizeof(*m->previous));
        for (size_t n = room; n > 1; n = padded(n) / FAN)
            entries += padded(n);
        m->lowest[0] = malloc((entries + FAN) * sizeof(uint32_t));
        if (!m->next || !m->previous || !m->lowest[0]) {
            waste_merge_finish(m);
            return -ENOMEM;
        }
        m->room = room;
    }
    for (size_t n = bytes; n > 1; n = padded(n) / FAN) {
        m->lowest[root] = m->lowest[0] + at;
        at += padded(n);
        root++;
    }
    m->lowest[root] = m->lowest[0] + at;
    return root;
}

static uint32_t lowest_of(const uint32_t *rank)
{
    uint32_t lowest = rank[0];

    for (int i = 1; i < FAN; i++)
        lowest = rank[i] < lowest ? rank[i] : lowest;
    return lowest;
}

/* Everything above the ranks of all `bytes` positions. */
static void build(struct waste_merge *m, size_t bytes, int root)
{
    size_t n = bytes;

    for (int level = 0; level < root; level++) {
        for (size_t i = n; i < padded(n); i++)
            m->lowest[level][i] = WASTE_NO_TOKEN;
        n = padded(n) / FAN;
        for (size_t i = 0; i < n; i++)
            m->lowest[level + 1][i] = lowest_of(m->lowest[level] + i * FAN);
    }
}

static void set_rank(struct waste_merge *m, int root, size_t at, uint32_t rank)
{
    m->lowest[0][at] = rank;
    for (int level = 0; level < root; level++) {
        uint32_t lowest;

        at /= FAN;
        lowest = lowest_of(m->lowest[level] + at * FAN);
        if (m->lowest[level + 1][at] == lowest)
            break;
        m->lowest[level + 1][at] = lowest;
    }
}

/* The first position with the lowest rank. */
static size_t first_lowest(const struct waste_merge *m, int root)
{
    uint32_t lowest = m->lowest[root][0];
    size_t at = 0;

    for (int level = root - 1; level >= 0; level--)
        for (at *= FAN; m->lowest[level][at] != lowest;)
            at++;
    return at;
}

/* The rank of the pair that begins with the part at `at`. */
static uint32_t rank_at(const struct waste_merge *m, const struct waste_vocab *v, const char *piece,
                        uint32_t bytes, uint32_t at)
{
    uint32_t second = m->next[at];

    return second == bytes ? WASTE_NO_TOKEN : pair_rank(v, piece + at, m->next[second] - at);
}

static int merge_long(struct waste_merge *m, const struct waste_vocab *v, const char *piece,
                      uint32_t bytes, struct waste_ids *out)
{
    int root = reserve(m, bytes);

    if (root < 0)
        return root;
    for (uint32_t i = 0; i < bytes; i++) {
        m->next[i] = i + 1;
        m->previous[i] = i - 1;
        m->lowest[0][i] = i + 1 < bytes ? pair_rank(v, piece + i, 2) : WASTE_NO_TOKEN;
    }
    build(m, bytes, root);
    while (m->lowest[root][0] != WASTE_NO_TOKEN) {
        uint32_t at = (uint32_t)first_lowest(m, root), second = m->next[at];

        m->next[at] = m->next[second];
        if (m->next[at] < bytes)
            m->previous[m->next[at]] = at;
        set_rank(m, root, second, WASTE_NO_TOKEN);
        set_rank(m, root, at, rank_at(m, v, piece, bytes, at));
        if (at > 0)
            set_rank(m, root, m->previous[at], rank_at(m, v, piece, bytes, m->previous[at]));
    }
    for (uint32_t at = 0; at < bytes; at = m->next[at])
        if (waste_ids_add(out, part_id(v, piece + at, m->next[at] - at)) < 0)
            return -ENOMEM;
    return 0;
}

int waste_merge_piece(struct waste_merge *m, const struct waste_vocab *v, const char *piece,
                      size_t bytes, struct waste_ids *out)
{
    uint32_t whole = part_id(v, piece, bytes);

    if (whole != WASTE_NO_TOKEN)
        return waste_ids_add(out, whole);
    if (bytes <= SHORT_PIECE)
        return merge_short(v, piece, (uint32_t)bytes, out);
    return merge_long(m, v, piece, (uint32_t)bytes, out);
}

void waste_merge_finish(struct waste_merge *m)
{
    free(m->next);
    free(m->previous);
    free(m->lowest[0]);
    memset(m, 0, sizeof(*m));
}
