#include "compute/trial.h"

#include <stdlib.h>

/* What it takes to be clearly slower: about the error of the medians on a busy machine. */
#define MARGIN 1.03

bool waste_trial_on(const struct waste_trial *t)
{
    return t->over ? !t->worse : t->step / WASTE_TRIAL_BLOCK % 2 == 0;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

void waste_trial_medians(const struct waste_trial *t, int64_t ns[2])
{
    ns[0] = t->ns[0][WASTE_TRIAL_SAMPLES / 2];
    ns[1] = t->ns[1][WASTE_TRIAL_SAMPLES / 2];
}

static void judge(struct waste_trial *t)
{
    int64_t ns[2];

    for (int i = 0; i < 2; i++)
        qsort(t->ns[i], WASTE_TRIAL_SAMPLES, sizeof t->ns[i][0], compare);
    waste_trial_medians(t, ns);
    t->worse = (double)ns[0] > MARGIN * (double)ns[1];
}

bool waste_trial_step(struct waste_trial *t, int64_t ns)
{
    uint32_t block = t->step / WASTE_TRIAL_BLOCK, at = t->step % WASTE_TRIAL_BLOCK;

    if (!t->over)
        t->ns[block % 2][block / 2 * WASTE_TRIAL_BLOCK + at] = ns;
    t->step++;
    if (t->over) {
        if (t->step == WASTE_TRIAL_KEEP) {
            t->step = 0;
            t->over = false;
        }
        return false;
    }
    if (t->step < WASTE_TRIAL_STEPS)
        return false;
    judge(t);
    t->step = 0;
    t->over = true;
    return true;
}
