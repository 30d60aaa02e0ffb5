#include "cli/top.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/io_view.h"
#include "cli/pattern.h"
#include "options/units.h"

enum {
    LINE_BYTES = 2048,
    LEFT_COLUMNS = 38, /* of the lower part: reads by time; the rest are layers */
    BAR = 16,
    LAYER_COLUMNS = 41, /* one column of layers */
    LEAST_LOWER_ROWS = 3,
    LOWER_ROWS = 16, /* where nothing limits them */
};

struct frame {
    struct waste_text *out;
    struct waste_top_size size;
    unsigned used;
    int error;
};

/* The bytes of text that take `columns` characters, and how many they take. */
static size_t fitting(const char *text, unsigned columns, unsigned *taken)
{
    size_t bytes = strlen(text), at = 0;

    for (*taken = 0; at < bytes && *taken < columns; (*taken)++) {
        uint32_t code_point;
        unsigned length = waste_utf8_decode(text + at, bytes - at, &code_point);
        at += length > 0 ? length : 1;
    }
    return at;
}

static void add(struct frame *f, const char *text, size_t bytes)
{
    if (f->error == 0)
        f->error = waste_text_add(f->out, text, bytes);
}

static bool is_full(const struct frame *f)
{
    return f->size.rows > 0 && f->used == f->size.rows;
}

static void put_line(struct frame *f, const char *text, bool bright)
{
    unsigned taken;
    size_t bytes = fitting(text, f->size.columns, &taken);

    if (is_full(f))
        return;
    f->used++;
    if (bright)
        add(f, "\033[7m", 4);
    add(f, text, bytes);
    for (; f->size.rows > 0 && taken < f->size.columns; taken++)
        add(f, " ", 1);
    if (bright)
        add(f, "\033[0m", 4);
    add(f, "\n", 1);
}

static void line(struct frame *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line(struct frame *f, const char *format, ...)
{
    char text[LINE_BYTES];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    put_line(f, text, false);
}

/* "42.1 %", "-" where there is nothing to say. */
static const char *percent(double share, char buf[24])
{
    if (share < 0)
        snprintf(buf, 24, "-");
    else
        snprintf(buf, 24, share < 0.0995 ? "%.1f %%" : "%.0f %%", 100 * share);
    return buf;
}

static const char *size_text(double bytes, char buf[24])
{
    return waste_units_format_size((uint64_t)bytes, buf, 24);
}

/* "131 us", "1.05 ms", "2.1 s" */
static const char *time_text(double seconds, char buf[24])
{
    if (seconds < 1e-3)
        snprintf(buf, 24, "%.0f us", 1e6 * seconds);
    else if (seconds < 1)
        snprintf(buf, 24,
                 seconds < 1e-2  ? "%.2f ms"
                 : seconds < 0.1 ? "%.1f ms"
                                 : "%.0f ms",
                 1e3 * seconds);
    else
        snprintf(buf, 24, "%.2f s", seconds);
    return buf;
}

/* ---- the processes ---- */

static void put_title(struct frame *f, const struct waste_view *v, const struct waste_rates *r)
{
    char left[LINE_BYTES], right[48];
    unsigned room, taken, path = 0;

    snprintf(right, sizeof(right), "over %.1f s", r->seconds);
    snprintf(left, sizeof(left), "waste-run %d  ", v->own.pid);
    room = f->size.columns > strlen(left) + strlen(right) + 2
               ? f->size.columns - (unsigned)(strlen(left) + strlen(right) + 2)
               : 0;
    fitting(v->model_dir, UINT32_MAX, &path);
    const char *dir = v->model_dir;
    if (path > room) { /* its end tells more */
        dir += fitting(dir, path - room + 3, &taken);
        snprintf(left + strlen(left), sizeof(left) - strlen(left), "...");
        path = room;
    }
    line(f, "%s%s%*s%s", left, dir, (int)(room > path ? room - path : 0) + 2, "", right);
}

static void put_processes(struct frame *f, const struct waste_view *v, const struct waste_rates *r,
                          bool colour)
{
    char head[128], memory[24];

    snprintf(head, sizeof(head), "%-9s %7s %-8s %-28s %5s %5s %8s %3s", "stage", "pid", "state",
             "does", "layer", "cpu%", "memory", "rst");
    put_line(f, head, colour);
    line(f, "%-9s %7d %-8s %-28s %5s %5.1f %8s", "waste-run", v->own.pid, "running", "supervising",
         "", 100 * r->own_cpu_share, size_text((double)v->own.memory.pss, memory));
    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        const struct waste_view_stage *s = &v->stage[i];
        if (s->process.pid == 0)
            line(f, "%-9s %7s %-8s %-28s %5s %5s %8s %3u", waste_stage_name[i], "-",
                 waste_stage_state_name[s->state], "-", "", "", "", s->restarts);
        else
            line(f, "%-9s %7d %-8s %-28s %5u %5.1f %8s %3u", waste_stage_name[i], s->process.pid,
                 waste_stage_state_name[s->state], waste_activity_name[s->activity], s->layer,
                 100 * r->cpu_share[i], size_text((double)s->process.memory.pss, memory),
                 s->restarts);
    }
}

