#include "reader/foresight.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What each needed read allows to be read in vain; the promise is 5 %. */
#define GAIN 0.035
#define MOST_SPENT 8.0   /* reads: the account counts as no more */
#define RISK_SHARE 0.125 /* of what is in the account, for one prefetch */
#define MOST_RISK 0.6f   /* what is wrong more often is no prediction */
#define FADE 0.98f       /* of rates, an outcome */
#define DOUBT 4.0f       /* outcomes of the whole rank that a layer's own must outweigh */

int waste_foresight_init(struct waste_foresight *f, uint32_t layers)
{
    memset(f, 0, sizeof(*f));
    f->layers = layers;
    f->layer = calloc(layers, sizeof(*f->layer));
    return f->layer ? 0 : -ENOMEM;
}

void waste_foresight_finish(struct waste_foresight *f)
{
    free(f->layer);
    memset(f, 0, sizeof(*f));
}

void waste_foresight_predict(struct waste_foresight *f, uint64_t step, uint32_t layer)
{
    f->layer[layer].step = step;
    f->layer[layer].count = 0;
}

void waste_foresight_add(struct waste_foresight *f, uint32_t layer, uint32_t expert, bool absent)
{
    struct waste_foresight_layer *l = &f->layer[layer];
    if (l->count == WASTE_FORESIGHT_RANKS)
        return;
    l->expert[l->count] = expert;
    l->absent[l->count++] = absent;
}

static void update(struct waste_foresight_rate *rate, bool right)
{
    rate->right = rate->right * FADE + (right ? 1 : 0);
    rate->all = rate->all * FADE + 1;
}

uint32_t waste_foresight_judge(struct waste_foresight *f, uint64_t step, uint32_t layer,
                               const uint32_t *expert, uint32_t count,
                               uint8_t right[WASTE_FORESIGHT_RANKS])
{
    struct waste_foresight_layer *l = &f->layer[layer];
    uint32_t ranks = l->step == step ? l->count : 0;
    for (uint32_t r = 0; r < ranks; r++) {
        right[r] = 0;
        for (uint32_t i = 0; i < count; i++)
            right[r] |= expert[i] == l->expert[r];
        if (!l->absent[r])
            continue;
        update(&l->rate[r], right[r]);
        update(&f->rate[r], right[r]);
    }
    l->count = 0;
    return ranks;
}

float waste_foresight_risk(const struct waste_foresight *f, uint32_t layer, uint32_t rank)
{
    uint32_t r = rank < WASTE_FORESIGHT_RANKS ? rank : WASTE_FORESIGHT_RANKS - 1;
    const struct waste_foresight_rate *own = &f->layer[layer].rate[r], *all = &f->rate[r];
    /* nothing known is nothing good */
    float usual = all->right / (all->all + 1);
    return 1 - (own->right + DOUBT * usual) / (own->all + DOUBT);
}

bool waste_foresight_allows(const struct waste_foresight *f, float risk)
{
    double account = (1 + GAIN) * (double)f->needed - (double)f->reads - f->at_risk;
    return risk <= MOST_RISK && risk <= RISK_SHARE * (account < MOST_SPENT ? account : MOST_SPENT);
}

void waste_foresight_open(struct waste_foresight *f, float risk)
{
    f->at_risk += risk;
}

void waste_foresight_close(struct waste_foresight *f, float risk, bool read)
{
    f->at_risk = f->at_risk > risk ? f->at_risk - risk : 0;
    f->reads += read;
}

void waste_foresight_count(struct waste_foresight *f, uint32_t reads, uint64_t needed)
{
    f->reads += reads;
    f->needed = needed;
}
