/*
 * Everything a container holds against its own rules: sizes, every record's header, crc32, scales
 * and padding, every number of the trunk and the codebooks, every piece of integrity.json. Nothing
 * stops at the first damage.
 */
#ifndef WASTE_FETCHER_INSPECT_H
#define WASTE_FETCHER_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "fetcher/damage.h"
#include "fetcher/index.h"
#include "reader/integrity.h"
#include "shm/model.h"

struct waste_inspection {
    /* the caller's */
    const char *dir;
    const char *layer_range; /* "A-B": whose banks, and pieces of the trunk; NULL: all */
    uint32_t threads;        /* 0: waste_jobs_readers() */
    bool ignore_integrity;   /* as if there were no integrity.json */
    bool list_only;          /* damages go to the list, not to stderr */
    bool quiet;              /* no progress */
    /* what was found */
    struct waste_damages damages;
    struct waste_model *model;         /* NULL: the manifest is not one */
    struct waste_index *index;         /* NULL with it */
    struct waste_integrity *integrity; /* NULL: not sealed */
    json_t *extra;                     /* names of files that are no part of the container */
    uint32_t first_layer, last_layer;  /* of layer_range */
    uint64_t bytes;                    /* looked at */
    uint64_t records;
    double seconds;
};

/* 0: looked at everything, see damages.count. -1: it could not, printed. finish in any case. */
int waste_inspect(struct waste_inspection *i);
void waste_inspection_finish(struct waste_inspection *i);

/* A file of this name is part of the container, or known to lie beside it. */
bool waste_inspection_knows(const struct waste_inspection *i, const char *name);

#endif