/* ---- rates ---- */

static void put_tokens(struct frame *f, const struct waste_view *v, const struct waste_rates *r)
{
    char step[24], part[5][24];

    line(f, "tokens    %.2f/s, %s each; prompts %.1f/s; generated %" PRIu64, r->tok_per_s,
         r->step_seconds > 0 ? time_text(r->step_seconds, step) : "-", r->prompt_tok_per_s,
         v->counter[WASTE_C_GENERATED]);
    if (v->prefilling)
        line(f, "prompt    %u of %u tokens, %.1f/s, %.0f s left",
             v->prefill.position - v->prefill.begin, v->prefill.end - v->prefill.begin,
             v->prefill.tok_per_s, v->prefill.seconds_left);
    for (int i = 0; i < 5; i++)
        percent(r->phase[i], part[i]);
    line(f, "time      experts %s, trunk %s, attention %s; waits: experts %s, rows %s", part[0],
         part[1], part[2], part[3], part[4]);
}

static double rate(const struct waste_view *before, const struct waste_view *now,
                   enum waste_counter id, double seconds)
{
    return seconds > 0 ? (double)(now->counter[id] - before->counter[id]) / seconds : 0;
}

static void put_experts(struct frame *f, const struct waste_view *before,
                        const struct waste_view *now, const struct waste_rates *r)
{
    const struct waste_control *c = now->of->shm.control;
    uint32_t in_use = atomic_load_explicit(&c->slots_in_use, memory_order_relaxed);
    uint64_t budget = atomic_load_explicit(&c->budget_bytes, memory_order_relaxed);
    char a[24], b[24], d[24];

    line(f, "experts   %s hits; %.1f/s hits, %.1f/s misses; %s/s read", percent(r->hit_share, a),
         rate(before, now, WASTE_C_HITS, r->seconds), rate(before, now, WASTE_C_MISSES, r->seconds),
         size_text(r->bytes_per_s, b));
    line(f, "prefetch  %.1f/s read, %s used, %s wasted; %.1f/s not worth a read",
         rate(before, now, WASTE_C_PREFETCHED, r->seconds), percent(r->used_share, a),
         percent(r->wasted_share, b), rate(before, now, WASTE_C_PREFETCH_WITHHELD, r->seconds));
    line(f, "cache     %u slots of %s; all together %s of %s", in_use,
         size_text((double)c->slot_bytes, a), size_text((double)waste_view_pss(now), b),
         size_text((double)budget, d));
}

