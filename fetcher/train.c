#include "fetcher/train.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/fill.h"

enum {
    TASK = 256,      /* vectors */
    LARGE = 1 << 13, /* a quarter of so many is enough to begin with */
    ALL = WASTE_BOOK_STAGES * WASTE_BOOK_ENTRIES,
    SWEEPS = 6,
    DIM = WASTE_BOOK_DIM,
};

#define ROUND 0x1.8p52 /* added and taken away, it rounds half to even */

/* What one worker adds up. */
struct sums {
    int64_t vector[ALL][DIM]; /* weight x vector, of those that chose the entry */
    uint64_t weight[ALL];
    uint32_t together[]; /* [n][n] weight of those that chose both entries, s < t only */
};

struct job {
    struct waste_books *books;
    const struct waste_sample *sample;
    const struct waste_trainer *how;
    struct sums **sums;   /* [threads] */
    uint32_t n;           /* stages x entries */
    uint32_t stage;       /* of k-means */
    uint32_t part, parts; /* of the sample */
    int16_t (*rest)[DIM];
    uint8_t *entry;
    double (*center)[DIM], *matrix; /* of the solution: [n][DIM], [n][n] */
};

static void clear(struct job *j)
{
    for (uint32_t w = 0; w < waste_team_threads(j->how->team); w++)
        memset(j->sums[w], 0, sizeof(struct sums) + (size_t)j->n * j->n * sizeof(uint32_t));
}

static void merge(struct job *j)
{
    struct sums *a = j->sums[0];
    for (uint32_t w = 1; w < waste_team_threads(j->how->team); w++) {
        const struct sums *b = j->sums[w];
        for (uint32_t i = 0; i < j->n; i++) {
            a->weight[i] += b->weight[i];
            for (uint32_t d = 0; d < DIM; d++)
                a->vector[i][d] += b->vector[i][d];
        }
        for (size_t i = 0; i < (size_t)j->n * j->n; i++)
            a->together[i] += b->together[i];
    }
}

/* The vectors of every `parts`-th task, from `part` on, are this round's. */
static uint32_t task_count(const struct job *j)
{
    uint32_t all = (j->sample->count + TASK - 1) / TASK;
    return (all + j->parts - 1 - j->part) / j->parts;
}

static uint32_t task_first(const struct job *j, uint32_t task)
{
    return (task * j->parts + j->part) * TASK;
}

static uint32_t task_vectors(const struct job *j, uint32_t first)
{
    uint32_t left = j->sample->count - first;
    return left < TASK ? left : TASK;
}

/* Round `round` of a coarse phase takes another quarter of a large sample each time. */
static void take_part(struct job *j, uint32_t round)
{
    j->parts = j->sample->count >= 4 * LARGE ? 4 : 1;
    j->part = round % j->parts;
}

static void take_all(struct job *j)
{
    j->parts = 1;
    j->part = 0;
}

static void add(struct sums *s, uint32_t at, uint32_t weight, const int16_t *x)
{
    s->weight[at] += weight;
    for (uint32_t d = 0; d < DIM; d++)
        s->vector[at][d] += (int32_t)weight * x[d];
}

static void assign(void *arg, uint32_t worker)
{
    struct job *j = arg;
    for (uint32_t task; waste_team_claim(j->how->team, worker, &task);) {
        uint32_t first = task_first(j, task), n = task_vectors(j, first);
        j->how->search->nearest(j->books, j->stage, (const int16_t(*)[DIM])j->rest + first, n,
                                j->entry + first);
        for (uint32_t i = first; i < first + n; i++)
            add(j->sums[worker], j->entry[i], j->sample->weight[i], j->rest[i]);
    }
}

/* Nearest number an f16 holds in steps of 1/WASTE_BOOK_UNIT: even from 2048 on. */
static int16_t entry_of(double v)
{
    double r = v > WASTE_BOOK_LIMIT    ? WASTE_BOOK_LIMIT
               : v < -WASTE_BOOK_LIMIT ? -WASTE_BOOK_LIMIT
                                       : v;
    int32_t n = (int32_t)(r + ROUND - ROUND);
    return (int16_t)(n >= 2048 || n <= -2048 ? n / 2 * 2 : n);
}

/* k-means of one stage over what is left. */
static void seed_stage(struct job *j, uint64_t key)
{
    struct waste_books *b = j->books;
    uint32_t count = j->sample->count, s = j->stage;
    for (uint32_t e = 0; e < b->entries; e++) {
        uint32_t at = (uint32_t)((__uint128_t)waste_mix(key + e * WASTE_GOLDEN) * count >> 64);
        for (uint32_t d = 0; d < DIM; d++)
            b->entry[s][e][d] = entry_of(j->rest[at][d]);
    }
    for (uint32_t round = 0;; round++) {
        j->how->search->prepare(b);
        take_part(j, round);
        if (round == j->how->seed_rounds)
            take_all(j);
        clear(j);
        waste_team_run(j->how->team, assign, j, task_count(j), 1);
        if (round == j->how->seed_rounds)
            break;
        merge(j);
        const struct sums *a = j->sums[0];
        for (uint32_t e = 0; e < b->entries; e++)
            for (uint32_t d = 0; d < DIM && a->weight[e]; d++)
                b->entry[s][e][d] = entry_of((double)a->vector[e][d] / (double)a->weight[e]);
    }
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t d = 0; d < DIM; d++)
            j->rest[i][d] = (int16_t)(j->rest[i][d] - b->entry[s][j->entry[i]][d]);
}

