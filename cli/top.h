/* One frame of `waste-run top`: what happened between two looks, as lines that fit a terminal. */
#ifndef WASTE_CLI_TOP_H
#define WASTE_CLI_TOP_H

#include <stdbool.h>

#include "cli/text.h"
#include "cli/view.h"

struct waste_top_size {
    unsigned columns, rows; /* rows 0: as many as there is to say */
};

/* Appends at most size.rows lines of at most size.columns characters, each with its newline.
 * `colour` sets the head off. */
int waste_top_frame(struct waste_text *out, const struct waste_view *before,
                    const struct waste_view *now, struct waste_top_size size, bool colour);

#endif
