/* The tables of search.h; search.c chooses among them. */
#ifndef WASTE_FETCHER_SEARCH_INT_H
#define WASTE_FETCHER_SEARCH_INT_H

#include "fetcher/search.h"

extern const struct waste_search waste_search_c, waste_search_avx2, waste_search_avx512,
    waste_search_neon;

#endif
