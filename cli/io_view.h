/* How experts are read, for people: of a running pipeline, and of a container nobody runs. */
#ifndef WASTE_CLI_IO_VIEW_H
#define WASTE_CLI_IO_VIEW_H

#include <jansson.h>

#include "cli/options.h"
#include "shm/control.h"

/* [{name, depth, banks, direct_banks, bytes_per_s}] */
json_t *waste_io_view_json(const struct waste_control *control);
void waste_io_view_print(const struct waste_control *control);

/* The rung of the ladder that a pipeline is on, "auto" while it is not known. */
const char *waste_io_view_mode(const struct waste_control *control);

/* The slots in use and what may have made them fewer. */
json_t *waste_io_view_cache_json(const struct waste_control *control);
void waste_io_view_cache_print(const struct waste_control *control);

/* Tries out how this container's banks would be read, by reading. */
json_t *waste_io_view_probe_json(const struct waste_args *args, const struct waste_model *model);
void waste_io_view_probe_print(const struct waste_args *args, const struct waste_model *model);

/* How often the router was right since the start, by rank, the likeliest expert first: a list of
 * shares; a line, if there is anything to say. */
json_t *waste_io_view_router_json(const struct waste_control *c);
void waste_io_view_router_print(const struct waste_control *c);

#endif