static void put_limits(struct frame *f, const struct waste_view *v, const struct waste_rates *r)
{
    char disk[24], memory[24], limit[24];

    if (r->disk_share < 0)
        snprintf(disk, sizeof(disk), "not measured");
    if (r->memory_share < 0)
        line(f, "limits    disk %s; memory not measured",
             r->disk_share < 0 ? disk : percent(r->disk_share, disk));
    else
        line(f, "limits    disk %s; memory %s of %s/s",
             r->disk_share < 0 ? disk : percent(r->disk_share, disk),
             percent(r->memory_share, memory), size_text((double)v->memory_bytes_per_s, limit));
}

static void put_drives(struct frame *f, const struct waste_view *before,
                       const struct waste_view *now, double seconds)
{
    for (uint32_t i = 0; i < now->drives; i++) {
        const struct waste_view_drive *d = &now->drive[i], *was = &before->drive[i];
        uint64_t reads = d->reads - was->reads;
        char per_s[24], each[24], limit[24];
        line(f, "%-9.9s %" PRIu64 " of %u reads in flight, %s/s of %s, %s each", d->info.name,
             d->in_flight, d->info.depth,
             size_text(seconds > 0 ? (double)(d->bytes - was->bytes) / seconds : 0, per_s),
             d->info.bytes_per_s > 0 ? size_text((double)d->info.bytes_per_s, limit) : "?",
             reads > 0 ? time_text((double)(d->ns - was->ns) / 1e9 / (double)reads, each) : "-");
    }
}

/* ---- the lower part: reads by time, and layers ---- */

struct histogram {
    uint64_t count[WASTE_LATENCY_BUCKETS], sum, most;
    unsigned first, rows; /* buckets shown; what lies outside counts in the first and the last */
};

static void fill_histogram(struct histogram *h, const struct waste_view *before,
                           const struct waste_view *now, unsigned rows)
{
    unsigned low = WASTE_LATENCY_BUCKETS, high = 0;

    memset(h, 0, sizeof(*h));
    for (uint32_t i = 0; i < now->drives; i++)
        for (unsigned k = 0; k < WASTE_LATENCY_BUCKETS; k++)
            h->count[k] += now->drive[i].bucket[k] - before->drive[i].bucket[k];
    for (unsigned k = 0; k < WASTE_LATENCY_BUCKETS; k++) {
        h->sum += h->count[k];
        if (h->count[k] == 0)
            continue;
        low = k < low ? k : low;
        high = k;
    }
    if (h->sum == 0)
        return;
    while (high - low + 1 > rows) { /* the emptier end is folded */
        if (h->count[low] <= h->count[high]) {
            h->count[low + 1] += h->count[low];
            low++;
        } else {
            h->count[high - 1] += h->count[high];
            high--;
        }
    }
    h->first = low;
    h->rows = high - low + 1;
    for (unsigned k = low; k <= high; k++)
        h->most = h->count[k] > h->most ? h->count[k] : h->most;
}

static void bar(char out[BAR + 1], double full, double of, char with)
{
    unsigned n = of > 0 ? (unsigned)(full / of * BAR + 0.5) : 0;

    memset(out, with, n < BAR ? n : BAR);
    out[n < BAR ? n : BAR] = '\0';
}

static void histogram_row(const struct histogram *h, unsigned row, char *out, size_t room)
{
    char le[24], share[24], marks[BAR + 1];
    unsigned k = h->first + row;

    out[0] = '\0';
    if (h->sum == 0 && row == 0)
        snprintf(out, room, "  none");
    if (row >= h->rows)
        return;
    bar(marks, (double)h->count[k], (double)h->most, '#');
    bool over = k + 1 == WASTE_LATENCY_BUCKETS;
    time_text((double)((uint64_t)WASTE_LATENCY_FIRST_NS << (over ? k - 1 : k)) / 1e9, le);
    snprintf(out, room, "%2s %7s %6s %s", over ? ">" : "<=", le,
             percent((double)h->count[k] / (double)h->sum, share), marks);
}