static void code(void *arg, uint32_t worker)
{
    struct job *j = arg;
    struct sums *sums = j->sums[worker];
    uint8_t out[TASK][WASTE_BOOK_STAGES];
    uint32_t stages = j->books->stages, entries = j->books->entries;
    for (uint32_t task; waste_team_claim(j->how->team, worker, &task);) {
        uint32_t first = task_first(j, task), n = task_vectors(j, first);
        const int16_t(*x)[DIM] = (const int16_t(*)[DIM])j->sample->x + first;
        j->how->search->code(j->books, x, n, j->how->width, out);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t s = 0; s < stages; s++) {
                uint32_t at = s * entries + out[i][s], weight = j->sample->weight[first + i];
                add(sums, at, weight, x[i]);
                for (uint32_t t = s + 1; t < stages; t++)
                    sums->together[(size_t)at * j->n + t * entries + out[i][t]] += weight;
            }
    }
}

/* One sweep of block Gauss-Seidel: every entry to its best place, the other stages staying. */
static void sweep(struct job *j)
{
    const struct sums *a = j->sums[0];
    uint32_t entries = j->books->entries;
    for (uint32_t i = 0; i < j->n; i++) {
        double sum[DIM];
        const double *row = j->matrix + (size_t)i * j->n;
        uint32_t own = i / entries * entries, next = own + entries;
        if (!a->weight[i])
            continue;
        for (uint32_t d = 0; d < DIM; d++)
            sum[d] = (double)a->vector[i][d];
        j->how->search->subtract(sum, row, (const double(*)[DIM])j->center, own);
        j->how->search->subtract(sum, row + next, (const double(*)[DIM])j->center + next,
                                 j->n - next);
        for (uint32_t d = 0; d < DIM; d++)
            j->center[i][d] = sum[d] / (double)a->weight[i];
    }
}

static void solve(struct job *j)
{
    struct waste_books *b = j->books;
    const struct sums *a = j->sums[0];
    for (uint32_t i = 0; i < j->n; i++)
        for (uint32_t k = i + 1; k < j->n; k++)
            j->matrix[(size_t)i * j->n + k] = j->matrix[(size_t)k * j->n + i] =
                a->together[(size_t)i * j->n + k];
    for (uint32_t i = 0; i < j->n; i++)
        for (uint32_t d = 0; d < DIM; d++)
            j->center[i][d] = b->entry[i / b->entries][i % b->entries][d];
    for (int i = 0; i < SWEEPS; i++)
        sweep(j);
    for (uint32_t i = 0; i < j->n; i++)
        for (uint32_t d = 0; d < DIM; d++)
            b->entry[i / b->entries][i % b->entries][d] = entry_of(j->center[i][d]);
}

static void destroy(struct job *j)
{
    for (uint32_t w = 0; j->sums && w < waste_team_threads(j->how->team); w++)
        free(j->sums[w]);
    free(j->sums);
    free(j->rest);
    free(j->entry);
    free(j->center);
    free(j->matrix);
}

static int create(struct job *j)
{
    uint32_t threads = waste_team_threads(j->how->team), count = j->sample->count;
    size_t bytes = sizeof(struct sums) + (size_t)j->n * j->n * sizeof(uint32_t);
    j->sums = calloc(threads, sizeof(*j->sums));
    j->rest = malloc((size_t)count * sizeof(*j->rest) + 1);
    j->entry = malloc((size_t)count + 1);
    j->center = calloc(j->n, sizeof(*j->center));
    j->matrix = calloc((size_t)j->n * j->n, sizeof(double));
    bool ok = j->sums && j->rest && j->entry && j->center && j->matrix;
    for (uint32_t w = 0; ok && w < threads; w++)
        ok = (j->sums[w] = malloc(bytes)) != NULL;
    return ok ? 0 : -ENOMEM;
}

int waste_train(struct waste_books *books, const struct waste_sample *sample,
                const struct waste_trainer *how, uint64_t seed)
{
    struct job j = {
        .books = books, .sample = sample, .how = how, .n = books->stages * books->entries};
    int e = create(&j);
    if (e || !sample->count)
        goto out;
    memcpy(j.rest, sample->x, (size_t)sample->count * sizeof(*j.rest));
    for (j.stage = 0; j.stage < books->stages; j.stage++)
        seed_stage(&j, waste_mix(seed + j.stage));
    for (uint32_t i = 0; i < how->coarse_rounds + how->rounds; i++) {
        if (i < how->coarse_rounds)
            take_part(&j, i);
        else
            take_all(&j);
        clear(&j);
        waste_team_run(how->team, code, &j, task_count(&j), 1);
        merge(&j);
        solve(&j);
        how->search->prepare(books);
    }
out:
    destroy(&j);
    return e;
}
