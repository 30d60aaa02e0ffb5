/* What waste-fetch verify finds: a list that threads add to, shown as it grows. */
#ifndef WASTE_FETCHER_DAMAGE_H
#define WASTE_FETCHER_DAMAGE_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* One place that is not as it must be. */
struct waste_damage {
    const char *file;
    int64_t layer, expert, offset; /* -1: none */
    char *what;
    double severity; /* of those that are held back: the worst are shown */
};

struct waste_damages {
    pthread_mutex_t lock;
    struct waste_damage *damage;
    uint32_t count, room;
    bool show; /* print each to stderr when it is found */
    bool hold; /* not yet */
};

void waste_damages_init(struct waste_damages *d, bool show);
void waste_damages_finish(struct waste_damages *d);

/* Any thread. `file` must outlive the list; the rest is copied. */
void waste_damages_add(struct waste_damages *d, const char *file, int64_t layer, int64_t expert,
                       int64_t offset, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* One thread, when no other adds. From now on nothing is shown until waste_damages_show_worst(),
 * which shows `most` of those since, the most severe first, and says how many more there are. */
uint32_t waste_damages_hold(struct waste_damages *d);
void waste_damages_show_worst(struct waste_damages *d, uint32_t since, uint32_t most);

/* By file, then offset; one thread, when no other adds. */
json_t *waste_damages_json(struct waste_damages *d);

#endif
