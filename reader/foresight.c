#include "reader/foresight.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What each needed read allows to be read in vain; the promise is 5 %. */
#define GAIN 0.043
#define MOST_SPENT 16.0 /* reads: the account counts as no more */
#define RISK_SHARE 0.03 /* of what is in the account, for one prefetch */
#define MOST_RISK 0.6f  /* what is wrong more often is no prediction */
#define FADE 0.98f      /* of rates, an outcome */
#define RECENT 16.0f    /* windows or reads in a mean */
#define TOO_LITTLE 0.1f /* of a record's time: not worth one */
#define DOUBT 4.0f      /* outcomes of the whole rank that a layer's own must outweigh */

int waste_foresight_init(struct waste_foresight *f, uint32_t layers)
{
    memset(f, 0, sizeof(*f));
    f->layers = layers;
    f->guess = calloc((size_t)layers * WASTE_OUTLOOK_COUNT, sizeof(*f->guess));
    f->newest = calloc(layers, sizeof(*f->newest));
    f->window = calloc((size_t)layers * WASTE_OUTLOOK_COUNT, sizeof(*f->window));
    if (f->guess && f->newest && f->window)
        return 0;
    waste_foresight_finish(f);
    return -ENOMEM;
}

void waste_foresight_finish(struct waste_foresight *f)
{
    free(f->guess);
    free(f->newest);
    free(f->window);
    memset(f, 0, sizeof(*f));
}

static struct waste_foresight_guess *guess_of(const struct waste_foresight *f, uint32_t layer,
                                              enum waste_outlook outlook)
{
    return &f->guess[(size_t)layer * WASTE_OUTLOOK_COUNT + outlook];
}

void waste_foresight_predict(struct waste_foresight *f, uint32_t layer, enum waste_outlook outlook,
                             uint64_t step)
{
    struct waste_foresight_guess *g = guess_of(f, layer, outlook);
    g->step = step;
    g->count = 0;
    f->newest[layer] = outlook;
}

void waste_foresight_add(struct waste_foresight *f, uint32_t layer, enum waste_outlook outlook,
                         uint32_t expert, bool absent)
{
    struct waste_foresight_guess *g = guess_of(f, layer, outlook);
    if (g->count == WASTE_FORESIGHT_RANKS)
        return;
    g->expert[g->count] = expert;
    g->absent[g->count++] = absent;
}

static void update(struct waste_foresight_rate *rate, bool right)
{
    rate->right = rate->right * FADE + (right ? 1 : 0);
    rate->all = rate->all * FADE + 1;
}

uint32_t waste_foresight_judge(struct waste_foresight *f, uint32_t layer,
                               enum waste_outlook outlook, const struct waste_want *demand,
                               uint8_t right[WASTE_FORESIGHT_RANKS])
{
    struct waste_foresight_guess *g = guess_of(f, layer, outlook);
    uint32_t ranks = g->step == demand->step ? g->count : 0;
    for (uint32_t r = 0; r < ranks; r++) {
        right[r] = 0;
        for (uint32_t i = 0; i < demand->count; i++)
            right[r] |= demand->expert[i] == g->expert[r];
        if (!g->absent[r])
            continue;
        update(&g->rate[r], right[r]);
        update(&f->rate[outlook][r], right[r]);
    }
    g->count = 0;
    return ranks;
}

uint32_t waste_foresight_expert(const struct waste_foresight *f, uint32_t layer,
                                enum waste_outlook outlook, uint32_t rank)
{
    const struct waste_foresight_guess *g = guess_of(f, layer, outlook);
    return rank < g->count ? g->expert[rank] : UINT32_MAX;
}

float waste_foresight_risk(const struct waste_foresight *f, uint32_t layer,
                           enum waste_outlook outlook, uint32_t rank)
{
    uint32_t r = rank < WASTE_FORESIGHT_RANKS ? rank : WASTE_FORESIGHT_RANKS - 1;
    const struct waste_foresight_rate *own = &guess_of(f, layer, outlook)->rate[r];
    const struct waste_foresight_rate *all = &f->rate[outlook][r];
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

static void follow(struct waste_foresight_mean *mean, uint64_t ns)
{
    mean->value += mean->known ? ((float)ns - mean->value) / RECENT : (float)ns;
    mean->known = true;
}

void waste_foresight_window(struct waste_foresight *f, uint32_t layer, uint64_t step, uint64_t ns)
{
    enum waste_outlook newest = f->newest[layer];
    const struct waste_foresight_guess *g = guess_of(f, layer, newest);
    if (g->count > 0 && g->step == step)
        follow(&f->window[(size_t)layer * WASTE_OUTLOOK_COUNT + newest], ns);
}

void waste_foresight_read_took(struct waste_foresight *f, uint64_t ns)
{
    follow(&f->read, ns);
}

uint32_t waste_foresight_width(const struct waste_foresight *f, uint32_t layer,
                               enum waste_outlook outlook)
{
    const struct waste_foresight_mean *window =
        &f->window[(size_t)layer * WASTE_OUTLOOK_COUNT + outlook];
    if (!window->known || !f->read.known || window->value >= f->read.value * WASTE_FORESIGHT_RANKS)
        return UINT32_MAX;
    return (uint32_t)ceilf(fmaxf(window->value / f->read.value - TOO_LITTLE, 0));
}
