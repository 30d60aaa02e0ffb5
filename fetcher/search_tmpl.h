/*
 * The search over vectors of 16 int32 (`v16`). The file that includes it has defined, for its
 * instruction set:
 *   v16, v16_set1, v16_load and v16_store (64-aligned), v16_add, v16_min
 *   v16_dot(acc, pairs, x)   acc + pairs[lane][0] * x[0] + pairs[lane][1] * x[1]; x is one int32
 *                            that holds both
 *   v16_tag(v, tag)          (v & ~15) | tag
 *   v16_choose(&best, &from, v, i)   in lanes where v < best: best = v, from = i
 *   SEARCH_NAME, SEARCH_LEVEL
 *   SEARCH_INLINE, SEARCH_UNROLL   how the loops over stages and groups become constant; nothing in
 *                                  plain C, which sanitizers would make too large
 */
#include <string.h>

#include "fetcher/search.h"

enum { LANES = WASTE_BOOK_LANES, GROUPS = WASTE_BOOK_GROUPS, DIM = WASTE_BOOK_DIM };

/* Candidates, a lane each: score with the low four bits 0, and the entries, a byte a stage. */
struct beam {
    _Alignas(64) int32_t score[LANES];
    _Alignas(64) uint32_t code[LANES];
};

/* Score of every entry of a stage against x alone; the low four bits name the group. */
static SEARCH_INLINE void score_stage(const struct waste_books *b,
                                                              uint32_t stage, const int16_t *x,
                                                              const uint32_t groups, v16 *out)
{
    v16 pair[4];
    for (uint32_t p = 0; p < 4; p++) {
        int32_t both;
        memcpy(&both, x + 2 * p, 4);
        pair[p] = v16_set1(both);
    }
SEARCH_UNROLL
    for (uint32_t g = 0; g < groups; g++) {
        v16 v = v16_load(&b->half[stage][g * LANES]);
        for (uint32_t p = 0; p < 4; p++)
            v = v16_dot(v, &b->minus[stage][g][p][0][0], pair[p]);
        out[g] = v16_tag(v, (int32_t)g);
    }
}

static inline v16 lowest(const v16 *v, const uint32_t groups)
{
    v16 low = v[0];
SEARCH_UNROLL
    for (uint32_t g = 1; g < groups; g++)
        low = v16_min(low, v[g]);
    return low;
}

/* The low bits of a score name the group, the lane the entry in it: it becomes stage t's byte. */
static inline void settle(struct beam *beam, uint32_t t)
{
    for (uint32_t i = 0; i < LANES; i++) {
        uint32_t entry = ((uint32_t)beam->score[i] & 15) * LANES + i;
        beam->code[i] |= entry << 8 * t;
        beam->score[i] &= ~15;
    }
}

/* The better of two lanes stays, down to `width` lanes, a power of two. */
static inline void narrow(struct beam *beam, uint32_t width)
{
    for (uint32_t half = LANES / 2; half >= width; half /= 2)
        for (uint32_t i = 0; i < half; i++) {
            int better = beam->score[i + half] < beam->score[i];
            beam->code[i] = better ? beam->code[i + half] : beam->code[i];
            beam->score[i] = better ? beam->score[i + half] : beam->score[i];
        }
}

/* Every candidate with every entry of stage t. */
static SEARCH_INLINE void extend(const struct waste_books *b,
                                                         struct beam *beam, const v16 *score,
                                                         uint32_t width, const uint32_t t,
                                                         const uint32_t groups)
{
    _Alignas(64) int32_t from[LANES];
    uint32_t old[LANES];
    v16 best = v16_set1(INT32_MAX), chosen = v16_set1(0);
    for (uint32_t m = 0; m < width; m++) {
        const int32_t *row[WASTE_BOOK_STAGES];
        for (uint32_t s = 0; s < t; s++)
            row[s] = b->cross[s][t][beam->code[m] >> 8 * s & 255];
        v16 low = v16_set1(INT32_MAX);
SEARCH_UNROLL
        for (uint32_t g = 0; g < groups; g++) {
            v16 v = score[g];
            for (uint32_t s = 0; s < t; s++)
                v = v16_add(v, v16_load(row[s] + g * LANES));
            low = v16_min(low, v);
        }
        v16_choose(&best, &chosen, v16_add(low, v16_set1(beam->score[m])), (int32_t)m);
    }
    memcpy(old, beam->code, sizeof(old));
    v16_store(beam->score, best);
    v16_store(from, chosen);
    for (uint32_t i = 0; i < LANES; i++)
        beam->code[i] = old[from[i]];
    settle(beam, t);
}

