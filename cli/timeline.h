/* The timeline of one layer, from what the stages noted (shm/timeline.h). */
#ifndef WASTE_CLI_TIMELINE_H
#define WASTE_CLI_TIMELINE_H

#include <jansson.h>

#include "shm/control.h"

/*
 * A layer in the middle of the last token: a line an event, with the time since the layer began;
 * the same as [{"us", "stage", "layer", "event", "number"}]. NULL, -1: it was not noted whole.
 */
json_t *waste_timeline_json(const struct waste_control *control);
int waste_timeline_print(const struct waste_control *control);

#endif
