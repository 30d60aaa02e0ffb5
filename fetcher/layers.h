/* "--layers A-B" or "--layers A", of a model of `layers`. */
#ifndef WASTE_FETCHER_LAYERS_H
#define WASTE_FETCHER_LAYERS_H

#include <stdint.h>

/* 0, or -1 with the reason printed. text NULL: all layers. */
int waste_layers_parse(const char *text, uint32_t layers, uint32_t *first, uint32_t *last);

#endif
