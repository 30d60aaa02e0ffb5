#include "fetcher/damage.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/io.h"

void waste_damages_init(struct waste_damages *d, bool show)
{
    memset(d, 0, sizeof(*d));
    pthread_mutex_init(&d->lock, NULL);
    d->show = show;
}

void waste_damages_finish(struct waste_damages *d)
{
    for (uint32_t i = 0; i < d->count; i++)
        free(d->damage[i].what);
    free(d->damage);
    pthread_mutex_destroy(&d->lock);
}

static void show(const struct waste_damage *x)
{
    char where[96] = "";
    int n = 0;
    if (x->layer >= 0)
        n += snprintf(where + n, sizeof(where) - (size_t)n, ", layer %lld", (long long)x->layer);
    if (x->expert >= 0)
        n += snprintf(where + n, sizeof(where) - (size_t)n, ", expert %lld", (long long)x->expert);
    if (x->offset >= 0)
        snprintf(where + n, sizeof(where) - (size_t)n, ", offset %lld", (long long)x->offset);
    waste_fetch_note("%s%s: %s", x->file, where, x->what);
}

void waste_damages_add(struct waste_damages *d, const char *file, int64_t layer, int64_t expert,
                       int64_t offset, const char *format, ...)
{
    char text[640];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    pthread_mutex_lock(&d->lock);
    if (d->count == d->room) {
        d->room = d->room ? 2 * d->room : 64;
        d->damage = realloc(d->damage, d->room * sizeof(d->damage[0]));
        if (!d->damage)
            abort();
    }
    struct waste_damage *x = &d->damage[d->count++];
    *x = (struct waste_damage){file, layer, expert, offset, strdup(text), 0};
    if (!x->what)
        abort();
    if (d->show && !d->hold)
        show(x);
    pthread_mutex_unlock(&d->lock);
}

uint32_t waste_damages_hold(struct waste_damages *d)
{
    d->hold = true;
    return d->count;
}

static int by_severity(const void *a, const void *b)
{
    const struct waste_damage *x = *(const struct waste_damage *const *)a;
    const struct waste_damage *y = *(const struct waste_damage *const *)b;
    if (x->severity != y->severity)
        return x->severity < y->severity ? 1 : -1;
    return x < y ? -1 : x > y;
}

void waste_damages_show_worst(struct waste_damages *d, uint32_t since, uint32_t most)
{
    uint32_t count = d->count - since;
    const struct waste_damage **list = calloc(count + 1, sizeof(*list));
    if (!list)
        abort();
    for (uint32_t i = 0; i < count; i++)
        list[i] = &d->damage[since + i];
    qsort(list, count, sizeof(*list), by_severity);
    for (uint32_t i = 0; d->show && i < count && i < most; i++)
        show(list[i]);
    if (d->show && count > most)
        waste_fetch_note("and %u more like these: --json lists all", count - most);
    free(list);
    d->hold = false;
}

static int by_place(const void *a, const void *b)
{
    const struct waste_damage *x = a, *y = b;
    int c = strcmp(x->file, y->file);
    if (c)
        return c;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return strcmp(x->what, y->what);
}

static json_t *number_or_null(int64_t n)
{
    return n < 0 ? json_null() : json_integer(n);
}

json_t *waste_damages_json(struct waste_damages *d)
{
    json_t *list = json_array();
    if (d->count)
        qsort(d->damage, d->count, sizeof(d->damage[0]), by_place);
    for (uint32_t i = 0; i < d->count; i++) {
        const struct waste_damage *x = &d->damage[i];
        json_array_append_new(
            list, json_pack("{s:s, s:o, s:o, s:o, s:o}", "file", x->file, "layer",
                            number_or_null(x->layer), "expert", number_or_null(x->expert), "offset",
                            number_or_null(x->offset), "what", waste_io_json(x->what)));
    }
    return list;
}
