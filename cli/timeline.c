#include "cli/timeline.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct event {
    uint64_t ns, step;
    uint32_t event, layer, number;
};

struct timeline {
    uint32_t count, first, end; /* of the layer: [first, end) */
    struct event event[WASTE_TIMELINE_EVENTS];
};

static const struct {
    enum waste_stage_id stage;
    const char *name, *text;
} info[WASTE_MOMENT_COUNT] = {
#define X(id, stage, text) {WASTE_STAGE_##stage, #id, text},
    WASTE_MOMENTS(X)
#undef X
};

static int by_time(const void *a, const void *b)
{
    const struct event *x = a, *y = b;

    return x->ns < y->ns ? -1 : x->ns > y->ns;
}

static void collect(const struct waste_control *control, struct timeline *t)
{
    t->count = 0;
    for (uint32_t i = 0; i < WASTE_TIMELINE_EVENTS; i++) {
        const struct waste_timeline_event *e = &control->timeline.ring[i];
        /* acquire: pairs with the release in waste_timeline_note */
        uint64_t ns = atomic_load_explicit(&e->ns, memory_order_acquire);
        if (ns > 0 && e->event < WASTE_MOMENT_COUNT)
            t->event[t->count++] = (struct event){ns, e->step, e->event, e->layer, e->number};
    }
    qsort(t->event, t->count, sizeof(t->event[0]), by_time);
}

static uint32_t find(const struct timeline *t, uint32_t from, enum waste_moment event,
                     uint32_t layer)
{
    while (from < t->count && (t->event[from].event != event || t->event[from].layer != layer))
        from++;
    return from;
}

/* The layer in the middle of the last token that has begun with the first one. */
static bool choose(struct timeline *t)
{
    uint32_t last = t->count, layer;

    while (last-- > 0 && t->event[last].event != WASTE_MOMENT_DEMAND)
        ;
    if (last == UINT32_MAX)
        return false;
    layer = t->event[last].layer / 2;
    for (uint32_t i = last; i-- > 0;) {
        if (t->event[i].event != WASTE_MOMENT_ATTENTION || t->event[i].layer != layer ||
            t->event[i].step != t->event[last].step)
            continue;
        t->first = i;
        t->end = find(t, i, WASTE_MOMENT_DONE, layer) + 1;
        return t->end <= t->count;
    }
    return false;
}

static struct timeline *make(const struct waste_control *control)
{
    struct timeline *t = malloc(sizeof(*t));

    if (t != NULL) {
        collect(control, t);
        if (!choose(t)) {
            free(t);
            return NULL;
        }
    }
    return t;
}

static double since_us(const struct timeline *t, uint32_t i)
{
    return (double)(t->event[i].ns - t->event[t->first].ns) / 1e3;
}

json_t *waste_timeline_json(const struct waste_control *control)
{
    struct timeline *t = make(control);
    json_t *list;

    if (t == NULL)
        return NULL;
    list = json_array();
    for (uint32_t i = t->first; i < t->end; i++) {
        const struct event *e = &t->event[i];
        json_array_append_new(
            list, json_pack("{s:f, s:s, s:I, s:s, s:I}", "us", since_us(t, i), "stage",
                            waste_stage_name[info[e->event].stage], "layer", (json_int_t)e->layer,
                            "event", info[e->event].name, "number", (json_int_t)e->number));
    }
    free(t);
    return list;
}

int waste_timeline_print(const struct waste_control *control)
{
    struct timeline *t = make(control);

    if (t == NULL)
        return -1;
    printf("layer %u of position %" PRIu64 ", microseconds since it began; (n): about layer n\n",
           t->event[t->first].layer, t->event[t->first].step);
    for (uint32_t i = t->first; i < t->end; i++) {
        const struct event *e = &t->event[i];
        const char *number = strstr(info[e->event].text, "%u");
        printf("%9.1f  %-8s ", since_us(t, i), waste_stage_name[info[e->event].stage]);
        if (number == NULL)
            printf("%s", info[e->event].text);
        else
            printf("%.*s%u%s", (int)(number - info[e->event].text), info[e->event].text, e->number,
                   number + 2);
        if (e->layer != t->event[t->first].layer)
            printf(" (%u)", e->layer);
        putchar('\n');
    }
    free(t);
    return 0;
}