static int slower(const void *a, const void *b)
{
    const struct waste_view_layer *const *x = a, *const *y = b;

    return ((*x)->recent_ns < (*y)->recent_ns) - ((*x)->recent_ns > (*y)->recent_ns);
}

/* Layers in their order if all fit, else the slowest. Returns how many. */
static uint32_t choose_layers(const struct waste_view *v, uint32_t places,
                              const struct waste_view_layer **out)
{
    for (uint32_t i = 0; i < v->layers; i++)
        out[i] = &v->layer[i];
    if (v->layers <= places)
        return v->layers;
    qsort(out, v->layers, sizeof(*out), slower);
    return places;
}

static void layer_cell(const struct waste_view *v, const struct waste_view_layer *l, double most,
                       char *out, size_t room)
{
    char whole[24], wait[24], work_marks[BAR + 1], wait_marks[BAR + 1];

    bar(work_marks,
        (double)(l->recent_ns -
                 (l->recent_wait_ns < l->recent_ns ? l->recent_wait_ns : l->recent_ns)),
        most, '#');
    bar(wait_marks, (double)l->recent_wait_ns, most, '.');
    snprintf(out, room, "%4u %7s %7s %s%s", (unsigned)(l - v->layer),
             time_text((double)l->recent_ns / 1e9, whole),
             time_text((double)l->recent_wait_ns / 1e9, wait), work_marks, wait_marks);
}

static void put_lower(struct frame *f, const struct waste_view *before,
                      const struct waste_view *now, bool colour)
{
    unsigned left = f->size.rows > 0 ? f->size.rows - f->used : LOWER_ROWS + 1;
    unsigned columns = f->size.columns > LEFT_COLUMNS + LAYER_COLUMNS
                           ? (f->size.columns - LEFT_COLUMNS) / LAYER_COLUMNS
                           : 1;
    const struct waste_view_layer *layer[WASTE_MAX_LAYERS];
    char text[LINE_BYTES], cell[LINE_BYTES];
    struct histogram h;
    double most = 0;

    if (left < LEAST_LOWER_ROWS)
        return;
    unsigned rows = left - 1;
    fill_histogram(&h, before, now, rows);
    uint32_t shown = choose_layers(now, rows * columns, layer);
    for (uint32_t i = 0; i < shown; i++)
        most = (double)layer[i]->recent_ns > most ? (double)layer[i]->recent_ns : most;
    snprintf(text, sizeof(text), "%-*s%s", LEFT_COLUMNS, "reads by time",
             shown < now->layers ? "the slowest layers, a token; . waiting"
                                 : "layers, a token; . waiting");
    put_line(f, text, colour);
    for (unsigned row = 0; row < rows && (row < h.rows || row < shown || row == 0); row++) {
        histogram_row(&h, row, cell, sizeof(cell));
        int n = snprintf(text, sizeof(text), "%-*.*s", LEFT_COLUMNS, LEFT_COLUMNS, cell);
        for (uint32_t i = row; i < shown && n < (int)sizeof(text) - LAYER_COLUMNS; i += rows) {
            layer_cell(now, layer[i], most, cell, sizeof(cell));
            n += snprintf(text + n, sizeof(text) - (size_t)n, "%-*.*s", LAYER_COLUMNS,
                          LAYER_COLUMNS - 1, cell);
        }
        while (n > 0 && text[n - 1] == ' ')
            text[--n] = '\0';
        put_line(f, text, false);
    }
}

int waste_top_frame(struct waste_text *out, const struct waste_view *before,
                    const struct waste_view *now, struct waste_top_size size, bool colour)
{
    struct frame f = {.out = out, .size = size};
    struct waste_rates r;

    waste_view_rates(before, now, &r);
    put_title(&f, now, &r);
    put_processes(&f, now, &r, colour);
    put_tokens(&f, now, &r);
    put_experts(&f, before, now, &r);
    put_limits(&f, now, &r);
    put_drives(&f, before, now, r.seconds);
    put_lower(&f, before, now, colour);
    return f.error;
}
