/*
 * The expert banks, open for reading: one file a MoE layer, O_DIRECT where the file system grants
 * it.
 */
#ifndef WASTE_READER_BANKS_H
#define WASTE_READER_BANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "reader/container.h"

struct waste_banks {
    uint32_t count;
    int *fd;            /* [count] */
    uint32_t *of_layer; /* [layers] index into fd; dense layers: UINT32_MAX */
};

/* 0 or -errno, `err` names the file. */
int waste_banks_open(struct waste_banks *b, const char *dir, const struct waste_model *model,
                     struct waste_error *err);
void waste_banks_close(struct waste_banks *b);

/* Whether it is read past the page cache; of all banks, those that are. */
bool waste_banks_is_direct(const struct waste_banks *b, uint32_t file);
uint32_t waste_banks_direct(const struct waste_banks *b);

/* O_DIRECT off for one file. */
void waste_banks_drop_direct(struct waste_banks *b, uint32_t file);

#endif
