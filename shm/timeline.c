#include "shm/timeline.h"

#include <time.h>

#include "shm/control.h"

void waste_timeline_note(struct waste_control *c, enum waste_moment event, uint64_t step,
                         uint32_t layer, uint32_t number)
{
    struct waste_timeline *t = &c->timeline;
    struct timespec now;

    if (!c->options.timeline)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    /* relaxed: a place of one's own; who looks does so when all is quiet */
    uint64_t place = atomic_fetch_add_explicit(&t->count, 1, memory_order_relaxed);
    struct waste_timeline_event *e = &t->ring[place % WASTE_TIMELINE_EVENTS];
    e->event = event;
    e->step = step;
    e->layer = layer;
    e->number = number;
    /* release: pairs with the acquire of who looks */
    atomic_store_explicit(&e->ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
                          memory_order_release);
}
