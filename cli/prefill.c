#include "cli/prefill.h"

#include <stdio.h>
#include <unistd.h>

#include "cli/supervisor_int.h"

#define AFTER_NS (2 * WASTE_SECOND_NS)
#define TERMINAL_NS (WASTE_SECOND_NS / 5)
#define LINE_NS (2 * WASTE_SECOND_NS)

#define LOAD(word) atomic_load_explicit(&(word), memory_order_relaxed) /* for people */

bool waste_prefill_look(const struct waste_shm *shm, struct waste_prefill *out)
{
    const struct waste_stage *c = &shm->control->stage[WASTE_STAGE_COMPUTE];
    uint32_t layers = shm->model->config.layers, layer = LOAD(c->layer);
    uint64_t step = LOAD(c->step), tokens = LOAD(c->tokens), since = LOAD(c->prompt_ns);
    struct waste_prefill p = {.begin = LOAD(c->prompt_begin), .end = LOAD(c->prompt_end)};

    if (since == 0 || LOAD(c->activity) == WASTE_ACT_IDLE || step < p.begin || step >= p.end ||
        tokens > p.end - step)
        return false;
    p.position = (uint32_t)(step + tokens * (layer < layers ? layer : layers) / layers);
    p.seconds = ((double)waste_now_ns() - (double)since) / 1e9;
    if (p.seconds > 0 && p.position > p.begin) {
        p.tok_per_s = (p.position - p.begin) / p.seconds;
        p.seconds_left = (p.end - p.position) / p.tok_per_s;
    }
    *out = p;
    return true;
}

/* False: it is too early to say. */
static bool print(const struct waste_prefill_line *l, const struct waste_prefill *p, uint32_t ahead,
                  double seconds, const char *before, const char *behind)
{
    uint32_t left = p->end - p->position + ahead, done = left < l->total ? l->total - left : 0;
    double rate = done / seconds;

    if (done == 0)
        return false;
    fprintf(stderr, "%sprompt: %u of %u tokens, %.1f tokens/s, %.0f s left%s", before, done,
            l->total, rate, left / rate, behind);
    return true;
}

void waste_prefill_line_show(struct waste_prefill_line *l, const struct waste_shm *shm,
                             uint32_t count, uint32_t ahead)
{
    bool terminal = isatty(STDERR_FILENO);
    int64_t now = waste_now_ns();
    struct waste_prefill p;

    if (l->begun_ns == 0)
        *l = (struct waste_prefill_line){.begun_ns = now, .total = count + ahead};
    if (now - l->begun_ns < AFTER_NS || now - l->shown_ns < (terminal ? TERMINAL_NS : LINE_NS) ||
        !waste_prefill_look(shm, &p))
        return;
    if (!print(l, &p, ahead, (double)(now - l->begun_ns) / 1e9, terminal ? "\r" : "",
               terminal ? "\033[K" : "\n"))
        return;
    l->shown_ns = now;
    l->on_screen = terminal;
}

void waste_prefill_line_end(struct waste_prefill_line *l)
{
    if (l->on_screen)
        fputs("\r\033[K", stderr);
    *l = (struct waste_prefill_line){0};
}
