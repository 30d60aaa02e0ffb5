#include "compute/trial.h"

#include <stdlib.h>
#include <string.h>

/* What it takes to be clearly slower or faster, about the error of the medians on a busy machine,
 * after one pair; half of it after two. */
#define MARGIN 0.24

bool waste_trial_on(const struct waste_trial *t)
{
    return t->trying ? t->step / WASTE_TRIAL_BLOCK % 2 == 0 : !t->worse;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median_of(const int64_t *ns, uint32_t count)
{
    int64_t sorted[WASTE_TRIAL_SAMPLES];

    memcpy(sorted, ns, count * sizeof *ns);
    qsort(sorted, count, sizeof *sorted, compare);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static bool is_clearly_slower(int64_t ns, int64_t than, uint32_t pairs)
{
    return (double)ns > (1 + MARGIN / pairs) * (double)than;
}

/* After so many pairs of blocks: true if no more are needed. */
static bool judge(struct waste_trial *t, uint32_t pairs)
{
    for (int i = 0; i < 2; i++)
        t->median[i] = median_of(t->ns[i], pairs * WASTE_TRIAL_BLOCK);
    if (pairs < WASTE_TRIAL_PAIRS && !is_clearly_slower(t->median[0], t->median[1], pairs) &&
        !is_clearly_slower(t->median[1], t->median[0], pairs))
        return false;
    bool slower = t->median[0] > t->median[1];
    t->keep = t->keep == 0 || slower != t->worse ? WASTE_TRIAL_KEEP
              : t->keep < WASTE_TRIAL_KEEP_MOST  ? 2 * t->keep
                                                 : t->keep;
    t->worse = slower;
    return true;
}

static void kept(struct waste_trial *t)
{
    if (t->step < (t->keep > 0 ? t->keep : WASTE_TRIAL_FIRST))
        return;
    t->step = 0;
    t->trying = true;
}

bool waste_trial_step(struct waste_trial *t, int64_t ns)
{
    uint32_t block = t->step / WASTE_TRIAL_BLOCK, at = t->step % WASTE_TRIAL_BLOCK;

    t->step++;
    if (!t->trying) {
        kept(t);
        return false;
    }
    t->ns[block % 2][block / 2 * WASTE_TRIAL_BLOCK + at] = ns;
    if (t->step % (2 * WASTE_TRIAL_BLOCK) != 0 || block / 2 + 1 < WASTE_TRIAL_PAIRS_LEAST ||
        !judge(t, block / 2 + 1))
        return false;
    t->step = 0;
    t->trying = false;
    return true;
}