static SEARCH_INLINE void
code_all(const struct waste_books *b, const int16_t (*x)[DIM], uint32_t n, uint32_t width,
         uint8_t (*code)[WASTE_BOOK_STAGES], const uint32_t stages, const uint32_t groups)
{
    for (uint32_t i = 0; i < n; i++) {
        struct beam beam = {.code = {0}};
        v16 score[GROUPS];
        score_stage(b, 0, x[i], groups, score);
        v16_store(beam.score, lowest(score, groups));
        settle(&beam, 0);
        for (uint32_t t = 1; t < stages; t++) {
            narrow(&beam, width);
            score_stage(b, t, x[i], groups, score);
            if (t == 1)
                extend(b, &beam, score, width, 1, groups);
            else if (t == 2)
                extend(b, &beam, score, width, 2, groups);
            else
                extend(b, &beam, score, width, 3, groups);
        }
        narrow(&beam, 1);
        for (uint32_t s = 0; s < WASTE_BOOK_STAGES; s++)
            code[i][s] = (uint8_t)(beam.code[0] >> 8 * s);
    }
}

static void code(const struct waste_books *b, const int16_t (*x)[DIM], uint32_t n, uint32_t width,
                 uint8_t (*out)[WASTE_BOOK_STAGES])
{
    if (b->stages == 3)
        code_all(b, x, n, width, out, 3, 16);
    else if (b->stages == 2)
        code_all(b, x, n, width, out, 2, 16);
    else
        code_all(b, x, n, width, out, 4, 4);
}

static void nearest(const struct waste_books *b, uint32_t stage, const int16_t (*x)[DIM],
                    uint32_t n, uint8_t *entry)
{
    for (uint32_t i = 0; i < n; i++) {
        struct beam beam = {.code = {0}};
        v16 score[GROUPS];
        if (b->entries == WASTE_BOOK_ENTRIES)
            score_stage(b, stage, x[i], 16, score);
        else
            score_stage(b, stage, x[i], 4, score);
        v16_store(beam.score, lowest(score, b->entries / LANES));
        settle(&beam, 0);
        narrow(&beam, 1);
        entry[i] = (uint8_t)beam.code[0];
    }
}

static void prepare_stage(struct waste_books *b, uint32_t s)
{
    for (uint32_t e = 0; e < b->entries; e++) {
        int32_t square = 0;
        for (uint32_t d = 0; d < DIM; d++) {
            int16_t v = b->entry[s][e][d];
            square += v * v;
            b->minus[s][e / LANES][d / 2][e % LANES][d % 2] = (int16_t)-v;
        }
        b->half[s][e] = square / 2;
    }
}

/* Products of -x with the negated entries of stage t. */
static void prepare_row(const struct waste_books *b, uint32_t t, const int16_t *x, int32_t *out)
{
    v16 pair[4];
    for (uint32_t p = 0; p < 4; p++) {
        int16_t two[2] = {(int16_t)-x[2 * p], (int16_t)-x[2 * p + 1]};
        int32_t both;
        memcpy(&both, two, 4);
        pair[p] = v16_set1(both);
    }
    for (uint32_t g = 0; g < b->entries / LANES; g++) {
        v16 v = v16_set1(0);
        for (uint32_t p = 0; p < 4; p++)
            v = v16_dot(v, &b->minus[t][g][p][0][0], pair[p]);
        v16_store(out + g * LANES, v16_tag(v, 0));
    }
}

static void prepare(struct waste_books *b)
{
    for (uint32_t s = 0; s < b->stages; s++)
        prepare_stage(b, s);
    for (uint32_t s = 0; s < b->stages; s++)
        for (uint32_t t = s + 1; t < b->stages; t++)
            for (uint32_t i = 0; i < b->entries; i++)
                prepare_row(b, t, b->entry[s][i], b->cross[s][t][i]);
}

static void subtract(double sum[DIM], const double *weight, const double (*center)[DIM], uint32_t n)
{
    double part[4][DIM] = {{0}};
    for (uint32_t k = 0; k < n; k += 4)
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t d = 0; d < DIM; d++)
                part[i][d] += weight[k + i] * center[k + i][d];
    for (uint32_t d = 0; d < DIM; d++)
        sum[d] -= (part[0][d] + part[1][d]) + (part[2][d] + part[3][d]);
}

const struct waste_search SEARCH_NAME = {SEARCH_LEVEL, code, nearest, prepare, subtract};
