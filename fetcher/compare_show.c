/* What a comparison says: a line a layer, a line a kind, the worst matrices. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "fetcher/compare.h"

enum { WORST = 10 };

/* Of some matrices: their error as one, and the largest of one. */
struct sum {
    uint64_t count;
    double error, norm, worst;
};

static void take(struct sum *s, const struct waste_compared *m)
{
    double e = waste_compared_error(m->error, m->norm);
    if (!m->done)
        return;
    s->count++;
    s->error += m->error;
    s->norm += m->norm;
    s->worst = e > s->worst ? e : s->worst;
}

/* [layers + 1][kinds]; the last row is of no layer. To be freed. */
static struct sum *sums(const struct waste_comparison *c, uint32_t layers)
{
    struct sum *s = calloc(((size_t)layers + 1) * WASTE_COMPARE_KINDS, sizeof(*s));
    if (!s)
        abort();
    for (uint64_t n = 0; n < c->count; n++) {
        const struct waste_compared *m = &c->matrix[n];
        uint32_t layer = m->layer < 0 || (uint32_t)m->layer >= layers ? layers : (uint32_t)m->layer;
        take(&s[(size_t)layer * WASTE_COMPARE_KINDS + m->kind], m);
    }
    return s;
}

static int by_error(const void *a, const void *b)
{
    const struct waste_compared *x = *(const struct waste_compared *const *)a;
    const struct waste_compared *y = *(const struct waste_compared *const *)b;
    double e = waste_compared_error(x->error, x->norm), f = waste_compared_error(y->error, y->norm);
    if (e != f)
        return e < f ? 1 : -1;
    return x < y ? -1 : x > y;
}

/* The matrices from the worst on; *count of them. To be freed. */
static const struct waste_compared **worst(const struct waste_comparison *c, uint64_t *count)
{
    const struct waste_compared **list = calloc(c->count + 1, sizeof(*list));
    *count = 0;
    if (!list)
        abort();
    for (uint64_t n = 0; n < c->count; n++)
        if (c->matrix[n].done)
            list[(*count)++] = &c->matrix[n];
    qsort(list, *count, sizeof(*list), by_error);
    return list;
}

static bool has_kind(const struct sum *all, uint32_t rows, int kind)
{
    for (uint32_t r = 0; r < rows; r++)
        if (all[(size_t)r * WASTE_COMPARE_KINDS + (size_t)kind].count)
            return true;
    return false;
}

static void print_cell(const struct sum *s)
{
    if (s->count)
        printf("  %6.3f %6.3f", 100 * waste_compared_error(s->error, s->norm), 100 * s->worst);
    else
        printf("  %6s %6s", "-", "-");
}

void waste_comparison_print(const struct waste_comparison *c, const struct waste_inspection *i)
{
    uint32_t layers = i->model->config.layers;
    struct sum *all = sums(c, layers), total[WASTE_COMPARE_KINDS] = {{0}};
    uint64_t count, compared = 0;
    const struct waste_compared **bad = worst(c, &count);
    printf("relative error in percent: of all, and of the worst one\nlayer");
    for (int k = 0; k < WASTE_COMPARE_KINDS; k++)
        if (has_kind(all, layers + 1, k))
            printf("  %13s", waste_compare_kind_names[k]);
    putchar('\n');
    for (uint32_t l = 0; l <= layers; l++) {
        uint64_t here = 0;
        for (int k = 0; k < WASTE_COMPARE_KINDS; k++)
            here += all[(size_t)l * WASTE_COMPARE_KINDS + (size_t)k].count;
        compared += here;
        if (!here)
            continue;
        printf(l < layers ? "%5u" : " none", l);
        for (int k = 0; k < WASTE_COMPARE_KINDS; k++)
            if (has_kind(all, layers + 1, k))
                print_cell(&all[(size_t)l * WASTE_COMPARE_KINDS + (size_t)k]);
        putchar('\n');
    }
    for (uint64_t n = 0; n < c->count; n++)
        take(&total[c->matrix[n].kind], &c->matrix[n]);
    printf("  all");
    for (int k = 0; k < WASTE_COMPARE_KINDS; k++)
        if (has_kind(all, layers + 1, k))
            print_cell(&total[k]);
    printf("\nthe worst of %llu:\n", (unsigned long long)compared);
    for (uint64_t n = 0; n < count && n < WORST; n++) {
        char name[320];
        waste_compared_name(i, bad[n], name, sizeof(name));
        printf("  %6.3f  %s\n", 100 * waste_compared_error(bad[n]->error, bad[n]->norm), name);
    }
    free(bad);
    free(all);
}

static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *sum_json(const struct sum *s)
{
    return json_pack("{s:I, s:o, s:o}", "matrices", (json_int_t)s->count, "error",
                     real(waste_compared_error(s->error, s->norm)), "worst", real(s->worst));
}

static json_t *row_json(const struct sum *s)
{
    json_t *row = json_object();
    for (int k = 0; k < WASTE_COMPARE_KINDS; k++)
        if (s[k].count)
            json_object_set_new(row, waste_compare_kind_names[k], sum_json(&s[k]));
    return row;
}

json_t *waste_comparison_json(const struct waste_comparison *c, const struct waste_inspection *i)
{
    uint32_t layers = i->model->config.layers;
    struct sum *all = sums(c, layers), total[WASTE_COMPARE_KINDS] = {{0}};
    json_t *rows = json_object(), *list = json_array();
    uint64_t count;
    const struct waste_compared **bad = worst(c, &count);
    for (uint32_t l = 0; l <= layers; l++) {
        char key[16];
        snprintf(key, sizeof(key), l < layers ? "%u" : "none", l);
        json_t *row = row_json(&all[(size_t)l * WASTE_COMPARE_KINDS]);
        if (json_object_size(row))
            json_object_set(rows, key, row);
        json_decref(row);
    }
    for (uint64_t n = 0; n < c->count; n++)
        take(&total[c->matrix[n].kind], &c->matrix[n]);
    for (uint64_t n = 0; n < count; n++) {
        char name[320];
        waste_compared_name(i, bad[n], name, sizeof(name));
        json_array_append_new(list,
                              json_pack("{s:s, s:o}", "name", name, "error",
                                        real(waste_compared_error(bad[n]->error, bad[n]->norm))));
    }
    free(bad);
    free(all);
    return json_pack("{s:f, s:b, s:o, s:o, s:o}", "seconds", c->seconds, "other_release",
                     (int)c->other_release, "kinds", row_json(total), "layers", rows, "matrices",
                     list);
}
