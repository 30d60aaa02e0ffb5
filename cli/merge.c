/*
 * Two ways to the same ids. Short pieces (nearly all): an array of parts, scanned for the best pair
 * after every merge. Long ones: a list of parts and a heap of (rank, position) in which entries
 * that a merge has made wrong are recognised when they come up, n log n whatever the text.
 */
#include "cli/merge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_PIECE = 64 };

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

static void sift_down(uint64_t *heap, size_t count, size_t at)
{
    uint64_t value = heap[at];

    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= value)
            break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static void push(uint64_t *heap, size_t *count, uint64_t value)
{
    size_t at = (*count)++;

    for (; at > 0 && heap[(at - 1) / 2] > value; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
}

static int reserve(struct waste_merge *m, size_t bytes)
{
    size_t room = m->room ? m->room : 4096;

    if (bytes <= m->room)
        return 0;
    while (room < bytes)
        room *= 2;
    waste_merge_finish(m);
    m->next = malloc(room * sizeof(*m->next));
    m->previous = malloc(room * sizeof(*m->previous));
    m->rank = malloc(room * sizeof(*m->rank));
    /* every merge takes one entry out and puts at most two in */
    m->heap = malloc(2 * room * sizeof(*m->heap));
    if (!m->next || !m->previous || !m->rank || !m->heap) {
        waste_merge_finish(m);
        return -ENOMEM;
    }
    m->room = room;
    return 0;
}

/* Works out the rank of the pair that begins with the part at `at`, and enters it. */
static void enter_pair(struct waste_merge *m, const struct waste_vocab *v, const char *piece,
                       uint32_t bytes, uint32_t at, size_t *count)
{
    uint32_t second = m->next[at];

    m->rank[at] = second == bytes ? WASTE_NO_TOKEN : pair_rank(v, piece + at, m->next[second] - at);
    if (m->rank[at] != WASTE_NO_TOKEN)
        push(m->heap, count, (uint64_t)m->rank[at] << 32 | at);
}

static int merge_long(struct waste_merge *m, const struct waste_vocab *v, const char *piece,
                      uint32_t bytes, struct waste_ids *out)
{
    size_t count = 0;

    if (reserve(m, bytes) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < bytes; i++) {
        m->next[i] = i + 1;
        m->previous[i] = i - 1;
        m->rank[i] = i + 1 < bytes ? pair_rank(v, piece + i, 2) : WASTE_NO_TOKEN;
        if (m->rank[i] != WASTE_NO_TOKEN)
            m->heap[count++] = (uint64_t)m->rank[i] << 32 | i;
    }
    for (size_t i = count / 2; i-- > 0;)
        sift_down(m->heap, count, i);
    while (count > 0) {
        uint32_t rank = (uint32_t)(m->heap[0] >> 32), at = (uint32_t)m->heap[0], second;

        m->heap[0] = m->heap[--count];
        if (count > 0)
            sift_down(m->heap, count, 0);
        if (m->rank[at] != rank)
            continue; /* one of the two has been merged with something else */
        second = m->next[at];
        m->rank[second] = WASTE_NO_TOKEN;
        m->next[at] = m->next[second];
        if (m->next[at] < bytes)
            m->previous[m->next[at]] = at;
        enter_pair(m, v, piece, bytes, at, &count);
        if (at > 0)
            enter_pair(m, v, piece, bytes, m->previous[at], &count);
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
    free(m->rank);
    free(m->heap);
    memset(m, 0, sizeof(*m));
}
