/*
 * Codebooks from a sample of what they are to code.
 *
 * The stages start as k-means of what the stages before leave over. Then, round after round, every
 * vector is coded with the books so far and all stages' entries are moved together to where the
 * weighted squared error of these codes is least: a linear least-squares problem over all entries,
 * solved by sweeps over the stages. (Additive quantisation: Babenko and Lempitsky 2014; Martinez et
 * al. 2018.) All sums are of whole numbers and the solution is made by one thread, so the books do
 * not depend on the threads or the machine.
 */
#ifndef WASTE_FETCHER_TRAIN_H
#define WASTE_FETCHER_TRAIN_H

#include <stdint.h>

#include "compute/team.h"
#include "fetcher/books.h"
#include "fetcher/search.h"

enum { WASTE_SAMPLE_WEIGHT = 4095, WASTE_SAMPLE_LIMIT = 1 << 19 };

struct waste_sample {
    int16_t (*x)[WASTE_BOOK_DIM]; /* [count] */
    uint16_t *weight;             /* [count], 1 to WASTE_SAMPLE_WEIGHT: of the squared error */
    uint32_t count;               /* at most WASTE_SAMPLE_LIMIT */
};

struct waste_trainer {
    const struct waste_search *search;
    struct waste_team *team;
    uint32_t seed_rounds;   /* of k-means a stage */
    uint32_t coarse_rounds; /* of all stages together, on a quarter of a large sample */
    uint32_t rounds;        /* the same on all of it */
    uint32_t width;         /* of the search */
};

/* 0, or -ENOMEM. With fewer vectors than entries, some entries are never used. */
int waste_train(struct waste_books *books, const struct waste_sample *sample,
                const struct waste_trainer *how, uint64_t seed);

#endif
