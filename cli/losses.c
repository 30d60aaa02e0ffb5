#include "cli/losses.h"

#include <stdbool.h>
#include <string.h>

/* Line `number`, if it is one of these; its text ends. */
static bool read_loss(const struct waste_log *log, uint64_t number, struct waste_log_line *line)
{
    if (waste_log_read(log, number, line) != 1 || line->level != WASTE_LOG_LOSS)
        return false;
    line->text[WASTE_LOG_TEXT - 1] = '\0';
    return true;
}

static bool was_said(const struct waste_log *log, uint64_t first, uint64_t number,
                     const struct waste_log_line *line)
{
    struct waste_log_line before;

    for (uint64_t i = first; i < number; i++)
        if (read_loss(log, i, &before) && strcmp(before.text, line->text) == 0)
            return true;
    return false;
}

void waste_losses_each(const struct waste_log *log, int count, uint64_t *next,
                       void (*tell)(void *arg, const char *text), void *arg)
{
    struct waste_log_line line;

    for (int i = 0; i < count; i++) {
        /* acquire: pairs with the writer's release; each line is checked again when read */
        uint64_t end = atomic_load_explicit(&log[i].next, memory_order_acquire);
        uint64_t first = end > WASTE_LOG_LINES ? end - WASTE_LOG_LINES : 0;

        for (uint64_t n = next[i] > first ? next[i] : first; n < end; n++)
            if (read_loss(&log[i], n, &line) && !was_said(&log[i], first, n, &line))
                tell(arg, line.text);
        next[i] = end;
    }
}
