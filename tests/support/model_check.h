/* Whether everything a model says lies inside what it says it about. */
#ifndef WASTE_TESTS_MODEL_CHECK_H
#define WASTE_TESTS_MODEL_CHECK_H

#include "shm/model.h"

/*
 * NULL, or what is wrong: a table outside the record, a tensor outside trunk.bin or the segment, a
 * payload without 64 readable bytes behind, a record that does not fit its stride, a codebook that
 * is not there. `dir` is the container it was made from.
 */
const char *model_check(const struct waste_model *model, const char *dir);

#endif
